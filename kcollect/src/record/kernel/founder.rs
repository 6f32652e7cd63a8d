//! The founder experiment from its first byte to its last: `ktest.1.er`, the kernel's.
//!
//! It takes the one time-ordered stream of events and is the only one to write the experiment. When
//! writing fails (the disk is full) it stops taking data, keeps count of what it turns away, and
//! can still be closed: what was written until then is a valid experiment.

mod late;

use std::cell::LazyCell;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use bpf::{Emission, Record, TickCollector};
use counters::event::Request;
use experiment_format::Error;
use experiment_format::kernel::{BPF, KERNEL};
use experiment_format::layout::ExperimentDir;
use experiment_format::log::LogEvent;
use experiment_format::map::MapEvent;
use experiment_format::writer::ExperimentWriter;
use nix::unistd::Pid;
use user_collector::modules::Cache;
use user_collector::objects::Objects;
use user_collector::process::Processes;

use super::code::Kernel;
use super::header;
use super::recorder::Recorder;
use crate::plan::{Archive, Plan};
use crate::record::input::sideband::SidebandEvent;
use crate::record::input::sources::Event;
use crate::record::user::{self, Founding, Stay, UserSide};

/// Exited processes are kept so long, for the ticks of their last moments: nanoseconds.
const MEMORY_OF_THE_DEAD: u64 = 10_000_000_000;
/// From one look at who has ended to the next, nanoseconds; and by then all that they did is known.
const FORGETTING: u64 = 1_000_000_000;

/// The kernel's experiment, being written.
#[derive(Debug)]
pub struct Founder {
    writer: ExperimentWriter,
    start: u64,
    archive: Archive,
    /// The kernel's code.
    pub kernel: Kernel,
    processes: Processes,
    /// Ticks as they were recorded.
    pub recorder: Recorder,
    /// What is followed into user code, if anything may be.
    pub user: Option<UserSide>,
    /// Side-band records that the kernel could not deliver.
    pub sideband_lost: u64,
    /// Ticks that came after writing had failed.
    pub not_written: u64,
    /// Why writing stopped.
    pub failed: Option<Error>,
    forgotten_at: u64,
}

impl Founder {
    /// Writes all that is known before the first tick: header, notes, the kernel's load objects
    /// with their text where that can be had. If that fails, nothing is left behind.
    ///
    /// The experiment's time begins here, and data are paused until an [`Event::Recording`]: so it
    /// can be opened from the first instant on, and the writing of images is not in the profile.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn create(
        dir: ExperimentDir,
        (plan, counters): (&Plan, &[Request]),
        kernel: Kernel,
        emission: Option<Emission>,
        mut say: impl FnMut(&str),
    ) -> Result<Founder, Error> {
        let run = header::run();
        let start = run.tstamp;
        let header = header::header(plan, counters, emission);
        let writer = ExperimentWriter::create(dir, &header, run)?;
        let mut founder = Founder {
            user: None,
            writer,
            start,
            archive: plan.archive,
            recorder: Recorder::new(start, plan.interval.nanos(), &kernel.symbols, &plan.targets),
            kernel,
            processes: Processes::new(),
            sideband_lost: 0,
            not_written: 0,
            failed: None,
            forgotten_at: start,
        };
        match founder.write_start(plan, &mut say) {
            Ok(kernel) => {
                let founding = Founding {
                    header,
                    run,
                    kernel,
                };
                founder.user = follow(plan, founding, &mut say);
                founder.begin_archive(&mut say);
                Ok(founder)
            }
            Err(error) => {
                // The first error is the one to tell.
                let _ = founder.writer.discard();
                Err(error)
            }
        }
    }

    fn write_start(
        &mut self,
        plan: &Plan,
        say: &mut impl FnMut(&str),
    ) -> Result<Vec<MapEvent>, Error> {
        self.writer.log(&LogEvent::Pause { at: 0, name: None })?;
        for comment in &plan.comments {
            self.writer.note(comment)?;
        }
        for notice in &plan.notices {
            self.writer.warning(0, notice)?;
        }
        if self.archive == Archive::Off {
            return Ok(Vec::new());
        }
        let maps = self.kernel.archive(self.writer.dir(), self.archive, say)?;
        maps.iter().try_for_each(|event| self.writer.map(event))?;
        Ok(maps)
    }

    /// From here on the files of followed processes are archived in the background.
    fn begin_archive(&mut self, say: &mut impl FnMut(&str)) {
        let Some(user) = &mut self.user else {
            return;
        };
        let taken = self
            .kernel
            .symbols
            .objects()
            .map(|(name, _)| name)
            .chain([KERNEL, BPF]);
        let dir = self.writer.dir();
        if let Err(error) = user::begin_archive(&mut user.objects, self.archive, dir, taken) {
            say(&format!(
                "load objects of processes are not archived: {error}"
            ));
        }
    }

    /// Applies one event of the stream. Events must come in time order.
    pub fn apply(&mut self, time: u64, event: Event) {
        match event {
            Event::Record(record) => self.record(record),
            Event::Recording { on } => {
                let event = |at| match on {
                    true => LogEvent::Resume { at },
                    false => LogEvent::Pause { at, name: None },
                };
                self.log_at(time, event);
                if let Some(user) = &mut self.user {
                    user.log(time, event);
                }
            }
            Event::Sample { at, label } => self.sample(at, label),
            Event::Found {
                pid,
                name,
                mappings,
            } => {
                self.processes.found(pid, &name);
                if let Some(user) = &mut self.user {
                    if let Ok(path) = fs::read_link(format!("/proc/{pid}/exe")) {
                        let path = path.as_os_str().as_bytes();
                        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
                        self.processes.found_executing(pid, path);
                    }
                    user.found(pid, mappings, self.start);
                }
            }
            Event::Reread {
                pid,
                began,
                mappings,
            } => {
                if let Some(user) = &mut self.user {
                    user.was_read(pid, began, time, mappings);
                }
            }
            Event::Sideband(event) => self.sideband(time, event),
        }
    }

    fn record(&mut self, record: Record) {
        let result = match record {
            Record::Tick(tick) if self.failed.is_some() => {
                self.not_written += u64::from(tick.ticks);
                Ok(())
            }
            Record::Tick(tick) => {
                let ticks = u64::from(tick.ticks);
                let of_kernel = tick.head.kernel_thread;
                let (writer, processes) = (&mut self.writer, &self.processes);
                let result = self.recorder.tick(writer, processes, tick);
                self.not_written += if result.is_err() { ticks } else { 0 };
                result.and_then(|stay| stay.map_or(Ok(()), |stay| self.stay(stay, of_kernel)))
            }
            Record::Absence(_) if self.failed.is_some() => Ok(()),
            Record::Absence(absence) => {
                let (writer, processes) = (&mut self.writer, &self.processes);
                let of_kernel = absence.head.kernel_thread;
                let stays = self.recorder.absence(writer, processes, &absence);
                stays.and_then(|stays| {
                    let mut stays = stays.into_iter().filter(|stay| stay.ticks > 0);
                    stays.try_for_each(|stay| self.stay(stay, of_kernel))
                })
            }
            Record::Thread(thread) => {
                let (writer, processes) = (&mut self.writer, &self.processes);
                let result = self.recorder.thread(writer, processes, &thread);
                let back = match &mut self.user {
                    Some(user) if thread.ended => {
                        user.thread_ended(self.writer.dir(), &self.processes, thread.head.tid)
                    }
                    _ => Vec::new(),
                };
                result.and(self.write(&back))
            }
            Record::Birth(head) => {
                if let Some(user) = &mut self.user {
                    user.combined(head.pid);
                }
                Ok(())
            }
            Record::Overflow(_) | Record::Entry(_) if self.failed.is_some() => Ok(()),
            Record::Overflow(overflow) => {
                let of_kernel = overflow.head.kernel_thread;
                let (writer, processes) = (&mut self.writer, &self.processes);
                let stay = self.recorder.overflow(writer, processes, &overflow);
                stay.and_then(|stay| self.stay(stay, of_kernel))
            }
            Record::Entry(entry) => {
                let back = match &mut self.user {
                    Some(user) => user.entry(self.writer.dir(), &self.processes, entry),
                    None => Vec::new(),
                };
                self.write(&back)
            }
        };
        self.note_failure(result);
    }

    /// What a thread did goes to its process's collector, or is written here.
    fn stay(&mut self, stay: Stay, of_kernel: bool) -> Result<(), Error> {
        let back = match &mut self.user {
            Some(user) if stay.head.pid != 0 && !of_kernel => {
                user.stay(self.writer.dir(), &self.processes, stay)
            }
            _ => vec![stay],
        };
        self.write(&back)
    }

    fn write(&mut self, stays: &[Stay]) -> Result<(), Error> {
        stays
            .iter()
            .try_for_each(|stay| self.recorder.stay(&mut self.writer, &self.processes, stay))
    }

    fn write_back(&mut self, stays: &[Stay]) {
        let result = self.write(stays);
        self.note_failure(result);
    }

    /// The load is followed, unless nobody is.
    pub fn follow(&mut self, load: u32) {
        if let Some(user) = &mut self.user {
            user.choose_load(load);
        }
    }

    /// Before data are taken: what a snapshot has told of processes is handed to the programs in
    /// the kernel, so that their stacks are walked from the first tick on.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn prepare(&mut self, collector: &mut TickCollector) -> Result<(), bpf::Error> {
        let Some(user) = &mut self.user else {
            return Ok(());
        };
        user.hand_over(collector, &self.processes, true)?;
        user.wait_for_tables();
        user.hand_over(collector, &self.processes, true)
    }

    /// What was learnt of processes is handed to the programs in the kernel.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn hand_over(&mut self, collector: &mut TickCollector) -> Result<(), bpf::Error> {
        let Some(user) = &mut self.user else {
            return Ok(());
        };
        let back = user.walk_copies(self.writer.dir(), &self.processes, false);
        let result = user.hand_over(collector, &self.processes, false);
        self.write_back(&back);
        result
    }

    /// The thread that makes unwind tables, if anybody is followed.
    #[must_use]
    pub fn table_maker(&self) -> Option<Pid> {
        Some(self.user.as_ref()?.objects.table_maker())
    }

    /// Processes whose mappings are to be read: an [`Event::Reread`] is awaited of each.
    pub fn take_unmapped(&mut self) -> Vec<u32> {
        self.user
            .as_mut()
            .map_or_else(Vec::new, UserSide::take_unmapped)
    }

    /// The last has been told of all threads.
    pub fn close_threads(&mut self) {
        if let Some(user) = &mut self.user {
            let back = user.finish(self.writer.dir(), &self.processes);
            self.write_back(&back);
        }
        self.recorder.close_threads(&self.processes);
    }

    fn note_failure(&mut self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    fn sideband(&mut self, time: u64, event: SidebandEvent) {
        match event {
            SidebandEvent::Fork { pid, parent } => {
                self.processes.forked(pid, parent, time);
                if let Some(user) = &mut self.user {
                    user.forked(self.writer.dir(), &self.processes, pid, parent, time);
                }
            }
            SidebandEvent::Exit { pid } => {
                self.processes.exited(pid, time);
                if let Some(user) = &mut self.user {
                    user.exited(pid, time);
                }
            }
            SidebandEvent::Comm { pid, name, exec } => {
                self.processes.named(pid, &name, exec);
                if let Some(user) = &mut self.user
                    && exec
                {
                    user.executed(pid, &name, time);
                }
            }
            SidebandEvent::Map { pid, mapping } => {
                let file = &mapping.file;
                self.processes.mapped(pid, &file.path, &file.build_id);
                if let Some(user) = &mut self.user {
                    user.mapped(pid, mapping, time);
                }
            }
            SidebandEvent::KernelCode {
                address,
                size,
                name,
                gone,
            } => {
                let code = (address, u64::from(size));
                self.kernel.changed((self.start, time), code, &name, gone);
            }
            SidebandEvent::Lost { records } => self.sideband_lost += records,
            SidebandEvent::Other => {}
        }
    }

    /// Lets go of what is only kept for the late: call it once a round.
    pub fn tidy(&mut self, now: u64) {
        self.tell_programs();
        if let Some(user) = &mut self.user {
            user.tidy(self.writer.dir(), now);
            self.failed = self.failed.take().or(user.failed.take());
        }
        if now.saturating_sub(self.forgotten_at) < FORGETTING {
            return;
        }
        self.forgotten_at = now;
        let there = |pid: u32| fs::exists(format!("/proc/{pid}")).unwrap_or(true);
        let long_ago = now.saturating_sub(MEMORY_OF_THE_DEAD);
        self.processes.forget_exited(long_ago, there);
        self.recorder.forget(&self.processes);
        let Some(user) = &mut self.user else {
            return;
        };
        let living = self.recorder.living_processes();
        let lives = |pid| living.contains(&pid) || there(pid);
        let over = user.over(&self.processes, now.saturating_sub(FORGETTING), lives);
        let usage = LazyCell::new(|| self.recorder.usage_by_process(&self.processes, now));
        let usage = |pid, serial| usage.get(&(pid, serial)).cloned();
        let back = user.forget(self.writer.dir(), &self.processes, &over, usage);
        user.forget_mappings(&self.processes);
        self.write_back(&back);
    }

    /// Takes a sample of an instant of which all is known.
    pub fn sample(&mut self, at: u64, label: &str) {
        let result = self.recorder.sample(&mut self.writer, at, label);
        self.note_failure(result);
        if let Some(user) = &mut self.user {
            let usage = self.recorder.usage_by_process(&self.processes, at);
            user.sample(at, label, |pid, serial| usage.get(&(pid, serial)).cloned());
        }
    }

    /// Writes an event of the run: pause, resume, comment. It is made from its time in the
    /// experiment.
    pub fn log_at(&mut self, now: u64, event: impl FnOnce(u64) -> LogEvent) {
        if let Err(error) = self.writer.log(&event(self.at(now))) {
            self.failed.get_or_insert(error);
        }
    }

    /// An instant of CLOCK_MONOTONIC in the experiment's time.
    fn at(&self, now: u64) -> u64 {
        now.saturating_sub(self.start)
    }

    /// Bytes written, archives not counted.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        let user = self.user.as_ref().map_or(0, UserSide::bytes_written);
        self.writer.bytes_written() + user
    }

    /// Writes a file of our own, as a whole.
    pub fn side_file(&mut self, name: &str, text: &str) {
        if let Err(error) = self.writer.side_file(name, text.as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Removes the experiment, for a start that failed after all.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), Error> {
        self.writer.discard()
    }

    /// Closes the experiment. `stopped` is when data were stopped.
    ///
    /// # Errors
    /// When the closing can't be written.
    pub fn close(mut self, stopped: u64) -> Result<(), Error> {
        let at = self.at(stopped);
        let mut failed = None;
        if let Some(user) = &mut self.user {
            user.close(self.writer.dir(), stopped);
            failed = user.failed.take();
        }
        let closed = self.writer.close(at).map(drop);
        failed.map_or(closed, Err)
    }
}

/// The user side of a recording, if the plan follows anybody.
fn follow(plan: &Plan, founding: Founding, say: &mut impl FnMut(&str)) -> Option<UserSide> {
    if !plan.follow.follows() {
        return None;
    }
    let cache = Cache::open_default().unwrap_or_else(|error| {
        say(&format!("unwind tables are not kept on disk: {error}"));
        None
    });
    match Objects::new(cache) {
        Ok(objects) => Some(UserSide::new(plan.follow.clone(), objects, founding)),
        Err(error) => {
            say(&format!("no process is followed: {error}"));
            None
        }
    }
}
