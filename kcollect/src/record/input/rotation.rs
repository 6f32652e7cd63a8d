//! The first returns to user mode after a rotation, whose stacks may belong to what the threads did
//! before it.

use std::collections::HashSet;

use bpf_abi::{Record, UserReturnRecord};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;

use super::event::InputEvent;
use super::sideband::SidebandEvent;

/// The first return to user mode of each thread among the events after a rotation, which may be in
/// any order. Processes that had mapped something new by then are left out: their stacks have to be
/// read with the new mappings.
pub(super) fn first_returns<'a>(
    events: impl Iterator<Item = &'a (Nanos, InputEvent)>,
) -> Vec<UserReturnRecord> {
    let mut events: Vec<_> = events.collect();
    events.sort_by_key(|(time, _)| *time);
    let (mut changed, mut seen) = (HashSet::new(), HashSet::new());
    let mut returns = Vec::new();
    for (_, event) in events {
        match event {
            InputEvent::Sideband(
                SidebandEvent::Map { pid, .. }
                | SidebandEvent::Comm {
                    pid, exec: true, ..
                },
            ) => {
                changed.insert(*pid);
            }
            InputEvent::Record(Record::UserReturn(stack))
                if seen.insert((stack.header.tid, stack.call_site))
                    && !changed.contains(&Pid(stack.header.pid)) =>
            {
                returns.push(stack.clone());
            }
            _ => {}
        }
    }
    returns
}

#[cfg(test)]
mod tests {
    use bpf_abi::unwind::UnwindEnd;
    use bpf_abi::{CapturedStack, RecordHeader};

    use super::*;

    fn returned(time_ns: Nanos, pid: u32, tid: u32, call_site: u8) -> (Nanos, InputEvent) {
        let header = RecordHeader {
            time_ns: time_ns.0,
            pid,
            tid,
            ..RecordHeader::default()
        };
        let stack = CapturedStack::Unwound {
            frames: Box::default(),
            end: UnwindEnd::Complete,
            via_frame_pointer: false,
            via_scan: false,
        };
        let record = UserReturnRecord {
            header,
            ip: 0,
            sp: 0,
            execution: 0,
            call_site,
            anonymous: None,
            stack,
        };
        (time_ns, InputEvent::Record(Record::UserReturn(record)))
    }

    fn executed(time_ns: Nanos, pid: u32) -> (Nanos, InputEvent) {
        let event = SidebandEvent::Comm {
            pid: Pid(pid),
            name: Box::default(),
            exec: true,
        };
        (time_ns, InputEvent::Sideband(event))
    }

    #[test]
    fn each_series_of_a_thread_has_its_first_return() {
        let events = [
            returned(Nanos(30), 1, 1, 0),
            returned(Nanos(20), 1, 1, 0),
            returned(Nanos(40), 1, 1, 3),
            executed(Nanos(25), 1),
            returned(Nanos(22), 1, 2, 0),
            executed(Nanos(10), 5),
            returned(Nanos(15), 5, 5, 0),
        ];
        let found = first_returns(events.iter());
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.header.time_ns, found.header.tid))
            .collect();
        assert_eq!(found, [(20, 1), (22, 2)]);
    }
}
