//! Routes what each thread did, a state interval or an event, to exactly one experiment, and owns
//! them all: the founder and the subexperiments.
//!
//! What a followed process did goes to its subexperiment, which is created when the process is
//! chosen; what any other process did goes to the founder. Until it is decided whether a process is
//! followed, what it did is held, so that its experiment is complete from its first moment on.
//!
//! When writing fails, the first error is kept, and data are refused from then on: what was written
//! is a valid experiment.

mod accounts;
mod kernel_objects;

use std::collections::BTreeMap;
use std::sync::Arc;

use bpf::UserStackCapture;
use counters::names::event::CounterRequest;
use experiment_format::directory::{DirectoryState, ExperimentDir};
use experiment_format::log::LogEvent;
use experiment_format::units::Nanos;
use experiment_format::{Error, Result};
use user_collector::follow::FollowPolicy;
use user_collector::jit::SharedJit;
use user_collector::loaded_code::LoadedCode;
use user_collector::process::{DirectoryNames, ExitFacts, ProcessInstance};
use user_collector::space::Mapping;
use user_collector::written_code::ByteBudget;

use super::activity::{ThreadActivity, TypedHeader};
use super::kernel::accounts::{Accounts, LivingThreads};
use super::kernel::code::KernelCode;
use super::kernel::header::Inherited;
use super::kernel::machine_writer::MachineWriter;
use super::process_writer::{FollowedProcess, ProcessWriter};
use super::processes::{Process, Processes};
use super::user_stacks::user_stack::UserStack;
use crate::plan::Plan;

/// Max number of state intervals and events that are held until it is decided whether their
/// processes are followed.
const MAX_HELD_ACTIVITIES: usize = 200_000;

/// Number of mapping changes that are written without checking the clock. If each is of another
/// file, a change takes 40 us (measured).
const MAX_MAPPINGS_AT_ONCE: usize = 500;

/// The log event that says that recording starts or stops.
fn recording_event(on: bool) -> impl Fn(Nanos) -> LogEvent {
    move |at_ns| {
        if on {
            LogEvent::Resume { at_ns }
        } else {
            LogEvent::Pause { at_ns, name: None }
        }
    }
}

/// The process state that routing reads.
#[derive(Debug)]
pub struct ProcessContext<'a> {
    /// All processes, as they are now.
    pub processes: &'a mut Processes,
    /// The policy by which processes are followed.
    pub policy: &'a FollowPolicy,
    /// What processes have mapped.
    pub code: &'a mut LoadedCode,
}

/// What a thread did, with its user stack if it has one.
type Held = (ThreadActivity, Option<Arc<UserStack>>);

/// Where what a process did goes. Without one, it goes to the founder.
#[derive(Debug)]
enum ProcessOutput {
    /// Nowhere yet: it waits for the decision whether the process is followed.
    Held(Vec<Held>),
    /// To an experiment of its own.
    Own(Box<ProcessWriter>),
}

impl Default for ProcessOutput {
    fn default() -> ProcessOutput {
        ProcessOutput::Held(Vec::new())
    }
}

impl ProcessOutput {
    fn writer(&self) -> Option<&ProcessWriter> {
        match self {
            ProcessOutput::Own(writer) => Some(writer),
            ProcessOutput::Held(_) => None,
        }
    }

    fn writer_mut(&mut self) -> Option<&mut ProcessWriter> {
        match self {
            ProcessOutput::Own(writer) => Some(writer),
            ProcessOutput::Held(_) => None,
        }
    }
}

/// What an experiment begins with.
#[derive(Debug, Default)]
pub struct Beginning {
    /// When, CLOCK_MONOTONIC nanoseconds.
    pub at_ns: Nanos,
    /// What threads had done by then, if another experiment has it.
    pub threads: LivingThreads,
}

/// The router, with all experiments of the recording.
#[derive(Debug)]
pub struct Router {
    /// The machine's experiment.
    pub founder: MachineWriter,
    inherited: Inherited,
    /// The kernel's code, which all experiments have.
    pub kernel: KernelCode,
    /// The times and ticks of threads and processes.
    pub accounts: Accounts,
    /// The last records of the threads that lived at the end.
    last_threads: LivingThreads,
    /// Number of them whose time since the previous sample is missing: see [`Accounts::unclosed`].
    pub unclosed_threads: u64,
    outputs: BTreeMap<ProcessInstance, ProcessOutput>,
    names: DirectoryNames,
    held_activities: usize,
    finished: Vec<FollowedProcess>,
    finished_bytes: u64,
    /// When recording started and stopped, by the clock of the events.
    recording_changes: Vec<(Nanos, bool)>,
    /// Intervals that a process needs for an experiment of its own (`--budget`).
    pub min_intervals: usize,
    /// Intervals that went to the founder because too many were held.
    pub not_held: u64,
    /// Why writing stopped.
    pub failed: Option<Error>,
    limit: Option<u64>,
    /// Bytes that may still be written: all of the limit (`-L`), and half as much again for what
    /// cannot stop at once with recording. For mappings and JIT functions it is exact.
    byte_budget: ByteBudget,
    /// Bytes that samples may still have once recording has stopped: half of the limit.
    sample_budget: u64,
}

impl Router {
    /// Creates the founder in an experiment's directory, and a router with only the founder. The
    /// kernel's load objects that `older`, an experiment of the series, has too are links to its
    /// files. On failure the experiment is removed.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn create(
        dir: ExperimentDir,
        (plan, counters): (&Plan, &[CounterRequest]),
        (mut kernel, older): (KernelCode, Option<&ExperimentDir>),
        (capture, beginning): (Option<UserStackCapture>, Beginning),
        say: impl FnMut(&str),
    ) -> Result<Router> {
        let start_ns = beginning.at_ns;
        let from = (&mut kernel, older);
        let (founder, inherited) =
            MachineWriter::create(dir, (plan, counters), from, (capture, start_ns), say)?;
        Ok(Router {
            founder,
            inherited,
            kernel,
            accounts: Accounts::new(&plan.targets, plan.limit, beginning.threads),
            last_threads: LivingThreads::default(),
            unclosed_threads: 0,
            outputs: BTreeMap::new(),
            names: DirectoryNames::new(),
            held_activities: 0,
            finished: Vec::new(),
            finished_bytes: 0,
            recording_changes: Vec::new(),
            min_intervals: 0,
            not_held: 0,
            failed: None,
            limit: plan.limit,
            byte_budget: ByteBudget::new(u64::MAX),
            sample_budget: plan.limit.map_or(u64::MAX, |limit| limit / 2),
        })
    }

    /// Whether so much has been written that recording has to stop.
    #[must_use]
    pub fn reached_limit(&self) -> bool {
        self.limit
            .is_some_and(|limit| self.bytes_written() >= limit)
    }

    /// Max bytes of the copies of processes' files (`-A`): half the limit, since one process can
    /// map as many and as large files as it likes.
    #[must_use]
    pub fn max_copied(&self) -> Option<u64> {
        self.limit.map(|limit| limit / 2)
    }

    /// Measures how much may still be written. Call it before many records are written.
    pub fn measure(&mut self) {
        if let Some(limit) = self.limit {
            let most = limit.saturating_add(limit / 2);
            let end_bytes: u64 = self.writers().map(ProcessWriter::end_bytes).sum();
            let written = self.bytes_written() + end_bytes;
            self.byte_budget.set(most.saturating_sub(written));
        }
    }

    /// Whether only samples, and the ends of what was written, may still be written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.byte_budget.is_used_up()
    }

    /// Routes what a thread did, with its user stack if it has one.
    pub fn route(
        &mut self,
        context: &mut ProcessContext<'_>,
        activity: ThreadActivity,
        stack: Option<Arc<UserStack>>,
    ) {
        let instance = activity.instance;
        if self.write_followed(&activity, stack.as_deref()) {
            return;
        }
        self.begin_if_due(context, instance, activity.header.time_ns());
        if self.write_followed(&activity, stack.as_deref()) {
            return;
        }
        let process = context.processes.instance(instance);
        let tracked = process.and_then(|process| process.tracked.as_ref());
        let waits = tracked
            .is_some_and(|tracked| tracked.first.is_some() || context.policy.waits_for_ticks());
        if !waits {
            self.to_founder(context.processes, &activity);
        } else if self.held_activities < MAX_HELD_ACTIVITIES
            && let ProcessOutput::Held(held) = self.outputs.entry(instance).or_default()
        {
            self.held_activities += 1;
            held.push((activity, stack));
        } else {
            self.not_held += 1;
            self.to_founder(context.processes, &activity);
        }
    }

    /// Writes what a thread did into the experiment of its process, and returns whether there is
    /// one.
    fn write_followed(&mut self, activity: &ThreadActivity, stack: Option<&UserStack>) -> bool {
        let output = self.outputs.get_mut(&activity.instance);
        let Some(writer) = output.and_then(ProcessOutput::writer_mut) else {
            return false;
        };
        let result = writer.activity(activity, stack, &self.inherited.kernel);
        self.note(result);
        true
    }

    /// Writes what a thread did into the founder: no subexperiment has it.
    pub fn to_founder(&mut self, processes: &Processes, activity: &ThreadActivity) {
        let process = processes.instance(activity.instance);
        let result = self.founder.activity(process, activity);
        self.note(result);
    }

    /// Creates the experiment of a process that was chosen, unless it may still execute its own
    /// program at `now_ns`.
    pub fn begin_if_due(
        &mut self,
        context: &mut ProcessContext<'_>,
        instance: ProcessInstance,
        now_ns: Nanos,
    ) {
        if self.failed.is_some() {
            return;
        }
        // The one that is routed now is not held yet.
        let held = match self.outputs.get(&instance) {
            Some(ProcessOutput::Own(_)) => return,
            Some(ProcessOutput::Held(held)) => held.len(),
            None => 0,
        };
        let process = context.processes.instance(instance);
        if held + 1 < self.min_intervals || !process.is_some_and(|process| process.is_due(now_ns)) {
            return;
        }
        let relatives = context.processes.relatives(instance.pid());
        let Some(Process {
            tracked: Some(tracked),
            stacks,
            ..
        }) = context.processes.instance_mut(instance)
        else {
            return;
        };
        let Some(first) = &tracked.first else {
            return;
        };
        let began = self.recording_changes.iter().find(|(_, on)| *on);
        let began_ns = began.map_or(first.at_ns, |(at, _)| *at);
        let space = stacks.as_mut().map(|stacks| &mut stacks.space);
        let created = ProcessWriter::create(
            &self.inherited,
            &mut self.names,
            (instance.pid(), tracked, first, began_ns),
            &mut context.code.of_process(space),
            (&relatives, self.byte_budget.clone()),
        );
        match created {
            Ok(experiment) => {
                self.begin(instance, experiment);
                if let Some(at_exit) = &tracked.at_exit {
                    self.exit_facts(instance, at_exit);
                }
            }
            Err(error) => self.note(Err(error)),
        }
    }

    fn begin(&mut self, instance: ProcessInstance, mut writer: ProcessWriter) {
        let kernel = &self.inherited.kernel;
        // Every experiment begins with a pause.
        let mut result = writer.log(self.founder.start_ns(), recording_event(false));
        for (at, on) in &self.recording_changes {
            result = result.and(writer.log(*at, recording_event(*on)));
        }
        if let Some(ProcessOutput::Held(held)) = self.outputs.remove(&instance) {
            self.held_activities -= held.len();
            for (activity, stack) in held {
                result = result.and(writer.activity(&activity, stack.as_deref(), kernel));
            }
        }
        let own = ProcessOutput::Own(Box::new(writer));
        self.outputs.insert(instance, own);
        self.note(result);
    }

    /// Creates the experiments that are due, and writes what is still held to the founder: nothing
    /// follows.
    pub fn finish(&mut self, context: &mut ProcessContext<'_>) {
        let tracked = context
            .processes
            .iter()
            .filter(|process| process.tracked.is_some());
        let mut instances: Vec<_> = tracked.map(|process| process.instance).collect();
        instances.sort_unstable();
        for instance in instances {
            self.begin_if_due(context, instance, Nanos::MAX);
        }
        let is_held = |output: &ProcessOutput| matches!(output, ProcessOutput::Held(_));
        let held = self.outputs.extract_if(.., |_, output| is_held(output));
        for (_, output) in held.collect::<Vec<_>>() {
            if let ProcessOutput::Held(held) = output {
                self.release(context.processes, held);
            }
        }
    }

    /// Writes what was held into the founder: the process is not followed.
    fn release(&mut self, processes: &Processes, held: Vec<Held>) {
        self.held_activities -= held.len();
        for (activity, _) in held {
            self.to_founder(processes, &activity);
        }
    }

    /// Writes into the experiment of each followed process.
    fn each(&mut self, mut write: impl FnMut(ProcessInstance, &mut ProcessWriter) -> Result<()>) {
        for (instance, output) in &mut self.outputs {
            if let Some(writer) = output.writer_mut()
                && let Err(error) = write(*instance, writer)
            {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn writers(&self) -> impl Iterator<Item = &ProcessWriter> {
        self.outputs.values().filter_map(ProcessOutput::writer)
    }

    fn writer(&self, instance: ProcessInstance) -> Option<&ProcessWriter> {
        self.outputs.get(&instance)?.writer()
    }

    /// Returns whether a process has an experiment of its own by now.
    #[must_use]
    pub fn has_subexperiment(&self, instance: ProcessInstance) -> bool {
        self.writer(instance).is_some()
    }

    /// Records that a process executed another program.
    pub fn executed(&mut self, instance: ProcessInstance, at_ns: Nanos, shared: &SharedJit) {
        self.with(instance, |experiment| experiment.executed(at_ns, shared));
    }

    /// Records that a process mapped a file for execution.
    pub fn mapped(&mut self, instance: ProcessInstance, at_ns: Nanos, mapping: &Mapping) {
        self.with(instance, |experiment| experiment.mapped(at_ns, mapping));
    }

    /// Records that a process exited.
    pub fn exited(&mut self, process: &mut Process, at_ns: Nanos, code: &mut LoadedCode) {
        let instance = process.instance;
        let code = &mut code.of_process(process.space_mut());
        self.with(instance, |experiment| experiment.exited(at_ns, code));
    }

    /// Writes what the exit of a process's thread says, if the facts of the process could not be
    /// read.
    pub fn exit_facts(&mut self, instance: ProcessInstance, at_exit: &ExitFacts) {
        self.with(instance, |experiment| experiment.add_facts(at_exit));
    }

    /// Writes a part of what changed in the mappings of all processes. Returns whether the rest
    /// waits: each mapped file is opened, which takes longer than mapping it.
    pub fn write_some_mappings(
        &mut self,
        processes: &mut Processes,
        code: &mut LoadedCode,
    ) -> bool {
        let mut left = MAX_MAPPINGS_AT_ONCE;
        self.each(|instance, writer| {
            if left > 0 {
                let code = &mut code.of_process(processes.space_mut(instance));
                let written = writer.mappings(code, left)?;
                left -= written.min(left);
            }
            Ok(())
        });
        left == 0
    }

    fn with(
        &mut self,
        instance: ProcessInstance,
        write: impl FnOnce(&mut ProcessWriter) -> Result<()>,
    ) {
        let output = self.outputs.get_mut(&instance);
        if let Some(writer) = output.and_then(ProcessOutput::writer_mut) {
            let result = write(writer);
            self.note(result);
        }
    }

    /// Closes a process's experiment, at its exit or at `at_ns`, and drops what is kept of it.
    pub fn close_subexperiment(
        &mut self,
        context: &mut ProcessContext<'_>,
        instance: ProcessInstance,
        at_ns: Nanos,
    ) {
        let mut writer = match self.outputs.remove(&instance) {
            Some(ProcessOutput::Own(writer)) => writer,
            Some(ProcessOutput::Held(held)) => return self.release(context.processes, held),
            None => return,
        };
        let process = context.processes.instance(instance);
        let exited = process.and_then(Process::exited_ns);
        let has_its_number = context.processes.has_its_number(instance);
        let space = context.processes.space_mut(instance);
        let code = &mut context.code.of_process(space);
        let result = writer.mappings(code, usize::MAX);
        self.note(result.map(drop));
        // Another process may have the number, and other code.
        if has_its_number {
            let result = writer.last_code(code);
            self.note(result);
        }
        writer.report_all_used(code.objects);
        self.finished.push(writer.summary());
        self.finished_bytes += writer.bytes_written();
        let result = writer.close(exited.unwrap_or(at_ns));
        self.note(result);
    }

    /// Logs that recording starts or stops in all experiments, present and future: without the
    /// pauses, gprofng counts their time as recorded.
    pub fn recording(&mut self, now_ns: Nanos, on: bool) {
        self.recording_changes.push((now_ns, on));
        self.log(now_ns, recording_event(on));
        self.each(|_, writer| writer.log(now_ns, recording_event(on)));
    }

    /// Writes an event of the run into the founder.
    pub fn log(&mut self, now_ns: Nanos, event: impl FnOnce(Nanos) -> LogEvent) {
        let result = self.founder.log_at(now_ns, event);
        self.note(result);
    }

    /// Writes a warning about the run into the founder.
    pub fn warn(&mut self, at_ns: Nanos, text: String) {
        self.log(at_ns, |at_ns| LogEvent::Warning { at_ns, text });
    }

    /// Writes a file of our own as a whole.
    pub fn side_file(&mut self, name: &str, text: &str) {
        let result = self.founder.side_file(name, text);
        self.note(result);
    }

    /// Once a round: writes what changed in the subexperiments.
    pub fn maintain(&mut self, processes: &mut Processes, code: &mut LoadedCode, now_ns: Nanos) {
        self.measure();
        self.each(|instance, writer| {
            let has_its_number = processes.has_its_number(instance);
            let code = &mut code.of_process(processes.space_mut(instance));
            writer.maintain(now_ns, has_its_number, code)
        });
    }

    /// Writes what waits in memory, so that the experiment can be read to its last tick.
    pub fn flush(&mut self) {
        self.each(|_, writer| writer.flush());
    }

    /// Archives the rest of what the subexperiments refer to, as fast as possible.
    pub fn archive_rest(&mut self, processes: &mut Processes, code: &mut LoadedCode) {
        self.each(|instance, writer| {
            let code = &mut code.of_process(processes.space_mut(instance));
            let result = writer.mappings(code, usize::MAX).map(drop);
            writer.report_all_used(code.objects);
            result
        });
        code.objects.archive_used_sources();
        if let Some(archiver) = code.objects.archiver() {
            archiver.hurry();
        }
    }

    /// Returns the followed processes, those that exited included, by the number of their ticks.
    #[must_use]
    pub fn followed(&self) -> Vec<FollowedProcess> {
        let living = self.writers().map(ProcessWriter::summary);
        let mut all: Vec<_> = self.finished.iter().cloned().chain(living).collect();
        all.sort_by(|a, b| (b.ticks, &a.experiment).cmp(&(a.ticks, &b.experiment)));
        all
    }

    /// Bytes written, archives not counted.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        let open: u64 = self.writers().map(ProcessWriter::bytes_written).sum();
        self.founder.bytes_written() + self.finished_bytes + open
    }

    /// The state of the experiment's directory. If it was deleted, that is the error, whatever
    /// other errors this caused.
    pub fn directory_state(&mut self) -> DirectoryState {
        let dir = self.founder.dir();
        let state = dir.state();
        if state == DirectoryState::Deleted {
            let path = dir.path().to_owned();
            self.failed = Some(Error::Deleted { path });
        }
        state
    }

    /// Keeps the first error.
    pub fn note(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Closes all experiments. Without followed processes there is no `context`. `stopped_ns` is
    /// when recording stopped.
    ///
    /// # Errors
    /// The first error of the whole recording.
    pub fn close(mut self, context: Option<ProcessContext<'_>>, stopped_ns: Nanos) -> Result<()> {
        if let Some(mut context) = context {
            for instance in self.outputs.keys().copied().collect::<Vec<_>>() {
                self.close_subexperiment(&mut context, instance, stopped_ns);
            }
        }
        let closed = self.founder.close(stopped_ns);
        self.failed.map_or(closed, Err)
    }
}
