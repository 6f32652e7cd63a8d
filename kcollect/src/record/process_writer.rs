//! The experiment of one followed process: what it is made from, and what is written into it.
//!
//! It has the ticks and events of its threads, with stacks of kernel frames and the user frames
//! that called them; changes of what is mapped; JIT functions; names of threads; and samples of the
//! whole process. All of that comes in time order, and is written in batches: there may be
//! thousands of such experiments.

mod followed_process;
mod header;

use std::borrow::Cow;

use bpf_abi::RecordHeader;
use experiment_format::Result;
use experiment_format::ids::Pid;
use experiment_format::log::LogEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::{HeapEvent, HeapKind, IoEvent, SyncEvent, WEIGHT_OF_ONE};
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::text::printable;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use user_collector::jit::{JitChange, JitWatch, SharedJit, is_anonymous};
use user_collector::loaded_code::ProcessCode;
use user_collector::objects::LoadObjects;
use user_collector::process::DirectoryNames;
use user_collector::process::ThreadNames;
use user_collector::process::maps_of_ancestors;
use user_collector::process::{Cgroup, ExitFacts, ProcDir, ProcessFacts};
use user_collector::space::{AddressSpace, Mapping};
use user_collector::written_code::{ByteBudget, ObjectMaps, UsedObjects, WrittenCode};

pub use self::followed_process::{FollowedProcess, IoCounts, JitStats, MemoryCounts};
use self::header::{group_comments, header};
use super::activity::{ActivityKind, ThreadActivity, ThreadEvent, TypedHeader};
use super::kernel::header::Inherited;
use super::kernel::periodic::{PERIODIC, PeriodicSamples};
use super::kernel::process_usage::Split;
use super::kernel::times::Times;
use super::processes::{FirstRecord, TrackedProcess};
use super::user_stacks::user_stack::{StackCounts, UserStack};

/// Size at which buffered data are written.
const FLUSH_BYTES: usize = 64 << 10;
/// Age at which buffered data are written.
const FLUSH_AFTER_NS: Nanos = Nanos::from_secs(5);

/// The experiment of a followed process, being written.
#[derive(Debug)]
pub struct ProcessWriter {
    pid: Pid,
    writer: ExperimentWriter,
    start_ns: Nanos,
    /// The group of its threads: their process.
    group: String,
    names: ThreadNames,
    code: WrittenCode,
    jit: Option<JitWatch>,
    /// The statistics of the programs that it executed before.
    previous_jit: JitStats,
    mpi_rank: Option<u32>,
    cgroup: Option<Cgroup>,
    /// The process was gone before its user could be read.
    is_user_missing: bool,
    counts: StackCounts,
    cpu_counts: StackCounts,
    ticks: Ticks,
    /// Packets of ticks that were written.
    packets: u64,
    lock_waits: (u64, Nanos),
    io_calls: IoCounts,
    memory: MemoryCounts,
    /// The time of the last record in it.
    last_ns: Nanos,
    /// The time of the last sample.
    sampled_ns: Nanos,
    periodic: PeriodicSamples,
    /// Its time on a CPU up to the last sample.
    split: Split,
    /// The sample of its exit is written.
    sampled_exit: bool,
    unread_at_exit: bool,
    flushed_ns: Nanos,
}

impl ProcessWriter {
    /// Creates the experiment of a chosen process. Recording started at `began_ns`. `relatives` are
    /// processes that are likely to see the same files.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn create(
        inherited: &Inherited,
        names: &mut DirectoryNames,
        (pid, process, first, began_ns): (Pid, &TrackedProcess, &FirstRecord, Nanos),
        code: &mut ProcessCode<'_>,
        (relatives, budget): (&[Pid], ByteBudget),
    ) -> Result<ProcessWriter> {
        let proc = ProcDir::open(pid).ok();
        let of_number = proc.map(|proc| (ProcessFacts::read(&proc), proc));
        // By now another process may have the number.
        let of_process = of_number.filter(|(facts, _)| !facts.started_after(first.at_ns));
        let (facts, proc) = of_process.unzip();
        let facts = facts.unwrap_or_default();
        let directory = match &first.descent {
            Some(descent) => format!("{descent}.er"),
            None => names.next(&first.name, pid),
        };
        let header = header(inherited, &facts, pid, &first.name);
        let mut writer =
            ExperimentWriter::create_sub(&inherited.dir, &directory, &header, inherited.run)?;
        let run_ns = inherited.run.tstamp_ns;
        let mut written = WrittenCode::new(run_ns, budget, code.objects.needs_used());
        let space = code.space.as_deref();
        let since = space.map_or(Nanos::ZERO, AddressSpace::since_ns);
        // From when its exact times count; another process may have the number by now.
        let start_ns = since.max(began_ns).min(first.at_ns);
        let nothing = UsageRecord {
            time_ns: start_ns,
            created_ns: run_ns,
            ..UsageRecord::default()
        };
        writer.sample(start_ns.saturating_sub(run_ns), "start", &nothing)?;
        let since = since.max(run_ns);
        // What a previous program had mapped ends at an instant; functions, which must not overlap
        // it, begin after it.
        let mut jit =
            proc.and_then(|proc| JitWatch::open(proc, &facts, since + Nanos(1), code.jit).ok());
        if let Some(space) = &mut code.space {
            let objects = &mut *code.objects;
            let changes = space.take_changes(usize::MAX);
            for mapping in space.code().iter() {
                if let Some(watch) = &mut jit
                    && !is_anonymous(&mapping.file)
                {
                    watch.mapped(since, mapping.start, mapping.end, &mapping.file.path);
                }
            }
            written.write_mappings(&mut writer, &changes, |mapping| {
                objects.followed(pid, relatives, mapping)
            })?;
        }
        let mapped = code.areas();
        // A dump is known by its name, which an area of code does not keep.
        let files = code.mapped();
        let inherited = jit
            .as_mut()
            .filter(|_| mapped.iter().any(|mapping| is_anonymous(&mapping.file)))
            .map(|watch| {
                let maps = process.parent_maps.clone();
                let maps = maps.unwrap_or_else(|| maps_of_ancestors(pid));
                let forked_ns = process.forked_ns.or_else(|| facts.started_ns());
                watch.inherit(&maps, &files, forked_ns.unwrap_or(first.at_ns))
            });
        let mut experiment = ProcessWriter {
            pid,
            writer,
            start_ns: run_ns,
            group: format!("pid {pid}"),
            names: ThreadNames::default(),
            code: written,
            jit,
            previous_jit: JitStats::default(),
            mpi_rank: facts.mpi_rank,
            cgroup: facts.cgroup,
            is_user_missing: facts.users.is_none(),
            counts: StackCounts::default(),
            cpu_counts: StackCounts::default(),
            ticks: Ticks::ZERO,
            packets: 0,
            lock_waits: (0, Nanos::ZERO),
            io_calls: IoCounts::default(),
            memory: MemoryCounts::default(),
            last_ns: Nanos::ZERO,
            sampled_ns: start_ns,
            periodic: PeriodicSamples::default(),
            split: Split::default(),
            sampled_exit: false,
            unread_at_exit: false,
            flushed_ns: run_ns,
        };
        experiment.write_functions(&inherited.unwrap_or_default(), &mapped)?;
        Ok(experiment)
    }

    /// Writes what a thread did, with the kernel's frames above the user's. `kernel` maps the
    /// kernel's load objects.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn activity(
        &mut self,
        activity: &ThreadActivity,
        stack: Option<&UserStack>,
        kernel: &ObjectMaps,
    ) -> Result<()> {
        let header = &activity.header;
        self.last_ns = self.last_ns.max(header.time_ns());
        self.count(activity, stack);
        let stack = self.stack(activity, stack, kernel)?;
        let (cpu, tid, pid, time_ns) = (header.cpu, header.tid(), self.pid, header.time_ns());
        match &activity.kind {
            ActivityKind::Interval(interval) => {
                self.packets += 1;
                self.writer.tick(&interval.packet(header, stack))
            }
            ActivityKind::Event(ThreadEvent::Overflow(overflow)) => {
                self.writer.counted(&overflow.packet(header, stack))
            }
            ActivityKind::Event(ThreadEvent::LockWait(wait)) => self.writer.waited(&SyncEvent {
                cpu,
                requested_ns: wait.begin_ns,
                ended_ns: time_ns,
                stack,
                tid,
                pid,
                object: wait.object,
                kind: wait.kind,
            }),
            ActivityKind::Event(ThreadEvent::IoCall(call)) => self.writer.called(&IoEvent {
                cpu,
                stack,
                tid,
                pid,
                operation: call.operation.clone(),
            }),
            ActivityKind::Event(ThreadEvent::Memory { change, .. }) => {
                self.writer.allocated(&HeapEvent {
                    cpu,
                    time_ns,
                    stack,
                    tid,
                    pid,
                    kind: change.kind,
                    bytes: change.bytes,
                    address: change.address,
                    own_bytes: change.bytes,
                    weight: WEIGHT_OF_ONE,
                })
            }
            ActivityKind::Event(ThreadEvent::Block(change)) => self.writer.allocated(&HeapEvent {
                cpu,
                time_ns,
                stack,
                tid,
                pid,
                kind: if change.freed {
                    HeapKind::Freed
                } else {
                    HeapKind::Allocated
                },
                bytes: change.weighted_bytes,
                address: change.address,
                own_bytes: change.bytes,
                weight: change.weight,
            }),
        }
    }

    /// Adds what a thread did to the sums of the summary.
    fn count(&mut self, activity: &ThreadActivity, stack: Option<&UserStack>) {
        let header = &activity.header;
        match &activity.kind {
            ActivityKind::Interval(interval) => {
                let ticks = interval.ticks;
                self.counts.add(stack, header, ticks);
                if interval.state.in_total_cpu() {
                    self.cpu_counts.add(stack, header, ticks);
                }
                self.ticks += ticks;
            }
            ActivityKind::Event(ThreadEvent::Overflow(_)) => {}
            ActivityKind::Event(ThreadEvent::LockWait(wait)) => {
                self.lock_waits.0 += 1;
                self.lock_waits.1 += header.time_ns().saturating_sub(wait.begin_ns);
            }
            ActivityKind::Event(ThreadEvent::IoCall(call)) => self.io_calls.add(&call.operation),
            ActivityKind::Event(ThreadEvent::Memory { change, .. }) => self.memory.add(change),
            ActivityKind::Event(ThreadEvent::Block(change)) => self.memory.add_block(change),
        }
    }

    /// Interns the stack of what a thread did, after writing the name of the thread if it is new.
    fn stack(
        &mut self,
        activity: &ThreadActivity,
        stack: Option<&UserStack>,
        kernel: &ObjectMaps,
    ) -> Result<StackUid> {
        let header = &activity.header;
        let (user, end): (&[u64], _) = match stack {
            Some(stack) => (&stack.frames, stack.mark()),
            None if header.exiting || header.user_worker => (&[], StackEnd::Complete),
            None => (&[], StackEnd::UnwindFailed),
        };
        let end = match activity.truncated {
            true if end == StackEnd::Complete => StackEnd::Truncated,
            _ => end,
        };
        let frames = match &*activity.kernel {
            // Most ticks, which are in user mode.
            [] => Cow::Borrowed(user),
            kernel_frames => Cow::Owned([kernel_frames, user].concat()),
        };
        self.name_thread(header)?;
        self.code.stack(&mut self.writer, (&frames, end), kernel)
    }

    /// Names a thread in the log, unless it already has this name there.
    fn name_thread(&mut self, header: &RecordHeader) -> Result<()> {
        let (tid, name) = (header.tid(), header.name.bytes());
        let at_ns = self.relative_ns(header.time_ns());
        let Some(at_ns) = self.names.update(self.pid, tid, name, at_ns) else {
            return Ok(());
        };
        self.writer.log(&LogEvent::Thread {
            at_ns,
            tid,
            name: match name {
                b"" => "unknown".to_owned(),
                name => printable(name),
            },
            group: self.group.clone(),
        })
    }

    /// Writes a sample. For a process that has exited, writes its last sample, once. A periodic
    /// sample may be left out.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn sample(
        &mut self,
        at_ns: Nanos,
        label: &str,
        (times, living): &(Times, usize),
        exited_ns: Option<Nanos>,
    ) -> Result<()> {
        let usage = &self.split.usage(self.start_ns, at_ns, times, *living);
        match exited_ns {
            Some(exited_ns) if usage.threads == 0 => {
                if std::mem::replace(&mut self.sampled_exit, true) {
                    return Ok(());
                }
                let time = exited_ns.max(self.last_ns).max(self.sampled_ns + Nanos(1));
                let usage = UsageRecord {
                    time_ns: time,
                    ..usage.clone()
                };
                self.write_sample(time, "exit", &usage)
            }
            // It was taken before the process began.
            _ if at_ns <= self.sampled_ns => Ok(()),
            _ if label == PERIODIC && !self.periodic.is_due(active(usage)) => Ok(()),
            _ => {
                self.periodic = PeriodicSamples::written(active(usage));
                // A process ends some time after its last thread has exited, and so does its time.
                self.last_ns = self.last_ns.max(at_ns);
                self.sampled_ns = at_ns;
                self.write_sample(at_ns, label, usage)
            }
        }
    }

    fn write_sample(&mut self, at_ns: Nanos, label: &str, usage: &UsageRecord) -> Result<()> {
        self.writer.sample(self.relative_ns(at_ns), label, usage)
    }

    /// Writes an event of the run.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn log(&mut self, at_ns: Nanos, event: impl FnOnce(Nanos) -> LogEvent) -> Result<()> {
        self.writer.log(&event(self.relative_ns(at_ns)))
    }

    /// Writes where more of the kernel's load objects are.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn kernel_objects(&mut self, kernel: &ObjectMaps) -> Result<()> {
        self.code.write_kernel_objects(&mut self.writer, kernel)
    }

    /// Writes what changed in the process's mappings since the last time: the first `most` changes.
    /// Returns how many it wrote.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn mappings(&mut self, code: &mut ProcessCode<'_>, most: usize) -> Result<usize> {
        let space = code.space.as_deref_mut();
        let changes = space.map(|space| space.take_changes(most));
        let changes = changes.unwrap_or_default();
        let (pid, objects) = (self.pid, &mut *code.objects);
        let object = |mapping: &Mapping| objects.followed(pid, &[], mapping);
        self.code
            .write_mappings(&mut self.writer, &changes, object)?;
        Ok(changes.len())
    }

    /// Records that the process mapped a file for execution: functions made there before have
    /// ended. Not to be called for a file that holds code that the process makes.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn mapped(&mut self, at_ns: Nanos, mapping: &Mapping) -> Result<()> {
        if let Some(watch) = &mut self.jit
            && !is_anonymous(&mapping.file)
        {
            let ended = watch.mapped(at_ns, mapping.start, mapping.end, &mapping.file.path);
            return self.code.write_functions(&mut self.writer, &ended, &[]);
        }
        Ok(())
    }

    /// Records that the process executed another program, which makes other code.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn executed(&mut self, at_ns: Nanos, shared: &SharedJit) -> Result<()> {
        let code = self.write_last_code(&[]);
        let Some(watch) = self.jit.take() else {
            return Ok(());
        };
        self.previous_jit.add(&watch);
        let (ended, next) = watch.executed(at_ns, shared);
        self.jit = next;
        let result = self.code.write_functions(&mut self.writer, &ended, &[]);
        code.and(result)
    }

    /// Writes the facts that are known by the exit of a thread, if the process was gone, or had
    /// become a zombie, before they could be read.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn add_facts(&mut self, at_exit: &ExitFacts) -> Result<()> {
        let user = std::mem::take(&mut self.is_user_missing).then_some(at_exit.user);
        let known = self.cgroup.as_ref();
        let cgroup = if known.is_none_or(Cgroup::is_root) {
            at_exit.cgroup.as_deref()
        } else {
            None
        };
        if let Some(cgroup) = cgroup {
            self.cgroup = Some(cgroup.clone());
        }
        let at_ns = self.last_ns;
        let mut comments = group_comments(user, cgroup).into_iter();
        comments.try_for_each(|text| self.log(at_ns, |at_ns| LogEvent::Comment { at_ns, text }))
    }

    /// Reads for the last time what the process, which exited, reported of its code.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn exited(&mut self, at_ns: Nanos, code: &mut ProcessCode<'_>) -> Result<()> {
        let Some(watch) = &mut self.jit else {
            return Ok(());
        };
        let last = watch.last_poll(at_ns);
        self.unread_at_exit = !watch.outlives_process();
        let mapped = code.areas();
        let functions = self.write_functions(&last, &mapped);
        functions.and(self.write_last_code(&mapped))
    }

    /// Reads and writes the rest of the machine code when the recording ends.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn last_code(&mut self, code: &mut ProcessCode<'_>) -> Result<()> {
        self.write_last_code(&code.areas())
    }

    /// Writes JIT functions, and requests the code of those that were written.
    fn write_functions(&mut self, changes: &[JitChange], mapped: &[Mapping]) -> Result<()> {
        let result = self.code.write_functions(&mut self.writer, changes, mapped);
        if let Some(watch) = &mut self.jit {
            for change in changes {
                if matches!(change, JitChange::Begin { address, .. } if self.code.has_function(*address))
                {
                    watch.want_code(change);
                }
            }
        }
        result
    }

    fn write_last_code(&mut self, mapped: &[Mapping]) -> Result<()> {
        let watch = self.jit.as_mut();
        let codes = watch.map_or_else(Vec::new, |watch| watch.take_last_code(mapped));
        self.code.write_function_codes(&mut self.writer, &codes)
    }

    /// Once a round: writes what changed. `current` is whether the process still has its number.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn maintain(
        &mut self,
        now_ns: Nanos,
        current: bool,
        code: &mut ProcessCode<'_>,
    ) -> Result<()> {
        let (mut result, mut mapped) = (Ok(()), Default::default());
        if current {
            mapped = code.areas();
        }
        self.report_used(code.objects);
        if let Some(watch) = &mut self.jit {
            let codes = watch.take_code(&mapped);
            let changes = watch.poll(now_ns, &mapped);
            result = result
                .and(self.code.write_function_codes(&mut self.writer, &codes))
                .and(self.write_functions(&changes, &mapped));
        }
        let buffered = self.writer.buffered();
        let age_ns = now_ns.saturating_sub(self.flushed_ns);
        if buffered >= FLUSH_BYTES || (buffered > 0 && age_ns >= FLUSH_AFTER_NS) {
            self.flushed_ns = now_ns;
            result = result.and(self.writer.flush());
        }
        result
    }

    /// Writes what waits in memory.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }

    /// Reports the load objects in which stacks were since the last time, for `-A usedldobjects`.
    fn report_used(&mut self, objects: &mut LoadObjects) {
        if let Some(used) = &mut self.code.used {
            used.take().into_iter().for_each(|id| objects.used(id));
        }
    }

    /// Reports the load objects as `report_used` does, and where in them stacks
    /// were, for `-A usedsrc`: at the end.
    pub fn report_all_used(&mut self, objects: &mut LoadObjects) {
        self.report_used(objects);
        if let Some(used) = &mut self.code.used {
            used.offsets()
                .for_each(|(id, position)| objects.used_at(id, position));
        }
    }

    /// Returns whether the sample of its exit is written.
    #[must_use]
    pub fn sampled_exit(&self) -> bool {
        self.sampled_exit
    }

    /// Returns the most bytes that the ends of its mappings and functions will have.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.code.end_bytes()
    }

    /// Bytes written.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.writer.bytes_written()
    }

    /// Returns the process's row of the summary.
    #[must_use]
    pub fn summary(&self) -> FollowedProcess {
        let mut jit = self.previous_jit.clone();
        self.jit.iter().for_each(|watch| jit.add(watch));
        jit.counts.code_left_out += self.code.unwritten_code;
        jit.counts.code_over_limit += self.code.unwritten_code;
        FollowedProcess {
            pid: self.pid,
            experiment: self.writer.name().to_owned(),
            unwritten_mappings: self.code.unwritten_mappings,
            unwritten_functions: self.code.unwritten_functions,
            unused_functions: self.code.unused_functions(),
            unwritten_names: self.names.unwritten(),
            has_unkept_addresses: self.code.used.as_ref().is_some_and(UsedObjects::is_full),
            unread_at_exit: self.unread_at_exit,
            mpi_rank: self.mpi_rank,
            cgroup: self.cgroup.clone(),
            ticks: self.ticks,
            lock_waits: self.lock_waits,
            io_calls: self.io_calls,
            memory: self.memory,
            packets: self.packets,
            user_stacks: self.counts.clone(),
            cpu_user_stacks: self.cpu_counts.clone(),
            jit: (jit != JitStats::default()).then_some(jit),
        }
    }

    /// Closes it, at the time of its last record or later.
    ///
    /// # Errors
    /// When the closing can't be written.
    pub fn close(mut self, at_ns: Nanos) -> Result<()> {
        let at_ns = at_ns.max(self.last_ns);
        self.code.warn_of_limits(&mut self.writer, at_ns)?;
        let at_ns = self.relative_ns(at_ns);
        self.writer.close(at_ns).map(drop)
    }

    /// Converts a time of the events' clock to the experiment's time, which counts from its start.
    fn relative_ns(&self, time_ns: Nanos) -> Nanos {
        time_ns.saturating_sub(self.start_ns)
    }
}

/// Returns the time in which threads were not blocked for a lock, asleep or stopped.
fn active(usage: &UsageRecord) -> Nanos {
    let blocked = [Microstate::UserLock, Microstate::Sleep, Microstate::Stopped];
    let states = Microstate::ALL.iter().zip(usage.states_ns);
    let active = states.filter(|(state, _)| !blocked.contains(state));
    active.map(|(_, ns)| ns).sum()
}
