//! System calls that do I/O (`-i`) or change memory (`-H growth`), of the processes that are
//! traced.

use std::sync::Arc;

use bpf_abi::layout::CallTable;
use bpf_abi::{IoCallRecord, IoFileRecord, RecordHeader, ThreadName};
use experiment_format::calls::Action;
use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::IoOperation;
use experiment_format::units::Nanos;
use host::load::STARTER_NAME;
use user_collector::io_calls::calls::call_of;
use user_collector::io_calls::{
    DescriptorTables, Descriptors, InterruptedCalls, ProcLookup, ProcessDescriptors,
    RegisteredFiles, Sockets,
};
use user_collector::process::ProcessInstance;

use super::UserSpace;
use crate::record::activity::{
    ActivityKind, IoCallEvent, ThreadActivity, ThreadEvent, TypedHeader,
};
use crate::record::processes::{Process, Processes};
use crate::record::route::Router;

/// What the calls of all traced processes have in common: tables of descriptors that they share,
/// names of sockets and files, and interrupted calls.
#[derive(Debug, Default)]
pub(super) struct TracedProcesses {
    tables: DescriptorTables,
    sockets: Sockets,
    files: RegisteredFiles,
    interrupted: InterruptedCalls,
    /// The load until it executes its program: what it does before is kcollect's own.
    load: Option<Pid>,
    /// The load, which has kcollect's working directory and standard files.
    inherits: Option<Pid>,
}

impl TracedProcesses {
    /// Records that the load was started, and has not executed its program.
    pub(super) fn load_started(&mut self, pid: Pid) {
        self.load = Some(pid);
        self.inherits = Some(pid);
    }

    /// Whether a thread belongs to the load before the load has executed its program. The name is
    /// compared too, because the exec event may be lost.
    pub(super) fn is_before_exec(&self, header: &RecordHeader) -> bool {
        self.load == Some(header.pid()) && header.name.bytes() == STARTER_NAME.as_bytes()
    }

    /// Records that a process executed a program.
    pub(super) fn executed(&mut self, process: &mut Process) {
        let pid = process.pid();
        self.load = self.load.filter(|load| *load != pid);
        if let Some(descriptors) = &mut process.descriptors {
            self.tables.executed(pid, descriptors);
        }
    }

    /// Returns the descriptors of a child that a process forks.
    pub(super) fn fork(&self, parent: &Process) -> Option<Box<ProcessDescriptors>> {
        let descriptors = parent.descriptors.as_ref();
        descriptors.map(|parent| Box::new(self.tables.fork(parent)))
    }

    /// Drops the descriptors and the memory of a process that exited.
    pub(super) fn exited(&mut self, process: &mut Process) {
        if let Some(descriptors) = process.descriptors.take() {
            self.tables.exited(process.pid(), &descriptors);
        }
        process.memory = None;
    }

    /// What a call of a process did, as events of its thread with their times.
    fn apply(&mut self, process: &mut Process, call: &IoCallRecord) -> Vec<(Nanos, ThreadEvent)> {
        let (pid, call_site) = (call.header.pid(), call.call_site);
        if let Some(Action::Memory(what)) = call_of(call.call, call.table).map(|call| call.action) {
            let changes = process.memory.get_or_insert_default().apply(what, call);
            let event = |change| {
                (
                    call.header.time_ns(),
                    ThreadEvent::Memory { call_site, change },
                )
            };
            return changes.into_iter().map(event).collect();
        }
        let (sockets, files) = (&mut self.sockets, &self.files);
        let inherits = self.inherits.take_if(|load| *load == pid).is_some();
        let descriptors = process.descriptors.get_or_insert_with(|| {
            let found = if inherits {
                let ours = Pid(std::process::id());
                let look = &mut ProcLookup::new(ours, Tid(ours.0), sockets, files);
                Descriptors::inherited(look)
            } else {
                Descriptors::default()
            };
            Box::new(ProcessDescriptors::new(found))
        });
        let look = &mut ProcLookup::new(pid, call.header.tid(), sockets, files);
        let operations = self.tables.apply(descriptors, call, look);
        let event = |operation: IoOperation| {
            let at_ns = operation.ended_ns;
            let call = Box::new(IoCallEvent {
                call_site,
                operation,
            });
            (at_ns, ThreadEvent::IoCall(call))
        };
        operations.into_iter().map(event).collect()
    }
}

/// Returns the header of an event of a process as a whole, which has no record.
pub(super) fn header_of(pid: Pid, name: &[u8], at_ns: Nanos) -> RecordHeader {
    RecordHeader {
        time_ns: at_ns.0,
        pid: pid.0,
        tid: pid.0,
        name: ThreadName::of(name),
        ..RecordHeader::default()
    }
}

impl UserSpace {
    /// Adds a system call of a thread, if its process may be followed. One that was interrupted is
    /// held until it is known how it ends.
    pub fn io_call(&mut self, router: &mut Router, processes: &mut Processes, call: &IoCallRecord) {
        let pid = call.header.pid();
        if self.traced.is_before_exec(&call.header) || !processes.may_follow(&self.policy, pid) {
            return;
        }
        if let Some(replaced) = self.traced.interrupted.replaced_by(call) {
            self.stack_not_awaited(&replaced);
        }
        if !call.is_interrupted() {
            return self.ended_call(router, processes, call);
        }
        if call.header.user_return != 0 {
            let series = (call.header.tid(), call.call_site);
            let complete = self.join.keep(series, call.header.user_return);
            self.route(router, processes, complete);
        }
        if let Some(oldest) = self.traced.interrupted.hold(call.clone()) {
            self.interrupted_for_good(router, processes, vec![oldest]);
        }
    }

    /// Adds the interrupted calls of a thread that exits.
    pub(super) fn thread_calls_end(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        tid: Tid,
    ) {
        let calls = self.traced.interrupted.ended(tid);
        self.interrupted_for_good(router, processes, calls);
    }

    /// Adds all interrupted calls: the recording ends.
    pub fn all_calls_end(&mut self, router: &mut Router, processes: &mut Processes) {
        let calls = self.traced.interrupted.take_all();
        self.interrupted_for_good(router, processes, calls);
    }

    fn interrupted_for_good(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        calls: Vec<IoCallRecord>,
    ) {
        for call in calls {
            self.ended_call(router, processes, &call);
            self.stack_not_awaited(&call);
        }
    }

    /// Drops the user stack that was kept for a record, unless others have it too.
    fn stack_not_awaited(&mut self, call: &IoCallRecord) {
        let series = (call.header.tid(), call.call_site);
        self.join.has_come(series, call.header.user_return);
    }

    fn ended_call(&mut self, router: &mut Router, processes: &mut Processes, call: &IoCallRecord) {
        let pid = call.header.pid();
        let process = processes.known(pid);
        let instance = process.instance;
        for (time_ns, event) in self.traced.apply(process, call) {
            let header = RecordHeader {
                time_ns: time_ns.0,
                ..call.header
            };
            self.traced_event(router, processes, header, instance, event);
        }
        if call.table == CallTable::IoUring && !call.more_follow() {
            self.stack_not_awaited(call);
        }
    }

    /// Keeps the path of a file that is registered with `io_uring`.
    pub fn registered_file(&mut self, file: &IoFileRecord) {
        self.traced.files.add(file);
    }

    /// Keeps the user stack of an operation that a thread handed to `io_uring`, if its process may
    /// be followed.
    pub fn io_submitted(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        call: &IoCallRecord,
    ) {
        let pid = call.header.pid();
        if processes.may_follow(&self.policy, pid) {
            let series = (call.header.tid(), call.call_site);
            let complete = self.join.keep(series, call.header.user_return);
            self.route(router, processes, complete);
        }
    }

    /// Records that the memory of a process is gone: the process executed another program.
    pub fn memory_ends(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        (pid, name): (Pid, &[u8]),
        at_ns: Nanos,
    ) {
        let Some(process) = processes.get_mut(pid) else {
            return;
        };
        let (instance, memory) = (process.instance, process.memory.take());
        let Some(mut memory) = memory else {
            return;
        };
        let header = header_of(pid, name, at_ns);
        for change in memory.executed() {
            let event = ThreadEvent::Memory {
                call_site: 0,
                change,
            };
            self.traced_event(router, processes, header, instance, event);
        }
    }

    pub(super) fn traced_event(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        header: RecordHeader,
        instance: ProcessInstance,
        event: ThreadEvent,
    ) {
        let activity = ThreadActivity {
            header,
            instance,
            kernel: Arc::default(),
            truncated: false,
            kind: ActivityKind::Event(event),
        };
        self.activity(router, processes, activity);
    }
}
