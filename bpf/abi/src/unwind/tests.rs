//! Tests of `c/unwind.h`, compiled natively, on stacks that are drawn.

use proptest::prelude::*;

use zerocopy::transmute;

use super::*;
use crate::layout::{BX_LOST, SCAN_STACK_WORDS};

mod drawing;
mod scan;

use drawing::*;
/// Machine code that ends with `call *%rax`.
const CALL: u64 = 0xd0ff << 48;

#[test]
fn ends_are_those_that_a_record_can_have() {
    for (number, end) in (1..).zip(UnwindEnd::ALL) {
        assert_eq!(UnwindEnd::try_from(number), Ok(end));
    }
    assert!(UnwindEnd::try_from(0).is_err());
    assert!(UnwindEnd::try_from(11).is_err());
}

#[test]
fn unwinds_by_the_stack_pointer() {
    Drawing::new()
        .rule(0x100, Drawn::register(SP, 24))
        .word(0x7010, 0x245)
        .rule(0x200, Drawn::register(SP, 8))
        .word(0x7018, 0xe01)
        .ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
}

#[test]
fn unwinds_by_the_frame_pointer() {
    Drawing::new()
        .register(FP, 0x7040)
        .rule(0x100, Drawn::register(FP, 16).fp_at(CFA, -16))
        .word(0x7040, 0x7080)
        .word(0x7048, 0x245)
        .rule(0x200, Drawn::register(FP, 16).fp_at(CFA, -16))
        .word(0x7080, 0)
        .word(0x7088, 0xe01)
        .ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
}

/// As a stack copy is unwound whose first frames were unwound in the kernel.
#[test]
fn unwinds_from_a_frame_in_the_middle() {
    let mut drawing = Drawing::new()
        .rule(0x200, Drawn::register(FP, 16))
        .word(0x7040, 0)
        .word(0x7048, 0xe01);
    drawing.start.pc = 0x245;
    drawing.start.exact = false;
    drawing.start.known = 1 << FP | 1 << SP;
    drawing.start.general[usize::from(FP)] = 0x7040;
    drawing.ends(&[0x244, 0xe00], UnwindEnd::Complete);
    drawing.start.known = 1 << SP;
    drawing.ends(&[0x244], UnwindEnd::Unsupported);
}

/// gcc's realigned stack: the CFA is stored below rbp, and so is the caller's rbp.
#[test]
fn a_realigned_stack() {
    Drawing::new()
        .register(FP, 0x7040)
        .rule(0x100, Drawn::deref(FP, -8, 0).fp_at(FP, 0))
        .word(0x7038, 0x7060)
        .word(0x7040, 0x7100)
        .word(0x7058, 0x245)
        .rule(0x200, Drawn::register(FP, 16))
        .word(0x7108, 0xe01)
        .ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
}

#[test]
fn something_is_added_behind_a_deref() {
    Drawing::new()
        .rule(0x100, Drawn::deref(SP, 8, 16))
        .word(0x7008, 0x7020)
        .word(0x7028, 0xe01)
        .ends(&[0x123, 0xe00], UnwindEnd::Complete);
}

/// An entry of the PLT has its push at byte 6, and is past it from byte 11 on.
#[test]
fn unwinds_both_halves_of_the_plt() {
    let plt = Drawn {
        cfa: (5, SP, 8, 11),
        ..Drawn::register(SP, 8)
    };
    let mut drawing = Drawing::new()
        .rule(0x100, plt)
        .word(0x7000, 0xe01)
        .word(0x7008, 0xe81);
    for (pc, frame) in [(0x120, 0xe00), (0x12a, 0xe00), (0x12b, 0xe80)] {
        drawing.start.pc = pc;
        drawing.ends(&[pc, frame], UnwindEnd::Complete);
    }
}

/// A handler on a stack of its own above the one that it interrupted. What it interrupted has
/// its first instruction before it.
#[test]
fn a_signal_onto_a_lower_address() {
    let signal = Drawn {
        cfa: (4, SP, 160, 0),
        fp: (1, SP, 120),
        bx: (SP, 16),
        ra: (1, SP, 168),
    };
    Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0x201)
        .rule(0x200, signal)
        .word(0x7008 + 160, 0x5000)
        .word(0x7008 + 168, 0x300)
        .word(0x7008 + 120, 0x5040)
        .rule(0x300, Drawn::register(FP, 16))
        .word(0x5048, 0xe01)
        .ends(&[0x123, 0x200, 0x300, 0xe00], UnwindEnd::Complete);
}

/// A null pointer was called: nothing is mapped at 0, but its caller is on the stack.
#[test]
fn a_signal_at_address_0_is_no_end() {
    let signal = Drawn {
        ra: (1, SP, 168),
        ..Drawn::deref(SP, 160, 0)
    };
    Drawing::new()
        .rule(0x100, signal)
        .word(0x7000 + 160, 0x5000)
        .word(0x7000 + 168, 0)
        .ends(&[0x123, 0], UnwindEnd::NoMapping);
}

/// `vfork` takes its return address into rdi: the stack pointer is the caller's already.
#[test]
fn a_return_address_in_a_register() {
    let vfork = Drawn {
        ra: (2, 5, 0),
        ..Drawn::register(SP, 0)
    };
    let drawing = Drawing::new()
        .register(5, 0x245)
        .rule(0x100, vfork)
        .rule(0x200, Drawn::register(SP, 8))
        .word(0x7000, 0xe01);
    drawing.ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
    // In a caller the register is not known.
    drawing
        .rule(0x200, vfork)
        .ends(&[0x123, 0x244], UnwindEnd::Unsupported);
}

#[test]
fn rules_that_end_a_stack() {
    for (kind, end) in [
        (0, UnwindEnd::NoRule),
        (1, UnwindEnd::Complete),
        (2, UnwindEnd::Unsupported),
        (6, UnwindEnd::Unsupported),
        (255, UnwindEnd::Unsupported),
    ] {
        Drawing::new()
            .function(0x100, of_kind(kind))
            .ends(&[0x123], end);
    }
}

#[test]
fn a_return_address_of_0_is_the_end() {
    Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0)
        .ends(&[0x123], UnwindEnd::Unverified);
}

#[test]
fn caller_below_its_callee_ends_the_stack() {
    for cfa in [0x6ff8, 0x7000] {
        Drawing::new()
            .register(FP, cfa - 16)
            .rule(0x100, Drawn::register(FP, 16))
            .word(cfa - 8, 0xe01)
            .ends(&[0x123], UnwindEnd::NotAscending);
    }
}

#[test]
fn unreadable_memory_ends_the_stack() {
    let rule = Drawn::register(SP, 8);
    Drawing::new()
        .rule(0x100, rule)
        .ends(&[0x123], UnwindEnd::Unreadable);
    Drawing::new()
        .rule(0x100, Drawn::deref(SP, 8, 0))
        .ends(&[0x123], UnwindEnd::Unreadable);
    // A frame pointer that is not needed may be unreadable.
    let drawing = Drawing::new()
        .rule(0x100, Drawn::register(SP, 16).fp_at(CFA, -16))
        .word(0x7008, 0x245);
    drawing
        .rule(0x200, rule)
        .word(0x7010, 0xe01)
        .ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
}

#[test]
fn a_lost_frame_pointer_that_is_needed() {
    for lost in [
        Drawn::register(SP, 8).fp_lost(),
        Drawn::register(SP, 8).fp_at(CFA, 96),
    ] {
        Drawing::new()
            .register(FP, 0x7040)
            .rule(0x100, lost)
            .word(0x7000, 0x245)
            .rule(0x200, Drawn::register(SP, 8))
            .word(0x7008, 0x345)
            .rule(0x300, Drawn::register(FP, 16))
            .word(0x7048, 0xe01)
            .ends(&[0x123, 0x244, 0x344], UnwindEnd::Unsupported);
    }
}

/// gcc's prologue that realigns uses r10, which functions do not save; r12 is saved by a function
/// that changes it.
#[test]
fn saved_registers_are_followed_and_r10_only_at_the_start() {
    let drawing = |register| {
        Drawing::new()
            .register(register, 0x7020)
            .rule(0x100, Drawn::register(register, 0))
            .word(0x7018, 0x245)
            .rule(0x200, Drawn::register(register, 64))
            .word(0x7058, 0xe01)
    };
    drawing(R10).ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
    drawing(R12).ends(&[0x123, 0x244], UnwindEnd::Unsupported);
    Drawing::new()
        .rule(0x100, Drawn::register(16, 0))
        .ends(&[0x123], UnwindEnd::Unsupported);
}

/// The dynamic linker's resolver of functions aligns its stack and finds it again by rbx, which the
/// functions that it calls save, or leave as it is.
#[test]
fn rbx_is_followed() {
    let drawing = |saved: Drawn| {
        Drawing::new()
            .register(BX, 0x7040)
            .rule(0x100, saved)
            .word(0x7000, 0x7060)
            .word(0x7008, 0x245)
            .rule(0x200, Drawn::register(SP, 16))
            .word(0x7018, 0x345)
            .rule(0x300, Drawn::register(BX, 24).bx_at(CFA, -3))
            .word(0x7050, 0xe01)
            .word(0x7070, 0xe81)
    };
    let at = |top| [0x123, 0x244, 0x344, top];
    let plain = Drawn::register(SP, 16);
    drawing(plain).ends(&at(0xe00), UnwindEnd::Complete);
    drawing(plain.bx_at(CFA, -2)).ends(&at(0xe80), UnwindEnd::Complete);
    drawing(plain.bx_at(SP, 0)).ends(&at(0xe80), UnwindEnd::Complete);
    drawing(plain.bx_at(BX_LOST, 0)).ends(&at(0)[..3], UnwindEnd::Unsupported);
    // It is not read before it is needed, and can't be.
    let hidden = drawing(plain.bx_at(CFA, 100));
    hidden.ends(&at(0)[..3], UnwindEnd::Unreadable);
    hidden
        .rule(0x300, Drawn::register(SP, 8))
        .word(0x7020, 0xe01)
        .ends(&at(0xe00), UnwindEnd::Complete);
    // Code without rules may have changed it.
    drawing(plain)
        .register(FP, 0x7010)
        .word(0x7010, 0)
        .function(0x200, UnwindBy::FramePointer)
        .ends(&at(0)[..3], UnwindEnd::Unsupported);
}

/// A signal has interrupted a function, whose registers are on the stack.
#[test]
fn rbx_is_followed_through_a_signal() {
    let signal = Drawn {
        cfa: (4, SP, 160, 0),
        fp: (1, SP, 120),
        bx: (SP, 16),
        ra: (1, SP, 168),
    };
    Drawing::new()
        .rule(0x100, signal)
        .word(0x7000 + 160, 0x5000)
        .word(0x7000 + 168, 0x200)
        .word(0x7000 + 120, 0)
        .word(0x7000 + 128, 0x5040)
        .rule(0x200, Drawn::register(BX, 16))
        .word(0x5048, 0xe01)
        .ends(&[0x123, 0x200, 0xe00], UnwindEnd::Complete);
}

#[test]
fn stack_ends_at_the_depth_limit() {
    let drawing = Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0xe01);
    for (most, frames, end) in [
        (0, &[][..], UnwindEnd::DepthLimit),
        (1, &[0x123], UnwindEnd::DepthLimit),
        (2, &[0x123, 0xe00], UnwindEnd::Complete),
    ] {
        let unwound = drawing.unwind(most);
        assert_eq!((unwound.frames.as_slice(), unwound.end), (frames, end));
    }
}

/// A function that calls on another stack, which lies above its own.
#[test]
fn another_stack_may_lie_above_by_a_rule() {
    let drawing = Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0x245)
        .rule(0x200, Drawn::register(FP, 16).fp_at(CFA, -16))
        .register(FP, 0x5000)
        .word(0x5000, 0)
        .word(0x5008, 0xe01);
    drawing.ends(&[0x123, 0x244], UnwindEnd::NotAscending);
    drawing
        .clone()
        .word(0xdf9, CALL)
        .ends(&[0x123, 0x244, 0xe00], UnwindEnd::Complete);
    // No rule by the stack pointer leads there, and not to where no word is.
    drawing
        .clone()
        .word(0xdf9, CALL)
        .rule(0x200, Drawn::register(SP, -0x2000))
        .word(0x5000, 0xe01)
        .ends(&[0x123, 0x244], UnwindEnd::NotAscending);
    drawing
        .word(0xdf9, CALL)
        .register(FP, 0x5001)
        .word(0x5009, 0xe01)
        .ends(&[0x123, 0x244], UnwindEnd::NotAscending);
}

/// Two stacks that lead to each other.
#[test]
fn rules_between_stacks_do_not_go_round_for_ever() {
    let circle = Drawing::new()
        .rule(0x100, Drawn::register(FP, 16).fp_at(CFA, -16))
        .register(FP, 0x5000)
        .word(0x5000, 0x7800)
        .word(0x5008, 0x145)
        .word(0x7800, 0x5000)
        .word(0x7808, 0x145)
        .word(0x13d, CALL);
    let unwound = circle.unwound();
    assert_eq!(unwound.end, UnwindEnd::NotAscending);
    assert!(unwound.frames.len() <= 34, "{}", unwound.frames.len());
}

#[test]
fn frame_pointers_are_followed() {
    let drawing = Drawing::new()
        .function(0x100, UnwindBy::FramePointer)
        .register(FP, 0x7040)
        .word(0x7040, 0x7080)
        .word(0x7048, 0x145)
        .word(0x7080, 0)
        .word(0x7088, 0x167);
    let unwound = drawing.unwound();
    assert_eq!(unwound.frames, [0x123, 0x144, 0x166]);
    assert_eq!(
        (unwound.end, unwound.via_frame_pointer),
        (UnwindEnd::Unverified, true)
    );
    // The first function, by return addresses that are after a call, or not all are.
    let first = drawing.clone().word(0x7088, 0xe01).word(0x13d, CALL);
    first.ends(&[0x123, 0x144, 0xe00], UnwindEnd::Unverified);
    first
        .word(0xdf9, CALL)
        .ends(&[0x123, 0x144, 0xe00], UnwindEnd::Complete);
    // One that points to itself does not come again.
    drawing
        .word(0x7080, 0x7080)
        .ends(&[0x123, 0x144, 0x166], UnwindEnd::NotAscending);
}

/// CPython's trampolines: `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`.
#[test]
fn a_trampoline_without_a_frame_pointer() {
    let text = [
        0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3, 0, 0, 0, 0, 0,
    ];
    let word = |at: usize| u64::from_le_bytes(text[at..at + 8].try_into().unwrap());
    // Its caller needs the frame pointer, which it left as it was.
    let drawing = Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0x206)
        .function(0x200, UnwindBy::FramePointer)
        .word(0x204, word(4))
        .word(0x7010, 0x345)
        .rule(0x300, Drawn::register(FP, 16))
        .register(FP, 0x7040)
        .word(0x7048, 0xe01);
    drawing.ends(&[0x123, 0x205, 0x344, 0xe00], UnwindEnd::Complete);
    // Interrupted itself, at each of its instructions.
    for (at, height) in [(4, 8), (6, 8), (10, 0)] {
        let mut drawing = Drawing::new()
            .function(0x200, UnwindBy::FramePointer)
            .word(0x200 + at as u64 - 2, word(at - 2))
            .word(0x7000 + height, 0xe01);
        drawing.start.pc = 0x200 + at as u64;
        drawing.ends(&[0x200 + at as u64, 0xe00], UnwindEnd::Complete);
    }
    let mut drawing = Drawing::new()
        .function(0x200, UnwindBy::FramePointer)
        .word(0x1fe, word(0) << 16)
        .word(0x7000, 0xe01);
    drawing.start.pc = 0x200;
    drawing.ends(&[0x200, 0xe00], UnwindEnd::Complete);
}

/// Go's `runtime.mcall`: `call *%r12; pop %rax; jmp`, since 1.22 with a `nop` after the call.
#[test]
fn go_switches_stacks() {
    for word in [0xe958_d4ff_u64, 0xe9_5890_d4ff] {
        Drawing::new()
            .rule(0x100, Drawn::register(SP, 8))
            .word(0x7000, 0x206)
            .function(0x200, UnwindBy::FramePointer)
            .word(0x204, word)
            .register(FP, 0x5000)
            .ends(&[0x123, 0x205], UnwindEnd::Complete);
    }
    // `runtime.systemstack` has a caller, on the goroutine's.
    let switched = Drawing::new()
        .rule(0x100, Drawn::register(SP, 8))
        .word(0x7000, 0x206)
        .function(0x200, UnwindBy::FramePointer)
        .register(FP, 0x5000)
        .word(0x5000, 0)
        .word(0x5008, 0xe01)
        .word(0xdf9, CALL);
    switched.ends(&[0x123, 0x205], UnwindEnd::NotAscending);
    switched
        .word(0x204, 0xf825_048b_4864_d7ff)
        .ends(&[0x123, 0x205, 0xe00], UnwindEnd::Complete);
}

/// Before the frame pointer is set and after it is restored, it is the caller's.
#[test]
fn prologue_has_the_frame_pointer_of_its_caller() {
    let push = 0xe589_4855_u64;
    for (word, height) in [(push << 16, 0), (push << 8, 8), (0xc3 << 16, 0)] {
        Drawing::new()
            .function(0x100, UnwindBy::FramePointer)
            .word(0x121, word)
            .register(FP, 0x7040)
            .word(0x7000, 0x7040)
            .word(0x7000 + height, 0x145)
            .word(0x7040, 0)
            .word(0x7048, 0xe01)
            .word(0xdf9, CALL)
            .ends(&[0x123, 0x144, 0xe00], UnwindEnd::Complete);
    }
}

#[test]
fn code_without_rules_needs_a_frame_pointer() {
    let code = || Drawing::new().function(0x100, UnwindBy::FramePointer);
    for fp in [0x6ff8, 0x7001] {
        code()
            .register(FP, fp)
            .ends(&[0x123], UnwindEnd::NotAscending);
    }
    code()
        .register(FP, 0x7040)
        .ends(&[0x123], UnwindEnd::Unreadable);
    // Lost, it was perhaps 0 once.
    Drawing::new()
        .rule(0x100, Drawn::register(SP, 8).fp_lost())
        .word(0x7000, 0x245)
        .function(0x200, UnwindBy::FramePointer)
        .ends(&[0x123, 0x244], UnwindEnd::NoTable);
    let sure = Drawing::new().function(0x100, of_kind(1)).unwound();
    assert!(!sure.via_frame_pointer);
}

fn unwind_by() -> impl Strategy<Value = UnwindBy> {
    // Most bytes of a rule have few meanings.
    let rule = (any::<[u8; 16]>(), 0..7_u8, 0..17_u8, 0..4_u8, 0..4_u8).prop_map(
        |(mut bytes, cfa, register, fp, ra)| {
            bytes[2..4].fill(0);
            (bytes[10], bytes[11], bytes[12], bytes[14]) = (cfa, register, fp, ra);
            UnwindBy::Rule(transmute!(bytes))
        },
    );
    prop_oneof![
        8 => rule,
        2 => any::<[u8; 16]>().prop_map(|bytes| UnwindBy::Rule(transmute!(bytes))),
        1 => Just(UnwindBy::FramePointer),
        1 => (0..8_usize).prop_map(|end| UnwindBy::Nothing(UnwindEnd::ALL[end])),
    ]
}

proptest! {
    /// Whatever rules, registers and memory hold, it ends; and at the depth limit only when it says
    /// so.
    #[test]
    fn any_rules_and_memory_end(
        rules in proptest::collection::vec(unwind_by(), 1..8),
        words in proptest::collection::vec(proptest::option::weighted(0.9, any::<u64>()), 1..8),
        pc in any::<u64>(),
        general in any::<[u64; 16]>(),
        most in 0..300_usize,
    ) {
        let start = Registers::innermost(pc, general);
        let pick = |at: u64| (at ^ at >> 32) as usize;
        let mut reads = 0;
        let unwound = unwind(
            &start,
            most,
            |at| rules[pick(at) % rules.len()],
            |at| {
                reads += 1;
                words[pick(at) % words.len()]
            },
        );
        prop_assert!(unwound.frames.len() <= most);
        // A scan reads the word, the code before it, the target's code, and what its rule needs.
        prop_assert!(reads <= 4 * most + 11 * SCAN_STACK_WORDS as usize);
        if most > 0 {
            prop_assert_eq!(unwound.frames[0], pc);
        }
        if unwound.end == UnwindEnd::DepthLimit && !rules.contains(&UnwindBy::Nothing(UnwindEnd::DepthLimit)) {
            prop_assert_eq!(unwound.frames.len(), most);
        }
    }
}
