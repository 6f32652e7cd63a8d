//! The Rust side of `struct cpu_books` in `c/wire.h`.

use crate::wire::word;

const BOOKS: usize = 192;

/// The books of one CPU: interval boundaries by what became of them, since it was first recorded.
///
/// `user + kernel + idle` is what the CPU lived through; of that `unsent` was left out by request
/// and `lost` found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBooks {
    pub(crate) origin: u64,
    pub(crate) index: u64,
    /// Boundaries in user mode.
    pub user: u64,
    /// Boundaries in the kernel.
    pub kernel: u64,
    /// Boundaries in the idle task.
    pub idle: u64,
    /// Idle boundaries not sent, because idle is not recorded.
    pub unsent: u64,
    /// Boundaries whose record found the ring full.
    pub lost: u64,
    /// Records that found the ring full.
    pub lost_records: u64,
    /// Boundaries beyond the first of a firing on a busy CPU: its timer had been held up for that
    /// long.
    pub made_up: u64,
    /// Records whose stack was cut at the kernel's depth limit.
    pub truncated: u64,
    /// Records for which the kernel gave no stack.
    pub no_stack: u64,
    /// When the clock last fired or idleness was last counted, CLOCK_MONOTONIC nanoseconds; 0
    /// before.
    pub last: u64,
    pub(crate) in_idle: u64,
    /// Boundaries in absences of threads whose record found the ring full.
    pub absences_lost: u64,
    /// Threads whose account is lost: the ring was full, or there was no memory for it.
    pub threads_lost: u64,
    /// Entries to user mode that could not be waited for or told: nothing joins the records with
    /// their numbers.
    pub entries_lost: u64,
    /// Births of processes whose parent waits for their exec that are not told: the ring was full.
    pub births_lost: u64,
}

impl CpuBooks {
    /// Size of `struct cpu_books`.
    pub(crate) const SIZE: usize = BOOKS;

    /// Boundaries that passed while this CPU was recorded.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.user + self.kernel + self.idle
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<CpuBooks> {
        let bytes: &[u8; BOOKS] = bytes.try_into().ok()?;
        Some(CpuBooks {
            origin: word(bytes, 0),
            index: word(bytes, 8),
            user: word(bytes, 16),
            kernel: word(bytes, 24),
            idle: word(bytes, 32),
            unsent: word(bytes, 40),
            lost: word(bytes, 48),
            lost_records: word(bytes, 56),
            made_up: word(bytes, 64),
            truncated: word(bytes, 72),
            no_stack: word(bytes, 80),
            last: word(bytes, 88),
            in_idle: word(bytes, 96),
            absences_lost: word(bytes, 128),
            threads_lost: word(bytes, 136),
            entries_lost: word(bytes, 152),
            births_lost: word(bytes, 160),
        })
    }

    pub(crate) fn encode(&self) -> [u8; BOOKS] {
        let words = [
            self.origin,
            self.index,
            self.user,
            self.kernel,
            self.idle,
            self.unsent,
            self.lost,
            self.lost_records,
            self.made_up,
            self.truncated,
            self.no_stack,
            self.last,
            self.in_idle,
            // Of the clock that is gone.
            0,
            0,
            0,
            self.absences_lost,
            self.threads_lost,
            0,
            self.entries_lost,
            self.births_lost,
        ];
        let mut bytes = [0; BOOKS];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn books_survive_the_way_there_and_back(words in any::<[u64; 21]>()) {
            let mut bytes = [0; BOOKS];
            // What belongs to a clock that is gone is not kept.
            let clock = [13, 14, 15, 18];
            for (at, (slot, word)) in bytes.chunks_exact_mut(8).zip(words).enumerate() {
                let kept = if clock.contains(&at) { 0 } else { word };
                slot.copy_from_slice(&kept.to_ne_bytes());
            }
            prop_assert_eq!(CpuBooks::decode(&bytes).unwrap().encode(), bytes);
        }
    }
}
