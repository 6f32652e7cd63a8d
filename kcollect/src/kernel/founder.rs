//! The founder experiment from its first byte to its last: `ktest.1.er`, the kernel's.
//!
//! It takes the one time-ordered stream of events and is the only one to write the experiment. When
//! writing fails (the disk is full) it stops taking data, keeps count of what it turns away, and can
//! still be closed: what was written until then is a valid experiment.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use bpf::{Emission, Record, TickCollector};
use experiment_format::Error;
use experiment_format::layout::ExperimentDir;
use experiment_format::log::{Header, LogEvent, ProfileDecl, Run, Setting};
use experiment_format::map::MapEvent;
use experiment_format::microstate::NumStates;
use experiment_format::packet::{ClockTick, TickArray};
use experiment_format::writer::ExperimentWriter;
use user_collector::archive::Account;
use user_collector::modules::Cache;
use user_collector::objects::Objects;
use user_collector::process::Processes;

use super::archive::{self, Program};
use super::kcore::Kcore;
use super::recorder::Recorder;
use super::symbols::{BPF, KERNEL, Symbol, Symbols, SymbolsError};
use crate::cli::plan::{Archive, Plan};
use crate::dry_run;
use crate::losses::Losses;
use crate::machine;
use crate::perf::sideband::SidebandEvent;
use crate::sources::Event;
use crate::user::{self, Founding, Stay, UserSide};

/// Exited processes are kept so long, for the ticks of their last moments: nanoseconds.
const MEMORY_OF_THE_DEAD: u64 = 10_000_000_000;

/// The kernel's experiment, being written.
#[derive(Debug)]
pub struct Founder {
    writer: ExperimentWriter,
    start: u64,
    archive: Archive,
    /// The functions of the kernel, with what came during the run.
    pub symbols: Symbols,
    programs: Vec<Program>,
    programs_at_start: usize,
    modules: String,
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

/// The kernel as it was found before the run.
#[derive(Debug)]
pub struct Kernel {
    symbols: Symbols,
    modules: String,
    programs: Vec<Program>,
}

impl Kernel {
    /// Where page faults are handled: first address and end of the function that the entries call.
    #[must_use]
    pub fn page_fault(&self) -> (u64, u64) {
        match self.symbols.extent("exc_page_fault") {
            (0, 0) => self.symbols.extent("do_page_fault"),
            found => found,
        }
    }

    /// Reads the kernel's symbols and what is loaded into it. Where its addresses are hidden there are
    /// no names, which `warn` is told: time without a name is better than no profile.
    ///
    /// # Errors
    /// A [`SymbolsError`], but not [`SymbolsError::Hidden`].
    pub fn read(warn: impl FnOnce(&str)) -> Result<Kernel, SymbolsError> {
        let symbols = match Symbols::read() {
            Err(error @ SymbolsError::Hidden) => {
                warn(&format!(
                    "{error}, so its functions have no names: run as root with CAP_SYSLOG, or set kernel.kptr_restrict \
                     to 0 or 1"
                ));
                Symbols::default()
            }
            read => read?,
        };
        Ok(Kernel {
            programs: archive::programs(&symbols),
            symbols,
            modules: loaded_modules(),
        })
    }
}

impl Founder {
    /// Writes all that is known before the first tick: header, notes, the kernel's load objects with
    /// their text where that can be had. If that fails, nothing is left behind.
    ///
    /// The experiment's time begins here, and data are paused until an [`Event::Recording`]: so it can be
    /// opened from the first instant on, and the writing of images is not in the profile.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn create(
        dir: ExperimentDir,
        plan: &Plan,
        kernel: Kernel,
        emission: Option<Emission>,
        mut say: impl FnMut(&str),
    ) -> Result<Founder, Error> {
        let start = machine::now();
        let run = Run {
            tstamp: start,
            wall: wall_clock(),
            tm_zone: 0,
        };
        let header = header(plan, emission);
        let writer = ExperimentWriter::create(dir, &header, run)?;
        let mut founder = Founder {
            user: None,
            writer,
            start,
            archive: plan.archive,
            recorder: Recorder::new(
                start,
                u64::from(plan.period_us) * 1000,
                &kernel.symbols,
                &plan.targets,
            ),
            symbols: kernel.symbols,
            programs_at_start: kernel.programs.len(),
            programs: kernel.programs,
            modules: kernel.modules,
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
        let kcore = Kcore::open()
            .map_err(|error| {
                say(&format!(
                    "no disassembly of the kernel: /proc/kcore: {error}"
                ))
            })
            .ok();
        let dir = self.writer.dir();
        let mut maps = archive::programs_object(dir, &self.programs)?;
        for (name, object) in self.symbols.objects().filter(|(name, _)| *name != BPF) {
            // Which modules are used is known at the end.
            if self.archive != Archive::UsedLoadObjects || name == KERNEL {
                maps.extend(archive::kernel_object(dir, name, object, kcore.as_ref())?);
            }
        }
        maps.iter().try_for_each(|event| self.writer.map(event))?;
        Ok(maps)
    }

    /// From here on the files of followed processes are archived in the background.
    fn begin_archive(&mut self, say: &mut impl FnMut(&str)) {
        let Some(user) = &mut self.user else {
            return;
        };
        let taken = self
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
            Record::Entry(_) if self.failed.is_some() => Ok(()),
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

    /// Before data are taken: what a snapshot has told of processes is handed to the programs in the kernel, so that their stacks are
    /// walked from the first tick on.
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

    /// Once a round: what was learnt of processes is handed to the programs in the kernel.
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
                self.kernel_code(time, address, u64::from(size), &name, gone);
            }
            SidebandEvent::Lost { records } => self.sideband_lost += records,
            SidebandEvent::Other => {}
        }
    }

    fn kernel_code(&mut self, time: u64, address: u64, size: u64, name: &[u8], gone: bool) {
        let end = address.saturating_add(size);
        let lies_there = |program: &Program| {
            program.to.is_none()
                && program.address < end
                && address < program.address.saturating_add(program.size)
        };
        // Before the start nothing needs a name that was not there when the symbols were read.
        if time < self.start {
            let mut position = 0;
            self.programs.retain(|program| {
                position += 1;
                position <= self.programs_at_start || !lies_there(program)
            });
        }
        // Whatever lies there now takes the place of what lay there, whether or not its going was told.
        let at = self.at(time).max(1);
        for program in self
            .programs
            .iter_mut()
            .filter(|program| lies_there(program))
        {
            program.to = Some(at);
        }
        if !gone {
            let name: Box<str> = String::from_utf8_lossy(name).into();
            let symbol = Symbol {
                address,
                size,
                name: name.clone(),
                global: false,
            };
            self.symbols.add(BPF, symbol);
            self.programs.push(Program {
                address,
                size,
                name,
                from: at + 1,
                to: None,
            });
        }
    }

    /// Lets go of what is only kept for the late: call it once a round.
    pub fn tidy(&mut self, now: u64) {
        if let Some(user) = &mut self.user {
            user.tidy(self.writer.dir(), now);
            self.failed = self.failed.take().or(user.failed.take());
        }
        if now.saturating_sub(self.forgotten_at) < MEMORY_OF_THE_DEAD {
            return;
        }
        self.forgotten_at = now;
        let long_ago = now.saturating_sub(MEMORY_OF_THE_DEAD);
        self.processes.forget_exited(long_ago, |pid| {
            fs::exists(format!("/proc/{pid}")).unwrap_or(true)
        });
        self.recorder.forget(&self.processes);
        if let Some(user) = &mut self.user {
            let usage = self.recorder.usage_by_process(&self.processes, now);
            let usage = |pid, serial| usage.get(&(pid, serial)).cloned();
            let back = user.forget(self.writer.dir(), &self.processes, long_ago, usage);
            self.write_back(&back);
        }
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

    /// Writes an event of the run: pause, resume, comment. It is made from its time in the experiment.
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

    /// Adds what came of the kernel during the run: BPF programs, modules. `give_up` is asked before each object. Of the files of
    /// followed processes it asks for the rest, for which [`Founder::archiving`] waits.
    pub fn archive_late(&mut self, mut give_up: impl FnMut() -> bool) {
        if self.archive == Archive::Off {
            return;
        }
        if self.failed.is_none()
            && let Err(error) = self.write_late(&mut give_up)
        {
            self.failed = Some(error);
        }
        if let Some(user) = &mut self.user {
            user.archive_rest();
        }
        if self.failed.is_some() {
            self.give_up_archiving();
        }
    }

    /// Waits until the files of followed processes are archived, at most so long. Gives how many are, and of how many; nothing
    /// once all is done.
    pub fn archiving(&mut self, at_most: Duration) -> Option<(usize, usize)> {
        self.user.as_mut()?.archiving(at_most)
    }

    /// What is not archived by now is left out.
    pub fn give_up_archiving(&mut self) {
        if let Some(user) = &mut self.user {
            user.give_up_archiving();
        }
    }

    /// What came of archiving the files of followed processes; nothing where none were to be.
    #[must_use]
    pub fn archived(&self) -> Option<&Account> {
        self.user.as_ref()?.archived()
    }

    /// Names in the log what is not archived.
    pub fn tell_archived(&mut self, now: u64) {
        let warnings = self.archived().map(Account::warnings).unwrap_or_default();
        for text in warnings {
            self.log_at(now, |at| LogEvent::Warning { at, text });
        }
    }

    fn write_late(&mut self, give_up: &mut impl FnMut() -> bool) -> Result<(), Error> {
        let mut late = Vec::new();
        let (before, since) = self.programs.split_at(self.programs_at_start);
        let changed = !since.is_empty() || before.iter().any(|program| program.to.is_some());
        if changed && !give_up() {
            let mut maps = archive::programs_object(self.writer.dir(), &self.programs)?;
            // The segments of the first ones are in the file already.
            let known = self.programs_at_start;
            let mut segments = 0;
            maps.retain(|event| {
                let segment = matches!(event, MapEvent::Segment { .. });
                segments += usize::from(segment);
                !segment || segments > known
            });
            maps.iter().try_for_each(|event| self.writer.map(event))?;
            late.append(&mut maps);
        }
        let came = match loaded_modules() != self.modules {
            true => Symbols::read().ok(),
            false => None,
        };
        let used = match self.archive {
            Archive::UsedLoadObjects => self.used_objects(),
            _ => BTreeSet::new(),
        };
        let kcore = Kcore::open().ok();
        let known = |name: &str| self.symbols.objects().any(|(known, _)| known == name);
        let objects = self
            .symbols
            .objects()
            .filter(|(name, _)| used.contains(name));
        let came = came
            .iter()
            .flat_map(Symbols::objects)
            .filter(|(name, _)| !known(name));
        let mut maps = Vec::new();
        for (name, object) in objects.chain(came) {
            if give_up() {
                break;
            }
            let dir = self.writer.dir();
            maps.extend(archive::kernel_object(dir, name, object, kcore.as_ref())?);
        }
        maps.iter().try_for_each(|event| self.writer.map(event))?;
        late.append(&mut maps);
        if let Some(user) = &mut self.user {
            user.kernel_objects(&late);
        }
        Ok(())
    }

    /// Modules in which a recorded stack has a frame.
    fn used_objects(&self) -> BTreeSet<&str> {
        let stacks = self.recorder.accounts.stacks.keys();
        let places =
            stacks.flat_map(|frames| frames.iter().filter_map(|pc| self.symbols.find(*pc)));
        places
            .map(|place| place.object)
            .filter(|object| ![KERNEL, BPF].contains(object))
            .collect()
    }

    /// Puts the losses into the header of every report: zeros as a comment, anything else as a warning.
    pub fn tell_losses(&mut self, now: u64, losses: &Losses) {
        let text = losses.line();
        self.log_at(now, |at| match losses.none() {
            true => LogEvent::Comment { at, text },
            false => LogEvent::Warning { at, text },
        });
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

fn header(plan: &Plan, emission: Option<Emission>) -> Header {
    let seconds = |time: std::time::Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let mut settings = Vec::new();
    if !plan.record_idle {
        settings.push(Setting::NoIdle);
    }
    settings.extend(plan.limit.map(|bytes| Setting::Limit(bytes >> 20)));
    settings.extend(
        plan.sample_period
            .map(|period| Setting::SamplePeriod(seconds(period))),
    );
    if !plan.start.is_zero() {
        settings.push(Setting::DelayStart(seconds(plan.start)));
    }
    settings.extend(plan.end.map(|end| Setting::Terminate(seconds(end))));
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    Header {
        collector: concat!("kcollect ", env!("CARGO_PKG_VERSION")).to_owned(),
        system: machine::describe(),
        pid: std::process::id(),
        command_line: "kernel".to_owned(),
        // In this order: the last one tells gprofng how many states there are.
        profiles: vec![
            ProfileDecl::ThreadNames,
            ProfileDecl::Clock {
                tick_us: plan.period_us,
                states: NumStates::Kernel,
                packets: vec![ClockTick::declaration()],
            },
            ProfileDecl::Clock {
                tick_us: plan.period_us,
                states: NumStates::Solaris,
                packets: vec![TickArray::declaration()],
            },
        ],
        driver_version: Some(concat!("kcollect BPF ", env!("CARGO_PKG_VERSION")).to_owned()),
        settings,
        comments: vec![
            format!("kernel: {}", machine::kernel()),
            format!("command: {}", words.collect::<Vec<_>>().join(" ")),
            format!("plan: {}", dry_run::describe(plan).join("; ")),
            "samples: exact times and counts of all threads since the recording began; system calls are those that read \
             and write; those of each thread are in threads.jsonl"
                .to_owned(),
            match emission {
                Some(emission) => format!("user side of what was recorded in the kernel: told {emission}"),
                None => format!(
                    "user side of what was recorded in the kernel: not told, since no process is followed; this kernel would \
                     have it told {}",
                    Emission::probe()
                ),
            },
        ],
        ..Header::default()
    }
}

/// The user side of a recording, if the plan follows anybody.
fn follow(plan: &Plan, founding: Founding, say: &mut impl FnMut(&str)) -> Option<UserSide> {
    let rule = plan.rule();
    if !rule.follows() {
        return None;
    }
    let cache = Cache::open_default().unwrap_or_else(|error| {
        say(&format!("unwind tables are not kept on disk: {error}"));
        None
    });
    match Objects::new(cache) {
        Ok(objects) => Some(UserSide::new(rule, objects, founding)),
        Err(error) => {
            say(&format!("no process is followed: {error}"));
            None
        }
    }
}

/// The names of the modules that are loaded; nothing where the kernel has none.
fn loaded_modules() -> String {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_unstable();
    names.join(" ")
}

fn wall_clock() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() as i64)
}
