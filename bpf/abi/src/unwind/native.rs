//! Calls the C.

use std::ffi::{c_int, c_void};

use super::{Registers, UnwindBy, UnwindEnd, Unwound};
use crate::layout::{EncodedRule, SCAN_STACK_WORDS};

/// The functions of `c/native.c`, and what they work on: `build.rs` generates this.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated"
)]
mod c {
    include!(concat!(env!("OUT_DIR"), "/native.rs"));
}

use c::{
    NativeReader, UNWIND_CONTINUES, UnwindScan, UnwindState, kcollect_unwind_address,
    kcollect_unwind_begin, kcollect_unwind_by_rule, kcollect_unwind_scan_again,
    kcollect_unwind_without_rule,
};

/// What the functions need that C calls.
struct Context<F, R> {
    find: F,
    read: R,
}

impl NativeReader {
    /// Returns a reader that must not outlive the context, whose address it has.
    fn new<F: FnMut(u64) -> UnwindBy, R: FnMut(u64) -> Option<u64>>(
        context: *mut Context<F, R>,
    ) -> NativeReader {
        NativeReader {
            read: Some(read_word::<F, R>),
            find: Some(find_rule::<F, R>),
            context: context.cast(),
        }
    }
}

/// Reads a word for C. A panic aborts the process, as in every function of this ABI.
unsafe extern "C" fn read_word<F, R: FnMut(u64) -> Option<u64>>(
    context: *mut c_void,
    address: u64,
    word: *mut u64,
) -> c_int {
    // SAFETY: `unwind` passed C the address of its context, which it does not touch while C runs.
    let context = unsafe { &mut *context.cast::<Context<F, R>>() };
    match (context.read)(address) {
        Some(value) => {
            // SAFETY: C passes the address of a word of its own.
            unsafe { word.write(value) };
            0
        }
        None => -1,
    }
}

/// Finds the rule for an address for C, as `unwind_rule_at` does.
unsafe extern "C" fn find_rule<F: FnMut(u64) -> UnwindBy, R>(
    context: *mut c_void,
    address: u64,
    rule: *mut EncodedRule,
) -> c_int {
    // SAFETY: as in `read_word`.
    let context = unsafe { &mut *context.cast::<Context<F, R>>() };
    match (context.find)(address) {
        UnwindBy::Rule(found) => {
            // SAFETY: C passes the address of a rule of its own.
            unsafe { rule.write(found) };
            1
        }
        UnwindBy::FramePointer | UnwindBy::Hole => 0,
        UnwindBy::Nothing(_) => -1,
    }
}

/// Returns the frames of a stack, from its innermost frame or from another one outwards.
///
/// `find` returns how to find the caller of the frame at an address. That is the pc in the
/// innermost frame and in a frame that a signal has interrupted, else the return address − 1. A
/// scan for a return address looks up other addresses too. `read` returns the 8 bytes of the
/// process at an address, which may be any number, as a little-endian word, or None if they can't
/// be read.
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
    find: impl FnMut(u64) -> UnwindBy,
    read: impl FnMut(u64) -> Option<u64>,
) -> Unwound {
    let mut context = Context { find, read };
    let mut unwinding = Unwinding::new(start, &raw mut context);
    let mut frames = Vec::new();
    while frames.len() < most {
        if let Some(end) = unwinding.step(&mut frames) {
            return unwinding.unwound(frames, end);
        }
    }
    unwinding.unwound(frames, UnwindEnd::DepthLimit)
}

/// A stack that is being unwound.
struct Unwinding<F, R> {
    /// What the caller of [`unwind`] holds: C has this address too.
    context: *mut Context<F, R>,
    reader: NativeReader,
    state: UnwindState,
    scan: UnwindScan,
    /// How many words scans may still look at.
    scan_words: u32,
    /// The number of frames until the one whose caller the last scan found.
    scanned: Option<usize>,
    via_frame_pointer: bool,
    via_scan: bool,
    /// Nothing confirms a caller that was found by the frame pointer or a scan.
    unconfirmed: bool,
}

impl<F: FnMut(u64) -> UnwindBy, R: FnMut(u64) -> Option<u64>> Unwinding<F, R> {
    /// Begins at a frame. The result must not outlive the context.
    fn new(start: &Registers, context: *mut Context<F, R>) -> Unwinding<F, R> {
        let mut scan = UnwindScan::default();
        // SAFETY: `scan` is a valid `struct unwind_scan` for the call, which keeps no pointer.
        unsafe {
            kcollect_unwind_begin(&raw mut scan, start.own_stack.start, start.own_stack.end);
        }
        Unwinding {
            context,
            reader: NativeReader::new(context),
            state: UnwindState {
                pc: start.pc,
                registers: start.general,
                known: start.known.into(),
                exact: start.exact.into(),
                descents: 0,
                bx_at: 0,
            },
            scan,
            scan_words: SCAN_STACK_WORDS,
            scanned: None,
            via_frame_pointer: false,
            via_scan: false,
            unconfirmed: false,
        }
    }

    /// Adds a frame and goes to its caller. If it has no caller, returns why.
    fn step(&mut self, frames: &mut Vec<u64>) -> Option<UnwindEnd> {
        // SAFETY: `state` is a valid `struct unwind_state` for the call, which keeps no pointer.
        let address = unsafe { kcollect_unwind_address(&raw const self.state) };
        frames.push(address);
        // SAFETY: C has the address too, but does not run.
        let context = unsafe { &mut *self.context };
        let found = (context.find)(address);
        let mut end = match found {
            UnwindBy::Rule(rule) => self.by_rule(&rule),
            UnwindBy::FramePointer => self.without_rule(true, frames.len()),
            UnwindBy::Hole => self.without_rule(false, frames.len()),
            UnwindBy::Nothing(end) => end as u32,
        };
        let waits = matches!(found, UnwindBy::Nothing(end) if end != UnwindEnd::NoMapping);
        if end != UNWIND_CONTINUES && !waits {
            self.scan_again(&mut end, frames);
        }
        // C has no other numbers.
        (end != UNWIND_CONTINUES)
            .then(|| UnwindEnd::try_from(end as u8).unwrap_or(UnwindEnd::Unsupported))
    }

    fn by_rule(&mut self, rule: &EncodedRule) -> u32 {
        // SAFETY: all are valid for the call, which keeps no pointer; of the rule any bytes are.
        unsafe {
            kcollect_unwind_by_rule(
                &raw mut self.state,
                rule,
                &raw mut self.reader,
                &raw const self.scan,
            )
        }
    }

    /// Goes to the caller by the frame pointer or a scan. `frames`: how many there are until here.
    fn without_rule(&mut self, no_table: bool, frames: usize) -> u32 {
        let (mut via_scan, mut unconfirmed) = (0, 0);
        // SAFETY: all are valid for the call, which keeps no pointer.
        let end = unsafe {
            kcollect_unwind_without_rule(
                &raw mut self.state,
                &raw mut self.reader,
                &raw mut self.scan,
                no_table.into(),
                &raw mut self.scan_words,
                &raw mut via_scan,
                &raw mut unconfirmed,
            )
        };
        self.scanned = (via_scan != 0).then_some(frames);
        self.via_scan |= via_scan != 0;
        self.via_frame_pointer |= via_scan == 0;
        self.unconfirmed |= unconfirmed != 0;
        end
    }

    /// Continues with the last scan where the caller that it found has led nowhere.
    fn scan_again(&mut self, end: &mut u32, frames: &mut Vec<u64>) {
        let Some(scanned) = self.scanned else { return };
        let mut unconfirmed = 0;
        // SAFETY: all are valid for the call, which keeps no pointer.
        let again = unsafe {
            kcollect_unwind_scan_again(
                &raw mut self.state,
                &raw mut self.reader,
                &raw mut self.scan,
                &raw mut self.scan_words,
                end,
                &raw mut unconfirmed,
            )
        };
        self.unconfirmed |= unconfirmed != 0;
        if again != 0 {
            // What the caller led to was none of the stack.
            frames.truncate(scanned);
        }
    }

    fn unwound(&self, frames: Vec<u64>, end: UnwindEnd) -> Unwound {
        Unwound {
            frames,
            end: match end {
                UnwindEnd::Complete if self.unconfirmed => UnwindEnd::Unverified,
                end => end,
            },
            via_frame_pointer: self.via_frame_pointer,
            via_scan: self.via_scan,
        }
    }
}
