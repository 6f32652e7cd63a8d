//! Frames that stand for what has no kernel stack: `<NAME_PID_pid>` for user mode, `<IDLE>` for an
//! idle CPU, as er_kernel has them, and `<STOLEN>` for one that the hypervisor took. They are
//! artificial functions at addresses where no kernel code can be.

use std::collections::HashMap;

use experiment_format::ids::Pid;
use experiment_format::map::MapEvent;
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::units::Nanos;
use experiment_format::writer::ExperimentWriter;
use user_collector::process::ProcessInstance;

use crate::record::kernel::shown_names::shown_name;
use crate::record::processes::{Process, ProcessName, Processes};

/// Artificial functions are here, one every [`SIZE_BYTES`], far below any kernel.
const IDLE_ADDRESS: u64 = 0x1000;
const STOLEN_ADDRESS: u64 = 0x2000;
const FIRST_PROCESS_ADDRESS: u64 = 0x1_0000;
const SIZE_BYTES: u64 = 0x10;

/// The artificial functions that the experiment has by now.
#[derive(Debug)]
pub(super) struct ArtificialFrames {
    by_pid: HashMap<Pid, UserFrame>,
    next_address: u64,
    idle: Option<StackUid>,
    stolen: Option<StackUid>,
}

/// The frame of a process in user mode, under one name.
#[derive(Debug)]
struct UserFrame {
    instance: ProcessInstance,
    name: Option<ProcessName>,
    uid: StackUid,
}

impl ArtificialFrames {
    pub(super) fn new() -> ArtificialFrames {
        ArtificialFrames {
            by_pid: HashMap::new(),
            next_address: FIRST_PROCESS_ADDRESS,
            idle: None,
            stolen: None,
        }
    }

    /// Returns the stack of an idle CPU.
    pub(super) fn idle(
        &mut self,
        writer: &mut ExperimentWriter,
    ) -> experiment_format::Result<StackUid> {
        once(writer, &mut self.idle, IDLE_ADDRESS, "<IDLE>")
    }

    /// Returns the stack of a CPU on which the hypervisor runs something else.
    pub(super) fn stolen(
        &mut self,
        writer: &mut ExperimentWriter,
    ) -> experiment_format::Result<StackUid> {
        once(writer, &mut self.stolen, STOLEN_ADDRESS, "<STOLEN>")
    }

    /// Returns the stack of a process in user mode, under the name that it has now; `at_ns` is the
    /// experiment's time.
    pub(super) fn user(
        &mut self,
        writer: &mut ExperimentWriter,
        process: Option<&Process>,
        pid: Pid,
        at_ns: Nanos,
    ) -> experiment_format::Result<StackUid> {
        let instance = process.map_or(ProcessInstance::unknown(pid), |process| process.instance);
        let name = process.and_then(|process| process.name.as_ref());
        if let Some(known) = self.by_pid.get(&pid)
            && known.instance == instance
            && known.name.as_ref() == name
        {
            return Ok(known.uid);
        }
        let function = format!("<{}_PID_{pid}>", shown_name(pid, name.map(|name| &**name)));
        let uid = write(writer, at_ns, self.next_address, function)?;
        self.next_address += SIZE_BYTES;
        let name = name.cloned();
        let frame = UserFrame {
            instance,
            name,
            uid,
        };
        self.by_pid.insert(pid, frame);
        Ok(uid)
    }

    /// Drops the frames of processes that are not in the table any more.
    pub(super) fn evict(&mut self, processes: &Processes) {
        self.by_pid.retain(|pid, _| processes.get(*pid).is_some());
    }
}

/// Returns a stack that is written when it is needed first.
fn once(
    writer: &mut ExperimentWriter,
    written: &mut Option<StackUid>,
    vaddr: u64,
    name: &str,
) -> experiment_format::Result<StackUid> {
    match written {
        Some(uid) => Ok(*uid),
        None => Ok(*written.insert(write(writer, Nanos::ZERO, vaddr, name.to_owned())?)),
    }
}

fn write(
    writer: &mut ExperimentWriter,
    at_ns: Nanos,
    vaddr: u64,
    name: String,
) -> experiment_format::Result<StackUid> {
    writer.map(&MapEvent::Function {
        at_ns,
        vaddr,
        size: SIZE_BYTES,
        name,
    })?;
    writer.stack(&[vaddr], StackEnd::Complete)
}
