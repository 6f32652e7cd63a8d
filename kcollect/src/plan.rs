//! The plan of one recording: every option understood, checked and given its unit.
//!
//! The command line makes a [`Plan`]; the recording only reads it, and never has to parse text or
//! to handle a value that is out of range.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use counters::names::grammar::OverflowSpec;
use experiment_format::directory::NameRequest;
use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::SyncThreshold;
use experiment_format::units::{Nanos, Ticks};
use serde::{Serialize, Serializer};
use user_collector::follow::FollowRule;

/// The plan of one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The time between two ticks (`-p`).
    pub tick_interval: Interval,
    /// Counters that are recorded when they overflow (`-h`). They are looked up on this machine
    /// when the recording starts.
    pub counters: Vec<OverflowSpec>,
    /// Ticks of idle CPUs are recorded too (`-x off`).
    pub record_idle: bool,
    /// Which processes are followed into their user code (`-F`, `-T`, `--descendants`).
    pub follow: FollowRule,
    /// Processes and threads that have rows of their own (`-T`). The whole machine is recorded
    /// in any case.
    pub targets: Vec<Target>,
    /// What is traced of followed processes.
    pub tracing: Tracing,
    /// What wakes each thread is watched, for the cause of each wait (`-W`).
    pub watch_wakers: bool,
    /// The load command and its arguments. Empty: none.
    pub load: Vec<OsString>,
    /// What is recorded when.
    pub timing: Timing,
    /// The signal that records a sample (`-l`).
    pub sample_signal: Option<i32>,
    /// The signal that pauses and resumes (`-y`).
    pub pause_signal: Option<PauseSignal>,
    /// Where the experiment is made.
    pub place: Place,
    /// How one experiment follows another.
    pub series: SeriesPlan,
    /// Bytes of profile data after which no more data are recorded, while samples continue (`-L`).
    /// None: no limit.
    pub limit: Option<u64>,
    /// The share of one CPU that kcollect may take (`--budget`). None: no limit.
    pub budget: Option<CpuShare>,
    /// What is copied into the experiment at the end.
    pub archive: Archive,
    /// Comments for the experiment's notes, at most [`MAX_COMMENTS`].
    pub comments: Vec<String>,
    /// What differs from the command line, one sentence each, to be printed and recorded.
    pub notices: Vec<String>,
    /// Print what would be recorded, and record nothing (`-n`). [`Printing::verbose`] is then set
    /// too.
    pub dry_run: bool,
    /// How results and messages are printed.
    pub printing: Printing,
}

/// What is traced of followed processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// The shortest wait for a lock that is recorded (`-s`). None: none is.
    pub lock_threshold: Option<SyncThreshold>,
    /// Each system call that does I/O is recorded (`-i`).
    pub io: bool,
    /// What is recorded of their memory (`-H`).
    pub heap: HeapTracing,
    /// The CPU time that the probes of its allocators may add to a process, as a share of its own
    /// CPU time (`--trace-budget`). None: no limit.
    pub budget: Option<CpuShare>,
}

/// What is recorded when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time from the beginning until data are recorded (`-t 2-10`). Zero: from the beginning.
    pub start: Duration,
    /// Time from the beginning until the recording ends. None: no limit. Always later than
    /// `start`.
    pub end: Option<Duration>,
    /// Time that is recorded before the load starts, and again after it has ended (`-q`). Zero
    /// without a load.
    pub quiet: Duration,
    /// Time between two samples, never zero (`-S`). None: no periodic samples.
    pub sample_period: Option<Duration>,
}

/// Where the experiment is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The experiment's name.
    pub name: NameRequest,
    /// The directory in which the experiment is made. Relative to the current one, which is `.`,
    /// never empty.
    pub directory: PathBuf,
    /// The experiment group to which the experiment is added (`-g`). It is inside `directory`
    /// already unless it was absolute.
    pub group: Option<PathBuf>,
}

/// How one experiment follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesPlan {
    /// Time after which an experiment is closed and the next one begins (`--rotate`). None: there
    /// is one experiment, and nothing to keep or to pack.
    pub rotate: Option<Duration>,
    /// What is kept of the complete experiments (`--keep`). None: all.
    pub keep: Option<Keep>,
    /// Experiments are packed once they are complete (`--pack`).
    pub pack: bool,
}

/// How results and messages are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printing {
    /// The file to which kcollect's own output is appended, errors included (`-O`). None: standard
    /// output and standard error.
    pub file: Option<PathBuf>,
    /// Print more (`-v`).
    pub verbose: bool,
    /// Print the summary as JSON.
    pub json: bool,
}

/// What is recorded of the memory of followed processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapTracing {
    /// Nothing.
    Off,
    /// What they get from the kernel and give back.
    Growth,
    /// The blocks of their allocators. On average, one byte of this many is sampled, with its
    /// block; 0: each block is sampled.
    Blocks(u64),
}

impl HeapTracing {
    /// Mean number of bytes per sampled byte; 0: each block is sampled. None: blocks are not
    /// recorded.
    #[must_use]
    pub fn mean_bytes(self) -> Option<u64> {
        match self {
            HeapTracing::Blocks(mean_bytes) => Some(mean_bytes),
            HeapTracing::Off | HeapTracing::Growth => None,
        }
    }
}

/// The largest number of comments of one experiment (`-C`).
pub const MAX_COMMENTS: usize = 10;

/// The time between two ticks, whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    micros: u32,
}

impl Interval {
    /// The shortest, whatever the kernel would permit: 100 µs.
    pub const MIN: Interval = Interval { micros: 100 };
    /// The longest: 1 s, as in gprofng.
    pub const MAX: Interval = Interval { micros: 1_000_000 };

    /// An interval in microseconds. None: shorter than [`Interval::MIN`] or longer than
    /// [`Interval::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u32) -> Option<Interval> {
        if micros < Interval::MIN.micros || micros > Interval::MAX.micros {
            return None;
        }
        Some(Interval { micros })
    }

    /// Returns it in microseconds.
    #[must_use]
    pub const fn micros(self) -> u32 {
        self.micros
    }

    /// Returns it in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> Nanos {
        Nanos::from_micros(self.micros as u64)
    }

    /// The time of a number of ticks, in seconds.
    #[must_use]
    pub fn seconds_of(self, ticks: Ticks) -> f64 {
        ticks.0 as f64 * (f64::from(self.micros) / 1e6)
    }
}

/// As users write it: `10.007 ms`, `997 µs`.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.micros >= 1000 {
            write!(f, "{} ms", f64::from(self.micros) / 1000.0)
        } else {
            write!(f, "{} µs", self.micros)
        }
    }
}

/// In microseconds.
impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.micros)
    }
}

/// A share of CPU time: of one CPU's, or of a process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare {
    /// In millionths.
    pub ppm: u32,
}

impl CpuShare {
    /// The share as a number: 1 is the whole CPU.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.ppm) / 1e6
    }
}

/// As users write it: `0.5 %`.
impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.ppm) / 1e4)
    }
}

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

/// What is kept of a series of experiments, in addition to the experiment being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The newest ones, up to this many bytes together.
    Bytes(u64),
    /// The ones that were closed at most this long ago.
    Age(Duration),
}

/// The signal that pauses and resumes the recording of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseSignal {
    /// Its number.
    pub signal: i32,
    /// Recording starts at once (`,r`). Otherwise it starts paused.
    pub start_recording: bool,
}

/// A process, or one thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process. For a kernel thread its own id.
    pub pid: Pid,
    /// Its thread. None: all threads.
    pub tid: Option<Tid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_bounds_and_units() {
        assert_eq!(Interval::from_micros(99), None);
        assert_eq!(Interval::from_micros(100), Some(Interval::MIN));
        assert_eq!(Interval::from_micros(1_000_000), Some(Interval::MAX));
        assert_eq!(Interval::from_micros(1_000_001), None);
        let hi = Interval::from_micros(997).unwrap();
        assert_eq!((hi.micros(), hi.nanos()), (997, Nanos(997_000)));
        assert_eq!(hi.to_string(), "997 µs");
        assert_eq!(
            Interval::from_micros(10_007).unwrap().to_string(),
            "10.007 ms"
        );
        assert_eq!(Interval::MAX.to_string(), "1000 ms");
    }
}
