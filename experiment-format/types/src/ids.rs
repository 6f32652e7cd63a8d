//! The numbers of processes and threads, as types that cannot be swapped.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a process, in the initial pid namespace.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Pid(pub u32);

/// The number of a thread, in the initial pid namespace. 0 is the idle thread of any CPU.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tid(pub u32);

impl Pid {
    /// Returns the number as system calls have it (`pid_t`).
    #[must_use]
    pub fn as_raw(self) -> i32 {
        self.0.cast_signed()
    }

    /// Returns the number that a system call returned (`pid_t`).
    #[must_use]
    pub fn from_raw(raw: i32) -> Pid {
        Pid(raw.cast_unsigned())
    }

    /// Returns the number of the process's leading thread.
    #[must_use]
    pub fn leader(self) -> Tid {
        Tid(self.0)
    }
}

impl Tid {
    /// Returns the number as system calls have it (`pid_t`).
    #[must_use]
    pub fn as_raw(self) -> i32 {
        self.0.cast_signed()
    }

    /// Returns the number that a system call returned (`pid_t`).
    #[must_use]
    pub fn from_raw(raw: i32) -> Tid {
        Tid(raw.cast_unsigned())
    }
}

/// The number as records have it.
impl From<Pid> for u64 {
    fn from(pid: Pid) -> u64 {
        pid.0.into()
    }
}

/// The number as records have it.
impl From<Tid> for u64 {
    fn from(tid: Tid) -> u64 {
        tid.0.into()
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Pid {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Pid, ParseIntError> {
        text.parse().map(Pid)
    }
}

impl FromStr for Tid {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Tid, ParseIntError> {
        text.parse().map(Tid)
    }
}
