//! Stacks with an address in no known mapping.
//!
//! The side-band has a record of each new mapping, but no record of a mapping that moves
//! (mremap(2)). So when a stack has such an address, the process's mappings are read, and the stack
//! waits for them. Most such addresses are not code, but what a frame pointer pointed to: each
//! reading that finds nothing new doubles the pause until the next one.

use std::collections::HashMap;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::join::UserStackKey;

use super::user_stack::StackCopy;

/// The shortest pause between two readings of a process's mappings, nanoseconds.
const MIN_PAUSE_NS: Nanos = Nanos::from_millis(200);
/// The longest one.
const MAX_PAUSE_NS: Nanos = Nanos::from_secs(60);
/// Max processes whose mappings are read in a round.
const MAX_READINGS: usize = 16;

/// The stacks that wait, and the processes whose mappings have to be read.
#[derive(Debug, Default)]
pub(in crate::record) struct Unmapped {
    by_pid: HashMap<Pid, Reading>,
    asked: Vec<Pid>,
}

/// The readings of one process's mappings.
#[derive(Debug)]
struct Reading {
    /// The time before which it is not read again.
    next_ns: Nanos,
    pause_ns: Nanos,
    /// When the first of those that wait was taken.
    since_ns: Nanos,
    waiting: Vec<(UserStackKey, StackCopy)>,
}

impl Unmapped {
    /// Adds a stack of an instant that waits for the process's mappings. Returns it if they were
    /// read recently.
    pub(in crate::record) fn wait(
        &mut self,
        at_ns: Nanos,
        slot: UserStackKey,
        copy: StackCopy,
    ) -> Option<StackCopy> {
        let reading = self.by_pid.entry(copy.pid).or_insert_with(|| Reading {
            next_ns: Nanos::ZERO,
            pause_ns: MIN_PAUSE_NS,
            since_ns: Nanos::ZERO,
            waiting: Vec::new(),
        });
        if reading.waiting.is_empty() {
            if at_ns < reading.next_ns {
                return Some(copy);
            }
            reading.since_ns = at_ns;
            self.asked.push(copy.pid);
        }
        reading.since_ns = reading.since_ns.min(at_ns);
        reading.waiting.push((slot, copy));
        None
    }

    /// The processes whose mappings have to be read now.
    pub(in crate::record) fn take_asked(&mut self) -> Vec<Pid> {
        self.asked
            .drain(..self.asked.len().min(MAX_READINGS))
            .collect()
    }

    /// The processes for whose mappings stacks wait.
    pub(in crate::record) fn awaited(&self) -> impl Iterator<Item = Pid> {
        let waiting =
            |(pid, reading): (&Pid, &Reading)| (!reading.waiting.is_empty()).then_some(*pid);
        self.by_pid.iter().filter_map(waiting)
    }

    /// Returns the time of the first stack that waited for a process's mappings, and all of them.
    pub(in crate::record) fn was_read(
        &mut self,
        pid: Pid,
    ) -> (Nanos, Vec<(UserStackKey, StackCopy)>) {
        self.by_pid
            .get_mut(&pid)
            .map_or_else(Default::default, |reading| {
                (reading.since_ns, std::mem::take(&mut reading.waiting))
            })
    }

    /// Sets the pause after a reading of an instant, which had something new or nothing.
    pub(in crate::record) fn had_news(&mut self, pid: Pid, at_ns: Nanos, news: bool) {
        if let Some(reading) = self.by_pid.get_mut(&pid) {
            reading.pause_ns = if news {
                MIN_PAUSE_NS
            } else {
                (reading.pause_ns * 2).min(MAX_PAUSE_NS)
            };
            reading.next_ns = at_ns + reading.pause_ns;
        }
    }

    /// Drops a process that executed another program or is gone. Returns what waited.
    pub(in crate::record) fn evict(&mut self, pid: Pid) -> Vec<(UserStackKey, StackCopy)> {
        self.asked.retain(|asked| *asked != pid);
        self.by_pid
            .remove(&pid)
            .map_or_else(Vec::new, |reading| reading.waiting)
    }

    /// Returns all that waits: no mappings are read any more.
    pub(in crate::record) fn close(&mut self) -> Vec<(UserStackKey, StackCopy)> {
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
    use bpf_abi::layout::REGISTERS;
    use bpf_abi::unwind::Registers;
    use experiment_format::ids::Tid;
    use user_collector::join::Join;
    use user_collector::space::MappedCode;

    use super::*;

    fn copy_of(pid: Pid) -> StackCopy {
        StackCopy {
            unwound: Box::default(),
            end: None,
            file: bpf_abi::CodeFile::default(),
            via_frame_pointer: false,
            via_scan: false,
            unconfirmed: false,
            registers: Registers::innermost(0, [0; REGISTERS]),
            stack: Box::default(),
            code: MappedCode::default(),
            pid,
        }
    }

    #[test]
    fn the_pause_doubles_with_each_reading_without_news() {
        let (slot, _) = Join::<(), ()>::default().announced((Tid(7), 0), 1);
        let mut unmapped = Unmapped::default();
        assert!(unmapped.wait(Nanos(1000), slot, copy_of(Pid(7))).is_none());
        assert!(unmapped.wait(Nanos(900), slot, copy_of(Pid(7))).is_none());
        assert_eq!(unmapped.take_asked(), [Pid(7)]);
        let (since, waiting) = unmapped.was_read(Pid(7));
        assert_eq!((since, waiting.len()), (Nanos(900), 2));

        let mut at = Nanos(2000);
        for pauses in [2, 4, 8] {
            unmapped.had_news(Pid(7), at, false);
            at += MIN_PAUSE_NS * pauses;
            assert!(
                unmapped
                    .wait(at - Nanos(1), slot, copy_of(Pid(7)))
                    .is_some()
            );
            assert!(unmapped.wait(at, slot, copy_of(Pid(7))).is_none());
            assert_eq!(unmapped.take_asked(), [Pid(7)]);
            assert_eq!(unmapped.was_read(Pid(7)).0, at);
        }
        unmapped.had_news(Pid(7), at, true);
        assert!(
            unmapped
                .wait(at + MIN_PAUSE_NS, slot, copy_of(Pid(7)))
                .is_none()
        );
        assert_eq!(unmapped.evict(Pid(7)).len(), 1);
        assert!(unmapped.take_asked().is_empty());
        // Another process with that number, or another program.
        assert!(unmapped.wait(at, slot, copy_of(Pid(7))).is_none());
        assert_eq!(unmapped.close().len(), 1);
    }
}
