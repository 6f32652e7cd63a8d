//! How much may still be written of what processes can make grow without end.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes that may still be written of mappings, JIT functions and their machine code. All clones
/// are one budget, which the experiments of all processes share.
#[derive(Clone, Debug)]
pub struct ByteBudget(Rc<Cell<u64>>);

impl ByteBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> ByteBudget {
        ByteBudget(Rc::new(Cell::new(bytes)))
    }

    /// Sets how many bytes may be written from now on.
    pub fn set(&self, bytes: u64) {
        self.0.set(bytes);
    }

    /// Whether all of it is used.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.0.get() == 0
    }

    /// Takes bytes that were written anyway.
    pub(super) fn take(&self, bytes: u64) {
        self.0.set(self.0.get().saturating_sub(bytes));
    }

    /// Takes bytes that are about to be written, unless there are fewer left.
    pub(super) fn try_take(&self, bytes: u64) -> bool {
        let left = self.0.get().checked_sub(bytes);
        left.map(|left| self.0.set(left)).is_some()
    }
}
