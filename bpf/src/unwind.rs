//! The unwinder of `c/unwind.h`, in user space: for stacks whose memory was copied, and for its own
//! tests.
//!
//! The kernel's programs and this module compile the same C, so that a stack has the same frames
//! whoever walks it. What differs is brought by the caller of [`walk`]: how rules are found, and
//! how the stack is read.
//!
//! It refuses to know where rules come from (`user-collector` makes them of ELF files) and to
//! repair a stack: it ends where the C says so, with the reason.

use std::ffi::{c_int, c_void};
use std::fmt;

use serde::Serialize;

/// Why a stack ends where it does: `enum unwind_end` of `c/unwind.h` without `UNWIND_ON`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum End {
    /// At the thread's first function.
    Complete = 1,
    /// There was no room for more.
    Deep = 2,
    /// No code is known to be mapped at the pc.
    NoMapping = 3,
    /// There is no table of the file at the pc, or none yet, and no frame pointer to guess by.
    NoTable = 4,
    /// The table says nothing of the pc.
    NoRule = 5,
    /// It says something that can't be followed, or that needs a register that is known in the
    /// innermost frame only.
    Unsupported = 6,
    /// The stack could not be read.
    Unreadable = 7,
    /// The caller's frame would not lie above its callee's.
    Astray = 8,
}

impl End {
    /// All of them, by rising number.
    pub const ALL: [End; 8] = [
        End::Complete,
        End::Deep,
        End::NoMapping,
        End::NoTable,
        End::NoRule,
        End::Unsupported,
        End::Unreadable,
        End::Astray,
    ];
}

/// A number that is no [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the number of a reason why a stack ends")]
pub struct NoEnd(pub u8);

impl TryFrom<u8> for End {
    type Error = NoEnd;

    fn try_from(number: u8) -> Result<End, NoEnd> {
        End::ALL
            .into_iter()
            .find(|end| *end as u8 == number)
            .ok_or(NoEnd(number))
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            End::Complete => "complete",
            End::Deep => "too deep",
            End::NoMapping => "no mapping at the address",
            End::NoTable => "no unwind table of the file",
            End::NoRule => "no unwind rule for the address",
            End::Unsupported => "unsupported unwind rule",
            End::Unreadable => "unreadable stack",
            End::Astray => "astray",
        })
    }
}

/// What is known of a frame: of the innermost one all, of others what their callees have kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction that was to be executed next.
    pub pc: u64,
    /// The general registers by their DWARF number; on x86-64, 6 is the frame pointer and 7 the
    /// stack pointer.
    pub general: [u64; 16],
    /// A bit for each of them that is known.
    pub known: u16,
    /// `pc` is where it was interrupted, and not a return address.
    pub exact: bool,
}

impl Registers {
    /// Those of an innermost frame.
    #[must_use]
    pub fn innermost(pc: u64, general: [u64; 16]) -> Registers {
        Registers {
            pc,
            general,
            known: u16::MAX,
            exact: true,
        }
    }

    /// The address by which functions are found: of a caller, inside its call.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.pc.wrapping_sub(u64::from(!self.exact))
    }
}

/// What is known of an address in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// How to leave a frame there: a `struct unwind_rule`.
    Rule([u8; 16]),
    /// It is code without a table: its frame may be left by its frame pointer.
    Guess,
    /// Nothing, and this is why.
    End(End),
}

/// A stack as far as it could be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Leaf first. The leaf and what a signal has interrupted are where they were; callers are the
    /// return address − 1, which lies inside their call.
    pub frames: Vec<u64>,
    /// Why it ends.
    pub end: End,
    /// A frame was left by its frame pointer, and no table says that it has one.
    pub guessed: bool,
}

/// `struct unwind_state`.
#[repr(C)]
struct State {
    pc: u64,
    registers: [u64; 16],
    known: u32,
    exact: u32,
}

/// `struct unwind_rule`.
#[repr(C, align(4))]
struct Rule([u8; 16]);

/// `struct native_reader` of `c/native.c`.
#[repr(C)]
struct Reader {
    read: unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
    whose: *mut c_void,
}

const _: () = assert!(size_of::<State>() == 144);
const _: () = assert!(size_of::<Rule>() == 16);
const _: () = assert!(size_of::<Reader>() == 16);

unsafe extern "C" {
    fn native_unwind_at(state: *const State) -> u64;
    fn native_unwind_leave(state: *mut State, rule: *const Rule, reader: *mut Reader) -> u32;
    fn native_unwind_guess(state: *mut State, reader: *mut Reader) -> u32;
}

impl Reader {
    /// Lives no longer than the closure: it has its address.
    fn new<F: FnMut(u64) -> Option<u64>>(read: &mut F) -> Reader {
        Reader {
            read: read_word::<F>,
            whose: (&raw mut *read).cast(),
        }
    }
}

/// What C calls to read a word. A panic does not leave it: of a function of this kind Rust makes an
/// abort.
unsafe extern "C" fn read_word<F: FnMut(u64) -> Option<u64>>(
    whose: *mut c_void,
    address: u64,
    word: *mut u64,
) -> c_int {
    // SAFETY: `walk` gave C the address of its `F`, which it does not touch while C runs.
    let read = unsafe { &mut *whose.cast::<F>() };
    match read(address) {
        Some(value) => {
            // SAFETY: C passes the address of a word of its own.
            unsafe { word.write(value) };
            0
        }
        None => -1,
    }
}

/// Follows a stack outwards, from its innermost frame or from another one.
///
/// `find` tells what is known of an address: of the pc as it is in the innermost frame and in one
/// that a signal has interrupted, and of the return address − 1 in others. `read` gives the 8 bytes
/// of the process at an address, which may be any number, as a little-endian word; nothing where
/// they can't be had.
///
/// At most `most` frames are made; where the last of them has a caller, the end is [`End::Deep`].
/// That is all that bounds a stack of hostile making: rules that lead in a circle are followed to
/// it.
///
/// Neither closure may panic. `read` is called through C, where a panic can't pass: it aborts the
/// process.
#[must_use]
pub fn walk(
    start: &Registers,
    most: usize,
    mut find: impl FnMut(u64) -> Found,
    mut read: impl FnMut(u64) -> Option<u64>,
) -> Walked {
    let mut state = State {
        pc: start.pc,
        registers: start.general,
        known: start.known.into(),
        exact: start.exact.into(),
    };
    let mut reader = Reader::new(&mut read);
    let mut walked = Walked {
        frames: Vec::new(),
        end: End::Deep,
        guessed: false,
    };
    while walked.frames.len() < most {
        // SAFETY: `state` is a valid `struct unwind_state` for the call, which keeps no pointer.
        let at = unsafe { native_unwind_at(&raw const state) };
        walked.frames.push(at);
        let end = match find(at) {
            Found::Rule(bytes) => {
                let rule = Rule(bytes);
                // SAFETY: all three are valid for the call, which keeps no pointer; of the rule any
                // bytes are.
                unsafe { native_unwind_leave(&raw mut state, &raw const rule, &raw mut reader) }
            }
            Found::Guess => {
                walked.guessed = true;
                // SAFETY: both are valid for the call, which keeps no pointer.
                unsafe { native_unwind_guess(&raw mut state, &raw mut reader) }
            }
            Found::End(end) => end as u32,
        };
        if end != ON {
            // C has no other numbers: a test reads them.
            walked.end = End::try_from(end as u8).unwrap_or(End::Unsupported);
            break;
        }
    }
    walked
}

/// `UNWIND_ON`: there is a caller.
const ON: u32 = 0;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const FP: u8 = 6;
    const SP: u8 = 7;
    const R10: u8 = 10;
    const R12: u8 = 12;
    const CFA: u8 = 255;

    /// A rule as it is drawn: how the CFA is found, then the rest as of an ordinary function.
    #[derive(Clone, Copy)]
    struct Drawn {
        cfa: (u8, u8, i32, i16),
        fp: (u8, u8, i16),
        ra: (u8, u8, i16),
    }

    impl Drawn {
        fn register(register: u8, offset: i32) -> Drawn {
            Drawn {
                cfa: (3, register, offset, 0),
                fp: (0, 0, 0),
                ra: (0, CFA, -8),
            }
        }

        fn deref(register: u8, offset: i32, plus: i16) -> Drawn {
            Drawn {
                cfa: (4, register, offset, plus),
                ..Drawn::register(register, offset)
            }
        }

        fn fp_at(self, base: u8, offset: i16) -> Drawn {
            Drawn {
                fp: (1, base, offset),
                ..self
            }
        }

        fn fp_lost(self) -> Drawn {
            Drawn {
                fp: (2, 0, 0),
                ..self
            }
        }

        fn found(self) -> Found {
            let mut bytes = [0; 16];
            let (kind, register, offset, plus) = self.cfa;
            bytes[0..4].copy_from_slice(&offset.to_le_bytes());
            bytes[4..6].copy_from_slice(&plus.to_le_bytes());
            bytes[6..8].copy_from_slice(&self.fp.2.to_le_bytes());
            bytes[8..10].copy_from_slice(&self.ra.2.to_le_bytes());
            bytes[10..]
                .copy_from_slice(&[kind, register, self.fp.0, self.fp.1, self.ra.0, self.ra.1]);
            Found::Rule(bytes)
        }
    }

    fn of_kind(kind: u8) -> Found {
        Drawn {
            cfa: (kind, 0, 0, 0),
            ..Drawn::register(0, 0)
        }
        .found()
    }

    /// Code and memory: functions of 256 bytes by the page of their address, and words.
    struct Drawing {
        functions: BTreeMap<u64, Found>,
        words: BTreeMap<u64, u64>,
        start: Registers,
    }

    impl Drawing {
        /// The innermost function is at 0x100, its stack pointer at 0x7000; the outermost at 0xe00
        /// has no caller.
        fn new() -> Drawing {
            let mut drawing = Drawing {
                functions: BTreeMap::new(),
                words: BTreeMap::new(),
                start: Registers::innermost(0x123, [0; 16]),
            };
            drawing.start.general[usize::from(SP)] = 0x7000;
            drawing.function(0xe00, of_kind(1))
        }

        fn function(mut self, at: u64, found: Found) -> Drawing {
            self.functions.insert(at, found);
            self
        }

        fn rule(self, at: u64, rule: Drawn) -> Drawing {
            self.function(at, rule.found())
        }

        fn word(mut self, at: u64, word: u64) -> Drawing {
            self.words.insert(at, word);
            self
        }

        fn register(mut self, number: u8, value: u64) -> Drawing {
            self.start.general[usize::from(number)] = value;
            self
        }

        fn walked(&self) -> Walked {
            self.walk(100)
        }

        fn walk(&self, most: usize) -> Walked {
            walk(
                &self.start,
                most,
                |at| {
                    let function = self.functions.get(&(at & !0xff));
                    *function.unwrap_or(&Found::End(End::NoMapping))
                },
                |at| self.words.get(&at).copied(),
            )
        }

        #[track_caller]
        fn ends(&self, frames: &[u64], end: End) {
            let walked = self.walked();
            assert_eq!((walked.frames.as_slice(), walked.end), (frames, end));
        }
    }

    /// The numbers of C, which BPF sends too.
    #[test]
    fn ends_are_those_of_c() {
        let header = include_str!("../c/unwind.h");
        let (_, from) = header.split_once("enum unwind_end {").unwrap();
        let (names, _) = from.split_once('}').unwrap();
        let names: Vec<String> = names
            .split("UNWIND_")
            .skip(1)
            .map(|name| name.split(',').next().unwrap().replace('_', ""))
            .collect();
        let ours = End::ALL.map(|end| format!("{end:?}").to_uppercase());
        assert_eq!(names[0], "ON");
        assert_eq!(names[1..names.len() - 1], ours);
        assert_eq!(names.last().unwrap(), "ENDS");
        for (number, end) in (1..).zip(End::ALL) {
            assert_eq!(End::try_from(number), Ok(end));
        }
        assert_eq!(End::try_from(0), Err(NoEnd(0)));
        assert_eq!(End::try_from(9), Err(NoEnd(9)));
    }

    #[test]
    fn by_the_stack_pointer() {
        Drawing::new()
            .rule(0x100, Drawn::register(SP, 24))
            .word(0x7010, 0x245)
            .rule(0x200, Drawn::register(SP, 8))
            .word(0x7018, 0xe01)
            .ends(&[0x123, 0x244, 0xe00], End::Complete);
    }

    #[test]
    fn by_the_frame_pointer_which_each_frame_restores() {
        Drawing::new()
            .register(FP, 0x7040)
            .rule(0x100, Drawn::register(FP, 16).fp_at(CFA, -16))
            .word(0x7040, 0x7080)
            .word(0x7048, 0x245)
            .rule(0x200, Drawn::register(FP, 16).fp_at(CFA, -16))
            .word(0x7080, 0)
            .word(0x7088, 0xe01)
            .ends(&[0x123, 0x244, 0xe00], End::Complete);
    }

    /// As a copy is walked of which the kernel has left the first frames.
    #[test]
    fn from_a_frame_in_the_middle() {
        let mut drawing = Drawing::new()
            .rule(0x200, Drawn::register(FP, 16))
            .word(0x7040, 0)
            .word(0x7048, 0xe01);
        drawing.start.pc = 0x245;
        drawing.start.exact = false;
        drawing.start.known = 1 << FP | 1 << SP;
        drawing.start.general[usize::from(FP)] = 0x7040;
        drawing.ends(&[0x244, 0xe00], End::Complete);
        drawing.start.known = 1 << SP;
        drawing.ends(&[0x244], End::Unsupported);
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
            .ends(&[0x123, 0x244, 0xe00], End::Complete);
    }

    #[test]
    fn something_is_added_behind_a_deref() {
        Drawing::new()
            .rule(0x100, Drawn::deref(SP, 8, 16))
            .word(0x7008, 0x7020)
            .word(0x7028, 0xe01)
            .ends(&[0x123, 0xe00], End::Complete);
    }

    /// An entry of the PLT pushes at its byte 6, and is behind that from byte 11 on.
    #[test]
    fn both_halves_of_the_plt() {
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
            drawing.ends(&[pc, frame], End::Complete);
        }
    }

    /// A handler on a stack of its own above the one that it interrupted. What it interrupted has
    /// its first instruction before it.
    #[test]
    fn a_signal_onto_a_lower_address() {
        let signal = Drawn {
            cfa: (4, SP, 160, 0),
            fp: (1, SP, 120),
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
            .ends(&[0x123, 0x200, 0x300, 0xe00], End::Complete);
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
            .ends(&[0x123, 0], End::NoMapping);
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
        drawing.ends(&[0x123, 0x244, 0xe00], End::Complete);
        // Further out nobody knows what was in it.
        drawing
            .rule(0x200, vfork)
            .ends(&[0x123, 0x244], End::Unsupported);
    }

    #[test]
    fn what_rules_end_a_stack() {
        for (kind, end) in [
            (0, End::NoRule),
            (1, End::Complete),
            (2, End::Unsupported),
            (6, End::Unsupported),
            (255, End::Unsupported),
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
            .ends(&[0x123], End::Complete);
    }

    #[test]
    fn where_the_callers_frame_is_not_above() {
        for cfa in [0x6ff8, 0x7000] {
            Drawing::new()
                .register(FP, cfa - 16)
                .rule(0x100, Drawn::register(FP, 16))
                .word(cfa - 8, 0xe01)
                .ends(&[0x123], End::Astray);
        }
    }

    #[test]
    fn what_can_not_be_read() {
        let rule = Drawn::register(SP, 8);
        Drawing::new()
            .rule(0x100, rule)
            .ends(&[0x123], End::Unreadable);
        Drawing::new()
            .rule(0x100, Drawn::deref(SP, 8, 0))
            .ends(&[0x123], End::Unreadable);
        // A frame pointer is missed only by whoever needs it.
        let drawing = Drawing::new()
            .rule(0x100, Drawn::register(SP, 16).fp_at(CFA, -16))
            .word(0x7008, 0x245);
        drawing
            .rule(0x200, rule)
            .word(0x7010, 0xe01)
            .ends(&[0x123, 0x244, 0xe00], End::Complete);
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
                .ends(&[0x123, 0x244, 0x344], End::Unsupported);
        }
    }

    /// gcc's prologue that realigns begins by r10, which nobody saves; r12 is saved by whoever
    /// changes it.
    #[test]
    fn other_registers_are_the_innermost_frames() {
        let drawing = |register| {
            Drawing::new()
                .register(register, 0x7020)
                .rule(0x100, Drawn::register(register, 0))
                .word(0x7018, 0x245)
                .rule(0x200, Drawn::register(register, 64))
                .word(0x7058, 0xe01)
        };
        drawing(R10).ends(&[0x123, 0x244, 0xe00], End::Complete);
        drawing(R12).ends(&[0x123, 0x244], End::Unsupported);
        Drawing::new()
            .rule(0x100, Drawn::register(16, 0))
            .ends(&[0x123], End::Unsupported);
    }

    #[test]
    fn no_more_frames_than_asked_for() {
        let drawing = Drawing::new()
            .rule(0x100, Drawn::register(SP, 8))
            .word(0x7000, 0xe01);
        for (most, frames, end) in [
            (0, &[][..], End::Deep),
            (1, &[0x123], End::Deep),
            (2, &[0x123, 0xe00], End::Complete),
        ] {
            let walked = drawing.walk(most);
            assert_eq!((walked.frames.as_slice(), walked.end), (frames, end));
        }
    }

    #[test]
    fn guesses_follow_frame_pointers() {
        let drawing = Drawing::new()
            .function(0x100, Found::Guess)
            .register(FP, 0x7040)
            .word(0x7040, 0x7080)
            .word(0x7048, 0x145)
            .word(0x7080, 0)
            .word(0x7088, 0x167);
        let walked = drawing.walked();
        assert_eq!(walked.frames, [0x123, 0x144, 0x166]);
        assert_eq!((walked.end, walked.guessed), (End::Complete, true));
        // One that points to itself does not come again.
        drawing
            .word(0x7080, 0x7080)
            .ends(&[0x123, 0x144, 0x166], End::Astray);
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
            .function(0x200, Found::Guess)
            .word(0x204, word(4))
            .word(0x7010, 0x345)
            .rule(0x300, Drawn::register(FP, 16))
            .register(FP, 0x7040)
            .word(0x7048, 0xe01);
        drawing.ends(&[0x123, 0x205, 0x344, 0xe00], End::Complete);
        // Interrupted itself, at each of its instructions.
        for (at, height) in [(4, 8), (6, 8), (10, 0)] {
            let mut drawing = Drawing::new()
                .function(0x200, Found::Guess)
                .word(0x200 + at as u64 - 2, word(at - 2))
                .word(0x7000 + height, 0xe01);
            drawing.start.pc = 0x200 + at as u64;
            drawing.ends(&[0x200 + at as u64, 0xe00], End::Complete);
        }
        let mut drawing = Drawing::new()
            .function(0x200, Found::Guess)
            .word(0x1fe, word(0) << 16)
            .word(0x7000, 0xe01);
        drawing.start.pc = 0x200;
        drawing.ends(&[0x200, 0xe00], End::Complete);
    }

    /// Go's `runtime.mcall`: `call *%r12; pop %rax; jmp`, since 1.22 with a `nop` behind the call.
    #[test]
    fn go_switches_stacks() {
        for word in [0xe958_d4ff_u64, 0xe9_5890_d4ff] {
            Drawing::new()
                .rule(0x100, Drawn::register(SP, 8))
                .word(0x7000, 0x206)
                .function(0x200, Found::Guess)
                .word(0x204, word)
                .register(FP, 0x5000)
                .ends(&[0x123, 0x205], End::Complete);
        }
        // `runtime.systemstack` has a caller, on the goroutine's.
        let switched = Drawing::new()
            .rule(0x100, Drawn::register(SP, 8))
            .word(0x7000, 0x206)
            .function(0x200, Found::Guess)
            .register(FP, 0x5000)
            .word(0x5000, 0)
            .word(0x5008, 0xe01);
        switched.ends(&[0x123, 0x205], End::Astray);
        switched
            .word(0x204, 0xf825_048b_4864_d7ff)
            .ends(&[0x123, 0x205, 0xe00], End::Complete);
    }

    /// Before the frame pointer is set and after it is restored, it is the caller's.
    #[test]
    fn where_the_frame_pointer_is_not_yet_its_own() {
        let push = 0xe589_4855_u64;
        for (word, height) in [(push << 16, 0), (push << 8, 8), (0xc3 << 16, 0)] {
            Drawing::new()
                .function(0x100, Found::Guess)
                .word(0x121, word)
                .register(FP, 0x7040)
                .word(0x7000, 0x7040)
                .word(0x7000 + height, 0x145)
                .word(0x7040, 0)
                .word(0x7048, 0xe01)
                .ends(&[0x123, 0x144, 0xe00], End::Complete);
        }
    }

    #[test]
    fn guesses_want_a_frame_pointer() {
        let guess = || Drawing::new().function(0x100, Found::Guess);
        for fp in [0x6ff8, 0x7001] {
            guess().register(FP, fp).ends(&[0x123], End::Astray);
        }
        guess().register(FP, 0x7040).ends(&[0x123], End::Unreadable);
        // Lost, it was perhaps 0 once.
        Drawing::new()
            .rule(0x100, Drawn::register(SP, 8).fp_lost())
            .word(0x7000, 0x245)
            .function(0x200, Found::Guess)
            .ends(&[0x123, 0x244], End::NoTable);
        let sure = Drawing::new().function(0x100, of_kind(1)).walked();
        assert!(!sure.guessed);
    }

    fn found() -> impl Strategy<Value = Found> {
        // Most bytes of a rule have few meanings.
        let rule = (any::<[u8; 16]>(), 0..7_u8, 0..17_u8, 0..4_u8, 0..4_u8).prop_map(
            |(mut bytes, cfa, register, fp, ra)| {
                bytes[2..4].fill(0);
                (bytes[10], bytes[11], bytes[12], bytes[14]) = (cfa, register, fp, ra);
                Found::Rule(bytes)
            },
        );
        prop_oneof![
            8 => rule,
            2 => any::<[u8; 16]>().prop_map(Found::Rule),
            1 => Just(Found::Guess),
            1 => (0..8_usize).prop_map(|end| Found::End(End::ALL[end])),
        ]
    }

    proptest! {
        /// Whatever rules, registers and memory say, it ends; and no sooner than it says so.
        #[test]
        fn anything_ends(
            rules in proptest::collection::vec(found(), 1..8),
            words in proptest::collection::vec(proptest::option::weighted(0.9, any::<u64>()), 1..8),
            pc in any::<u64>(),
            general in any::<[u64; 16]>(),
            most in 0..300_usize,
        ) {
            let start = Registers::innermost(pc, general);
            let pick = |at: u64| (at ^ at >> 32) as usize;
            let mut reads = 0;
            let walked = walk(
                &start,
                most,
                |at| rules[pick(at) % rules.len()],
                |at| {
                    reads += 1;
                    words[pick(at) % words.len()]
                },
            );
            prop_assert!(walked.frames.len() <= most);
            prop_assert!(reads <= 3 * most);
            if most > 0 {
                prop_assert_eq!(walked.frames[0], pc);
            }
            if walked.end == End::Deep && !rules.contains(&Found::End(End::Deep)) {
                prop_assert_eq!(walked.frames.len(), most);
            }
        }
    }
}
