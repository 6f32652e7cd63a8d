//! Stacks with an address in no known mapping.
//!
//! The side-band has a record of each new mapping, but no record of a mapping that moves
//! (mremap(2)). So when a stack has such an address, the process's mappings are read, and the stack
//! waits for them. Most such addresses are not code, but what a frame pointer pointed to: each
//! reading that finds nothing new doubles the pause until the next one.

use experiment_format::units::Nanos;
use user_collector::join::UserStackKey;

use super::user_stack::StackCopy;

/// The shortest pause between two readings of a process's mappings, nanoseconds.
const MIN_PAUSE_NS: Nanos = Nanos::from_millis(200);
/// The longest one.
const MAX_PAUSE_NS: Nanos = Nanos::from_secs(60);
/// The stacks of a process that wait for its mappings, and when these are read.
#[derive(Debug)]
pub(in crate::record) struct UnmappedStacks {
    /// The time before which they are not read again.
    next_ns: Nanos,
    pause_ns: Nanos,
    /// When the first of those that wait was taken.
    since_ns: Nanos,
    waiting: Vec<WaitingStack>,
}

/// A stack that waits, and what for.
type WaitingStack = (UserStackKey, StackCopy);

impl Default for UnmappedStacks {
    fn default() -> UnmappedStacks {
        UnmappedStacks {
            next_ns: Nanos::ZERO,
            pause_ns: MIN_PAUSE_NS,
            since_ns: Nanos::ZERO,
            waiting: Vec::new(),
        }
    }
}

impl UnmappedStacks {
    /// Adds a stack of an instant. Returns it if the mappings were read recently.
    pub(in crate::record) fn wait(
        &mut self,
        at_ns: Nanos,
        slot: UserStackKey,
        copy: StackCopy,
    ) -> Option<StackCopy> {
        if self.waiting.is_empty() {
            if at_ns < self.next_ns {
                return Some(copy);
            }
            self.since_ns = at_ns;
        }
        self.since_ns = self.since_ns.min(at_ns);
        self.waiting.push((slot, copy));
        None
    }

    /// Whether any stack waits.
    pub(in crate::record) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the time of the first stack that waited, and all of them: the mappings were read, or
    /// are not going to be.
    pub(in crate::record) fn take(&mut self) -> (Nanos, Vec<WaitingStack>) {
        (self.since_ns, std::mem::take(&mut self.waiting))
    }

    /// Sets the pause after a reading of an instant, which had something new or nothing.
    pub(in crate::record) fn had_news(&mut self, at_ns: Nanos, news: bool) {
        self.pause_ns = if news {
            MIN_PAUSE_NS
        } else {
            (self.pause_ns * 2).min(MAX_PAUSE_NS)
        };
        self.next_ns = at_ns + self.pause_ns;
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::layout::REGISTERS;
    use bpf_abi::unwind::Registers;
    use experiment_format::ids::{Pid, Tid};
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
        let mut unmapped = UnmappedStacks::default();
        let waits = |unmapped: &mut UnmappedStacks, at_ns| {
            unmapped.wait(at_ns, slot, copy_of(Pid(7))).is_none()
        };
        assert!(waits(&mut unmapped, Nanos(1000)) && waits(&mut unmapped, Nanos(900)));
        assert!(unmapped.is_waiting());
        let (since, waiting) = unmapped.take();
        assert_eq!((since, waiting.len()), (Nanos(900), 2));
        assert!(!unmapped.is_waiting());

        let mut at = Nanos(2000);
        for pauses in [2, 4, 8] {
            unmapped.had_news(at, false);
            at += MIN_PAUSE_NS * pauses;
            assert!(!waits(&mut unmapped, at - Nanos(1)));
            assert!(waits(&mut unmapped, at));
            assert_eq!(unmapped.take().0, at);
        }
        unmapped.had_news(at, true);
        assert!(waits(&mut unmapped, at + MIN_PAUSE_NS));
    }
}
