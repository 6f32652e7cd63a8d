//! `log.xml`: what was recorded, when, and on which machine.
//!
//! The file is a sequence of elements without a root: a header that never changes, then events in
//! the order in which they happened. The types here are the meaning of both; `encode` and
//! `decode` are their form. What the file cannot express, or gprofng would misread, is refused
//! when it is written, not silently altered.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod event_encoder;

use num_enum::{FromPrimitive, IntoPrimitive};

use crate::ids::{Pid, Tid};
use crate::microstate::NumStates;
use crate::packet::PacketDecl;
use crate::units::Nanos;

/// The label of the last sample of an experiment: all its data are written. What may still follow
/// are copies of load objects, and the exit.
pub const LAST_SAMPLE: &str = "stop";

/// The format version that the writer claims and that gprofng 2.40 reads.
pub const FORMAT_VERSION: &str = "12.4";

/// A CPU of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// Its clock frequency.
    pub mhz: u32,
}

/// The machine, as the header of a report shows it.
///
/// The operating system is left out on purpose: with the attribute `os`, gprofng numbers threads 1,
/// 2, 3… and thread ids are lost. Put it into a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// The name of the host.
    pub hostname: String,
    /// `x86_64` or `aarch64`. gprofng reads data of every other architecture as big-endian, so a
    /// writer refuses them.
    pub arch: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of memory.
    pub pages: u64,
    /// The CPUs.
    pub cpus: Vec<Cpu>,
}

/// The container that a process was in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// The program that runs it: `docker`, `podman`.
    pub runtime: String,
    /// Its id or name.
    pub id: String,
}

/// The width of a word in a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WordSize {
    /// 4 bytes; only read, never written.
    Bits32,
    /// 8 bytes.
    #[default]
    Bits64,
}

/// A setting of the collector, shown in the header of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// Ticks of idle CPUs were left out.
    NoIdle,
    /// The limit of the data, in megabytes.
    Limit(u64),
    /// Seconds between two samples.
    SamplePeriod(u32),
    /// Seconds before recording began.
    DelayStart(u32),
    /// Seconds after which recording ended.
    Terminate(u32),
    /// The signal that toggles recording.
    PauseSignal(u32),
    /// The descendants that were followed.
    LineTrace(String),
    /// Any other setting found in a file. A writer refuses it: for an unknown name, gprofng prints
    /// a debug line on stderr.
    Other {
        /// The attribute's name.
        name: String,
        /// Its value.
        value: String,
    },
}

/// The declaration of a data table and of its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileDecl {
    /// Clock ticks, in the file `profile`. A header may have several of these tables: each adds the
    /// metrics of its `states`, and a packet is declared in one of them. gprofng uses the tick
    /// length of the last one for all, so a writer refuses different lengths.
    Clock {
        /// The length of a tick, in microseconds.
        tick_us: u32,
        /// The states, which decide what metrics gprofng offers.
        states: NumStates,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
    /// Names of threads: the events of [`LogEvent::Thread`].
    ///
    /// gprofng supports names of Java threads only, so this declares that there are some. It then
    /// shows the time of every thread *without* a name as `<JVM-System>`, a function without
    /// callers, unless it is run with `-viewmode expert` or `machine`: name all threads of an
    /// experiment or none. Each experiment decides for itself, and so does each subexperiment.
    ThreadNames,
    /// Counters that were profiled, in the file `hwcounters`.
    Counters {
        /// The counters; 64 at most.
        counters: Vec<CounterDecl>,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
    /// Any other table.
    Other {
        /// Its name, for instance `heaptrace`.
        name: String,
        /// The remaining attributes, in order.
        attributes: Vec<(String, String)>,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
}

impl ProfileDecl {
    /// Returns the packets of the table.
    pub fn packets(&self) -> &[PacketDecl] {
        match self {
            ProfileDecl::Clock { packets, .. }
            | ProfileDecl::Counters { packets, .. }
            | ProfileDecl::Other { packets, .. } => packets,
            ProfileDecl::ThreadNames => &[],
        }
    }

    fn packets_mut(&mut self) -> Option<&mut Vec<PacketDecl>> {
        match self {
            ProfileDecl::Clock { packets, .. }
            | ProfileDecl::Counters { packets, .. }
            | ProfileDecl::Other { packets, .. } => Some(packets),
            ProfileDecl::ThreadNames => None,
        }
    }
}

/// The declaration of a counter that was profiled. Each counter is a metric.
///
/// gprofng derives further metrics from some names: IPC and CPI from `cycles` and `insts`, `K_IPC`
/// and `K_CPI` from `K_cycles` and `K_insts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterDecl {
    /// The number by which packets refer to it: [`crate::packet::CounterEvent::tag`], 0 to 63.
    pub tag: u32,
    /// The metric's keyword: letters, digits and `_`.
    pub name: String,
    /// The metric's title, free text.
    pub title: String,
    /// The number of events after which it overflows.
    pub interval: u64,
    /// The unit of its values.
    pub unit: CounterUnit,
}

/// The unit of a counter's values. The numbers are gprofng's `timecvt`: 1 stands for the CPU's
/// clock, a negative number −N for a clock of N MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromPrimitive, IntoPrimitive)]
#[repr(i64)]
pub enum CounterUnit {
    /// Plain counts; any unknown number means this.
    #[num_enum(default)]
    Count = 0,
    /// Cycles of the CPU's clock, shown as time also.
    Cycles = 1,
    /// Nanoseconds, shown as seconds.
    Nanoseconds = -1000,
}

/// The header of `log.xml`: what is known when recording starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHeader {
    /// The version of the format.
    pub version: String,
    /// The name and version of the collector.
    pub collector: String,
    /// The machine.
    pub system: System,
    /// The process that was profiled; in an experiment of the kernel, the collector.
    pub pid: Pid,
    /// The parent of that process.
    pub ppid: Option<Pid>,
    /// Its process group.
    pub pgrp: Option<Pid>,
    /// Its session.
    pub sid: Option<Pid>,
    /// The width of the words in the stacks.
    pub word_size: WordSize,
    /// The command line. Views show the part of its first word after the last `/` as the program's
    /// name: write a kernel thread `kworker/0:1` as `kworker:0:1`.
    pub command_line: String,
    /// The data tables.
    pub profiles: Vec<ProfileDecl>,
    /// The process's rank in a parallel program (MPI): an attribute that gprofng ignores.
    pub mpi_rank: Option<u32>,
    /// The experiment is to be packed when it is complete.
    pub pack: bool,
    /// The container that the process was in: two attributes that gprofng ignores.
    pub container: Option<Container>,
    /// The name and version of what recorded the data in the kernel.
    pub driver_version: Option<String>,
    /// The collector's settings.
    pub settings: Vec<Setting>,
    /// Lines of free text, shown in the header of a report.
    pub comments: Vec<String>,
}

impl Default for LogHeader {
    fn default() -> Self {
        LogHeader {
            version: FORMAT_VERSION.to_owned(),
            collector: String::new(),
            system: System::default(),
            pid: Pid::default(),
            ppid: None,
            pgrp: None,
            sid: None,
            word_size: WordSize::Bits64,
            command_line: String::new(),
            profiles: Vec::new(),
            mpi_rank: None,
            pack: false,
            container: None,
            driver_version: None,
            settings: Vec::new(),
            comments: Vec::new(),
        }
    }
}

/// The start of an experiment: its relative times count from here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StartTime {
    /// The time by the clock of the packets; less than 2^31 seconds.
    pub tstamp_ns: Nanos,
    /// Wall clock time, whole seconds since 1970.
    pub wall_s: i64,
    /// The nanoseconds beyond `wall_s`; 0 where the experiment has seconds only.
    pub wall_subsec_ns: u32,
    /// The seconds by which local time is *after* UTC (`timezone` of the C library).
    pub tm_zone_s: i64,
}

impl StartTime {
    /// Returns the wall clock time in nanoseconds since 1970; 0 if it was earlier.
    pub fn wall_ns(&self) -> Nanos {
        let seconds = Nanos::from_secs(u64::try_from(self.wall_s).unwrap_or(0));
        seconds.saturating_add(Nanos(self.wall_subsec_ns.into()))
    }
}

/// An event of `log.xml`. Its time counts from the start, even where the file counts otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Recording started.
    Start(StartTime),
    /// The experiment was closed.
    Exit {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
    },
    /// A usage record was taken.
    Sample {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The number of its record in `overview`; 0 is the start point.
        id: u32,
        /// Its label.
        label: String,
    },
    /// Recording paused.
    Pause {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The reason, if it is named.
        name: Option<String>,
    },
    /// Recording resumed.
    Resume {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
    },
    /// A thread has this name from this time on (`jthread_start`). The header has to declare
    /// [`ProfileDecl::ThreadNames`].
    ///
    /// For every packet of the thread, gprofng takes the name of the *last* such event in the file
    /// that is not later than the packet. So an event may stand after the packets that it names. An
    /// event with `at_ns` 0 replaces all names ahead of it, and an event at the time of a change
    /// names what follows. Views have one row for each thread id. It shows the name of the first
    /// packet counted in it, and includes the time under the thread's other names. A packet earlier
    /// than all names is shown as `<JVM-System>`; so write an event with `at_ns` 0 before the first
    /// packet of a thread. No event ends a name: a thread that reuses the id gets a new one.
    Thread {
        /// The time from which on it has the name, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The thread.
        tid: Tid,
        /// Its name, shown unchanged: for one that a process chose, see [`crate::text::printable`].
        name: String,
        /// Its group, shown unchanged too, for instance `pid 1264`. A writer refuses `system`: for
        /// gprofng that is the group of a Java machine's own threads, which it hides.
        group: String,
    },
    /// A comment, shown as a line in the header of a report.
    Comment {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The line.
        text: String,
    },
    /// A warning of the collector.
    Warning {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The warning.
        text: String,
    },
    /// An error of the collector.
    Error {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// The message.
        text: String,
        /// The system's error number, 0 for none.
        errno: i32,
    },
    /// A descendant is about to be started (`desc_start`).
    DescStart(Descendant),
    /// A descendant was started (`desc_started`).
    DescStarted(Descendant),
    /// Any other event found in a file.
    Other {
        /// Its kind.
        kind: String,
        /// The remaining attributes, in order.
        attributes: Vec<(String, String)>,
        /// The text inside.
        text: String,
    },
}

/// A descendant process, as announced in the log of its parent. For information only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    /// The time, nanoseconds since the start of the experiment.
    pub at_ns: Nanos,
    /// The call that starts it: `fork`, `exec`, …
    pub variant: String,
    /// The name of its subexperiment without `.er`.
    pub lineage: String,
    /// Whether it is followed.
    pub follow: bool,
    /// A message about it.
    pub message: String,
}

/// The message id with which gprofng prints the text of a warning or an error unchanged.
const VERBATIM_WARNING: u32 = 47;
/// The table that declares names of threads.
const THREAD_NAMES: &str = "jprofile";
/// The event that names a thread. Its time stamp is the only one that does not count from the
/// start.
const THREAD_NAMED: &str = "jthread_start";
/// The group of threads that gprofng hides.
const HIDDEN_GROUP: &str = "system";
/// The message id with which gprofng prints the text of a comment unchanged.
const VERBATIM_COMMENT: u32 = 400;
