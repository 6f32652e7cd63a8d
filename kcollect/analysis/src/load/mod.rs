//! Loads experiments into a [`Model`].
//!
//! Subexperiments are read before founders. A founder holds CPU ticks of all processes, and those
//! of a followed process are counted as its subexperiment's. If several followed processes had the
//! same pid, each tick goes to the one seen nearest in time. The experiments of a series are one
//! recording (module `series`). At the end ticks are weighed by the exact times of their threads
//! (module `weigh`), and waits in language runtimes get their causes (module `runtimes`).

mod ahead;
pub(crate) mod build_ids;
mod call_paths;
pub mod dynamic_code;
mod events;
pub mod exact;
mod kernel_names;
pub mod lines;
mod live_memory;
pub mod names;
pub mod open;
mod resolve;
mod runtimes;
mod series;
mod weigh;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use experiment_format::Error;
use experiment_format::functions::Archives;
use experiment_format::ids::Pid;
use experiment_format::log::{LogEvent, ProfileDecl};
use experiment_format::microstate::NumStates;
use experiment_format::packet::SharedFields;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackUid;
use experiment_format::stacks::table::StackTable;
use experiment_format::units::Nanos;
use host::exit::Failure;
use rustc_hash::FxHashMap;

use crate::model::{
    CpuId, ExperimentId, ExperimentInfo, FileId, Model, ProcessGroups, ProcessId, ProcessInfo,
    SUM_SLOTS, StackId, ThreadId, ThreadInfo, TickRow,
};
use ahead::ReadAhead;
use kernel_names::KernelNames;
use open::Opened;
use resolve::{Addresses, Resolver};
use series::Series;

/// Times of an experiment are below this, 104 days after its start: up to here JavaScript's numbers
/// are exact, and so are the page and other readers.
const MAX_TIME_NS: Nanos = Nanos(1 << 53);
/// Ticks of a record can begin this long before the experiment, since another writer may count a
/// thread's whole life. More ticks than fit between then and the record are damage; otherwise an
/// export would write a sample for each of them.
const MAX_EARLY_NS: Nanos = Nanos::from_secs(600);

impl Model {
    /// Opens and reads experiments: founders with their subexperiments, subexperiments alone, and
    /// groups (`.erg`). Rows have the exact times that their ticks stand for, where these are
    /// known; [`Model::show_ticks`] undoes that.
    ///
    /// # Errors
    /// When nothing of one of them can be read. Other gaps are in [`Model::warnings`].
    pub fn load(paths: &[PathBuf]) -> Result<Model, Failure> {
        let mut model = Model::default();
        let opened = open::open(paths, &mut model)?;
        let mut loader = Loader::new(opened, model);
        let machines = |loader: &Loader, machine: bool| {
            let count = loader.model.experiments.len() as u32;
            let all = (0..count).map(ExperimentId);
            let of = |id: &ExperimentId| loader.model.experiment(*id).process.is_none() == machine;
            all.filter(of).collect::<Vec<_>>()
        };
        let order = [machines(&loader, false), machines(&loader, true)].concat();
        let source = |id: &ExperimentId| Arc::clone(&loader.model.experiment(*id).source);
        let sources = order.iter().map(source).collect();
        let with_exact_times = loader.with_exact_times();
        std::thread::scope(|scope| {
            let mut ahead = ReadAhead::start(scope, sources)?;
            let exact = std::thread::Builder::new()
                .name("exact times".to_owned())
                .spawn_scoped(scope, || weigh::read_all(&with_exact_times))
                .map_err(|error| Failure::of_system("a thread that reads times", &error))?;
            for id in order {
                if let Err(error) = loader.read(id, &mut ahead) {
                    loader.model.leave_out(error.to_string());
                }
                loader.check_side_files(id);
            }
            // If the thread panicked, so does the end of the scope.
            loader.weigh(exact.join().unwrap_or_default());
            Ok(loader.finish())
        })
    }
}

/// Maximum microseconds of all ticks together, and maximum events of a counter. More is damage, and
/// might be too much for sums.
const MAX_SUM: u64 = i64::MAX as u64 / 4;

/// The model that is being loaded, and what was found for it so far.
struct Loader {
    model: Model,
    /// The microseconds that all ticks to come may have.
    left_us: u64,
    /// The events of each counter that may come.
    left_counts: [u64; SUM_SLOTS],
    /// The files of traced I/O, by name.
    files: FxHashMap<String, FileId>,
    resolver: Resolver,
    archives: Vec<Archives>,
    /// The kernel's functions of founders without a copy of them.
    kernel_names: FxHashMap<ExperimentId, Option<Arc<KernelNames>>>,
    cpus: FxHashMap<u32, CpuId>,
    threads: FxHashMap<(ProcessId, u64), ThreadId>,
    /// The processes of each pid, by the first experiment of the recording.
    processes: FxHashMap<(ExperimentId, Pid), Vec<ProcessId>>,
}

/// The experiment that is being read.
struct LoadContext<'a> {
    id: ExperimentId,
    founder: ExperimentId,
    /// The start of the first experiment of its recording, by the clock of the packets.
    origin_ns: Nanos,
    /// The start of the experiment, by the same clock.
    start_ns: Nanos,
    names: &'a Names,
    stacks: &'a StackTable,
}

/// What was read of an experiment so far.
struct Progress {
    addresses: Addresses,
    /// The latest time, since the start of the recording.
    end_ns: Nanos,
    /// The packets whose stacks are missing.
    missing_stacks: u64,
    /// The records of the current file that have an impossible time or value.
    impossible: u64,
}

/// The names of the threads and processes of an experiment.
#[derive(Default)]
struct Names {
    /// The last name of each thread, by tid.
    threads: FxHashMap<u64, String>,
    /// The last name of each process, by pid.
    processes: FxHashMap<Pid, String>,
}

impl Loader {
    fn new(opened: Vec<Opened>, mut model: Model) -> Loader {
        let starts: Vec<_> = opened
            .iter()
            .map(|opened| opened.source.start().tstamp_ns)
            .collect();
        let series = Series::of(&opened);
        let mut processes: FxHashMap<_, Vec<_>> = FxHashMap::default();
        let mut archives = Vec::new();
        for (index, Opened { source, founder }) in opened.into_iter().enumerate() {
            archives.push(archives_of(&source));
            let first = ExperimentId(series.first[index] as u32);
            let process = (!is_machine(&source)).then(|| {
                let same = model.experiments.get(series.same[index]);
                let known = same.and_then(|same| same.process);
                let info = process_of_header(&source, index);
                if let Some(known) = known {
                    let process = &mut model.processes[known.index()];
                    process.name = info.name;
                    process.groups = info.groups;
                    process.command_line = info.command_line.or(process.command_line.take());
                    return known;
                }
                let id = ProcessId(model.processes.len() as u32);
                processes.entry((first, info.pid)).or_default().push(id);
                model.processes.push(info);
                id
            });
            let name = source.named().file_name().unwrap_or_default();
            model.experiments.push(ExperimentInfo {
                name: name.to_string_lossy().into_owned(),
                founder: ExperimentId(founder as u32),
                first,
                offset_ns: starts[index]
                    .saturating_sub(starts[first.index()])
                    .min(MAX_TIME_NS),
                tick_us: tick_us(&source),
                process,
                end_ns: Nanos::ZERO,
                source: Arc::new(source),
            });
        }
        Loader {
            model,
            left_us: MAX_SUM,
            left_counts: [MAX_SUM; SUM_SLOTS],
            files: FxHashMap::default(),
            resolver: Resolver::default(),
            archives,
            kernel_names: FxHashMap::default(),
            cpus: FxHashMap::default(),
            threads: FxHashMap::default(),
            processes,
        }
    }

    /// Returns the kernel's functions, if a founder has no copy of them and this machine does.
    fn kernel_names(&mut self, founder: ExperimentId) -> Option<Arc<KernelNames>> {
        let experiment = self.model.experiment(founder);
        let known = self.kernel_names.entry(founder).or_insert_with(|| {
            let summary = experiment.summary()?;
            Some(Arc::new(KernelNames::of(&summary)?))
        });
        known.clone()
    }

    fn read(&mut self, id: ExperimentId, ahead: &mut ReadAhead) -> Result<(), Error> {
        let info = self.model.experiment(id);
        let source = &info.source;
        let (start_ns, founder) = (source.start().tstamp_ns, info.founder);
        let origin_ns = self.model.experiment(info.first).source.start().tstamp_ns;
        let names = names(source);
        let (process, main) = (info.process, u64::from(source.header().pid.0));
        let stacks = ahead.stacks()?;
        let (space, unmapped) = match source.address_space() {
            Ok(space) => (space, None),
            Err(error) => (Default::default(), Some(error.to_string())),
        };
        if let Some(unmapped) = unmapped {
            self.model.leave_out(unmapped);
        }
        // A process that executed another program has the last name, as its threads have.
        if let (Some(process), Some(name)) = (process, names.threads.get(&main)) {
            self.model.processes[process.index()].name.clone_from(name);
        }
        let context = LoadContext {
            id,
            founder,
            origin_ns,
            start_ns,
            names: &names,
            stacks: &stacks,
        };
        let mut progress = Progress {
            addresses: Addresses::new(founder.0, space, self.kernel_names(founder)),
            end_ns: Nanos::ZERO,
            missing_stacks: 0,
            impossible: 0,
        };
        self.read_ticks(&context, &mut progress, ahead)?;
        let impossible_ticks = std::mem::take(&mut progress.impossible);
        self.read_counters(&context, &mut progress)?;
        self.read_waits(&context, &mut progress)?;
        self.read_io_calls(&context, &mut progress)?;
        self.read_memory(&context, &mut progress)?;
        self.warn(
            id,
            ahead.invalid + impossible_ticks,
            progress.missing_stacks,
        );
        let info = &mut self.model.experiments[id.index()];
        let events = info.source.events().iter();
        let last = events.filter_map(|event| match event {
            LogEvent::Exit { at_ns } | LogEvent::Sample { at_ns, .. } => Some(*at_ns),
            _ => None,
        });
        let last_ns = last.filter(|at_ns| *at_ns < MAX_TIME_NS).max();
        let last_ns = last_ns.map_or(Nanos::ZERO, |at_ns| at_ns + info.offset_ns);
        info.end_ns = progress.end_ns.max(last_ns);
        Ok(())
    }

    /// Reads the ticks.
    fn read_ticks(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
        ahead: &mut ReadAhead,
    ) -> Result<(), Error> {
        let tick_ns = Nanos::from_micros(self.model.experiment(context.id).tick_us.into());
        while let Some(ticks) = ahead.ticks()? {
            for record in ticks {
                let Some(row) = self.row(context, progress, &record.shared) else {
                    progress.impossible += 1;
                    continue;
                };
                let ns = tick_ns.saturating_mul(record.ticks.unsigned_abs().into());
                let left_us = self.left_us.checked_sub(ns / Nanos::from_micros(1));
                let (true, Some(left_us)) = (ns <= row.time_ns + MAX_EARLY_NS, left_us) else {
                    progress.impossible += 1;
                    continue;
                };
                self.left_us = left_us;
                let micros = i64::from(record.ticks) * (tick_ns / Nanos::from_micros(1)) as i64;
                self.model.rows.push(TickRow {
                    ticks: record.ticks,
                    micros,
                    state: u8::try_from(record.state).unwrap_or(u8::MAX),
                    detail: u8::try_from(record.detail).unwrap_or(u8::MAX),
                    cause: u8::try_from(record.cause).unwrap_or(u8::MAX),
                    waker: record.waker,
                    ..row
                });
            }
        }
        Ok(())
    }

    /// Returns the row of a packet, without ticks. None: the packet's time is impossible.
    fn row(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
        shared: &SharedFields,
    ) -> Option<TickRow> {
        let time_ns = shared.time_ns.saturating_sub(context.origin_ns);
        if time_ns >= MAX_TIME_NS {
            return None;
        }
        let stack = self.stack(context, progress, shared.stack, shared.time_ns);
        progress.end_ns = progress.end_ns.max(time_ns);
        let thread = (shared.thread, shared.pid);
        Some(TickRow {
            time_ns,
            stack: stack.unwrap_or(StackId::EMPTY),
            thread: self.thread(context.id, context.names, thread, time_ns),
            experiment: context.id,
            cpu: self.cpu(shared.cpu),
            ticks: 0,
            micros: 0,
            state: 0,
            detail: 0,
            cause: 0,
            waker: 0,
        })
    }

    /// Returns the stack of a record at a time of the experiment's clock. None: the stack is
    /// missing, and counted as such.
    fn stack(
        &mut self,
        context: &LoadContext<'_>,
        progress: &mut Progress,
        stack: Option<StackUid>,
        time_ns: Nanos,
    ) -> Option<StackId> {
        let Some(uid) = stack else {
            return Some(StackId::EMPTY);
        };
        let found = self.resolver.stack(
            &mut self.model,
            &mut self.archives[context.founder.index()],
            &mut progress.addresses,
            context.stacks,
            uid,
            time_ns.saturating_sub(context.start_ns),
        );
        progress.missing_stacks += u64::from(found.is_none());
        found
    }

    /// Warns of what is missing of an experiment's ticks.
    fn warn(&mut self, id: ExperimentId, invalid: u64, missing: u64) {
        let source = &self.model.experiment(id).source;
        let (path, is_closed) = (source.path().to_owned(), source.is_closed());
        let profile = path.join("profile");
        if !profile.exists() {
            let warning = format!(
                "{}: the file is missing, and with it all ticks of this experiment",
                profile.display()
            );
            self.warn_of_missing(is_closed, warning);
        }
        if invalid > 0 {
            self.model.leave_out(format!(
                "{}: {invalid} damaged records were skipped",
                profile.display()
            ));
        }
        if missing > 0 {
            let warning = format!(
                "{}: the stacks of {missing} packets are missing; their time is in totals only",
                path.join("data.frameinfo").display()
            );
            self.warn_of_missing(is_closed, warning);
        }
    }

    /// Warns of what is missing. If the experiment is not closed, the part may only not be written
    /// yet, and does not count as left out.
    fn warn_of_missing(&mut self, is_closed: bool, warning: String) {
        if is_closed {
            self.model.leave_out(warning)
        } else {
            self.model.warnings.push(warning)
        }
    }

    /// Warns of files that cannot be read, of those that only some of the views show.
    fn check_side_files(&mut self, id: ExperimentId) {
        let info = self.model.experiment(id);
        let found = [
            info.source.notes().err(),
            info.source.warnings().err(),
            info.source.usage().err(),
        ];
        let found = found.into_iter().flatten().map(|error| error.to_string());
        let summary = info.read_summary().err();
        for warning in found.chain(summary).collect::<Vec<_>>() {
            self.model.leave_out(warning);
        }
    }

    fn cpu(&mut self, number: u32) -> CpuId {
        let next = CpuId(self.model.cpus.len() as u32);
        let cpu = *self.cpus.entry(number).or_insert(next);
        if cpu == next {
            self.model.cpus.push(number);
        }
        cpu
    }

    fn thread(
        &mut self,
        id: ExperimentId,
        names: &Names,
        (number, pid): (u64, Option<Pid>),
        time_ns: Nanos,
    ) -> ThreadId {
        let own = self.model.experiment(id).process;
        let process = match own {
            Some(process) => process,
            None => {
                let pid = pid.unwrap_or(self.model.experiment(id).source.header().pid);
                self.process_at(id, pid, names, time_ns)
            }
        };
        if own.is_some() || !self.model.process(process).followed {
            let seen = &mut self.model.processes[process.index()].seen_ns;
            let (first, last) = seen.unwrap_or((time_ns, time_ns));
            *seen = Some((first.min(time_ns), last.max(time_ns)));
        }
        let next = ThreadId(self.model.threads.len() as u32);
        let key = (process, number);
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            self.model.threads.push(ThreadInfo {
                tid: number,
                name: names.threads.get(&number).cloned().unwrap_or_default(),
                process,
            });
        }
        thread
    }

    /// Returns the process with a pid that was seen at a time, or else closest to it.
    fn process_at(
        &mut self,
        founder: ExperimentId,
        pid: Pid,
        names: &Names,
        time_ns: Nanos,
    ) -> ProcessId {
        let first = self.model.experiment(founder).first;
        let of_number = self.processes.entry((first, pid)).or_default();
        let distance = |process: &ProcessId| {
            let seen = self.model.processes[process.index()].seen_ns;
            seen.map_or(Nanos::MAX, |(first, last)| {
                first.saturating_sub(time_ns) + time_ns.saturating_sub(last)
            })
        };
        let nearest = match of_number.as_slice() {
            [only] => Some(only),
            several => several.iter().min_by_key(|process| distance(process)),
        };
        if let Some(process) = nearest {
            return *process;
        }
        let id = ProcessId(self.model.processes.len() as u32);
        of_number.push(id);
        let main = || names.threads.get(&u64::from(pid));
        let name = names.processes.get(&pid).or_else(main);
        self.model.processes.push(ProcessInfo {
            pid,
            name: name.cloned().unwrap_or_default(),
            experiment: founder.0,
            ..ProcessInfo::default()
        });
        id
    }

    fn finish(mut self) -> Model {
        self.model.stacks.freeze();
        self.model.rows.shrink_to_fit();
        runtimes::correct(&mut self.model);
        self.model
    }
}

/// Returns the process that the header of an experiment describes, which is a subexperiment or of
/// another collector.
fn process_of_header(source: &Experiment, index: usize) -> ProcessInfo {
    let header = source.header();
    let comment = |key| source.comment(key).map(str::to_owned);
    let line = &header.command_line;
    let given = || Some(line.clone()).filter(|line| !line.is_empty());
    ProcessInfo {
        pid: header.pid,
        name: comment("process: ").unwrap_or_else(|| program(line)),
        experiment: index as u32,
        followed: true,
        command_line: comment("command line: ").or_else(given),
        groups: ProcessGroups::of(source),
        seen_ns: None,
    }
}

/// Returns whether an experiment holds CPU ticks, and with them ticks of all processes of a
/// machine.
fn is_machine(source: &Experiment) -> bool {
    let mut profiles = source.header().profiles.iter();
    profiles.any(|profile| {
        matches!(
            profile,
            ProfileDecl::Clock {
                states: NumStates::Kernel,
                ..
            }
        )
    })
}

/// Returns the load objects of an experiment: its archives, and files of this machine if it was
/// recorded here.
pub(super) fn archives_of(source: &Experiment) -> Archives {
    match recorded_here(source) {
        Some(at) => source.archives().or_files(at),
        None => source.archives(),
    }
}

/// Returns when an experiment was started, if that was on a machine with this one's host name: its
/// files are the recorded ones unless they have changed since.
pub(super) fn recorded_here(source: &Experiment) -> Option<SystemTime> {
    let here = nix::unistd::gethostname().unwrap_or_default();
    let started = u64::try_from(source.start().wall_s).unwrap_or(0);
    let same = here.to_str() == Some(&*source.header().system.hostname);
    same.then(|| UNIX_EPOCH + Duration::from_secs(started))
}

fn tick_us(source: &Experiment) -> u32 {
    let profiles = source.header().profiles.iter();
    let mut lengths = profiles.filter_map(|profile| match profile {
        ProfileDecl::Clock { tick_us, .. } => Some(*tick_us),
        _ => None,
    });
    lengths.next_back().unwrap_or(0)
}

/// Returns the program's name in a command line: what follows the last `/` of its first word.
fn program(line: &str) -> String {
    let word = line.split_whitespace().next().unwrap_or_default();
    word.rsplit('/').next().unwrap_or(word).to_owned()
}

fn names(source: &Experiment) -> Names {
    let mut names = Names::default();
    for event in source.events() {
        if let LogEvent::Thread {
            tid, name, group, ..
        } = event
        {
            names.threads.insert(u64::from(*tid), name.clone());
            if let Some((process, pid)) = process_of(group) {
                names.processes.insert(pid, process.to_owned());
            }
        }
    }
    names
}

/// Returns the name and pid of a process by the group of its threads, such as `sshd, pid 1264`.
fn process_of(group: &str) -> Option<(&str, Pid)> {
    let (name, pid) = group.rsplit_once(", pid ")?;
    Some((name, pid.parse().ok()?))
}
