//! System calls that a signal has interrupted, until it is known how they end.
//!
//! The kernel lets such a call end with a result that the program never sees (`ERESTARTSYS` and the
//! like, [`IoCallRecord::is_interrupted`]). When the handler of the signal has returned, the call
//! is made again, or it fails with `EINTR`: a second record of the same call follows, with the same
//! beginning, and replaces the first. If the thread exits, or the handler jumps elsewhere, no
//! record follows, and the first one stands.

use std::collections::HashMap;

use bpf_abi::IoCallRecord;
use experiment_format::ids::Tid;

/// Max interrupted calls of a thread that are held. Handlers that jump elsewhere leave one each.
const MAX_HELD: usize = 4;

/// The interrupted calls of all threads.
#[derive(Debug, Default)]
pub struct InterruptedCalls {
    /// Not empty; the oldest first.
    threads: HashMap<Tid, Vec<IoCallRecord>>,
}

impl InterruptedCalls {
    /// Removes the record that this one replaces, and returns it.
    pub fn replaced_by(&mut self, call: &IoCallRecord) -> Option<IoCallRecord> {
        if self.threads.is_empty() {
            return None;
        }
        let tid = Tid(call.header.tid);
        let held = self.threads.get_mut(&tid)?;
        let position = held.iter().position(|before| {
            (before.begin_ns, before.call, before.table) == (call.begin_ns, call.call, call.table)
        })?;
        let replaced = held.remove(position);
        if held.is_empty() {
            self.threads.remove(&tid);
        }
        Some(replaced)
    }

    /// Holds an interrupted call. Returns the oldest one of its thread if there are too many: that
    /// one stands.
    pub fn hold(&mut self, call: IoCallRecord) -> Option<IoCallRecord> {
        let held = self.threads.entry(Tid(call.header.tid)).or_default();
        held.push(call);
        (held.len() > MAX_HELD).then(|| held.remove(0))
    }

    /// Returns the calls of a thread that has exited: they stand.
    pub fn ended(&mut self, tid: Tid) -> Vec<IoCallRecord> {
        self.threads.remove(&tid).unwrap_or_default()
    }

    /// Returns the calls of all threads when the recording ends: they stand.
    pub fn take_all(&mut self) -> Vec<IoCallRecord> {
        let mut all: Vec<_> = std::mem::take(&mut self.threads)
            .into_values()
            .flatten()
            .collect();
        all.sort_by_key(|call| call.header.time_ns);
        all
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::RecordHeader;
    use bpf_abi::layout::CallTable;

    use super::*;

    fn call(tid: u32, begin_ns: u64, result: i64) -> IoCallRecord {
        IoCallRecord {
            header: RecordHeader {
                tid,
                time_ns: begin_ns + 1,
                ..RecordHeader::default()
            },
            begin_ns,
            result,
            arguments: [0; 4],
            files: 0,
            call: 0,
            table: CallTable::Native,
            call_site: 1,
            extra: Box::default(),
        }
    }

    #[test]
    fn results_that_no_program_sees_are_interruptions() {
        for (result, interrupted) in [
            (-512, true),
            (-513, true),
            (-514, true),
            (-516, true),
            (-515, false),
            (-4, false),
            (512, false),
        ] {
            assert_eq!(call(1, 1, result).is_interrupted(), interrupted, "{result}");
        }
    }

    #[test]
    fn a_call_that_is_made_again_replaces_its_first_record() {
        let mut calls = InterruptedCalls::default();
        assert_eq!(calls.replaced_by(&call(1, 10, 1)), None);
        assert_eq!(calls.hold(call(1, 10, -512)), None);
        // Calls of the handler, and another thread's.
        assert_eq!(calls.replaced_by(&call(1, 12, 1)), None);
        assert_eq!(calls.replaced_by(&call(2, 10, 1)), None);
        let first = calls.replaced_by(&call(1, 10, -4));
        assert_eq!(first, Some(call(1, 10, -512)));
        assert!(calls.ended(Tid(1)).is_empty());
    }

    #[test]
    fn calls_that_are_not_made_again_stand() {
        let mut calls = InterruptedCalls::default();
        for begin_ns in 1..=4 {
            assert_eq!(calls.hold(call(1, begin_ns, -512)), None);
        }
        assert_eq!(calls.hold(call(1, 5, -512)), Some(call(1, 1, -512)));
        calls.hold(call(2, 3, -513));
        assert_eq!(calls.ended(Tid(2)), [call(2, 3, -513)]);
        assert_eq!(calls.take_all().len(), 4);
        assert!(calls.take_all().is_empty());
    }
}
