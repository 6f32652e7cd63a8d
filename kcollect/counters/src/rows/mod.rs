//! What `kcollect track` and `kcollect stat` tell: rows. The words of events are cputrack's and
//! cpustat's.

pub mod format;
pub mod writer;

use crate::perf::reading::Value;

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Time has passed: what was counted since the last one.
    Tick,
    /// A thread was born.
    LwpCreate,
    /// A thread ended: all that it counted.
    LwpExit,
    /// A thread made this process.
    Fork(u32),
    /// A process began the program of this name.
    Exec(String),
    /// A process ended: all that its threads counted.
    Exit,
    /// A CPU came.
    Online,
    /// A CPU went: what it counted since its last row.
    Offline,
    /// Everything, of so many threads or CPUs.
    Total(u64),
}

impl What {
    /// Every word there is, in the order of the variants.
    pub const ALL_WORDS: [&str; 9] = [
        "tick",
        "lwp_create",
        "lwp_exit",
        "fork",
        "exec",
        "exit",
        "online",
        "offline",
        "total",
    ];

    /// The word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let number = match self {
            What::Tick => 0,
            What::LwpCreate => 1,
            What::LwpExit => 2,
            What::Fork(_) => 3,
            What::Exec(_) => 4,
            What::Exit => 5,
            What::Online => 6,
            What::Offline => 7,
            What::Total(_) => 8,
        };
        What::ALL_WORDS[number]
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// CLOCK_MONOTONIC, nanoseconds: of what happened, or of the reading.
    pub time_ns: u64,
    /// The process.
    pub pid: Option<u32>,
    /// The thread.
    pub lwp: Option<u32>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// What it is about.
    pub what: What,
    /// What was counted, in the order of the events. None where nothing is known.
    pub values: Option<Vec<Value>>,
    /// What was counted is not all, for the kernel did not say all.
    pub incomplete: bool,
}

impl Row {
    /// Of a thread.
    #[must_use]
    pub fn of(time_ns: u64, pid: u32, lwp: u32, what: What, values: Option<Vec<Value>>) -> Row {
        Row {
            pid: Some(pid),
            lwp: Some(lwp),
            ..Row::on(time_ns, None, what, values)
        }
    }

    /// Of a CPU, or of all.
    #[must_use]
    pub fn on(time_ns: u64, cpu: Option<u32>, what: What, values: Option<Vec<Value>>) -> Row {
        Row {
            time_ns,
            pid: None,
            lwp: None,
            cpu,
            what,
            values,
            incomplete: false,
        }
    }
}
