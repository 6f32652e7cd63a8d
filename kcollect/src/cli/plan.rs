//! What will be done: every word of the command line understood, checked and given its unit.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::exit::{Failure, Kind};

/// What kcollect was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Profile the machine.
    Record(Box<Plan>),
    /// Say what this machine lacks for profiling (`kcollect doctor`).
    Doctor {
        /// For machines instead of people.
        json: bool,
    },
    /// List the hardware counters (`-h` alone).
    Counters,
    /// Say the version (`-V`).
    Version,
    /// Print this text on standard output (`--help`).
    Help(String),
}

/// One recording, as it will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The clock interval in whole microseconds, [`MIN_PERIOD_US`] to [`MAX_PERIOD_US`].
    pub period_us: u32,
    /// Data are paused until this long after the beginning (`-t 2-10`). Zero: from the beginning.
    pub start: Duration,
    /// Everything ends this long after the beginning. None: no limit. Always later than `start`.
    pub end: Option<Duration>,
    /// Quiet time before the load starts and again after it has ended (`-q`). Zero when there is no load.
    pub quiet: Duration,
    /// Record ticks of idle CPUs too (`-x off`).
    pub record_idle: bool,
    /// What the experiment is to be called.
    pub name: NameWish,
    /// The directory in which the experiment is made. Relative to the current one, which is `.`, never empty.
    pub directory: PathBuf,
    /// The experiment group to which the experiment is added, already inside `directory` unless it was absolute.
    pub group: Option<PathBuf>,
    /// Where kcollect's own output goes, appended, errors included (`-O`). None: standard output and standard error.
    pub output: Option<PathBuf>,
    /// Bytes of profile data after which data stop, while samples go on (`-L`). None: no limit.
    pub limit: Option<u64>,
    /// What is copied into the experiment at the end.
    pub archive: Archive,
    /// Comments for the experiment's notes, at most [`MAX_COMMENTS`].
    pub comments: Vec<String>,
    /// Time from one sample to the next, never zero. None: no samples but those that are asked for.
    pub sample_period: Option<Duration>,
    /// The signal that records a sample (`-l`).
    pub sample_signal: Option<i32>,
    /// The signal that pauses and resumes (`-y`).
    pub pause_signal: Option<PauseSignal>,
    /// Only these processes and threads are recorded. Empty: the whole machine.
    pub targets: Vec<Target>,
    /// The load command and its arguments. Empty: none.
    pub load: Vec<OsString>,
    /// Say more (`-v`).
    pub verbose: bool,
    /// Say what would be recorded, and record nothing (`-n`). `verbose` is then set too.
    pub dry_run: bool,
    /// The summary for machines instead of people.
    pub json: bool,
    /// What was adjusted, one sentence each, to be told to the user and recorded.
    pub notices: Vec<String>,
}

/// The shortest clock interval, whatever the kernel would permit: 100 µs.
pub const MIN_PERIOD_US: u32 = 100;
/// The longest clock interval: 1 s, as in gprofng.
pub const MAX_PERIOD_US: u32 = 1_000_000;
/// How many `-C` an experiment takes.
pub const MAX_COMMENTS: usize = 10;

/// What the experiment is to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameWish {
    /// `stem.N.er`. N is `wanted` if that is free, else one more than the largest N in use.
    Series {
        /// All before `.N.er`.
        stem: String,
        /// The N that was typed with `-o`, which the user is told about when it is in use. None: the next one.
        wanted: Option<u32>,
    },
    /// This name, which ends in `.er`, or none.
    Exactly(String),
}

/// What is copied into the experiment's `archives/` at the end (`-A`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archive {
    /// Nothing.
    Off,
    /// Every load object (`on`, `copy`, `ldobjects`).
    LoadObjects,
    /// Load objects that the data refer to.
    UsedLoadObjects,
    /// Load objects, and all sources.
    Sources,
    /// Load objects, and sources that the data refer to.
    UsedSources,
    /// Everything.
    All,
}

/// The signal that pauses and resumes the recording of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseSignal {
    /// Its number.
    pub signal: i32,
    /// `,r` was typed: begin recording. Else begin paused.
    pub start_recording: bool,
}

/// A process, or one thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process. For a kernel thread its own id.
    pub pid: u32,
    /// The thread of it. None: all threads.
    pub tid: Option<u32>,
}

/// What resolution needs to know of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `kernel.perf_event_max_sample_rate`, in ticks per second and CPU. None: not known.
    pub max_sample_rate: Option<u64>,
    /// Columns of the terminal, for the help. None: not a terminal.
    pub width: Option<u16>,
}

impl Machine {
    /// Reads it from the running machine. What cannot be read is not known.
    #[must_use]
    pub fn read() -> Self {
        Machine {
            max_sample_rate: None,
            width: None,
        }
    }
}

/// A command line that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {cure}")]
pub struct CliError {
    /// The option, what was typed, and what is wrong with it.
    pub message: String,
    /// What to type instead.
    pub cure: String,
}

impl CliError {
    /// An error with its cure.
    pub fn new(message: impl Into<String>, cure: impl Into<String>) -> Self {
        CliError {
            message: message.into(),
            cure: cure.into(),
        }
    }
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Failure::new(Kind::Usage, error.message, error.cure)
    }
}

/// Makes sure that every target exists now.
///
/// # Errors
/// [`Kind::NoInput`] names the first one that does not.
pub fn check_targets(targets: &[Target]) -> Result<(), Failure> {
    let _ = targets;
    Ok(())
}
