//! What experiments say, in columns: who, where, when, in which state, with which stack.
//!
//! One [`Model`] holds all experiments of a report. Everything in it is numbered from 0 on, and
//! refers to everything else by number, so that what sums needs vectors and no maps. A stack is a
//! node of a trie ([`Stacks`]); a frame is a place in a load object, and belongs to a function.
//! Source lines and inlined functions are added later, and only for who wants them:
//! [`crate::load::lines`].

pub(crate) mod interner;
mod source_lines;
mod stacks;
pub(crate) mod trie;

use experiment_format::log::CounterUnit;
use experiment_format::losses::{self, Recorded};
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;

pub use source_lines::{SourceLine, SourceLines};
pub use stacks::{Callees, Stacks};

/// How many states sums tell apart: the twelve that have names, and all others together.
pub const STATE_SLOTS: usize = Microstate::ALL.len() + 1;

/// Microseconds by state: at the position of its number, or the last for all that have no name. Of
/// counters what they counted, by [`CounterOverflow::counter`].
pub type Sums = [i64; STATE_SLOTS];

/// Sums of nothing.
pub const ZERO_SUMS: Sums = [0; STATE_SLOTS];

/// As many counters as sums have room for: those beyond are left out, with a warning.
pub const MAX_COUNTERS: usize = STATE_SLOTS;

/// gprofng's names for what is no function.
pub const UNKNOWN: &str = "<Unknown>";
/// Root of a stack of which there was more.
pub const TRUNCATED: &str = "<Truncated-stack>";
/// Root of a stack whose next caller could not be found.
pub const UNWIND_FAILED: &str = "<Stack-unwind-failed>";
/// gprofng's load object of what is no function.
pub const TOTAL: &str = "<Total>";

/// A number that refers to a vector of the [`Model`].
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The position.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Position in [`Model::experiments`].
    ExperimentId;
    /// Position in [`Model::processes`].
    ProcessId;
    /// Position in [`Model::threads`].
    ThreadId;
    /// Position in [`Model::cpus`].
    CpuId;
    /// Position in [`Model::objects`].
    ObjectId;
    /// Position in [`Model::functions`].
    FunctionId;
    /// Position in [`Model::frames`].
    FrameId;
    /// A stack: a node of [`Model::stacks`]. [`StackId::EMPTY`] has no frame; its time is in totals
    /// alone.
    StackId;
}

impl StackId {
    /// The stack without frames, the root of the trie.
    pub const EMPTY: StackId = StackId(0);
}

/// Ticks of one thread, or of one CPU, in one state with one stack. 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickRow {
    /// When they were recorded, nanoseconds since the start of the founder.
    pub time: u64,
    /// With which stack.
    pub stack: StackId,
    /// Whose.
    pub thread: ThreadId,
    /// In which experiment they are.
    pub experiment: ExperimentId,
    /// On which CPU they were recorded.
    pub cpu: CpuId,
    /// How many. Times [`ExperimentInfo::tick_us`] they are microseconds.
    pub ticks: i32,
    /// The state's number, [`Microstate::number`]; one without a name is its number too, up to 255.
    pub state: u8,
    /// What more is known, [`experiment_format::packet::Detail::number`].
    pub detail: u8,
}

impl TickRow {
    /// The state's position in [`Sums`].
    #[must_use]
    pub fn slot(&self) -> usize {
        usize::from(self.state).min(STATE_SLOTS - 1)
    }
}

/// A counter, whichever experiments have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterInfo {
    /// The metric's keyword.
    pub name: String,
    /// The metric's title.
    pub title: String,
    /// What its values are.
    pub unit: CounterUnit,
}

/// A counter has overflowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterOverflow {
    /// When, where and whose; it has no ticks.
    pub row: TickRow,
    /// Position in [`Model::counters`].
    pub counter: u8,
    /// How many events that stands for.
    pub value: i64,
}

/// An experiment, or a subexperiment.
#[derive(Debug)]
pub struct ExperimentInfo {
    /// As it is read: header, events, samples.
    pub source: Experiment,
    /// Name of its directory.
    pub name: String,
    /// That in whose directory it is; itself, if it is in none that was opened.
    pub founder: ExperimentId,
    /// Its start, nanoseconds after that of its founder. Before it: 0.
    pub offset_ns: u64,
    /// Length of a tick in microseconds: that of its last clock table, as for gprofng. 0 without
    /// one.
    pub tick_us: u32,
    /// Whether it has ticks of threads of one process alone, and not of a machine.
    pub process: Option<ProcessId>,
    /// The latest time in it, nanoseconds since the start of the founder.
    pub end_ns: u64,
}

impl ExperimentInfo {
    /// Returns `kcollect.json`, the summary that kcollect writes at the end. None in experiments of
    /// other collectors, in subexperiments, and where kcollect was killed.
    #[must_use]
    pub fn summary(&self) -> Option<serde_json::Value> {
        let bytes = self.source.side_file("kcollect.json").ok()??;
        serde_json::from_slice(&bytes).ok()
    }

    /// Returns the loss counts of `kcollect.json`.
    #[must_use]
    pub fn losses(&self) -> Option<LossCounts> {
        let summary = self.summary()?;
        let counts = summary["losses"].as_object()?.iter();
        let number = |key: &str| summary[key].as_u64().unwrap_or(0);
        Some(LossCounts {
            counts: counts
                .filter_map(|(name, count)| Some((name.clone(), count.as_i64()?)))
                .collect(),
            recorded: Recorded {
                ticks: number("ticks"),
                thread_ticks: number("thread_ticks"),
                arrays: number("arrays"),
            },
        })
    }
}

/// What a recording lost, by cause, and how much it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossCounts {
    /// The counts by their keys in `kcollect.json`, zeros included.
    pub counts: Vec<(String, i64)>,
    /// What they are a share of.
    pub recorded: Recorded,
}

impl LossCounts {
    /// Returns all of it on one line: see [`losses::describe`].
    #[must_use]
    pub fn line(&self) -> String {
        let counts = self.counts.iter();
        losses::describe(
            counts.map(|(name, count)| (name.as_str(), *count)),
            &self.recorded,
        )
    }
}

/// A process: a subexperiment is one, and so is each process that a founder tells of and that has
/// none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its number.
    pub pid: u32,
    /// Its name: of a subexperiment the program's, as gprofng has it, else what the kernel calls
    /// it.
    pub name: String,
    /// The experiment of its threads; that of the founder, if it has none of its own.
    pub experiment: u32,
    /// Whether it was followed into its user code, and so has an experiment of its own.
    pub followed: bool,
    /// Its command line, where that was recorded.
    pub command_line: Option<String>,
    /// First and last time that something is known of it, nanoseconds since the start of the
    /// founder. None: nothing is.
    pub seen_ns: Option<(u64, u64)>,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its number: of the kernel, or whatever the collector took for one.
    pub tid: u64,
    /// Its last name; empty where it has none.
    pub name: String,
    /// Whose it is.
    pub process: ProcessId,
}

/// What kind of load object it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A file, or the image of one.
    File,
    /// All functions that were made at run time, or have no file: gprofng's `DYNAMIC_FUNCTIONS`.
    Dynamic,
    /// What stands for no place: gprofng's `<Total>`, where `<Unknown>` and the marks of unfinished
    /// stacks are.
    Special,
}

/// A load object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadObject {
    /// Its path, or what stands for one.
    pub path: String,
    /// What kind it is.
    pub kind: ObjectKind,
    /// Whether it is the kernel or a part of it: it lies in the upper half of the addresses.
    pub kernel: bool,
}

impl LoadObject {
    /// Its name in gprofng's tables: `<libc.so.6>`.
    #[must_use]
    pub fn short_name(&self) -> String {
        let base = self.path.rsplit('/').next().unwrap_or(&self.path);
        match self.kind {
            ObjectKind::File if !base.starts_with('<') => format!("<{base}>"),
            _ => base.to_owned(),
        }
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Its name, demangled.
    pub name: String,
    /// As the symbol table has it, if that is another.
    pub mangled: Option<String>,
    /// Where it is.
    pub object: ObjectId,
    /// Where in the file it begins; 0 for one without a file.
    pub offset: u64,
    /// Whether it is the kernel's.
    pub kernel: bool,
}

impl FunctionInfo {
    /// Its name as the symbol table has it.
    #[must_use]
    pub fn symbol(&self) -> &str {
        self.mangled.as_deref().unwrap_or(&self.name)
    }
}

/// A place in a load object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// The function that it is in.
    pub function: FunctionId,
    /// Bytes from the beginning of the file; of a function without a file from its beginning. Of a
    /// caller it is in the call instruction.
    pub offset: u64,
}

/// All experiments of a report.
#[derive(Debug, Default)]
pub struct Model {
    /// In gprofng's order: each experiment that was named, and behind it its subexperiments. Its
    /// position plus 1 is gprofng's number of the "process".
    pub experiments: Vec<ExperimentInfo>,
    /// The processes.
    pub processes: Vec<ProcessInfo>,
    /// The threads.
    pub threads: Vec<ThreadInfo>,
    /// Numbers of the CPUs.
    pub cpus: Vec<u32>,
    /// The load objects that have a frame.
    pub objects: Vec<LoadObject>,
    /// The functions that have a frame.
    pub functions: Vec<FunctionInfo>,
    /// The places that occur in stacks.
    pub frames: Vec<StackFrame>,
    /// The stacks.
    pub stacks: Stacks,
    /// The source lines of the frames, once [`crate::load::lines::add`] has found them.
    pub lines: SourceLines,
    /// All ticks: experiment by experiment, each in the order of its file.
    pub rows: Vec<TickRow>,
    /// The counters that were profiled, of all experiments.
    pub counters: Vec<CounterInfo>,
    /// Their overflows, likewise.
    pub counts: Vec<CounterOverflow>,
    /// What could not be read, or is missing, one sentence each.
    pub warnings: Vec<String>,
}

impl Model {
    /// An experiment.
    #[must_use]
    pub fn experiment(&self, id: ExperimentId) -> &ExperimentInfo {
        &self.experiments[id.index()]
    }

    /// A process.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &ProcessInfo {
        &self.processes[id.index()]
    }

    /// A thread.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> &ThreadInfo {
        &self.threads[id.index()]
    }

    /// A load object.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> &LoadObject {
        &self.objects[id.index()]
    }

    /// A function.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &FunctionInfo {
        &self.functions[id.index()]
    }

    /// Whether a function stands for no place, such as the marks of unfinished stacks.
    #[must_use]
    pub fn is_special(&self, id: FunctionId) -> bool {
        self.object(self.function(id).object).kind == ObjectKind::Special
    }

    /// A frame.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> &StackFrame {
        &self.frames[id.index()]
    }

    /// The frames of a stack, leaf first.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = &StackFrame> {
        self.stacks.frames(id).map(|frame| self.frame(frame))
    }

    /// The functions of a stack, leaf first.
    pub fn stack_functions(&self, id: StackId) -> impl Iterator<Item = &FunctionInfo> {
        self.stack(id).map(|frame| self.function(frame.function))
    }

    /// How long a row is, in microseconds.
    #[must_use]
    pub fn microseconds(&self, row: &TickRow) -> i64 {
        i64::from(row.ticks) * i64::from(self.experiment(row.experiment).tick_us)
    }

    /// How long the recording was: to the latest time of all experiments, nanoseconds since the
    /// start of the founder.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let ends = self.experiments.iter().map(|experiment| experiment.end_ns);
        ends.max().unwrap_or(0)
    }
}
