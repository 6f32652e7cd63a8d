//! Stacks with an address where nothing is known to be mapped.
//!
//! The kernel tells of each mapping that is made, but not of one that moves (mremap(2)). So where a
//! stack comes to such an address, the process's mappings are read, and the stack waits for what
//! they say. Most such addresses are no code, but what a walk that guessed took for a caller: it is
//! read again the later the more often it had nothing new.

use std::collections::HashMap;

use user_collector::join::Slot;

use super::Copied;

/// From one reading of a process's mappings to the next at the least, nanoseconds, after one that
/// had something new,
const SHORTEST_PAUSE: u64 = 200_000_000;
/// and at the most.
const LONGEST_PAUSE: u64 = 60_000_000_000;
/// Processes whose mappings are read at a time.
const AT_A_TIME: usize = 16;

/// What waits, and who is to be read.
#[derive(Debug, Default)]
pub(super) struct Unmapped {
    by_pid: HashMap<u32, Reading>,
    asked: Vec<u32>,
}

/// One process.
#[derive(Debug)]
struct Reading {
    /// Not before.
    next: u64,
    pause: u64,
    /// When the first of those that wait was taken.
    since: u64,
    waiting: Vec<(Slot, Copied)>,
}

impl Unmapped {
    /// A stack that was taken at an instant waits for the process's mappings; or comes back, where
    /// they were read not long ago.
    pub(super) fn wait(&mut self, at: u64, slot: Slot, copied: Copied) -> Option<Copied> {
        let reading = self.by_pid.entry(copied.pid).or_insert_with(|| Reading {
            next: 0,
            pause: SHORTEST_PAUSE,
            since: 0,
            waiting: Vec::new(),
        });
        if reading.waiting.is_empty() {
            if at < reading.next {
                return Some(copied);
            }
            reading.since = at;
            self.asked.push(copied.pid);
        }
        reading.since = reading.since.min(at);
        reading.waiting.push((slot, copied));
        None
    }

    /// Whose mappings are to be read now.
    pub(super) fn take_asked(&mut self) -> Vec<u32> {
        self.asked
            .drain(..self.asked.len().min(AT_A_TIME))
            .collect()
    }

    /// The processes for whose mappings something waits.
    pub(super) fn awaited(&self) -> impl Iterator<Item = u32> {
        let waiting =
            |(pid, reading): (&u32, &Reading)| (!reading.waiting.is_empty()).then_some(*pid);
        self.by_pid.iter().filter_map(waiting)
    }

    /// They were read. Gives since when what is new in them is there at least, and what has waited.
    pub(super) fn was_read(&mut self, pid: u32) -> (u64, Vec<(Slot, Copied)>) {
        self.by_pid
            .get_mut(&pid)
            .map_or_else(Default::default, |reading| {
                (reading.since, std::mem::take(&mut reading.waiting))
            })
    }

    /// Was there anything new, at an instant?
    pub(super) fn had_news(&mut self, pid: u32, at: u64, news: bool) {
        if let Some(reading) = self.by_pid.get_mut(&pid) {
            reading.pause = match news {
                true => SHORTEST_PAUSE,
                false => (2 * reading.pause).min(LONGEST_PAUSE),
            };
            reading.next = at + reading.pause;
        }
    }

    /// The process has mapped other things altogether, or is gone. Gives what has waited.
    pub(super) fn forget(&mut self, pid: u32) -> Vec<(Slot, Copied)> {
        self.asked.retain(|asked| *asked != pid);
        self.by_pid
            .remove(&pid)
            .map_or_else(Vec::new, |reading| reading.waiting)
    }

    /// Nothing more will be read. Gives all that has waited.
    pub(super) fn close(&mut self) -> Vec<(Slot, Copied)> {
        self.asked.clear();
        let readings = std::mem::take(&mut self.by_pid);
        readings
            .into_values()
            .flat_map(|reading| reading.waiting)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::unwind::Registers;
    use user_collector::join::Join;
    use user_collector::spaces::Code;

    use super::*;

    fn copied(pid: u32) -> Copied {
        Copied {
            walked: Box::default(),
            guessed: false,
            registers: Registers::innermost(0, [0; 16]),
            stack: Box::default(),
            code: Code::default(),
            pid,
        }
    }

    #[test]
    fn mappings_are_read_the_later_the_less_they_tell() {
        let (slot, _) = Join::<(), ()>::default().announced(7, 1);
        let mut unmapped = Unmapped::default();
        assert!(unmapped.wait(1000, slot, copied(7)).is_none());
        assert!(unmapped.wait(900, slot, copied(7)).is_none());
        assert_eq!(unmapped.take_asked(), [7]);
        let (since, waiting) = unmapped.was_read(7);
        assert_eq!((since, waiting.len()), (900, 2));

        let mut at = 2000;
        for pauses in [2, 4, 8] {
            unmapped.had_news(7, at, false);
            at += pauses * SHORTEST_PAUSE;
            assert!(unmapped.wait(at - 1, slot, copied(7)).is_some());
            assert!(unmapped.wait(at, slot, copied(7)).is_none());
            assert_eq!(unmapped.take_asked(), [7]);
            assert_eq!(unmapped.was_read(7).0, at);
        }
        unmapped.had_news(7, at, true);
        assert!(
            unmapped
                .wait(at + SHORTEST_PAUSE, slot, copied(7))
                .is_none()
        );
        assert_eq!(unmapped.forget(7).len(), 1);
        assert!(unmapped.take_asked().is_empty());
        // Another process of that number, or another program.
        assert!(unmapped.wait(at, slot, copied(7)).is_none());
        assert_eq!(unmapped.close().len(), 1);
    }
}
