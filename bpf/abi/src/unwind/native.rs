//! Calls the C.

use std::ffi::{c_int, c_void};

use super::{Registers, UnwindBy, UnwindEnd, Unwound};
use crate::layout::{EncodedRule, REGISTERS};

/// `UNWIND_CONTINUES`: there is a caller.
pub(crate) const CONTINUES: u32 = 0;

/// `struct unwind_state`.
#[repr(C)]
pub(crate) struct State {
    pub(crate) pc: u64,
    pub(crate) registers: [u64; REGISTERS],
    pub(crate) known: u32,
    pub(crate) exact: u32,
}

/// `struct native_reader` of `c/native.c`.
#[repr(C)]
pub(crate) struct Reader {
    pub(crate) read: unsafe extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
    pub(crate) context: *mut c_void,
}

const _: () = assert!(size_of::<State>() == 144);
const _: () = assert!(size_of::<Reader>() == 16);

unsafe extern "C" {
    fn kcollect_unwind_address(state: *const State) -> u64;
    fn kcollect_unwind_by_rule(
        state: *mut State,
        rule: *const EncodedRule,
        reader: *mut Reader,
    ) -> u32;
    fn kcollect_unwind_by_frame_pointer(state: *mut State, reader: *mut Reader) -> u32;
}

impl Reader {
    /// Returns a reader that must not outlive the closure, whose address it has.
    fn new<F: FnMut(u64) -> Option<u64>>(read: &mut F) -> Reader {
        Reader {
            read: read_word::<F>,
            context: (&raw mut *read).cast(),
        }
    }
}

/// Reads a word for C. A panic aborts the process, as in every function of this ABI.
unsafe extern "C" fn read_word<F: FnMut(u64) -> Option<u64>>(
    context: *mut c_void,
    address: u64,
    word: *mut u64,
) -> c_int {
    // SAFETY: `unwind` passed C the address of its `F`, which it does not touch while C runs.
    let read = unsafe { &mut *context.cast::<F>() };
    match read(address) {
        Some(value) => {
            // SAFETY: C passes the address of a word of its own.
            unsafe { word.write(value) };
            0
        }
        None => -1,
    }
}

/// Returns the frames of a stack, from its innermost frame or from another one outwards.
///
/// `find` returns how to find the caller of the frame at an address, which is the pc in the
/// innermost frame and in one that a signal has interrupted, and the return address − 1 in others.
/// `read` returns the 8 bytes of the process at an address, which may be any number, as a
/// little-endian word, or nothing if they can't be read.
///
/// There are at most `most` frames; if the last of them has a caller, the end is
/// [`UnwindEnd::DepthLimit`]. Nothing else bounds a hostile stack: rules that lead in a circle are
/// followed to that limit.
///
/// Neither closure may panic. `read` is called through C, where a panic aborts the process.
#[must_use]
pub fn unwind(
    start: &Registers,
    most: usize,
    mut find: impl FnMut(u64) -> UnwindBy,
    mut read: impl FnMut(u64) -> Option<u64>,
) -> Unwound {
    let mut state = State {
        pc: start.pc,
        registers: start.general,
        known: start.known.into(),
        exact: start.exact.into(),
    };
    let mut reader = Reader::new(&mut read);
    let mut unwound = Unwound {
        frames: Vec::new(),
        end: UnwindEnd::DepthLimit,
        via_frame_pointer: false,
    };
    while unwound.frames.len() < most {
        // SAFETY: `state` is a valid `struct unwind_state` for the call, which keeps no pointer.
        let address = unsafe { kcollect_unwind_address(&raw const state) };
        unwound.frames.push(address);
        let end = match find(address) {
            UnwindBy::Rule(rule) => {
                // SAFETY: all three are valid for the call, which keeps no pointer; of the rule any
                // bytes are.
                unsafe { kcollect_unwind_by_rule(&raw mut state, &raw const rule, &raw mut reader) }
            }
            UnwindBy::FramePointer => {
                unwound.via_frame_pointer = true;
                // SAFETY: both are valid for the call, which keeps no pointer.
                unsafe { kcollect_unwind_by_frame_pointer(&raw mut state, &raw mut reader) }
            }
            UnwindBy::Nothing(end) => end as u32,
        };
        if end != CONTINUES {
            // C has no other numbers: a test compares them.
            unwound.end = UnwindEnd::try_from(end as u8).unwrap_or(UnwindEnd::Unsupported);
            break;
        }
    }
    unwound
}
