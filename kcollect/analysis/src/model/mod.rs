//! The data of experiments: ticks with their threads and stacks, and what those refer to.
//!
//! One [`Model`] holds all experiments of a report. Everything in it is numbered from 0 and refers
//! to everything else by number, so that sums need vectors and no maps. A stack is a node of a trie
//! ([`Stacks`]); a frame is a position in a load object and belongs to a function. Source lines and
//! inlined functions are added later, for views that need them: [`crate::load::lines`].
//!
//! `rows` has what was recorded, `code` what stacks consist of, `experiment` the experiments, and
//! `ids` the numbers.

mod code;
mod experiment;
mod groups;
mod ids;
pub(crate) mod interner;
pub(crate) mod own_code;
mod reasons;
mod rows;
mod source_lines;
mod stacks;
pub(crate) mod traced;
pub(crate) mod trie;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use rustc_hash::FxHashMap;

pub use code::{
    FunctionInfo, NOT_SAMPLED, ObjectInfo, ObjectKind, StackFrame, TOTAL, TRUNCATED, UNKNOWN,
    UNWIND_FAILED,
};
pub use experiment::{ExperimentInfo, LossCounts};
pub use groups::{GroupKind, ProcessGroups};
pub use ids::{
    CpuId, ExperimentId, FileId, FrameId, FunctionId, ObjectId, ProcessId, StackId, ThreadId,
};
pub use reasons::{WAIT_STATES, WaitReason};
pub use rows::{
    AllocationRow, CallClass, CounterInfo, CounterRow, IoCallRow, LockWaitRow, MemoryPeak,
    STATE_SLOTS, SUM_SLOTS, Sums, TickRow, ZERO_SUMS, lock_name,
};
pub use source_lines::{SourceLine, SourceLines};
pub use stacks::{Callees, Stacks};
pub use traced::{ShownUnit, TracedEvents};

/// A process: one for each subexperiment, and one for each other process in a founder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid.
    pub pid: Pid,
    /// Its name: the kernel's of its main thread; in experiments of other collectors the program's.
    pub name: String,
    /// Position of the experiment that holds its threads, its own or its founder; in a series the
    /// one where it is first seen.
    pub experiment: u32,
    /// Whether it was followed, and so has an experiment of its own.
    pub followed: bool,
    /// Its command line, if recorded.
    pub command_line: Option<String>,
    /// What it belongs to, if it was followed.
    pub groups: ProcessGroups,
    /// The first and the last time that it was seen, since the start of the recording.
    pub seen_ns: Option<(Nanos, Nanos)>,
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its tid. It is not a [`Tid`](experiment_format::ids::Tid), since `gprofng collect` numbers
    /// threads by addresses of 64 bits.
    pub tid: u64,
    /// Its last name; empty if it has none.
    pub name: String,
    /// Its process.
    pub process: ProcessId,
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
    /// The numbers of the CPUs.
    pub cpus: Vec<u32>,
    /// The load objects of the frames.
    pub objects: Vec<ObjectInfo>,
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
    /// The overflows of the counters, in the same order as ticks.
    pub counts: Vec<CounterRow>,
    /// The traced waits for locks of all experiments, in the same order as ticks.
    pub waits: Vec<LockWaitRow>,
    /// The traced system calls that do I/O, by experiment, each in the order of time.
    pub io_calls: Vec<IoCallRow>,
    /// The files of the traced system calls, each name once.
    pub files: Vec<String>,
    /// The traced allocations of memory, by experiment, each in the order of time.
    pub allocations: Vec<AllocationRow>,
    /// Peak memory of each experiment with traced allocations.
    pub memory_peaks: Vec<MemoryPeak>,
    /// Whether the rows of ticks have exact times, in at least one experiment.
    pub weighed: bool,
    /// The kind of traced events that [`Model::rows`] has instead of ticks: [`Model::show`].
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
        if self.is_incomplete {
            Err(incomplete())
        } else {
            Ok(())
        }
    }

    /// Returns whether a function is JIT code. Among the functions without a file are also those
    /// that stand for processes, such as `<sshd_PID_1264>`.
    #[must_use]
    pub fn is_jit_code(&self, function: &FunctionInfo) -> bool {
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
    pub fn length_ns(&self, founder: ExperimentId) -> Nanos {
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
    pub fn object(&self, id: ObjectId) -> &ObjectInfo {
        &self.objects[id.index()]
    }

    /// Returns a function.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &FunctionInfo {
        &self.functions[id.index()]
    }

    /// Returns whether a function is no code, such as a mark of an unfinished stack.
    #[must_use]
    pub fn is_special(&self, id: FunctionId) -> bool {
        self.object(self.function(id).object).kind == ObjectKind::Special
    }

    /// Returns whether a function is the mark of an unfinished stack.
    #[must_use]
    pub fn is_mark(&self, function: &FunctionInfo) -> bool {
        self.object(function.object).kind == ObjectKind::Special
            && matches!(&*function.name, TRUNCATED | UNWIND_FAILED)
    }

    /// Returns whether a function stands for code without a name: nameless code of a file, or code
    /// whose file is not known either.
    #[must_use]
    pub fn is_unnamed(&self, function: &FunctionInfo) -> bool {
        function.is_nameless()
            || self.object(function.object).kind == ObjectKind::Special && function.name == UNKNOWN
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

    /// Returns the processes by the first experiment of their recording and by pid; of several with
    /// one pid the last.
    #[must_use]
    pub fn processes_by_pid(&self) -> FxHashMap<(ExperimentId, Pid), ProcessId> {
        let processes = (0..).map(ProcessId).zip(&self.processes);
        let processes = processes.map(|(id, process)| {
            let experiment = self.experiment(ExperimentId(process.experiment));
            ((experiment.first, process.pid), id)
        });
        processes.collect()
    }

    /// Returns each process's parent, if it is known: that of a followed process, in its
    /// experiment.
    #[must_use]
    pub fn parents(&self) -> Vec<Option<ProcessId>> {
        let by_pid = self.processes_by_pid();
        let parent = |process: &ProcessInfo| {
            let experiment = self.experiment(ExperimentId(process.experiment));
            let ppid = experiment.source.header().ppid;
            let ppid = ppid.filter(|_| process.followed)?;
            by_pid.get(&(experiment.first, ppid)).copied()
        };
        self.processes.iter().map(parent).collect()
    }

    /// Returns how long the ticks of a row lasted, whatever time they stand for.
    #[must_use]
    pub fn length_of_ticks(&self, row: &TickRow) -> Nanos {
        let tick_ns = Nanos::from_micros(self.experiment(row.experiment).tick_us.into());
        tick_ns.saturating_mul(row.ticks.unsigned_abs().into())
    }

    /// Sets each row's time to ticks times the interval, as gprofng counts, instead of the exact
    /// time that the ticks stand for.
    pub fn show_ticks(&mut self) {
        self.weighed = false;
        self.rows.retain(|row| row.ticks != 0);
        for row in &mut self.rows {
            let tick_us = self.experiments[row.experiment.index()].tick_us;
            row.micros = i64::from(row.ticks) * i64::from(tick_us);
        }
    }

    /// Returns the latest time of all experiments, which is the end of the recording, in
    /// nanoseconds since its start.
    #[must_use]
    pub fn end_ns(&self) -> Nanos {
        let ends = self.experiments.iter().map(|experiment| experiment.end_ns);
        ends.max().unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a model of threads: for each the name of its process, its tid and its name. Threads
    /// of one name are in one process.
    pub(crate) fn model_of_threads(threads: &[(&str, u64, &str)]) -> Model {
        let mut model = Model::default();
        for (process, tid, name) in threads {
            let known = model.processes.iter().position(|own| own.name == *process);
            let position = known.unwrap_or_else(|| {
                model.processes.push(ProcessInfo {
                    name: (*process).to_owned(),
                    ..ProcessInfo::default()
                });
                model.processes.len() - 1
            });
            model.threads.push(ThreadInfo {
                tid: *tid,
                name: (*name).to_owned(),
                process: ProcessId(position as u32),
            });
        }
        model
    }

    /// Makes a row of a thread at a time, which has neither a stack nor a state.
    pub(crate) fn row(thread: u32, at_ns: u64) -> TickRow {
        TickRow {
            time_ns: Nanos(at_ns),
            stack: StackId::EMPTY,
            thread: ThreadId(thread),
            experiment: ExperimentId(0),
            cpu: CpuId(0),
            ticks: 1,
            micros: 1,
            state: 0,
            detail: 0,
            cause: 0,
            waker: 0,
        }
    }

    /// Adds a stack of functions, outermost first, each with whether it is the kernel's. All are
    /// of one program.
    pub(crate) fn add_stack(model: &mut Model, functions: &[(&str, bool)]) -> StackId {
        if model.objects.is_empty() {
            model.objects.push(ObjectInfo {
                path: "/usr/bin/program".to_owned(),
                kind: ObjectKind::File,
                kernel: false,
            });
        }
        let mut stack = StackId::EMPTY;
        for (name, kernel) in functions {
            let mut all = model.functions.iter();
            let position = all.position(|own| own.name == *name).unwrap_or_else(|| {
                model.functions.push(FunctionInfo {
                    name: (*name).to_owned(),
                    mangled: None,
                    object: ObjectId(0),
                    offset: 0,
                    kernel: *kernel,
                });
                model.frames.push(StackFrame {
                    function: FunctionId(model.functions.len() as u32 - 1),
                    offset: 0,
                });
                model.functions.len() - 1
            });
            stack = model.stacks.child(stack, FrameId(position as u32));
        }
        stack
    }
}
