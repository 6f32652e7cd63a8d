//! Process instances: numbers of processes are reused.

use experiment_format::ids::Pid;
use serde::Serialize;

/// One process of all those that have had its number.
///
/// Instances are ordered by when they were first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProcessInstance {
    serial: u64,
    pid: Pid,
}

impl ProcessInstance {
    /// Returns the instance of this serial, which no other process of the run has; 0 where nothing
    /// is known of the process.
    #[must_use]
    pub fn new(pid: Pid, serial: u64) -> ProcessInstance {
        ProcessInstance { serial, pid }
    }

    /// Returns the instance of a process of which nothing but its number is known.
    #[must_use]
    pub fn unknown(pid: Pid) -> ProcessInstance {
        ProcessInstance::new(pid, 0)
    }

    /// Returns whether anything is known of the process.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.serial != 0
    }

    /// Returns the number of the process.
    #[must_use]
    pub fn pid(self) -> Pid {
        self.pid
    }

    /// Returns what tells it from other processes of its number.
    #[must_use]
    pub fn serial(self) -> u64 {
        self.serial
    }
}
