//! One recording as it will be made: everything compiled, no text left to be understood.
//!
//! The command line makes a [`Plan`]; the recording only reads it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use counters::names::grammar::OverflowSpec;
use experiment_format::directory::NameRequest;
use user_collector::follow::{Follow, FollowRule, Pattern};

/// One recording, as it will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The clock interval in whole microseconds, [`MIN_PERIOD_US`] to [`MAX_PERIOD_US`].
    pub period_us: u32,
    /// Counters that are recorded when they overflow (`-h`). Whether this machine has them is found
    /// out when the run starts.
    pub counters: Vec<OverflowSpec>,
    /// Data are paused until this long after the beginning (`-t 2-10`). Zero: from the beginning.
    pub start: Duration,
    /// Everything ends this long after the beginning. None: no limit. Always later than `start`.
    pub end: Option<Duration>,
    /// Quiet time before the load starts and again after it has ended (`-q`). Zero when there is no
    /// load.
    pub quiet: Duration,
    /// Record ticks of idle CPUs too (`-x off`).
    pub record_idle: bool,
    /// What the experiment is to be called.
    pub name: NameRequest,
    /// The directory in which the experiment is made. Relative to the current one, which is `.`,
    /// never empty.
    pub directory: PathBuf,
    /// The experiment group to which the experiment is added, already inside `directory` unless it
    /// was absolute.
    pub group: Option<PathBuf>,
    /// Where kcollect's own output goes, appended, errors included (`-O`). None: standard output
    /// and standard error.
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
    /// Which processes are followed into their user code (`-F`).
    pub follow: FollowWish,
    /// What a followed process forks is followed too.
    pub descendants: bool,
    /// Processes and threads that are counted apart (`-T`), and followed whatever `-F` says. The
    /// whole machine is recorded whatever is named here.
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

/// What is copied into the experiment's `archives/` (`-A`).
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

/// Which processes are followed into their user code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowWish {
    /// None.
    Off,
    /// Those that were on a CPU at a tick.
    On,
    /// All, also those that only waited.
    All,
    /// Those that a regular expression matches as a whole: by name, file name of the program, or
    /// number.
    Matching(String),
}

impl Plan {
    /// Whom to follow, by `-F`, `-T` and `--descendants`.
    #[must_use]
    pub fn rule(&self) -> FollowRule {
        FollowRule {
            follow: match &self.follow {
                FollowWish::Off => Follow::Off,
                FollowWish::On => Follow::On,
                FollowWish::All => Follow::All,
                // It was compiled when it was typed.
                FollowWish::Matching(pattern) => {
                    Pattern::new(pattern).map_or(Follow::Off, Follow::Matching)
                }
            },
            pids: self
                .targets
                .iter()
                .map(|target| target.pid)
                .filter(|pid| *pid != 0)
                .collect(),
            descendants: self.descendants,
        }
    }
}

/// A process, or one thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process. For a kernel thread its own id.
    pub pid: u32,
    /// The thread of it. None: all threads.
    pub tid: Option<u32>,
}
