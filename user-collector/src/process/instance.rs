//! Process instances, since the numbers of processes are reused.

use experiment_format::ids::Pid;
use serde::Serialize;

/// One process of all those that have had its number.
///
/// Instances are ordered by when they were first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProcessInstance {
    instance_number: u64,
    pid: Pid,
}

impl ProcessInstance {
    /// Returns the instance of this number, which no other process of the run has; 0 where nothing
    /// is known of the process.
    #[must_use]
    pub fn new(pid: Pid, instance_number: u64) -> ProcessInstance {
        ProcessInstance {
            instance_number,
            pid,
        }
    }

    /// The instance of a process of which only the pid is known.
    #[must_use]
    pub fn unknown(pid: Pid) -> ProcessInstance {
        ProcessInstance::new(pid, 0)
    }

    /// Returns whether anything is known of the process.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.instance_number != 0
    }

    /// Returns the pid.
    #[must_use]
    pub fn pid(self) -> Pid {
        self.pid
    }

    /// Returns the number of the instance: it distinguishes processes with the same pid.
    #[must_use]
    pub fn instance_number(self) -> u64 {
        self.instance_number
    }
}
