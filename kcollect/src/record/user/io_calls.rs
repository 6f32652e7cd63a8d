//! System calls that do I/O, of the processes that are traced (`-i`).

use std::collections::HashMap;
use std::sync::Arc;

use bpf_abi::{IoCall, RecordHeader};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use user_collector::io_calls::{Descriptors, Operation, ProcessFiles, Sockets};
use user_collector::process::ProcessTable;

use super::UserSpace;
use crate::record::interval::{self, StateInterval, ThreadEvent, ThreadIds};
use crate::record::processes::tracker::instance_of;
use crate::record::route::Router;

/// The files of processes whose calls are traced.
#[derive(Debug, Default)]
pub(super) struct TracedFiles {
    processes: HashMap<Pid, Descriptors>,
    sockets: Sockets,
    /// The load until it executes its program: what it does before is kcollect's own.
    load: Option<Pid>,
}

impl TracedFiles {
    /// The load was started, and has not executed its program.
    pub(super) fn load_started(&mut self, pid: Pid) {
        self.load = Some(pid);
    }

    /// A process executed a program.
    pub(super) fn executed(&mut self, pid: Pid) {
        self.load = self.load.filter(|load| *load != pid);
    }

    /// A process was made, which has the descriptors of its parent.
    pub(super) fn forked(&mut self, pid: Pid, parent: Pid) {
        self.processes.remove(&pid);
        if let Some(descriptors) = self.processes.get(&parent) {
            let child = descriptors.forked();
            self.processes.insert(pid, child);
        }
    }

    /// A process exited.
    pub(super) fn exited(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Another experiment begins, in which no descriptor has a name yet.
    pub(super) fn begin_again(&mut self) {
        let processes = self.processes.values_mut();
        processes.for_each(Descriptors::begin_again);
    }

    /// Returns what a call did.
    fn apply(&mut self, call: &IoCall) -> Vec<Operation> {
        let pid = call.header.pid();
        let descriptors = self.processes.entry(pid).or_default();
        descriptors.apply(call, &mut ProcessFiles::new(pid, &mut self.sockets))
    }
}

impl UserSpace {
    /// Adds a system call of a thread, if its process may be followed.
    pub fn io_call(&mut self, router: &mut Router, processes: &ProcessTable, call: &IoCall) {
        let pid = call.header.pid();
        let tracked = self.tracker.with_pid(pid);
        if self.io_calls.load == Some(pid) || !self.policy.may_follow(processes, tracked, pid) {
            return;
        }
        let instance = instance_of(processes, pid);
        for operation in self.io_calls.apply(call) {
            let interval = StateInterval {
                header: RecordHeader {
                    time_ns: operation.end_ns,
                    ..call.header
                },
                instance,
                kernel: Arc::default(),
                truncated: false,
                state: Microstate::Sleep,
                ticks: 0,
                detail: Detail::None,
                event: Some(ThreadEvent::IoCall(Box::new(interval::IoCall {
                    place: call.place,
                    operation,
                }))),
            };
            self.interval(router, processes, interval);
        }
    }
}
