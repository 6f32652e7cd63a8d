//! A recording that followed processes: the founder and its subexperiments, by kcollect's own
//! reader, and what `kcollect.json` says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use experiment_format::address_space::RecordedAddressSpace;
use experiment_format::ids::Pid;
use experiment_format::log::LogEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockRecord;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::stacks::table::StackTable;
use experiment_format::units::Nanos;
use serde_json::Value;

use crate::experiment::summary::RunSummary;
use crate::gprofng::{Table, script};
use crate::kcollect::FinishedRecording;

/// The ticks of a thread in one state.
#[derive(Clone, Debug)]
pub struct StateInterval {
    /// The time of its record, `CLOCK_MONOTONIC` nanoseconds.
    pub time_ns: Nanos,
    /// The thread.
    pub tid: u64,
    /// The number of the state.
    pub state: u32,
    /// The number of its [`Detail`](experiment_format::packet::Detail).
    pub detail: u32,
    /// The number of ticks.
    pub ticks: u64,
    /// Load objects of the user frames, leaf first: none where no file is mapped.
    pub objects: Vec<Option<String>>,
    /// The number of user frames.
    pub frames: usize,
    /// How the stack ends.
    pub end: StackEnd,
}

/// The experiment of a followed process.
#[derive(Debug)]
pub struct FollowedProcess {
    /// Its directory.
    pub path: PathBuf,
    /// The directory's name.
    pub name: String,
    /// Its process.
    pub pid: Pid,
    /// The state intervals of its threads.
    pub state_intervals: Vec<StateInterval>,
    /// When it ended, `CLOCK_MONOTONIC` nanoseconds, if it was closed.
    pub end_ns: Option<Nanos>,
}

/// A recording with its subexperiments.
#[derive(Debug)]
pub struct Followed {
    /// The founder's directory.
    pub founder: PathBuf,
    /// The subexperiments, by name.
    pub subs: Vec<FollowedProcess>,
    /// The founder's ticks of CPUs, by process.
    pub kernel_cpu: BTreeMap<Pid, u64>,
    /// The founder's ticks of threads, by process and thread.
    pub thread_ticks: BTreeMap<(Pid, u64), u64>,
    /// `kcollect.json`, the part that is read often.
    pub summary: RunSummary,
    /// `kcollect.json`, all of it.
    pub json: Value,
    /// The clock interval, nanoseconds.
    pub interval_ns: f64,
}

impl Followed {
    /// Reads a recording.
    ///
    /// # Errors
    /// When a file of it cannot be read.
    pub fn read(recorded: &FinishedRecording) -> Result<Self> {
        let founder = recorded.experiment()?;
        let experiment = Experiment::open(&founder)?;
        let mut kernel_cpu = BTreeMap::new();
        let mut thread_ticks = BTreeMap::new();
        for tick in experiment.ticks()? {
            let tick = tick?;
            let pid = tick.shared.pid.context("a tick without a process")?;
            let ticks = u64::try_from(tick.ticks)?;
            if tick.state == Microstate::KernelCpu.number() {
                *kernel_cpu.entry(pid).or_default() += ticks;
            } else {
                *thread_ticks.entry((pid, tick.shared.thread)).or_default() += ticks;
            }
        }
        let paths = directories(&founder)?;
        let subs = paths.iter().map(|path| FollowedProcess::read(path));
        let json = experiment
            .side_file("kcollect.json")?
            .context("no kcollect.json")?;
        Ok(Self {
            subs: subs.collect::<Result<_>>()?,
            kernel_cpu,
            thread_ticks,
            summary: RunSummary::of(&founder)?,
            json: serde_json::from_slice(&json)?,
            interval_ns: crate::experiment::interval_ns(&founder)?,
            founder,
        })
    }

    /// Returns the processes that have experiments.
    pub fn pids(&self) -> BTreeSet<Pid> {
        self.subs.iter().map(|sub| sub.pid).collect()
    }

    /// Returns the experiments of a process.
    pub fn of(&self, pid: Pid) -> Vec<&FollowedProcess> {
        self.subs.iter().filter(|sub| sub.pid == pid).collect()
    }

    /// Returns the experiment of a process that has one.
    ///
    /// # Errors
    /// When it has none, or several.
    pub fn the(&self, pid: Pid) -> Result<&FollowedProcess> {
        let found = self.of(pid);
        ensure!(
            found.len() == 1,
            "process {pid} has the experiments {:?} of {:?}",
            found.iter().map(|sub| &sub.name).collect::<Vec<_>>(),
            self.subs.iter().map(|sub| &sub.name).collect::<Vec<_>>()
        );
        Ok(found[0])
    }

    /// Returns the ticks of a process by the end of their user stacks, as in `kcollect.json`.
    ///
    /// # Errors
    /// When it has nothing of that experiment.
    pub fn ends(&self, sub: &FollowedProcess) -> Result<BTreeMap<String, u64>> {
        let process = self.summary.followed()?.named(&sub.name)?;
        Ok(process.user_stacks.clone())
    }

    /// Checks that nothing was lost.
    ///
    /// # Errors
    /// When something was.
    pub fn lost_nothing(&self) -> Result<()> {
        self.summary
            .without(&[
                "ring_full",
                "not_written",
                "off_cpu",
                "thread_records",
                "untracked_threads",
                "sideband",
                "user_returns",
            ])
            .or_else(|error| {
                let warnings = Experiment::open(&self.founder)?.warnings()?;
                Err(error.context(format!("{warnings:?}")))
            })
    }
}

impl FollowedProcess {
    fn read(path: &Path) -> Result<Self> {
        let experiment = Experiment::open(path)?;
        let (stacks, space) = (experiment.stacks()?, experiment.address_space()?);
        let start = experiment.start().tstamp_ns;
        let ticks = experiment.ticks()?;
        let state_intervals = ticks.map(|tick| state_interval(&stacks, &space, start, &tick?));
        let end = experiment.events().iter().find_map(|event| match event {
            LogEvent::Exit { at_ns } => Some(start + *at_ns),
            _ => None,
        });
        let name = path.file_name().context("a directory has a name")?;
        Ok(Self {
            path: path.to_owned(),
            name: name.to_str().context("a name that is text")?.to_owned(),
            pid: experiment.header().pid,
            state_intervals: state_intervals.collect::<Result<_>>()?,
            end_ns: end,
        })
    }

    /// Returns the number of its ticks.
    pub fn ticks(&self) -> u64 {
        self.state_intervals
            .iter()
            .map(|state_interval| state_interval.ticks)
            .sum()
    }

    /// Returns the functions by user time, exclusive and inclusive seconds, by stock gprofng.
    ///
    /// # Errors
    /// When gprofng fails or complains.
    pub fn functions(&self, filter: Option<&str>) -> Result<Table> {
        let filter = filter
            .map(|filter| format!("filters {filter}"))
            .unwrap_or_default();
        let commands = ["metrics e.user:i.user:name", &filter, "functions"];
        Ok(script(&commands, &self.path)?.content()?.table(2))
    }

    /// Returns the ticks in user mode, and how many of them have their leaf in a load object that
    /// passes.
    pub fn user_ticks(&self, passes: impl Fn(Option<&str>) -> bool) -> (u64, u64) {
        let user = self
            .state_intervals
            .iter()
            .filter(|state_interval| state_interval.state == Microstate::User.number());
        user.fold((0, 0), |(all, some), state_interval| {
            let leaf = state_interval.objects.first().and_then(Option::as_deref);
            let passes = passes(leaf);
            (
                all + state_interval.ticks,
                some + if passes { state_interval.ticks } else { 0 },
            )
        })
    }

    /// Returns the load object in which most user ticks are.
    pub fn main_object(&self) -> Option<String> {
        let mut by_object = BTreeMap::<&str, u64>::new();
        for state_interval in &self.state_intervals {
            if state_interval.state == Microstate::User.number()
                && let Some(Some(object)) = state_interval.objects.first()
            {
                *by_object.entry(object).or_default() += state_interval.ticks;
            }
        }
        let most = by_object.into_iter().max_by_key(|(_, ticks)| *ticks);
        most.map(|(object, _)| object.to_owned())
    }
}

/// Returns the directories in an experiment that are named like subexperiments, including ones that
/// a reader would skip.
///
/// # Errors
/// When it cannot be read.
pub fn directories(founder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(founder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"_") {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn state_interval(
    stacks: &StackTable,
    space: &RecordedAddressSpace,
    start_ns: Nanos,
    tick: &ClockRecord,
) -> Result<StateInterval> {
    const KERNEL: u64 = 1 << 63;
    let stack = tick.shared.stack.and_then(|uid| stacks.get(uid));
    let (frames, end) = stack.map_or((Vec::new(), StackEnd::Complete), |stack| {
        (stack.frames, stack.end)
    });
    let user: Vec<u64> = frames.into_iter().filter(|pc| *pc < KERNEL).collect();
    let at_ns = tick.shared.time_ns.saturating_sub(start_ns);
    let object = |pc: &u64| Some(space.find(*pc, at_ns)?.object.to_owned());
    Ok(StateInterval {
        time_ns: tick.shared.time_ns,
        tid: tick.shared.thread,
        state: tick.state,
        detail: tick.detail,
        ticks: u64::try_from(tick.ticks)?,
        objects: user.iter().take(4).map(object).collect(),
        frames: user.len(),
        end,
    })
}
