//! The join of kernel and user side, by thread and number of the entry to user mode.
//!
//! What a thread does in the kernel between two times in user mode has one user stack. So each tick that
//! is recorded there carries the number of the entry to user mode that ends it, and the stack comes once, with
//! that number: afterwards where threads tell of their entries themselves, before where a number
//! stands for a place in user mode and is used again as long as the thread is found there.
//!
//! Nothing waits for ever: what a thread did before its end, or before data stopped, has no entry, and
//! is counted as such.

use std::collections::HashMap;

use serde::Serialize;

/// Ticks by what became of their user side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Joined {
    /// Entries to user mode that were told.
    pub entries: u64,
    /// Ticks whose entry was told.
    pub ticks: u64,
    /// Of those, ticks of a place that other ticks had used already.
    pub reused: u64,
    /// Ticks whose entry was not told: the thread ended in the kernel, or was there when data stopped, or the
    /// record of it was lost.
    pub open: u64,
    /// Ticks for which no entry was expected: of kernel threads, and of threads that were ending.
    pub none: u64,
}

/// The numbers that are under way, by thread.
#[derive(Debug, Default)]
pub struct Entries {
    threads: HashMap<u32, Present>,
    joined: Joined,
}

/// The present number of a thread.
#[derive(Debug, Default)]
struct Present {
    number: u32,
    told: bool,
    used: bool,
    waiting: u64,
}

impl Entries {
    /// So many ticks of a thread carry this number; 0 for none.
    pub fn recorded(&mut self, tid: u32, number: u32, ticks: u64) {
        if number == 0 {
            self.joined.none += ticks;
            return;
        }
        let present = self.present(tid, number);
        let (told, used) = (present.told, present.used);
        present.used = true;
        if told {
            self.joined.ticks += ticks;
            self.joined.reused += if used { ticks } else { 0 };
        } else {
            present.waiting += ticks;
        }
    }

    /// The entry with this number was told: gives how many ticks have waited for it.
    pub fn told(&mut self, tid: u32, number: u32) -> u64 {
        let present = self.present(tid, number);
        present.told = true;
        let waiting = std::mem::take(&mut present.waiting);
        self.joined.entries += 1;
        self.joined.ticks += waiting;
        waiting
    }

    /// The thread has ended.
    pub fn ended(&mut self, tid: u32) {
        if let Some(present) = self.threads.remove(&tid) {
            self.joined.open += present.waiting;
        }
    }

    /// What became of all ticks until now; those that still wait count as open.
    #[must_use]
    pub fn joined(&self) -> Joined {
        let waiting: u64 = self.threads.values().map(|present| present.waiting).sum();
        Joined {
            open: self.joined.open + waiting,
            ..self.joined
        }
    }

    fn present(&mut self, tid: u32, number: u32) -> &mut Present {
        let present = self.threads.entry(tid).or_default();
        if present.number != number {
            self.joined.open += present.waiting;
            *present = Present {
                number,
                ..Present::default()
            };
        }
        present
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_wait_for_the_entry_that_ends_their_stay() {
        let mut entries = Entries::default();
        entries.recorded(7, 1, 2);
        entries.recorded(7, 1, 3);
        assert_eq!(entries.joined().open, 5);
        assert_eq!(entries.told(7, 1), 5);
        entries.recorded(7, 2, 1);
        entries.ended(7);
        let expected = Joined {
            entries: 1,
            ticks: 5,
            open: 1,
            ..Joined::default()
        };
        assert_eq!(entries.joined(), expected);
    }

    #[test]
    fn a_place_is_told_once_and_used_again() {
        let mut entries = Entries::default();
        assert_eq!(entries.told(7, 1), 0);
        for _ in 0..4 {
            entries.recorded(7, 1, 2);
        }
        let expected = Joined {
            entries: 1,
            ticks: 8,
            reused: 6,
            ..Joined::default()
        };
        assert_eq!(entries.joined(), expected);
    }

    #[test]
    fn a_lost_entry_leaves_its_ticks_open_and_takes_no_others() {
        let mut entries = Entries::default();
        entries.recorded(7, 1, 2);
        entries.recorded(7, 2, 3);
        entries.told(7, 2);
        entries.recorded(8, 0, 4);
        let joined = entries.joined();
        assert_eq!((joined.open, joined.ticks, joined.none), (2, 3, 4));
    }

    proptest! {
        /// Whatever comes in whatever order, each tick is in one of the sums.
        #[test]
        fn no_tick_is_lost(
            events in proptest::collection::vec((0_u8..8, 1_u32..4, 0_u32..4, 1_u64..5), 0..200)
        ) {
            let (mut entries, mut sum) = (Entries::default(), 0);
            for (kind, tid, number, ticks) in events {
                match kind {
                    0 => entries.ended(tid),
                    1 | 2 if number > 0 => { entries.told(tid, number); }
                    _ => {
                        entries.recorded(tid, number, ticks);
                        sum += ticks;
                    }
                }
            }
            let joined = entries.joined();
            prop_assert_eq!(joined.ticks + joined.open + joined.none, sum);
        }
    }
}
