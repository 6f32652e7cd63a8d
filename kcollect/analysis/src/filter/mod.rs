//! Selects ticks: a [`Filter`] has the conditions, a [`Selection`] those for one model.
//!
//! A tick passes if all conditions hold; a condition with several values holds for any of them.

mod near;
mod nothing;

use std::ops::Range;

use experiment_format::cause::WaitKind;
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use regex::Regex;

pub use self::near::nearest;
pub use self::nothing::{nothing_passes, require};
use crate::model::{
    ExperimentInfo, GroupKind, Model, ProcessInfo, STATE_SLOTS, ThreadId, TickRow, WaitReason,
};
use crate::wakers::{Waker, WakerNames, Wakers};

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
    /// Why threads waited. With one or more, only waits pass.
    pub reasons: Vec<WaitReason>,
    /// Whether only suffered waits pass, waits for a CPU included.
    pub suffered: bool,
    /// The threads that ended a wait.
    pub wakers: Vec<WakerFilter>,
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

/// A condition on a thread that ended a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WakerFilter {
    /// Its tid, or the pid of its process.
    Number(u64),
    /// A pattern of its name or of its process's name.
    Name(Pattern),
}

impl WakerFilter {
    /// Returns whether a thread meets the condition.
    fn is(&self, names: &WakerNames<'_>) -> bool {
        match self {
            WakerFilter::Number(number) => {
                names.tid == *number || names.pid.is_some_and(|pid| u64::from(pid) == *number)
            }
            WakerFilter::Name(name) => name.matches(names.process) || name.matches(names.thread),
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
            && !self.only_of_waits()
    }

    /// Returns whether only waits pass.
    #[must_use]
    pub fn only_of_waits(&self) -> bool {
        self.suffered || !(self.reasons.is_empty() && self.wakers.is_empty())
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
    /// For each reason of a wait, whether it passes. None: all pass, and what is no wait.
    reasons: Option<[bool; WaitReason::COUNT]>,
    /// None: all pass, and waits that no thread ended.
    wakers: Option<SelectedWakers>,
}

/// The threads that ended the selected waits.
#[derive(Debug, Clone)]
struct SelectedWakers {
    wakers: Wakers,
    /// For each thread of the model, whether it passes.
    threads: Vec<bool>,
    /// The same for each of the other threads.
    others: Vec<bool>,
}

impl SelectedWakers {
    fn of(model: &Model, filters: &[WakerFilter], wakers: Wakers) -> SelectedWakers {
        let passes = |waker: Waker| {
            let names = wakers.names(model, waker);
            filters.iter().any(|filter| filter.is(&names))
        };
        let threads = (0..model.threads.len() as u32).map(|at| passes(Waker::Thread(ThreadId(at))));
        let others = (0..wakers.others()).map(|at| passes(Waker::Other(at)));
        SelectedWakers {
            threads: threads.collect(),
            others: others.collect(),
            wakers,
        }
    }

    fn passes(&self, row: &TickRow) -> bool {
        match self.wakers.of(row) {
            Some(Waker::Thread(thread)) => self.threads[thread.index()],
            Some(Waker::Other(at)) => self.others[at as usize],
            None => false,
        }
    }
}

/// Returns for each reason of a wait whether it passes a filter. None: everything does.
fn selected_reasons(filter: &Filter) -> Option<[bool; WaitReason::COUNT]> {
    let all = filter.reasons.is_empty();
    if all && !filter.suffered {
        return None;
    }
    let mut selected = [false; WaitReason::COUNT];
    for reason in WaitReason::all() {
        let is_named = all || filter.reasons.contains(&reason);
        let is_kind = !filter.suffered || reason.kind() == WaitKind::Suffered;
        selected[reason.index()] = is_named && is_kind;
    }
    Some(selected)
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
            reasons: selected_reasons(filter),
            wakers: (!filter.wakers.is_empty())
                .then(|| SelectedWakers::of(model, &filter.wakers, Wakers::new(model))),
        }
    }

    /// Returns whether a row of ticks passes.
    #[must_use]
    pub fn passes(&self, row: &TickRow) -> bool {
        self.states[row.slot()] && self.passes_place(row) && self.passes_wait(row)
    }

    /// Returns whether an event passes: an overflow of a counter, or a wait for a lock. It has no
    /// ticks in a state and no cause, so it needs a filter without states and causes.
    #[must_use]
    pub fn passes_event(&self, row: &TickRow) -> bool {
        self.states == [true; STATE_SLOTS]
            && self.reasons.is_none()
            && self.wakers.is_none()
            && self.passes_place(row)
    }

    fn passes_wait(&self, row: &TickRow) -> bool {
        let reasons = self.reasons.as_ref();
        let wakers = self.wakers.as_ref();
        reasons.is_none_or(|reasons| {
            row.wait_reason()
                .is_some_and(|reason| reasons[reason.index()])
        }) && wakers.is_none_or(|wakers| wakers.passes(row))
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

#[cfg(test)]
mod tests {
    use experiment_format::cause::Cause;
    use experiment_format::microstate::Microstate::{self, Sleep, User, UserLock, WaitCpu};

    use super::*;
    use crate::model::tests::{model_of_threads, row};
    use crate::model::{CpuId, ExperimentId};

    /// Returns which of the rows pass.
    fn passing(model: &Model, filter: &Filter) -> Vec<bool> {
        let wakers = (!filter.wakers.is_empty()).then(|| {
            let wakers = Wakers::with_experiments(model, &[(ExperimentId(0), 1)]);
            SelectedWakers::of(model, &filter.wakers, wakers)
        });
        let selection = Selection {
            times: vec![Nanos::ZERO..Nanos::MAX],
            wakers,
            ..Selection::new(
                model,
                &Filter {
                    wakers: Vec::new(),
                    ..filter.clone()
                },
            )
        };
        let rows = model.rows.iter();
        rows.map(|row| selection.passes(row)).collect()
    }

    #[test]
    fn waits_pass_by_their_reason_and_by_their_waker() {
        let mut model = model_of_threads(&[("a", 7, "a"), ("a", 8, "log"), ("b", 9, "b")]);
        model.processes[0].pid = Pid(7);
        model.cpus = vec![0];
        let wait = |state: Microstate, cause: Cause, waker| TickRow {
            state: state as u8,
            cause: cause as u8,
            waker,
            cpu: CpuId(0),
            ..row(0, 10)
        };
        model.rows = vec![
            wait(User, Cause::Undecided, 0),
            wait(UserLock, Cause::Lock, 8),
            wait(Sleep, Cause::NewWork, 9),
            wait(Sleep, Cause::Undecided, 77),
            wait(WaitCpu, Cause::Undecided, 0),
        ];
        // Each thread of the model has ticks.
        model.rows.extend([row(1, 10), row(2, 10)]);
        let rows = |filter: &Filter| {
            let passing = passing(&model, filter);
            let rows = (0..).zip(passing).filter(|(_, passes)| *passes);
            rows.map(|(at, _)| at).collect::<Vec<i32>>()
        };
        assert_eq!(rows(&Filter::default()), [0, 1, 2, 3, 4, 5, 6]);
        let by_reason = |reasons: &[WaitReason], suffered| {
            rows(&Filter {
                reasons: reasons.to_vec(),
                suffered,
                ..Filter::default()
            })
        };
        let blocked = WaitReason::Blocked;
        assert_eq!(by_reason(&[], true), [1, 4]);
        assert_eq!(
            by_reason(&[blocked(Cause::NewWork), WaitReason::Cpu], false),
            [2, 4]
        );
        assert_eq!(
            by_reason(&[blocked(Cause::NewWork), WaitReason::Cpu], true),
            [4]
        );
        assert_eq!(by_reason(&[blocked(Cause::Undecided)], false), [3]);
        let by_waker = |waker| {
            rows(&Filter {
                wakers: vec![waker],
                ..Filter::default()
            })
        };
        let name = |text| WakerFilter::Name(Pattern::new(text).unwrap());
        assert_eq!(by_waker(name("^log$")), [1]);
        assert_eq!(by_waker(name("a|b")), [1, 2]);
        assert_eq!(by_waker(WakerFilter::Number(7)), [1]);
        assert_eq!(by_waker(WakerFilter::Number(9)), [2]);
        assert_eq!(by_waker(WakerFilter::Number(77)), [3]);
        assert!(by_waker(WakerFilter::Number(78)).is_empty());
    }
}
