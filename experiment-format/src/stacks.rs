//! `data.frameinfo`: each stack once, and the callers that stacks share once.

use std::num::NonZeroU64;

/// The most frames that one stack keeps; what is deeper is cut off and marked as truncated.
pub const MAX_FRAMES: usize = 8000;

/// A stack of `data.frameinfo`, as packets refer to it (FRINFO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackUid(NonZeroU64);

impl StackUid {
    /// The number in the file.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// How a stack ends at its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// With the thread's first function.
    Complete,
    /// There was more than could be recorded: root frame `<Truncated-stack>`.
    Truncated,
    /// A caller could not be found: root frame `<Stack-unwind-failed>`.
    UnwindFailed,
}
