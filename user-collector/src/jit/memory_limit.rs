//! Memory for the functions of all processes together: each of a thousand processes may say that it
//! has made a million.
//!
//! What is beyond the whole is refused, except a little for each process: who fills the memory takes
//! no names from others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all functions of all processes.
pub const MAX_TOTAL_BYTES: usize = 256 << 20;
/// Bytes that a process has in any case.
pub const MIN_PROCESS_BYTES: usize = 1 << 20;

/// The memory that processes share. Clones are of the same memory.
#[derive(Clone, Debug, Default)]
pub struct JitMemory(Arc<AtomicUsize>);

impl JitMemory {
    /// Bytes that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one process has taken of it. That is given back when this is dropped.
#[derive(Debug, Default)]
pub(super) struct JitMemoryShare {
    memory: JitMemory,
    taken: usize,
}

impl JitMemoryShare {
    pub(super) fn of(memory: &JitMemory) -> JitMemoryShare {
        JitMemoryShare {
            memory: memory.clone(),
            taken: 0,
        }
    }

    /// Takes so many bytes, if they are there.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let there = self.memory.taken().saturating_add(bytes) <= MAX_TOTAL_BYTES
            || self.taken.saturating_add(bytes) <= MIN_PROCESS_BYTES;
        if there {
            self.taken += bytes;
            self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        }
        there
    }

    /// Gives back what was taken before.
    pub(super) fn give(&mut self, bytes: usize) {
        self.taken -= bytes;
        self.memory.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for JitMemoryShare {
    fn drop(&mut self) {
        self.give(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_is_bounded_and_nobody_is_left_without() {
        let memory = JitMemory::default();
        let mut greedy = JitMemoryShare::of(&memory);
        assert!(greedy.take(MAX_TOTAL_BYTES));
        assert!(!greedy.take(1));
        let mut modest = JitMemoryShare::of(&memory);
        assert!(modest.take(MIN_PROCESS_BYTES));
        assert!(!modest.take(1));
        assert_eq!(memory.taken(), MAX_TOTAL_BYTES + MIN_PROCESS_BYTES);
        modest.give(8);
        assert!(modest.take(8));
        drop(greedy);
        assert!(modest.take(1));
        drop(modest);
        assert_eq!(memory.taken(), 0);
    }
}
