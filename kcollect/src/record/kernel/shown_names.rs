//! Names of processes as the experiment and the summary show them.

use experiment_format::ids::Pid;
use experiment_format::text::printable;

use crate::record::processes::Processes;

/// Returns the name of the process that has a pid now.
pub fn name_of(processes: &Processes, pid: Pid) -> String {
    let process = processes.get(pid);
    shown_name(pid, process.and_then(|process| process.name.as_deref()))
}

/// Returns a process's name as the experiment and the summary show it.
pub(super) fn shown_name(pid: Pid, name: Option<&[u8]>) -> String {
    match name {
        Some(name) => printable(name),
        None if pid == Pid(0) => "swapper".to_owned(),
        None => "unknown".to_owned(),
    }
}
