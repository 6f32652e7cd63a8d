//! The dispatcher: takes the one time-ordered stream of events and passes each to what it changes.
//!
//! Processes come first: an event of a process changes its entry in the table, so that every later
//! record is judged by the state of its own time. Records are decoded to intervals, which go by the
//! [user space](super::user) to the [router](super::route), or straight there if no process can be
//! followed. Nothing is returned.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bpf::Programs;
use bpf_abi::{Record, RecordHeader, UserReturnRecord};
use experiment_format::ids::{Pid, Tid};
use experiment_format::kernel::{BPF, KERNEL};
use experiment_format::log::LAST_SAMPLE;
use experiment_format::losses::Losses;
use experiment_format::units::{Nanos, Ticks};
use user_collector::archive::ArchiveStats;
use user_collector::follow::FollowRule;
use user_collector::loaded_code::ArchiveProgress;
use user_collector::objects::LoadObjects;
use user_collector::objects::TableCache;
use user_collector::process::has_living_thread;

use super::activity::ThreadActivity;
use super::archives;
use super::input::event::{CpuChange, InputEvent};
use super::input::sideband::SidebandEvent;
use super::kernel::decode::Decoder;
use super::processes::{Process, Processes, instance_of};
use super::route::Router;
use super::user::{BlockSampling, UserSpace};
use crate::plan::{CpuShare, Plan, Tracing};
use crate::record::activity::TypedHeader;

/// How long exited processes are kept for their late records, nanoseconds.
const KEEP_EXITED_NS: Nanos = Nanos::from_secs(10);
/// The time between two searches for processes that have exited. After this time all their records
/// have been applied.
const EVICT_INTERVAL_NS: Nanos = Nanos::from_secs(1);

/// The dispatcher of a recording's events.
#[derive(Debug)]
pub struct Dispatcher {
    /// The processes, as they are at the last event.
    pub processes: Processes,
    decoder: Decoder,
    /// User space, if any process may be followed.
    pub user: Option<UserSpace>,
    /// The experiments.
    pub router: Router,
    /// Side-band records that the kernel could not deliver.
    pub sideband_lost: u64,
    /// Ticks that came after writing had failed.
    pub not_written: Ticks,
    evicted_ns: Nanos,
}

impl Dispatcher {
    /// A dispatcher to existing experiments. If no process can be followed, `say` is called with
    /// the reason.
    #[must_use]
    pub fn new(mut router: Router, plan: &Plan, mut say: impl FnMut(&str)) -> Dispatcher {
        let mut user = user_space(plan.follow.clone(), sampling(plan.tracing), &mut say);
        if let Some(user) = &mut user {
            begin_archives(&router, user, None, &mut say);
        }
        let decoder = router.kernel.functions().map(Decoder::new);
        router.kernel.drop_functions(plan.archive);
        Dispatcher {
            processes: Processes::default(),
            decoder: decoder.unwrap_or_default(),
            user,
            sideband_lost: 0,
            not_written: Ticks::ZERO,
            evicted_ns: router.founder.start_ns(),
            router,
        }
    }

    /// Applies an event. Events come in time order.
    pub fn apply(&mut self, time_ns: Nanos, event: InputEvent) {
        match event {
            InputEvent::Record(record) => self.record(record),
            InputEvent::Recording { on } => self.router.recording(time_ns, on),
            InputEvent::CpuChange(change) => self.cpu_change(time_ns, change),
            // The session makes the next experiment.
            InputEvent::Rotation(_) => {}
            InputEvent::Sample { at_ns, label } => self.sample(at_ns, label),
            InputEvent::Found {
                pid,
                name,
                executable,
                mappings,
            } => {
                let process = self.processes.known(pid);
                // Only the rule of followed processes needs the program.
                let executable = executable.filter(|_| self.user.is_some());
                process.found(&name, executable.as_deref());
                if let Some(user) = &mut self.user {
                    user.found(process, mappings, self.router.founder.start_ns());
                }
            }
            InputEvent::MappingsRead {
                pid,
                began_ns,
                mappings,
            } => {
                if let Some(user) = &mut self.user
                    && let Some(process) = self.processes.get_mut(pid)
                {
                    user.mappings_read(process, (began_ns, time_ns), mappings);
                }
            }
            InputEvent::Sideband(event) => self.sideband(time_ns, event),
        }
    }

    fn cpu_change(&mut self, time_ns: Nanos, CpuChange { cpu, online }: CpuChange) {
        let text = if online {
            format!("CPU {cpu} came online; it is recorded from here on")
        } else {
            format!("CPU {cpu} went offline")
        };
        self.router.warn(time_ns, text);
    }

    fn record(&mut self, record: Record) {
        let failed = self.router.failed.is_some() || self.router.is_full();
        let (router, processes) = (&mut self.router, &mut self.processes);
        match (record, &mut self.user) {
            (Record::Tick(tick), _) if failed => self.not_written += Ticks(tick.ticks.into()),
            (Record::Thread(thread), user) => {
                router.thread(processes.get(thread.header.pid()), &thread);
                if let Some(user) = user {
                    user.thread(router, processes, &thread);
                }
            }
            (_, _) if failed => {}
            (Record::Tick(tick), user) => {
                let process = process_of(processes, &tick.header, user.is_some());
                let instance = instance_of(process, tick.header.pid());
                let tick = self.decoder.tick(tick);
                if let Err(error) = router.cpu_tick(process, &tick) {
                    self.not_written += tick.ticks + tick.stolen;
                    return router.note(Err(error));
                }
                tick.intervals(instance)
                    .for_each(|part| self.activity(part));
            }
            (Record::OffCpu(record), user) => {
                let process = process_of(processes, &record.header, user.is_some());
                let instance = instance_of(process, record.header.pid());
                let off_cpu = self.decoder.off_cpu(record, instance);
                router.founder.note_off_cpu(&off_cpu);
                let parts = off_cpu.parts.into_iter();
                parts
                    .filter(|part| part.ticks() > Ticks::ZERO)
                    .for_each(|part| self.activity(part));
            }
            (Record::Overflow(record), user) => {
                let process = process_of(processes, &record.header, user.is_some());
                let instance = instance_of(process, record.header.pid());
                let overflow = self.decoder.overflow(record, instance);
                if let Err(error) = router.founder.cpu_overflow(process, &overflow) {
                    return router.note(Err(error));
                }
                self.activity(overflow.thread);
            }
            (Record::LockWait(record), user) => {
                let process = process_of(processes, &record.header, user.is_some());
                let instance = instance_of(process, record.header.pid());
                let wait = self.decoder.lock_wait(record, instance);
                self.activity(wait);
            }
            (Record::IoCall(record), Some(user)) => user.io_call(router, processes, &record),
            (Record::IoSubmitted(record), Some(user)) => {
                user.io_submitted(router, processes, &record);
            }
            (Record::IoFile(record), Some(user)) => user.registered_file(&record),
            (Record::Block(record), Some(user)) => user.block(router, processes, &record),
            (Record::UserReturn(record), Some(user)) => {
                user.user_return(router, processes, record);
            }
            // Only followed processes are traced.
            (
                Record::IoCall(_)
                | Record::IoSubmitted(_)
                | Record::IoFile(_)
                | Record::Block(_)
                | Record::UserReturn(_),
                None,
            ) => {}
        }
    }

    /// Adds user stacks of later returns to user mode that earlier records wait for.
    pub fn returned(&mut self, returns: &[UserReturnRecord]) {
        if let Some(user) = &mut self.user {
            for record in returns {
                if user.awaits(record) {
                    user.user_return(&mut self.router, &mut self.processes, record.clone());
                }
            }
        }
    }

    fn activity(&mut self, activity: ThreadActivity) {
        match &mut self.user {
            Some(user) if runs_user_code(&activity.header) => {
                user.activity(&mut self.router, &mut self.processes, activity);
            }
            _ => self.router.to_founder(&self.processes, &activity),
        }
    }

    fn sideband(&mut self, time_ns: Nanos, event: SidebandEvent) {
        let (router, processes) = (&mut self.router, &mut self.processes);
        match (event, &mut self.user) {
            (SidebandEvent::Fork { pid, parent }, _) => self.forked(pid, parent, time_ns),
            (SidebandEvent::Comm { pid, name, exec }, Some(user)) if exec => {
                user.executed(router, processes, (pid, &name), time_ns);
            }
            (SidebandEvent::Comm { pid, name, exec }, None) if exec => {
                processes.known(pid).executed(&name, time_ns, false);
            }
            (SidebandEvent::Comm { pid, name, .. }, _) => processes.known(pid).renamed(&name),
            (SidebandEvent::Map { pid, mapping }, user) => {
                let (process, file) = (processes.known(pid), &mapping.file);
                process.mapped(&file.path, &file.build_id);
                if let Some(user) = user {
                    user.mapped(router, process, mapping, time_ns);
                }
            }
            (
                SidebandEvent::KernelCode {
                    address,
                    size,
                    name,
                    gone,
                },
                _,
            ) => {
                let code = (address, u64::from(size));
                let since = router.founder.start_ns();
                router.kernel.changed((since, time_ns), code, &name, gone);
            }
            (SidebandEvent::Lost { records }, _) => self.sideband_lost += records,
            (SidebandEvent::Exit { pid, leader }, _) => self.thread_exited(pid, leader, time_ns),
            (SidebandEvent::Other, _) => {}
        }
    }

    fn forked(&mut self, pid: Pid, parent: Pid, at_ns: Nanos) {
        // Its number is free again: the exit of its last thread was missed.
        let previous = self.processes.get(pid);
        if let Some(exited_ns) = previous.and_then(Process::leaderless_ns) {
            self.exited(pid, exited_ns);
        }
        let processes = &mut self.processes;
        match &mut self.user {
            Some(user) => user.forked(processes, (pid, parent), at_ns),
            None => {
                processes.forked(pid, parent, at_ns);
            }
        }
    }

    /// Records that a thread exited. A process exits with the last one, which need not be the
    /// leading one.
    fn thread_exited(&mut self, pid: Pid, leader: bool, at_ns: Nanos) {
        let process = if leader {
            Some(self.processes.known(pid))
        } else {
            self.processes.get_mut(pid)
        };
        if !process.is_some_and(|process| process.lost_a_thread(leader, at_ns)) {
            return;
        }
        if has_living_thread(Path::new("/proc"), pid) {
            if let Some(user) = &mut self.user {
                user.lost_a_thread(pid);
            }
        } else {
            self.exited(pid, at_ns);
        }
    }

    fn exited(&mut self, pid: Pid, at_ns: Nanos) {
        let (router, processes) = (&mut self.router, &mut self.processes);
        match &mut self.user {
            Some(user) => user.exited(router, processes, pid, at_ns),
            None => processes.known(pid).exited(at_ns),
        }
    }

    /// Takes a sample at an instant whose records have all been applied.
    pub fn sample(&mut self, at_ns: Nanos, label: &str) {
        if label != LAST_SAMPLE && !self.router.may_write_samples() {
            return;
        }
        let bytes_before = self.router.bytes_written();
        self.router.sample(&self.processes, at_ns, label);
        if let Some(user) = &mut self.user {
            user.sample(&mut self.router, &self.processes, (at_ns, label));
        }
        self.router.count_sample(bytes_before, at_ns);
    }

    /// Probes the allocators of the load, whose process waits before it executes its program.
    pub fn probe_load(&mut self, programs: &Programs, plan: &Plan, pid: Pid) {
        if let (Some(user), Some(program)) = (&mut self.user, plan.load.first()) {
            user.probe_load(programs, &self.processes, (pid, program));
        }
    }

    /// Follows the load, unless no process can be followed.
    pub fn load_started(&mut self, pid: Pid) {
        if let Some(user) = &mut self.user {
            user.load_started(pid);
        }
    }

    /// Publishes what the snapshot found to the BPF programs, before recording starts.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn publish_snapshot(&mut self, programs: &mut Programs) -> Result<(), bpf::Error> {
        match &mut self.user {
            Some(user) => user.publish_snapshot(programs, &mut self.processes),
            None => Ok(()),
        }
    }

    /// Unwinds the stack copies that can be, and publishes what changed to the BPF programs.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn publish(&mut self, programs: &mut Programs) -> Result<(), bpf::Error> {
        let Some(user) = &mut self.user else {
            return Ok(());
        };
        user.unwind_copies(&mut self.router, &mut self.processes, false);
        user.keep_trace_budget(&mut self.router, &mut self.processes, programs);
        let now_ns = host::machine::now();
        user.read_go_profiles(&mut self.router, &mut self.processes, (now_ns, false));
        user.publish(programs, &mut self.processes)?;
        let warnings = user.take_probe_warnings();
        let warn = |text| self.router.warn(host::machine::now(), text);
        warnings.into_iter().for_each(warn);
        Ok(())
    }

    /// Returns the thread that makes unwind tables, if any process can be followed.
    #[must_use]
    pub fn table_maker(&self) -> Option<Tid> {
        self.user.as_ref().map(UserSpace::table_maker)
    }

    /// The processes whose mappings have to be read. An [`InputEvent::MappingsRead`] is expected
    /// for each.
    pub fn take_unmapped(&mut self) -> Vec<Pid> {
        self.user
            .as_mut()
            .map_or_else(Vec::new, UserSpace::take_unmapped)
    }

    /// Once a round, before [`Dispatcher::maintain`], until it returns false: writes a part of what
    /// changed in mappings. Returns whether the rest waits.
    pub fn write_some_mappings(&mut self) -> bool {
        let router = &mut self.router;
        let user = self.user.as_mut();
        user.is_some_and(|user| user.write_some_mappings(router, &mut self.processes))
    }

    /// Once a round: writes what is due, and drops what is only kept for late records.
    pub fn maintain(&mut self, now_ns: Nanos) {
        self.router.maintain_kernel();
        if let Some(user) = &mut self.user {
            user.maintain(&mut self.router, &mut self.processes, now_ns);
        }
        if now_ns.saturating_sub(self.evicted_ns) >= EVICT_INTERVAL_NS {
            self.evicted_ns = now_ns;
            self.evict(now_ns);
        }
    }

    fn evict(&mut self, now_ns: Nanos) {
        self.end_leaderless();
        let (router, processes) = (&mut self.router, &mut self.processes);
        let there = |pid: Pid| fs::exists(format!("/proc/{pid}")).unwrap_or(true);
        let long_ago_ns = now_ns.saturating_sub(KEEP_EXITED_NS);
        if let Some(user) = &mut self.user {
            let living = router.accounts.living_processes();
            let lives = |process: &Process| {
                let exited_ns = process.exited_ns();
                // The last record of one of its threads may be lost.
                let is_recent = exited_ns.is_none_or(|exited_ns| exited_ns >= long_ago_ns);
                is_recent && living.contains(&process.pid()) || there(process.pid())
            };
            let known_ns = now_ns.saturating_sub(EVICT_INTERVAL_NS);
            user.close_exited(router, processes, known_ns, lives);
        }
        for mut process in processes.evict(long_ago_ns, there) {
            if let Some(user) = &mut self.user {
                user.evicted(&mut process);
            }
        }
        router.founder.evict(processes);
    }

    /// Ends the processes whose leading thread has exited and of which no other thread lives: the
    /// record of the last thread's exit may have been lost.
    fn end_leaderless(&mut self) {
        let leaderless = |process: &Process| Some((process.pid(), process.leaderless_ns()?));
        let leaderless: Vec<_> = self.processes.iter().filter_map(leaderless).collect();
        for (pid, exited_ns) in leaderless {
            if !has_living_thread(Path::new("/proc"), pid) {
                self.exited(pid, exited_ns);
            }
        }
    }

    /// Adds interrupted calls whose continuation will not be seen, since the recording ends.
    pub fn end_calls(&mut self) {
        if let Some(user) = &mut self.user {
            user.all_calls_end(&mut self.router, &mut self.processes);
        }
    }

    /// Writes all that waits, since no event follows. Then writes the last sample, at the end of
    /// recording, when the experiments of all processes exist.
    pub fn finish(&mut self, ended_ns: Nanos) {
        if let Some(user) = &mut self.user {
            user.read_go_profiles(&mut self.router, &mut self.processes, (ended_ns, true));
            user.finish(&mut self.router, &mut self.processes);
        }
        self.sample(ended_ns, LAST_SAMPLE);
        self.router.close_threads(&self.processes, ended_ns);
        self.router.flush();
    }

    /// Archives what is not archived yet; `give_up` is called before each object of the kernel, and
    /// ends it when it returns true. For files of processes, [`Dispatcher::archiving`] waits.
    pub fn archive_rest(&mut self, give_up: impl FnMut() -> bool) {
        self.router.archive_kernel(give_up);
        if let Some(user) = &mut self.user {
            user.archive_rest(&mut self.router, &mut self.processes);
        }
        if self.router.failed.is_some() {
            self.give_up_archiving();
        }
    }

    /// Waits at most `at_most` until the files of followed processes are archived. Returns the
    /// progress; None once all is done.
    pub fn archiving(&mut self, at_most: Duration) -> Option<ArchiveProgress> {
        self.user.as_mut()?.code.archiving(at_most)
    }

    /// Leaves out what is not archived by now.
    pub fn give_up_archiving(&mut self) {
        if let Some(user) = &mut self.user {
            user.code.give_up_archiving();
        }
    }

    /// The result of archiving the files of followed processes; None if nothing was to be archived.
    #[must_use]
    pub fn archived(&self) -> Option<&ArchiveStats> {
        self.user.as_ref()?.code.archived()
    }

    /// Names in the log what is not archived.
    pub fn log_archived(&mut self, now_ns: Nanos) {
        let warnings = self
            .archived()
            .map(ArchiveStats::warnings)
            .unwrap_or_default();
        for text in warnings {
            self.router.warn(now_ns, text);
        }
    }

    /// Writes the losses into the header that every report shows.
    pub fn log_losses(&mut self, now_ns: Nanos, losses: &Losses) {
        let result = self.router.founder.log_losses(now_ns, losses);
        self.router.note(result);
    }

    /// Closes all experiments and continues with the experiments of the router `next`, which begin
    /// at an instant. All events until then have been applied, and [`Dispatcher::finish`] was
    /// called.
    ///
    /// # Errors
    /// The first error of the experiments that are closed.
    pub fn switch_router(
        &mut self,
        next: Router,
        at_ns: Nanos,
        mut say: impl FnMut(&str),
    ) -> experiment_format::Result<()> {
        let router = std::mem::replace(&mut self.router, next);
        let before = router.founder.dir().archives_of().ok();
        let context = self
            .user
            .as_mut()
            .map(|user| user.process_context(&mut self.processes));
        let closed = router.close(context, at_ns);
        (self.sideband_lost, self.not_written) = (0, Ticks::ZERO);
        if let Some(user) = &mut self.user {
            user.on_rotation(&mut self.processes, at_ns);
            begin_archives(&self.router, user, before, &mut say);
        }
        closed
    }

    /// Closes all experiments. `stopped_ns` is when recording stopped.
    ///
    /// # Errors
    /// The first error of the whole recording.
    pub fn close(mut self, stopped_ns: Nanos) -> experiment_format::Result<()> {
        let context = self
            .user
            .as_mut()
            .map(|user| user.process_context(&mut self.processes));
        self.router.close(context, stopped_ns)
    }
}

/// Returns the process of a record. One that may be followed is known from its first record on,
/// whatever else is known of it.
fn process_of<'a>(
    processes: &'a mut Processes,
    header: &RecordHeader,
    may_follow: bool,
) -> Option<&'a Process> {
    if may_follow && runs_user_code(header) {
        Some(processes.known(header.pid()))
    } else {
        processes.get(header.pid())
    }
}

/// Whether a thread belongs to a process that runs code of its own: not the idle or a kernel
/// thread.
fn runs_user_code(header: &RecordHeader) -> bool {
    header.pid() != Pid(0) && !header.kernel_thread
}

/// Begins to archive the files of followed processes, into the router's experiment.
fn begin_archives(
    router: &Router,
    user: &mut UserSpace,
    before: Option<OwnedFd>,
    say: &mut impl FnMut(&str),
) {
    let founder = &router.founder;
    let taken = router.kernel.objects().chain([KERNEL, BPF]);
    let (archive, dir) = (founder.archive(), founder.dir());
    let most = router.max_copied();
    if let Err(error) = archives::begin(&mut user.code, archive, dir, taken, most, before) {
        say(&format!(
            "load objects of processes are not archived: {error}"
        ));
    }
}

/// Returns which blocks of allocators are sampled, if any are.
fn sampling(tracing: Tracing) -> Option<BlockSampling> {
    let sampling = |mean_bytes| BlockSampling {
        mean_bytes,
        budget: tracing.budget.map(CpuShare::share),
    };
    tracing.heap.mean_bytes().map(sampling)
}

/// Returns user space, if the rule follows any process.
fn user_space(
    rule: FollowRule,
    sampling: Option<BlockSampling>,
    say: &mut impl FnMut(&str),
) -> Option<UserSpace> {
    if !rule.follows() {
        return None;
    }
    let cache = TableCache::open_default().unwrap_or_else(|error| {
        say(&format!("unwind tables are not kept on disk: {error}"));
        None
    });
    match LoadObjects::new(cache) {
        Ok(objects) => Some(UserSpace::new(rule, objects, sampling)),
        Err(error) => {
            say(&format!("no process is followed: {error}"));
            None
        }
    }
}
