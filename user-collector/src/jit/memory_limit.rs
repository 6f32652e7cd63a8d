//! The limit for the memory of all processes' JIT functions: each of a thousand processes may name
//! a million.
//!
//! What is beyond the total is refused, but each process has a minimum, so that a process that uses
//! up the total does not cost others all their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Max bytes of the JIT functions of all processes.
pub const MAX_TOTAL_BYTES: usize = 256 << 20;
/// Bytes that a process may use, however much others use.
pub const MIN_PROCESS_BYTES: usize = 1 << 20;

/// The memory that all processes may use. Clones count towards the same limit.
#[derive(Clone, Debug, Default)]
pub struct JitMemory(Arc<AtomicUsize>);

impl JitMemory {
    /// Returns the bytes in use.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Max bytes that are read in last rounds, of all processes together, in addition to what each may
/// read: some seconds, in which other processes wait.
const MAX_LAST_BYTES: u64 = 512 << 20;

/// What is read of long files when their processes end: what runs is often named last. Clones count
/// towards the same limit.
#[derive(Clone, Debug, Default)]
pub struct LastBytes(Arc<AtomicU64>);

impl LastBytes {
    /// Takes as many of these bytes as are left. Returns how many those are.
    #[must_use]
    pub(super) fn take(&self, wanted: u64) -> u64 {
        let left = MAX_LAST_BYTES.saturating_sub(self.0.load(Ordering::Relaxed));
        let taken = wanted.min(left);
        self.0.fetch_add(taken, Ordering::Relaxed);
        taken
    }
}

/// What one process uses of [`JitMemory`], until this is dropped.
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

    /// Takes this many bytes, if they are left.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let is_left = self.memory.taken().saturating_add(bytes) <= MAX_TOTAL_BYTES
            || self.taken.saturating_add(bytes) <= MIN_PROCESS_BYTES;
        if is_left {
            self.taken += bytes;
            self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        }
        is_left
    }

    /// Releases bytes that were taken before.
    pub(super) fn release(&mut self, bytes: usize) {
        self.taken -= bytes;
        self.memory.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for JitMemoryShare {
    fn drop(&mut self) {
        self.release(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bytes_are_taken_once() {
        let bytes = LastBytes::default();
        assert_eq!(bytes.clone().take(MAX_LAST_BYTES - 1), MAX_LAST_BYTES - 1);
        assert_eq!(bytes.take(7), 1);
        assert_eq!(bytes.take(7), 0);
    }

    #[test]
    fn the_total_is_bounded_and_each_process_has_a_minimum() {
        let memory = JitMemory::default();
        let mut greedy = JitMemoryShare::of(&memory);
        assert!(greedy.take(MAX_TOTAL_BYTES));
        assert!(!greedy.take(1));
        let mut modest = JitMemoryShare::of(&memory);
        assert!(modest.take(MIN_PROCESS_BYTES));
        assert!(!modest.take(1));
        assert_eq!(memory.taken(), MAX_TOTAL_BYTES + MIN_PROCESS_BYTES);
        modest.release(8);
        assert!(modest.take(8));
        drop(greedy);
        assert!(modest.take(1));
        drop(modest);
        assert_eq!(memory.taken(), 0);
    }
}
