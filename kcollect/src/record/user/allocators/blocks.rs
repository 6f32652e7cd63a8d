//! The blocks of traced processes, as events of their threads.

use bpf_abi::{BlockRecord, RecordHeader};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::allocators::BlockChange;
use user_collector::process::ProcessInstance;

use crate::record::activity::{ThreadEvent, TypedHeader};
use crate::record::processes::Processes;
use crate::record::route::Router;
use crate::record::user::UserSpace;
use crate::record::user::traced_calls::header_of;

impl UserSpace {
    /// Adds that a thread allocated or freed a block, if its process may be followed.
    pub fn block(&mut self, router: &mut Router, processes: &mut Processes, record: &BlockRecord) {
        let pid = record.header.pid();
        let Some(sampling) = self.allocators.sampling else {
            return;
        };
        let before_exec = self.traced.is_before_exec(&record.header);
        if before_exec || !processes.may_follow(&self.policy, pid) {
            return;
        }
        let instance = processes.known(pid).instance;
        let is_over_budget = self.allocators.is_over_budget(pid);
        let blocks = self.allocators.blocks.entry(pid).or_default();
        let mut changes = blocks.apply(record, sampling.mean_bytes);
        if is_over_budget {
            changes.extend(self.allocators.end_blocks(pid, record.header.time_ns()));
        }
        for change in changes {
            self.block_change(router, processes, (record.header, instance), change);
        }
    }

    /// Records that the blocks of a process end: it executed another program, or its frees are no
    /// longer recorded.
    pub fn blocks_end(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        (pid, name): (Pid, &[u8]),
        at_ns: Nanos,
    ) {
        let mut ends = self.allocators.end_blocks(pid, at_ns);
        ends.extend(self.allocators.go.ended(pid, at_ns));
        let instance = processes.known(pid).instance;
        let header = header_of(pid, name, at_ns);
        for change in ends {
            self.block_change(router, processes, (header, instance), change);
        }
    }

    fn block_change(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        (header, instance): (RecordHeader, ProcessInstance),
        change: BlockChange,
    ) {
        let header = RecordHeader {
            time_ns: change.at_ns.0,
            user_return: if change.freed { 0 } else { header.user_return },
            ..header
        };
        let event = ThreadEvent::Block(change);
        self.traced_event(router, processes, header, instance, event);
    }
}
