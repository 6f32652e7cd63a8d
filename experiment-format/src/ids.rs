//! The numbers of processes, threads and stacks, as types that cannot be swapped.

use std::num::NonZeroU64;

pub use types::ids::{Pid, Tid};

/// The number of a stack in `data.frameinfo`, by which packets refer to it (FRINFO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackUid(NonZeroU64);

impl StackUid {
    /// Returns the number that follows another one.
    pub(crate) fn after(last: u64) -> Self {
        StackUid(NonZeroU64::MIN.saturating_add(last))
    }

    /// Returns the number in the file.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The stack with a number found in a file; 0 means no stack.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(StackUid)
    }
}
