//! Tests of `c/unwind_scan.h`: ways out of code that has no rules.

use super::*;

/// Code without rules, at whose first line is the pc.
const BARE: u64 = 0x10100;
/// A function with rules that called it, and one that calls others with rules.
const CALLER: u64 = 0x10200;
const OTHER: u64 = 0x10300;
/// A first function.
const FIRST: u64 = 0x10e00;

/// The eight bytes before an address, which end with these.
fn text(code: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[8 - code.len()..].copy_from_slice(code);
    u64::from_le_bytes(bytes)
}

impl Drawing {
    /// The pc is in code without rules. Its caller has 16 bytes and was called by a first function.
    fn bare() -> Drawing {
        let mut drawing = Drawing::new()
            .function(BARE, UnwindBy::FramePointer)
            .rule(CALLER, Drawn::register(SP, 16))
            .rule(OTHER, Drawn::register(SP, 16))
            .function(FIRST, of_kind(1))
            .code(FIRST + 0x45, &[0xff, 0xd0])
            .register(FP, 0x1234);
        drawing.start.pc = BARE;
        drawing
    }

    /// Machine code before an address.
    fn code(self, before: u64, code: &[u8]) -> Drawing {
        self.word(before - 8, text(code))
    }

    /// A direct call before an address.
    fn call(self, before: u64, target: u64) -> Drawing {
        let distance = target.wrapping_sub(before) as u32;
        let mut code = vec![0xe8];
        code.extend(distance.to_le_bytes());
        self.code(before, &code)
    }

    /// Words that are no addresses, with these in between.
    fn stack(mut self, words: u64, returns: &[(u64, u64)]) -> Drawing {
        for place in 0..words {
            self = self.word(0x7000 + 8 * place, place);
        }
        for (place, address) in returns {
            self = self.word(*place, *address);
        }
        self
    }

    #[track_caller]
    fn scanned(&self, frames: &[u64]) {
        self.scanned_to(frames, UnwindEnd::Complete);
    }

    /// A scan may have passed over callers.
    #[track_caller]
    fn unconfirmed(&self, frames: &[u64]) {
        self.scanned_to(frames, UnwindEnd::Unverified);
    }

    #[track_caller]
    fn scanned_to(&self, frames: &[u64], end: UnwindEnd) {
        self.ends(frames, end);
        let unwound = self.unwound();
        assert!(unwound.via_scan && !unwound.via_frame_pointer);
    }
}

/// A word before the caller's may be the return address of a function without rules.
#[test]
fn a_scan_that_passes_over_callers_is_unconfirmed() {
    let drawing = Drawing::bare().stack(64, &[(0x7050, CALLER + 0x45), (0x7060, FIRST + 0x45)]);
    let drawing = drawing.code(CALLER + 0x45, &[0xff, 0xd0]);
    let frames = [BARE, CALLER + 0x44, FIRST + 0x44];
    drawing.scanned(&frames);
    let passed = drawing.word(0x7028, BARE + 0x45);
    // No call is before it.
    passed.clone().code(BARE + 0x45, &[0; 8]).scanned(&frames);
    passed.call(BARE + 0x45, BARE).unconfirmed(&frames);
}

#[test]
fn a_return_address_is_found_above_other_words() {
    let drawing = Drawing::bare().stack(64, &[(0x7050, CALLER + 0x45), (0x7060, FIRST + 0x45)]);
    let frames = [BARE, CALLER + 0x44, FIRST + 0x44];
    // No call is before CALLER's, and the next is taken.
    drawing.scanned(&[BARE, FIRST + 0x44]);
    let drawing = drawing.call(CALLER + 0x45, BARE);
    drawing.scanned(&frames);
    // What is not known of a call counts for it.
    drawing
        .code(CALLER + 0x45, &[0x41, 0xff, 0xd4])
        .scanned(&frames);
}

/// OTHER was called, called CALLER, and both have returned; then its caller called BARE, whose
/// frame has the old return addresses in it. They lead on as well as the true one.
#[test]
fn a_return_address_of_an_earlier_call_is_passed_over() {
    let stale = [(0x7010, CALLER + 0x45), (0x7020, OTHER + 0x45)];
    let live = [(0x7030, FIRST + 0x45)];
    let drawing = Drawing::bare()
        .stack(64, &[stale, [live[0], live[0]]].concat())
        .call(CALLER + 0x45, OTHER)
        .call(OTHER + 0x45, CALLER);
    drawing.scanned(&[BARE, FIRST + 0x44]);
    let drawing = drawing.call(FIRST + 0x45, BARE);
    drawing.scanned(&[BARE, FIRST + 0x44]);
    // Where there is no better one, a function that jumped to BARE was called.
    drawing
        .call(FIRST + 0x45, CALLER)
        .scanned(&[BARE, CALLER + 0x44, OTHER + 0x44, FIRST + 0x44]);
}

#[test]
fn calls_by_the_plt_lead_to_the_function_behind_it() {
    // endbr64; bnd jmp *0x100(%rip), and the same without both.
    for (code, jump, next) in [(0xfa1e_0ff3, 0x405, 0x40b), (0x0100_25ff, 0x400, 0x406)] {
        let prefix = if jump == 0x405 { 0xf2_u64 << 32 } else { 0 };
        let plt = 0x10000;
        let drawing = |function| {
            Drawing::bare()
                .rule(plt + 0x400, Drawn::register(SP, 8))
                .word(plt + 0x400, code | prefix)
                .word(plt + jump, 0x0100_25ff)
                .word(plt + next + 0x100, function)
                .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, FIRST + 0x45)])
                .call(CALLER + 0x45, plt + 0x400)
        };
        drawing(BARE).scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
        drawing(OTHER).scanned(&[BARE, FIRST + 0x44]);
    }
}

#[test]
fn other_words_are_no_return_addresses() {
    let bare = |address, next| {
        Drawing::bare()
            .stack(64, &[(0x7010, address), (0x7020, next)])
            .call(CALLER + 0x45, BARE)
    };
    bare(CALLER + 0x45, FIRST + 0x45).scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
    for drawing in [
        // A pointer to something else in it.
        bare(CALLER + 0x40, FIRST + 0x40).code(CALLER + 0x40, &[0x90; 8]),
        // It leads to no return address, to the end, or to nowhere.
        bare(CALLER + 0x45, FIRST + 0x40).code(FIRST + 0x40, &[0x90; 8]),
        bare(CALLER + 0x45, 0),
        bare(CALLER + 0x45, 0x20045).call(0x20045, BARE),
        // No code is called.
        bare(CALLER + 0x45, FIRST).call(CALLER + 0x45, 0x20000),
        // It is in code without rules.
        bare(BARE + 0x45, FIRST + 0x40).call(BARE + 0x45, BARE),
    ] {
        drawing.ends(&[BARE], UnwindEnd::NotAscending);
        assert!(!drawing.unwound().via_scan);
    }
}

/// The code may have left the frame pointer as it was, or not.
#[test]
fn a_frame_pointer_counts_if_it_leads_to_a_return_address() {
    let drawing = |fp| {
        Drawing::bare()
            .register(FP, fp)
            .rule(CALLER, Drawn::register(FP, 16).fp_at(CFA, -16))
            .stack(64, &[(0x7010, CALLER + 0x45), (0x7068, FIRST + 0x45)])
            .call(CALLER + 0x45, BARE)
    };
    // It leads to FIRST by itself, which would pass over CALLER; a scan is not made.
    let unwound = drawing(0x7060).unwound();
    assert_eq!(unwound.frames, [BARE, FIRST + 0x44]);
    assert!(unwound.via_frame_pointer && !unwound.via_scan);
    // CALLER can't be left without it, and is passed over.
    drawing(0x7050).scanned(&[BARE, FIRST + 0x44]);
    // A caller that does not need it keeps it for one that does.
    let kept = |fp| {
        drawing(fp)
            .rule(CALLER, Drawn::register(SP, 16))
            .rule(OTHER, Drawn::register(FP, 24))
            .word(0x7020, OTHER + 0x45)
            .call(OTHER + 0x45, CALLER)
    };
    kept(0x7058).scanned(&[BARE, CALLER + 0x44, OTHER + 0x44, FIRST + 0x44]);
    // Where it leads nowhere, the scan continues to one that needs none.
    kept(0x7030).scanned(&[BARE, FIRST + 0x44]);
}

/// The code has saved the frame pointer before it used the register for something else.
#[test]
fn a_saved_frame_pointer_counts_if_it_leads_to_a_return_address() {
    let drawing = |saved| {
        Drawing::bare()
            .rule(CALLER, Drawn::register(FP, 16).fp_at(CFA, -16))
            .stack(
                64,
                &[(0x7000, 0x7020), (0x7008, saved), (0x7010, CALLER + 0x45)],
            )
            .word(0x7048, FIRST + 0x45)
            .call(CALLER + 0x45, BARE)
    };
    drawing(0x7040).scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
    // Not this one, and CALLER is passed over.
    drawing(0x7038).scanned(&[BARE, FIRST + 0x44]);
    // A function between does not need it.
    let between = |saved| {
        drawing(saved)
            .rule(OTHER, Drawn::register(SP, 16))
            .word(0x7010, OTHER + 0x45)
            .call(OTHER + 0x45, BARE)
            .word(0x7020, CALLER + 0x45)
    };
    between(0x7040).scanned(&[BARE, OTHER + 0x44, CALLER + 0x44, FIRST + 0x44]);
    between(0x7038).scanned(&[BARE, FIRST + 0x44]);
}

/// Old return addresses lead on for some calls, and then nowhere: they do not belong to the stack.
#[test]
fn a_caller_that_leads_nowhere_later_is_passed_over() {
    let drawing = || {
        Drawing::bare()
            .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, OTHER + 0x45)])
            .code(CALLER + 0x45, &[0xff, 0xd0])
            .code(OTHER + 0x45, &[0xff, 0xd0])
    };
    drawing()
        .word(0x7080, FIRST + 0x45)
        .scanned(&[BARE, FIRST + 0x44]);
    drawing().ends(&[BARE], UnwindEnd::NoMapping);
}

/// What the frame pointer leads to has to lead on.
#[test]
fn a_register_that_points_to_an_old_return_address() {
    let drawing = |next| {
        Drawing::bare()
            .register(FP, 0x7018)
            .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, CALLER + 0x45)])
            .word(0x7020, OTHER + 0x45)
            .word(0x7030, next)
            .rule(CALLER, Drawn::register(SP, 48))
            .word(0x7040, FIRST + 0x45)
            .call(OTHER + 0x45, BARE)
            .call(CALLER + 0x45, BARE)
    };
    let frame_pointer = drawing(FIRST + 0x45).unwound();
    assert_eq!(frame_pointer.frames, [BARE, OTHER + 0x44, FIRST + 0x44]);
    drawing(7).scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
}

#[test]
fn a_scan_is_bounded() {
    let at = |words: u64| {
        let place = 0x7000 + 8 * words;
        Drawing::bare()
            .stack(2000, &[(place, CALLER + 0x45), (place + 16, FIRST + 0x45)])
            .call(CALLER + 0x45, BARE)
    };
    at(1023).scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
    at(1024).ends(&[BARE], UnwindEnd::NotAscending);
}

/// Zero in the register that other code has for a frame pointer.
#[test]
fn zero_ends_a_stack_only_where_it_can() {
    let drawing = |words| Drawing::bare().register(FP, 0).stack(words, &[]);
    drawing(64).ends(&[BARE], UnwindEnd::Unverified);
    drawing(2000).ends(&[BARE], UnwindEnd::NoTable);
    Drawing::bare()
        .register(FP, 0)
        .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, FIRST + 0x45)])
        .call(CALLER + 0x45, BARE)
        .scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
}

#[test]
fn calls_by_registers_and_memory() {
    for code in [
        &[0xff, 0xd0][..],
        &[0x41, 0xff, 0xd3],
        &[0xff, 0x10],
        &[0xff, 0x14, 0x24],
        &[0xff, 0x50, 8],
        &[0xff, 0x54, 0x24, 8],
        &[0xff, 0x90, 0, 1, 0, 0],
        &[0xff, 0x94, 0x24, 0, 1, 0, 0],
        &[0xff, 0x14, 0xc5, 0, 1, 0, 0],
    ] {
        let drawing = Drawing::bare()
            .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, FIRST + 0x45)])
            .code(CALLER + 0x45, code);
        drawing.scanned(&[BARE, CALLER + 0x44, FIRST + 0x44]);
    }
    // jmp and push are other numbers of the same opcode.
    for code in [
        &[0xff, 0xe0][..],
        &[0xff, 0x24, 0x24],
        &[0xff, 0x35, 0, 1, 0, 0],
    ] {
        Drawing::bare()
            .stack(64, &[(0x7010, CALLER + 0x45), (0x7020, FIRST + 0x45)])
            .code(CALLER + 0x45, code)
            .scanned(&[BARE, FIRST + 0x44]);
    }
}

/// Made code that calls on a stack of its own, from 0x7000 on, has a register that leads to the
/// thread's, from 0x5000 to 0x6000. It was called by OTHER there, and that by CALLER, which the
/// thread's first function has called.
fn on_another_stack() -> Drawing {
    let mut drawing = Drawing::bare()
        .stack(64, &[])
        .register(BX, 0x5020)
        .call(CALLER + 0x45, OTHER)
        .call(OTHER + 0x45, BARE);
    for place in (0x5000..0x6000).step_by(8) {
        drawing = drawing.word(place, place);
    }
    drawing.start.own_stack = 0x5000..0x6000;
    drawing
        .word(0x5100, OTHER + 0x45)
        .word(0x5110, CALLER + 0x45)
        .word(0x5120, FIRST + 0x45)
}

/// Callers on it are return addresses into code of that kind. Whatever is on the thread's stack
/// where it was left, from old calls too, is skipped.
#[test]
fn another_stack_continues_with_the_outer_function_of_threads() {
    let drawing = on_another_stack()
        .word(0x7010, BARE + 0x45)
        .word(0x7028, BARE + 0x65)
        .call(BARE + 0x45, BARE)
        .code(BARE + 0x65, &[0xff, 0x14, 0xe0]);
    let frames = [BARE, BARE + 0x44, BARE + 0x64, CALLER + 0x44, FIRST + 0x44];
    drawing.unconfirmed(&frames);
    // It ends with an address that does not follow a call; other addresses lie after it.
    drawing
        .clone()
        .word(0x7020, BARE + 0x80)
        .code(BARE + 0x80, &[0; 8])
        .unconfirmed(&[BARE, BARE + 0x44, CALLER + 0x44, FIRST + 0x44]);
    // A chain of frame pointers ends at its end.
    let chain = drawing
        .register(FP, 0x7008)
        .word(0x7008, 0x7020)
        .word(0x7020, 0);
    chain.ends(&frames, UnwindEnd::Unverified);
    assert!(chain.unwound().via_frame_pointer && chain.unwound().via_scan);
}

#[test]
fn another_stack_that_nothing_leads_back_from() {
    let drawing = on_another_stack()
        .word(0x7010, BARE + 0x45)
        .call(BARE + 0x45, BARE);
    drawing.unconfirmed(&[BARE, BARE + 0x44, CALLER + 0x44, FIRST + 0x44]);
    for register in [0, 0x4ff8, 0x6000] {
        drawing_ends(drawing.clone().register(BX, register));
    }
    // Calls may change r10.
    drawing_ends(drawing.clone().register(BX, 0).register(R10, 0x5020));
    drawing
        .clone()
        .register(BX, 0)
        .register(R12, 0x5020)
        .unconfirmed(&[BARE, BARE + 0x44, CALLER + 0x44, FIRST + 0x44]);
    // The outermost function is below where the register leads.
    drawing_ends(drawing.clone().register(BX, 0x5118));
    // The thread's own stack is not known.
    let mut unknown = drawing;
    unknown.start.own_stack = 0..0;
    drawing_ends(unknown);
}

/// Made code that does not use the frame pointer leaves it to a function of the thread's own stack,
/// which may be below or above the other one.
#[test]
fn a_frame_pointer_that_leads_back_from_another_stack() {
    for sp in [0x4000, 0x7000] {
        let drawing = on_another_stack()
            .register(SP, sp)
            .register(FP, 0x50f8)
            .word(0x50f8, 0x5200)
            .word(sp, 3)
            .word(sp + 8, BARE + 0x45)
            .word(sp + 16, BARE + 0x65)
            .call(BARE + 0x45, BARE)
            .code(BARE + 0x65, &[0xff, 0xd0]);
        let made = [BARE, BARE + 0x44, BARE + 0x64];
        let own = [OTHER + 0x44, CALLER + 0x44, FIRST + 0x44];
        drawing.ends(&[made, own].concat(), UnwindEnd::Complete);
        // It leads nowhere.
        let elsewhere = drawing.register(FP, 0x5300);
        elsewhere.ends(&[&made[..], &own[1..]].concat(), UnwindEnd::Unverified);
    }
}

#[track_caller]
fn drawing_ends(drawing: Drawing) {
    let unwound = drawing.unwound();
    assert_ne!(unwound.end, UnwindEnd::Complete);
    assert!(!unwound.frames.contains(&(FIRST + 0x44)));
}

/// Made code that was called on another stack calls a function on the thread's own. What is nearest
/// counts there, if it is near enough.
#[test]
fn a_function_that_was_called_from_another_stack() {
    let drawing = |sp: u64| {
        let mut drawing = on_another_stack()
            .register(SP, sp)
            .word(sp + 8, BARE + 0x45)
            .call(BARE + 0x45, CALLER);
        for place in (sp + 16..0x5000).step_by(8) {
            drawing = drawing.word(place, 0);
        }
        drawing.start.pc = CALLER;
        drawing.start.own_stack = 0x2000..0x6000;
        drawing
    };
    let [called, made] = [CALLER, BARE + 0x44];
    let near = [called, made, OTHER + 0x44, CALLER + 0x44, FIRST + 0x44];
    drawing(0x5010).scanned(&near);
    drawing(0x30f8).scanned(&near);
    drawing(0x30f0).unconfirmed(&[called, made, CALLER + 0x44, FIRST + 0x44]);
    // Nothing is known of the stack, and 0 is no end of it.
    let mut unknown = drawing(0x30f0).register(FP, 0);
    unknown.start.own_stack = 0..0;
    unknown.ends(&[called, made], UnwindEnd::NoTable);
}

/// The first function of a program has no rule in the dynamic linker. The kernel has put zero into
/// its frame pointer, which ends a stack of JIT code less surely.
#[test]
fn the_first_function_of_a_program_without_a_rule() {
    let drawing = |found| {
        let mut drawing = Drawing::new()
            .function(BARE, found)
            .rule(CALLER, Drawn::register(SP, 16))
            .word(0x7008, BARE + 8)
            .code(BARE + 8, &[0xe8, 0, 0, 0, 0])
            .register(FP, 0);
        for place in 2..2000 {
            drawing = drawing.word(0x7000 + 8 * place, place);
        }
        drawing.start.pc = CALLER;
        drawing
    };
    drawing(UnwindBy::Hole).ends(&[CALLER, BARE + 7], UnwindEnd::Unverified);
    drawing(UnwindBy::FramePointer).ends(&[CALLER, BARE + 7], UnwindEnd::NoTable);
}

/// It still has its caller's frame pointer, on the other stack.
#[test]
fn a_frame_pointer_that_leads_to_another_stack() {
    let mut drawing = on_another_stack()
        .register(SP, 0x5010)
        .register(FP, 0x4020)
        .word(0x5018, BARE + 0x45)
        .call(BARE + 0x45, CALLER)
        .code(BARE + 0x65, &[0xff, 0xd0])
        .code(BARE + 0x80, &[0; 8]);
    for (place, word) in [(0x4020, 0x4030), (0x4028, BARE + 0x65), (0x4030, 0)] {
        drawing = drawing.word(place, word);
    }
    drawing = drawing.word(0x4038, BARE + 0x45).word(0x4040, BARE + 0x80);
    drawing.start.pc = CALLER;
    let frames = [
        CALLER,
        BARE + 0x44,
        BARE + 0x64,
        BARE + 0x44,
        CALLER + 0x44,
        FIRST + 0x44,
    ];
    drawing.ends(&frames, UnwindEnd::Unverified);
    // It leads to no return address.
    let near = [
        CALLER,
        BARE + 0x44,
        OTHER + 0x44,
        CALLER + 0x44,
        FIRST + 0x44,
    ];
    drawing.word(0x4028, BARE + 0x80).scanned(&near);
}
