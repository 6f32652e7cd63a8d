//! The rows that `kcollect track` and `kcollect stat` print. They have the same kinds as cputrack's
//! and cpustat's.
//!
//! [`format`](mod@format) makes text and JSON of a row, [`writer`] writes it.

pub mod format;
pub mod writer;

use strum::{IntoStaticStr, VariantNames};
use types::ids::{Pid, Tid};
use types::units::Nanos;

use crate::perf::reading::CounterValue;

/// What a row reports: the column `event`.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RowKind {
    /// A tick of the period: what was counted since the last one.
    Tick,
    /// A thread was created.
    LwpCreate,
    /// A thread exited: all that it counted.
    LwpExit,
    /// A thread forked the process of this number.
    Fork(Pid),
    /// A process executed the program of this name.
    Exec(String),
    /// A process exited: all that its threads counted.
    Exit,
    /// A CPU went online.
    Online,
    /// A CPU went offline: what it counted since its last row.
    Offline,
    /// The total, with its number of threads or CPUs.
    Total(u64),
}

impl RowKind {
    /// The words for all kinds.
    pub const ALL_WORDS: &'static [&'static str] = RowKind::VARIANTS;

    /// Returns the word for this kind: `lwp_create`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.into()
    }
}

/// A row of counts, of a thread, a process or a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountRow {
    /// When the row's event happened, or its counts were read, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: Nanos,
    /// The process.
    pub pid: Option<Pid>,
    /// The thread.
    pub lwp: Option<Tid>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// What the row reports.
    pub kind: RowKind,
    /// The counts, in the order of the events. None: nothing was counted, or it is not known.
    pub values: Option<Vec<CounterValue>>,
    /// Whether some of the counts are missing.
    pub incomplete: bool,
    /// For a CPU: how long the hypervisor ran something else there since the CPU's last row. None:
    /// not known.
    pub stolen_ns: Option<Nanos>,
}

impl CountRow {
    /// Returns a row of a thread or process.
    #[must_use]
    pub fn of_thread(
        time_ns: Nanos,
        pid: Pid,
        lwp: Tid,
        kind: RowKind,
        values: Option<Vec<CounterValue>>,
    ) -> CountRow {
        CountRow {
            pid: Some(pid),
            lwp: Some(lwp),
            ..CountRow::of_cpu(time_ns, None, kind, values)
        }
    }

    /// Returns a row of a CPU. Without a number it is of all CPUs or threads.
    #[must_use]
    pub fn of_cpu(
        time_ns: Nanos,
        cpu: Option<u32>,
        kind: RowKind,
        values: Option<Vec<CounterValue>>,
    ) -> CountRow {
        CountRow {
            time_ns,
            pid: None,
            lwp: None,
            cpu,
            kind,
            values,
            incomplete: false,
            stolen_ns: None,
        }
    }
}
