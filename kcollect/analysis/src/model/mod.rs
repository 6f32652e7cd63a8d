//! What experiments hold, as columns: thread, place, time, state and stack of each tick.
//!
//! One [`Model`] holds all experiments of a report. Everything in it is numbered from 0 and refers
//! to everything else by number, so that sums need vectors and no maps. A stack is a node of a trie
//! ([`Stacks`]); a frame is a place in a load object and belongs to a function. Source lines and
//! inlined functions are added later, for views that need them: [`crate::load::lines`].

mod groups;
pub(crate) mod interner;
mod source_lines;
mod stacks;
mod traced;
pub(crate) mod trie;

use std::sync::Arc;

use experiment_format::ids::Pid;
use experiment_format::log::CounterUnit;
use experiment_format::losses::{self, Recorded};
use experiment_format::microstate::Microstate;
use experiment_format::packet::IoKind;
use experiment_format::reader::Experiment;
use host::exit::{ExitKind, Failure};

use crate::symbol::NAMELESS;

pub use groups::{GroupKind, ProcessGroups};
pub use source_lines::{SourceLine, SourceLines};
pub use stacks::{Callees, Stacks};
pub use traced::TracedEvents;

/// Number of states that sums tell apart: the twelve with names, and all others together.
pub const STATE_SLOTS: usize = Microstate::ALL.len() + 1;

/// Microseconds by state, indexed by the state's number, the last of [`STATE_SLOTS`] for all states
/// without a name. For counters, counts indexed by [`CounterOverflow::counter`].
pub type Sums = [i64; MAX_COUNTERS];

/// Sums that are all zero.
pub const ZERO_SUMS: Sums = [0; MAX_COUNTERS];

/// Number of counters that sums have room for: the metrics of everything that is traced, and some
/// counters. Further ones are left out, with a warning.
pub const MAX_COUNTERS: usize = 20;

const _: () = assert!(MAX_COUNTERS >= STATE_SLOTS);

/// The summary's name in the founder's directory.
const SUMMARY_FILE: &str = "kcollect.json";

/// gprofng's name for code without a known function.
pub const UNKNOWN: &str = "<Unknown>";
/// Outermost frame of a stack that was cut.
pub const TRUNCATED: &str = "<Truncated-stack>";
/// Outermost frame of a stack whose next caller could not be found.
pub const UNWIND_FAILED: &str = "<Stack-unwind-failed>";
/// gprofng's load object of what is not a function.
pub const TOTAL: &str = "<Total>";

/// Types of positions in the vectors of a [`Model`].
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the position.
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
    /// A stack: a node of [`Model::stacks`]. [`StackId::EMPTY`] has no frames; its time is in
    /// totals only.
    StackId;
}

impl StackId {
    /// The stack without frames, the root of the trie.
    pub const EMPTY: StackId = StackId(0);
}

/// Ticks of one thread, or of one CPU, in one state with one stack. 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickRow {
    /// When they were recorded, in nanoseconds since the start of the recording: that of
    /// [`ExperimentInfo::first`].
    pub time: u64,
    /// Their stack.
    pub stack: StackId,
    /// Their thread.
    pub thread: ThreadId,
    /// The experiment that holds them.
    pub experiment: ExperimentId,
    /// The CPU on which they were recorded.
    pub cpu: CpuId,
    /// Number of ticks, each [`ExperimentInfo::tick_us`] microseconds long.
    pub ticks: i32,
    /// The state's number, [`Microstate::number`], up to 255, whether it has a name or not.
    pub state: u8,
    /// The detail of the state, [`experiment_format::packet::Detail::number`].
    pub detail: u8,
}

impl TickRow {
    /// Returns the state's position in [`Sums`].
    #[must_use]
    pub fn slot(&self) -> usize {
        usize::from(self.state).min(STATE_SLOTS - 1)
    }
}

/// A counter of one or more experiments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterInfo {
    /// The metric's keyword.
    pub name: String,
    /// The metric's title.
    pub title: String,
    /// What its values are.
    pub unit: CounterUnit,
}

/// One overflow of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterOverflow {
    /// Time, stack, thread, experiment and CPU. It has no ticks and no state.
    pub row: TickRow,
    /// Position in [`Model::counters`].
    pub counter: u8,
    /// Number of events that it stands for.
    pub value: i64,
}

/// A traced wait for a lock. Its time and number are in [`Model::counts`] too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockWait {
    /// The end of the wait: time, stack, thread, experiment and CPU. It has no ticks and no state.
    pub row: TickRow,
    /// How long it was, nanoseconds.
    pub nanos: i64,
    /// Address of the lock in its process.
    pub object: u64,
    /// As [`experiment_format::packet::SyncEvent::kind`], if it is known.
    pub kind: Option<u32>,
}

/// Position in [`Model::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A traced system call that does I/O. Its time, bytes and number are in [`Model::counts`] too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCall {
    /// The end of the call: time, stack, thread, experiment and CPU. It has no ticks and no state.
    pub row: TickRow,
    /// How long it took, nanoseconds.
    pub nanos: i64,
    /// Bytes that it moved.
    pub bytes: u64,
    /// What it did.
    pub kind: IoKind,
    /// It failed.
    pub failed: bool,
    /// To which file.
    pub file: FileId,
    /// Which system call it was, if the packet says it and it is known.
    pub name: Option<&'static str>,
}

/// Memory that was allocated. Its bytes, and those that were not freed, are in [`Model::counts`]
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// When and where: time, stack, thread, experiment and CPU. It has no ticks and no state.
    pub row: TickRow,
    /// Bytes.
    pub bytes: u64,
    /// Those of them that were not freed when the experiment ended.
    pub live: u64,
}

/// The most memory that an experiment had at a time, of what was allocated in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPeak {
    /// The experiment.
    pub experiment: ExperimentId,
    /// Bytes.
    pub bytes: u64,
    /// When, nanoseconds since the first experiment began.
    pub time: u64,
}

/// An experiment or subexperiment.
#[derive(Debug)]
pub struct ExperimentInfo {
    /// The reader: header, events, samples.
    pub source: Arc<Experiment>,
    /// Name of its directory.
    pub name: String,
    /// Its founder; itself, if its founder was not opened.
    pub founder: ExperimentId,
    /// The first experiment of its recording: its founder, or in a series (`--rotate`) the first
    /// founder of those that are opened and follow each other without a gap.
    pub first: ExperimentId,
    /// Its start, in nanoseconds after that of [`ExperimentInfo::first`]; 0 if it started before.
    pub offset_ns: u64,
    /// Length of a tick in microseconds, from its last clock profile, as for gprofng. 0: it has
    /// none.
    pub tick_us: u32,
    /// The process whose ticks it holds. None: it holds those of a machine.
    pub process: Option<ProcessId>,
    /// The latest time in it, in nanoseconds since the start of the recording.
    pub end_ns: u64,
}

impl ExperimentInfo {
    /// Returns `kcollect.json`, the summary that kcollect writes at the end. None in experiments of
    /// other collectors, in subexperiments, and where kcollect was killed.
    #[must_use]
    pub fn summary(&self) -> Option<serde_json::Value> {
        self.read_summary().ok()?
    }

    /// Returns the summary, or why there is a file that cannot be read.
    pub(crate) fn read_summary(&self) -> Result<Option<serde_json::Value>, String> {
        let file = self.source.side_file(SUMMARY_FILE);
        let bytes = file.map_err(|error| error.to_string())?;
        let summary = bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose();
        summary.map_err(|error| {
            let path = self.source.path().join(SUMMARY_FILE);
            format!("{}: {error}; losses are not known", path.display())
        })
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
    /// Returns those of several experiments together; none if there is one that has none.
    pub(crate) fn of_all<'a>(
        experiments: impl IntoIterator<Item = &'a ExperimentInfo>,
    ) -> Option<LossCounts> {
        let mut all: Option<LossCounts> = None;
        for info in experiments {
            let losses = info.losses()?;
            match &mut all {
                None => all = Some(losses),
                Some(all) => all.add(&losses),
            }
        }
        all
    }

    /// Adds those of another experiment.
    fn add(&mut self, other: &LossCounts) {
        for (name, count) in &other.counts {
            match self.counts.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = own.saturating_add(*count),
                None => self.counts.push((name.clone(), *count)),
            }
        }
        for (own, other) in [
            (&mut self.recorded.ticks, other.recorded.ticks),
            (&mut self.recorded.thread_ticks, other.recorded.thread_ticks),
            (&mut self.recorded.arrays, other.recorded.arrays),
        ] {
            *own = own.saturating_add(other);
        }
    }

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

/// A process: one for each subexperiment, and one for each other process in a founder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid.
    pub pid: Pid,
    /// Its name: the kernel's of its main thread; in experiments of other collectors the program's.
    pub name: String,
    /// Position of the experiment that holds its threads: its own or its founder; in a series that
    /// where it is first seen.
    pub experiment: u32,
    /// Whether it was followed, and so has an experiment of its own.
    pub followed: bool,
    /// Its command line, if recorded.
    pub command_line: Option<String>,
    /// What it belongs to, if it was followed.
    pub groups: ProcessGroups,
    /// First and last time that it was seen, in nanoseconds since the start of the recording.
    pub seen_ns: Option<(u64, u64)>,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its tid, or the number that the collector used for it.
    pub tid: u64,
    /// Its last name; empty if it has none.
    pub name: String,
    /// Its process.
    pub process: ProcessId,
}

/// The kind of a load object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A file or the image of one.
    File,
    /// All functions made at run time or without a file: gprofng's `DYNAMIC_FUNCTIONS`.
    Dynamic,
    /// Not a place: gprofng's `<Total>`, with `<Unknown>` and the marks of unfinished stacks.
    Special,
}

/// A load object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadObject {
    /// Its path, or its name if it is not a file.
    pub path: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Whether it is the kernel or a module, in the upper half of the addresses.
    pub kernel: bool,
}

impl LoadObject {
    /// Returns its name in gprofng's tables, such as `<libc.so.6>`.
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
    /// Its name in the symbol table, if that differs.
    pub mangled: Option<String>,
    /// Its load object.
    pub object: ObjectId,
    /// Where it begins in the file, in bytes; 0 without a file.
    pub offset: u64,
    /// Whether it is kernel code.
    pub kernel: bool,
}

impl FunctionInfo {
    /// Returns whether the experiment has no name for it. Its symbol is then gprofng's name for
    /// code without one, `<static>@0xPOSITION (<FILE>)`.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        self.symbol().starts_with(NAMELESS)
    }

    /// Returns its name in the symbol table.
    #[must_use]
    pub fn symbol(&self) -> &str {
        self.mangled.as_deref().unwrap_or(&self.name)
    }
}

/// A place in a load object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Its function.
    pub function: FunctionId,
    /// Bytes from the beginning of the file, or of the function if it has no file. In a caller, the
    /// position of the call instruction.
    pub offset: u64,
}

/// All experiments of a report.
#[derive(Debug, Default)]
pub struct Model {
    /// The experiments in gprofng's order: each that was named, followed by its subexperiments. The
    /// position plus 1 is gprofng's number of the "process".
    pub experiments: Vec<ExperimentInfo>,
    /// The processes.
    pub processes: Vec<ProcessInfo>,
    /// The threads.
    pub threads: Vec<ThreadInfo>,
    /// Numbers of the CPUs.
    pub cpus: Vec<u32>,
    /// The load objects of the frames.
    pub objects: Vec<LoadObject>,
    /// The functions of the frames.
    pub functions: Vec<FunctionInfo>,
    /// The frames that occur in stacks.
    pub frames: Vec<StackFrame>,
    /// The stacks.
    pub stacks: Stacks,
    /// The source lines of the frames, once [`crate::load::lines::add`] has found them.
    pub lines: SourceLines,
    /// All ticks, by experiment, each in the order of its file.
    pub rows: Vec<TickRow>,
    /// The profiled counters of all experiments.
    pub counters: Vec<CounterInfo>,
    /// Their overflows, in the same order as ticks.
    pub counts: Vec<CounterOverflow>,
    /// The traced waits for locks of all experiments, in the same order.
    pub waits: Vec<LockWait>,
    /// The traced system calls that do I/O, by experiment, each in the order of time.
    pub io_calls: Vec<IoCall>,
    /// The files that they are of, each name once.
    pub files: Vec<String>,
    /// The traced allocations of memory, by experiment, each in the order of time.
    pub allocations: Vec<Allocation>,
    /// The most memory of each experiment with such allocations.
    pub memory_peaks: Vec<MemoryPeak>,
    /// The events that [`Model::rows`] are, if they are no ticks: [`Model::show`].
    pub shows: Option<TracedEvents>,
    /// What is missing or could not be read, one sentence each.
    pub warnings: Vec<String>,
    /// Whether a part of the experiments is left out, because it is damaged or too large. What the
    /// collector had no time to write is not left out.
    pub is_incomplete: bool,
}

/// Returns the failure of results in which a part of an experiment is missing.
pub(crate) fn incomplete() -> Failure {
    Failure::new(
        ExitKind::NoInput,
        "parts of the experiment cannot be read, and are left out",
        "the messages above say which",
    )
}

impl Model {
    /// Notes that a part of the experiments is left out, with the reason.
    pub(crate) fn leave_out(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
        self.is_incomplete = true;
    }

    /// Returns the failure of results in which a part of the experiments is missing, if one is.
    ///
    /// # Errors
    /// When a part is left out.
    pub fn require_all(&self) -> Result<(), Failure> {
        match self.is_incomplete {
            false => Ok(()),
            true => Err(incomplete()),
        }
    }

    /// Returns whether a function is user code that was made at run time. Among those without a
    /// file are also the functions that stand for processes, such as `<sshd_PID_1264>`.
    #[must_use]
    pub fn made_at_run_time(&self, function: &FunctionInfo) -> bool {
        let name = &function.name;
        let process = name.starts_with('<') && name.ends_with('>') && name.contains("_PID_");
        self.object(function.object).kind == ObjectKind::Dynamic && !function.kernel && !process
    }

    /// Returns the founders with their positions.
    pub fn founders(&self) -> impl Iterator<Item = (ExperimentId, &ExperimentInfo)> {
        let all = (0..).map(ExperimentId).zip(&self.experiments);
        all.filter(|(id, info)| info.founder == *id)
    }

    /// Returns a founder and its subexperiments.
    pub fn family(&self, founder: ExperimentId) -> impl Iterator<Item = &ExperimentInfo> + Clone {
        let all = self.experiments.iter();
        all.filter(move |info| info.founder == founder)
    }

    /// Returns how long a founder is, nanoseconds.
    #[must_use]
    pub fn length_ns(&self, founder: ExperimentId) -> u64 {
        let ends = self.family(founder).map(|info| info.end_ns);
        let start = self.experiment(founder).offset_ns;
        ends.max().unwrap_or(start).saturating_sub(start)
    }

    /// Returns an experiment.
    #[must_use]
    pub fn experiment(&self, id: ExperimentId) -> &ExperimentInfo {
        &self.experiments[id.index()]
    }

    /// Returns a process.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &ProcessInfo {
        &self.processes[id.index()]
    }

    /// Returns a thread.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> &ThreadInfo {
        &self.threads[id.index()]
    }

    /// Returns a load object.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> &LoadObject {
        &self.objects[id.index()]
    }

    /// Returns a function.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &FunctionInfo {
        &self.functions[id.index()]
    }

    /// Returns whether a function is not a place in code, such as the marks of unfinished stacks.
    #[must_use]
    pub fn is_special(&self, id: FunctionId) -> bool {
        self.object(self.function(id).object).kind == ObjectKind::Special
    }

    /// Returns a frame.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> &StackFrame {
        &self.frames[id.index()]
    }

    /// Returns the frames of a stack, leaf first.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = &StackFrame> {
        self.stacks.frames(id).map(|frame| self.frame(frame))
    }

    /// Returns the functions of a stack, leaf first.
    pub fn stack_functions(&self, id: StackId) -> impl Iterator<Item = &FunctionInfo> {
        self.stack(id).map(|frame| self.function(frame.function))
    }

    /// Returns the length of a row in microseconds.
    #[must_use]
    pub fn microseconds(&self, row: &TickRow) -> i64 {
        i64::from(row.ticks) * i64::from(self.experiment(row.experiment).tick_us)
    }

    /// Returns the end of the recording: the latest time of all experiments, in nanoseconds since
    /// the start.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        let ends = self.experiments.iter().map(|experiment| experiment.end_ns);
        ends.max().unwrap_or(0)
    }
}
