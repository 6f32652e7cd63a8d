//! `log.xml`: who recorded what, when, on which machine.
//!
//! The file is a sequence of elements without a root: a header that never changes, then events in
//! the order in which they happened. The types here say what it means; what cannot be said in the
//! file, or what gprofng would misread, is refused when it is written, not silently altered.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod events;

use crate::microstate::NumStates;
use crate::packet::PacketDecl;

/// The format version that the writer claims and that gprofng 2.40 reads.
pub const FORMAT_VERSION: &str = "12.4";

/// One CPU of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// Its clock, in MHz.
    pub mhz: u32,
}

/// The machine, as the header of a report shows it.
///
/// There is no operating system here on purpose: with the attribute `os`, gprofng renumbers
/// threads 1, 2, 3… and real thread ids are lost. Put it into a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// Name of the host.
    pub hostname: String,
    /// `x86_64` or `aarch64`. gprofng reads the data of every other name big-endian, so a writer
    /// refuses them.
    pub arch: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of memory.
    pub pages: u64,
    /// The CPUs.
    pub cpus: Vec<Cpu>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Who runs it: `docker`, `podman`.
    pub runtime: String,
    /// Its id or name.
    pub id: String,
}

/// Width of a stack word.
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
    /// Data were limited to this many megabytes.
    Limit(u64),
    /// Seconds between two samples.
    SamplePeriod(u32),
    /// Seconds before data were recorded.
    DelayStart(u32),
    /// Seconds after which data ended.
    Terminate(u32),
    /// The signal that toggles recording.
    PauseSignal(u32),
    /// Which descendants were followed.
    LineTrace(String),
    /// Any other one that a file held. A writer refuses it: gprofng prints a debug line on
    /// stderr for a name it does not know.
    Other {
        /// The attribute's name.
        name: String,
        /// Its value.
        value: String,
    },
}

/// A data table, declared with what its packets look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileDecl {
    /// Clock ticks, in the file `profile`. More than one of these may stand in a header: each
    /// registers the metrics of its `states`. For gprofng the tick length of the last one counts
    /// for all, so a writer refuses different ones; and tick arrays have as many states as the last
    /// one, so a writer refuses them if that is not [`NumStates::Solaris`].
    Clock {
        /// Length of a tick, in microseconds.
        tick_us: u32,
        /// Which metrics the reader offers.
        states: NumStates,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
    /// Threads have names: the events of [`LogEvent::Thread`].
    ///
    /// gprofng knows names of Java threads only, so this says that there are some. It then shows
    /// the time of every thread *without* a name as `<JVM-System>`, a function without callers,
    /// unless it was told `-viewmode expert` or `machine`: name all threads of an experiment or
    /// none. Experiments do not depend on each other in this, subexperiments included.
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
    /// The packets of the table.
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

/// A counter that was profiled: a metric of its own.
///
/// gprofng makes further metrics of some names: IPC and CPI of `cycles` and `insts`, `K_IPC` and
/// `K_CPI` of `K_cycles` and `K_insts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterDecl {
    /// By what packets refer to it: [`crate::packet::CounterEvent::tag`], 0 to 63.
    pub tag: u32,
    /// The metric's keyword: letters, digits and `_`.
    pub name: String,
    /// The metric's title, free text.
    pub title: String,
    /// After how many events it overflows.
    pub interval: u64,
    /// What a value is.
    pub unit: CounterUnit,
}

/// What the values of a counter are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CounterUnit {
    /// Plain counts.
    Count,
    /// Cycles of the CPU's clock, shown as time also.
    Cycles,
    /// Nanoseconds, shown as seconds.
    Nanoseconds,
}

impl CounterUnit {
    /// gprofng's `timecvt`: 1 stands for the CPU's clock, a negative number for one of so many MHz.
    pub(crate) fn timecvt(self) -> i64 {
        match self {
            CounterUnit::Count => 0,
            CounterUnit::Cycles => 1,
            CounterUnit::Nanoseconds => -1000,
        }
    }

    pub(crate) fn of_timecvt(timecvt: i64) -> Self {
        match timecvt {
            -1000 => CounterUnit::Nanoseconds,
            1 => CounterUnit::Cycles,
            _ => CounterUnit::Count,
        }
    }
}

/// All of `log.xml` that is known when recording starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: String,
    /// Name and version of the collector.
    pub collector: String,
    /// The machine.
    pub system: System,
    /// The process that was profiled; of a kernel experiment, the collector.
    pub pid: u32,
    /// Its parent.
    pub ppid: Option<u32>,
    /// Width of the words in the stacks.
    pub word_size: WordSize,
    /// The command line. Views show what follows the last `/` of its first word as the program's
    /// name: write a kernel thread `kworker/0:1` as `kworker:0:1`.
    pub command_line: String,
    /// The data tables.
    pub profiles: Vec<ProfileDecl>,
    /// The process's rank in a parallel program (MPI): an attribute that gprofng passes over.
    pub mpi_rank: Option<u32>,
    /// The container that the process was in: two attributes that gprofng passes over.
    pub container: Option<Container>,
    /// What took the data in the kernel.
    pub driver_version: Option<String>,
    /// The collector's settings.
    pub settings: Vec<Setting>,
    /// Free text, one line each, shown in the header of a report.
    pub comments: Vec<String>,
}

impl Default for Header {
    fn default() -> Self {
        Header {
            version: FORMAT_VERSION.to_owned(),
            collector: String::new(),
            system: System::default(),
            pid: 0,
            ppid: None,
            word_size: WordSize::Bits64,
            command_line: String::new(),
            profiles: Vec::new(),
            mpi_rank: None,
            container: None,
            driver_version: None,
            settings: Vec::new(),
            comments: Vec::new(),
        }
    }
}

/// The start of an experiment: the zero of all its relative times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    /// Nanoseconds of the clock that packets carry too. Of 2^31 seconds at most.
    pub tstamp: u64,
    /// Wall clock: seconds since 1970.
    pub wall: i64,
    /// Seconds that the local time is *behind* UTC (the C library's `timezone`).
    pub tm_zone: i64,
}

/// An event of `log.xml`. Every `at` is in nanoseconds since the start, whether or not the file has
/// it so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Recording started.
    Run(Run),
    /// The experiment was closed.
    Exit {
        /// When.
        at: u64,
    },
    /// A usage record was taken.
    Sample {
        /// When.
        at: u64,
        /// Which record of `overview` belongs to it; 0 is the start point.
        id: u32,
        /// Its label.
        label: String,
    },
    /// Recording paused.
    Pause {
        /// When.
        at: u64,
        /// Why, if named.
        name: Option<String>,
    },
    /// Recording resumed.
    Resume {
        /// When.
        at: u64,
    },
    /// A thread has a name from now on (`jthread_start`). The header has to declare
    /// [`ProfileDecl::ThreadNames`].
    ///
    /// gprofng gives every packet of the thread the name of the *last* such event in the file that
    /// is not later than the packet. So an event may stand behind the packets that it names; one
    /// `at` 0 replaces all names that stand ahead of it, and one at the time of a change names what
    /// follows. Threads are rows by their number alone: the row has the name of the first packet
    /// that counts in it, and what other names had is in it too. A packet that has no name, being
    /// earlier than all of them, is shown as `<JVM-System>`; so write an event `at` 0 before the
    /// first packet of a thread. No event ends a name: a reused number gets its new one.
    Thread {
        /// Since when.
        at: u64,
        /// The thread.
        tid: u32,
        /// Its name, shown as it is: for what a process chose, see [`crate::layout::printable`].
        name: String,
        /// What it belongs to, shown in the same way: say `pid 1264`. A writer refuses `system`:
        /// gprofng takes that for the inside of a Java machine and hides the thread.
        group: String,
    },
    /// A line for the header of a report.
    Comment {
        /// When.
        at: u64,
        /// The line.
        text: String,
    },
    /// A warning of the collector.
    Warning {
        /// When.
        at: u64,
        /// The warning.
        text: String,
    },
    /// An error of the collector.
    Error {
        /// When.
        at: u64,
        /// The message.
        text: String,
        /// The system's error number, 0 for none.
        errno: i32,
    },
    /// A descendant is about to be started (`desc_start`).
    DescStart(Descendant),
    /// A descendant was started (`desc_started`).
    DescStarted(Descendant),
    /// Any other event that a file held.
    Other {
        /// Its kind.
        kind: String,
        /// The remaining attributes, in order.
        attributes: Vec<(String, String)>,
        /// The text inside.
        text: String,
    },
}

/// A descendant process, as the log of its parent announces it. For information only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    /// When, in nanoseconds since the start.
    pub at: u64,
    /// The call: `fork`, `exec`, …
    pub variant: String,
    /// Name of its subexperiment without `.er`.
    pub lineage: String,
    /// Whether it is followed.
    pub follow: bool,
    /// More about it.
    pub message: String,
}

/// Message id with which gprofng prints the text of a warning or an error as it is.
const VERBATIM_WARNING: u32 = 47;
/// The declaration that lets threads have names.
const THREAD_NAMES: &str = "jprofile";
/// The event that names a thread. Its time stamp is, unlike that of others, not since the start.
const THREAD_NAMED: &str = "jthread_start";
/// The group of threads that gprofng does not show.
const HIDDEN_GROUP: &str = "system";
/// Message id with which gprofng prints the text of a comment as it is.
const VERBATIM_COMMENT: u32 = 400;
