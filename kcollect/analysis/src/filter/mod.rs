//! Selects ticks: a [`Filter`] has the conditions, a [`Selection`] those for one model.
//!
//! A tick passes if all conditions hold; a condition with several values holds for any of them.

mod near;
mod nothing;
mod wakers;

use std::ops::Range;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use regex::Regex;

pub use self::near::nearest;
pub use self::nothing::{nothing_passes, require};
pub use self::wakers::{Waker, WakerNames, Wakers};
use crate::model::{ExperimentInfo, GroupKind, Model, ProcessInfo, STATE_SLOTS, TickRow};

/// A regular expression, equal to another if it has the same text.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Parses a regular expression.
    ///
    /// # Errors
    /// When it is not well-formed.
    pub fn new(text: &str) -> Result<Pattern, regex::Error> {
        Regex::new(text).map(Pattern)
    }

    /// Returns its text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.as_str()
    }

    /// Returns whether it matches a part of a text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// The conditions on ticks. Everything passes the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The processes.
    pub processes: Vec<ProcessFilter>,
    /// The groups of processes: for each kind, names. A process passes if it belongs to one of each
    /// kind.
    pub groups: Vec<(GroupKind, Vec<String>)>,
    /// The tids.
    pub threads: Vec<u64>,
    /// The numbers of CPUs.
    pub cpus: Vec<u32>,
    /// The states, by their positions in [`crate::model::Sums`]. None: all.
    pub states: Option<[bool; STATE_SLOTS]>,
    /// The time range.
    pub time: Option<TimeRange>,
    /// Patterns of function names. A stack passes if each matches one of its functions.
    pub functions: Vec<Pattern>,
}

/// A time range in nanoseconds, the end excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeRange {
    /// Since the start of the recording.
    SinceStart(Range<Nanos>),
    /// By the recorded machine's clock, since 1970.
    Wall(Range<Nanos>),
}

/// A condition on a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessFilter {
    /// Its pid.
    Pid(Pid),
    /// A pattern of its name.
    Name(Pattern),
    /// gprofng's number of its experiment: 1 is the first.
    Number(u32),
}

impl ProcessFilter {
    /// Returns whether a process meets the condition. A founder's processes are those without an
    /// experiment of their own.
    fn is(&self, process: &ProcessInfo) -> bool {
        match self {
            ProcessFilter::Pid(pid) => process.pid == *pid,
            ProcessFilter::Name(name) => name.matches(&process.name),
            ProcessFilter::Number(number) => process.experiment.checked_add(1) == Some(*number),
        }
    }
}

impl Filter {
    /// Returns whether it selects by processes and threads alone.
    #[must_use]
    pub fn only_of_threads(&self) -> bool {
        self.cpus.is_empty()
            && self.states.is_none()
            && self.time.is_none()
            && self.functions.is_empty()
    }

    /// Returns the time range in an experiment, nanoseconds since the start of the recording.
    /// Without one even the last instant passes.
    #[must_use]
    pub fn time_in(&self, model: &Model, experiment: &ExperimentInfo) -> Range<Nanos> {
        match &self.time {
            None => Nanos::ZERO..Nanos::MAX,
            Some(TimeRange::SinceStart(range)) => range.clone(),
            Some(TimeRange::Wall(range)) => {
                // Each founder by its own clock reading: the clock may have been set in between.
                let founder = model.experiment(experiment.founder);
                let since = |ns: Nanos| {
                    let since = ns.saturating_add(founder.offset_ns);
                    since.saturating_sub(founder.source.start().wall_ns())
                };
                // What an experiment has of the time before it began is not of that time.
                since(range.start)..since(range.end)
            }
        }
    }

    /// Returns whether a process passes.
    #[must_use]
    pub fn takes(&self, process: &ProcessInfo) -> bool {
        let is_named = self.processes.iter().any(|condition| condition.is(process));
        (self.processes.is_empty() || is_named)
            && self.groups.iter().all(|(kind, names)| {
                let group = process.groups.get(*kind);
                group.is_some_and(|group| names.iter().any(|name| kind.is(group, name)))
            })
    }

    /// Returns whether it selects some of the processes.
    #[must_use]
    pub fn chooses_processes(&self) -> bool {
        !(self.processes.is_empty() && self.groups.is_empty())
    }
}

/// A filter as vectors over the numbers of a model.
#[derive(Debug, Clone)]
pub struct Selection {
    threads: Vec<bool>,
    cpus: Vec<bool>,
    states: [bool; STATE_SLOTS],
    /// The time range of each experiment, in nanoseconds since the start of the recording.
    times: Vec<Range<Nanos>>,
    /// For each stack, whether it passes. None: all pass.
    stacks: Option<Vec<bool>>,
}

impl Selection {
    /// Returns the selection of a filter, which is evaluated once for every thread, CPU and stack.
    #[must_use]
    pub fn new(model: &Model, filter: &Filter) -> Selection {
        let among = |list: &[u64], number: u64| list.is_empty() || list.contains(&number);
        let cpus = filter.cpus.iter().map(|cpu| u64::from(*cpu));
        let cpus: Vec<_> = cpus.collect();
        let processes = model.processes.iter().map(|process| filter.takes(process));
        let processes: Vec<_> = processes.collect();
        let threads = model
            .threads
            .iter()
            .map(|thread| processes[thread.process.index()] && among(&filter.threads, thread.tid));
        let mut stacks: Option<Vec<bool>> = None;
        for pattern in &filter.functions {
            let with = model.stacks_with(|name| pattern.matches(name));
            stacks = Some(match stacks {
                None => with,
                Some(so_far) => so_far.iter().zip(with).map(|(a, b)| *a && b).collect(),
            });
        }
        Selection {
            threads: threads.collect(),
            cpus: model
                .cpus
                .iter()
                .map(|cpu| among(&cpus, u64::from(*cpu)))
                .collect(),
            states: filter.states.unwrap_or([true; STATE_SLOTS]),
            times: model
                .experiments
                .iter()
                .map(|info| filter.time_in(model, info))
                .collect(),
            stacks,
        }
    }

    /// Returns whether a row of ticks passes.
    #[must_use]
    pub fn passes(&self, row: &TickRow) -> bool {
        self.states[row.slot()] && self.passes_place(row)
    }

    /// Returns whether an event passes: an overflow of a counter, or a wait for a lock. It has no
    /// ticks in a state, so it needs a filter without states.
    #[must_use]
    pub fn passes_event(&self, row: &TickRow) -> bool {
        self.states == [true; STATE_SLOTS] && self.passes_place(row)
    }

    fn passes_place(&self, row: &TickRow) -> bool {
        self.times[row.experiment.index()].contains(&row.time_ns)
            && self.threads[row.thread.index()]
            && self.cpus[row.cpu.index()]
            && self
                .stacks
                .as_ref()
                .is_none_or(|stacks| stacks[row.stack.index()])
    }
}

impl Model {
    /// Returns for each stack whether it has a function whose name meets `is`.
    #[must_use]
    pub fn stacks_with(&self, is: impl Fn(&str) -> bool) -> Vec<bool> {
        let functions = self.functions.iter().map(|function| is(&function.name));
        let functions: Vec<_> = functions.collect();
        let mut stacks = vec![false; self.stacks.len()];
        for (stack, caller, leaf) in self.stacks.iter() {
            stacks[stack.index()] =
                stacks[caller.index()] || functions[self.frame(leaf).function.index()];
        }
        stacks
    }
}
