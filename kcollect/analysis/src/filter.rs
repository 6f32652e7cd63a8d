//! Which rows count: a [`Filter`] is what was asked for, a [`Selection`] the same in the numbers of
//! one model.
//!
//! All conditions have to hold; of several values of one condition, any.

use std::ops::Range;

use regex::Regex;

use crate::model::{CounterOverflow, Model, ProcessInfo, STATE_SLOTS, TickRow};

/// A regular expression, which is the same as another if it is written so.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Understands it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Pattern, regex::Error> {
        Regex::new(text).map(Pattern)
    }

    /// Whether some part of a text is one that it describes.
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

/// What was asked for. The default lets everything pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The processes.
    pub processes: Vec<ProcessFilter>,
    /// Numbers of the threads.
    pub threads: Vec<u64>,
    /// Numbers of the CPUs.
    pub cpus: Vec<u32>,
    /// The states, at their positions in [`crate::model::Sums`]. None: all.
    pub states: Option<[bool; STATE_SLOTS]>,
    /// The time, nanoseconds since the start of the founder, the end excluded.
    pub time: Option<Range<u64>>,
    /// A function of each of these names is in the stack, anywhere.
    pub functions: Vec<Pattern>,
}

/// Which process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessFilter {
    /// That of this number.
    Pid(u32),
    /// Those whose names match.
    Name(Pattern),
    /// That of the experiment which has this number for gprofng: 1 is the first.
    Number(u32),
}

impl ProcessFilter {
    /// Whether it is this one. A founder's processes are those whose ticks are in it alone.
    fn is(&self, process: &ProcessInfo) -> bool {
        match self {
            ProcessFilter::Pid(pid) => process.pid == *pid,
            ProcessFilter::Name(name) => name.matches(&process.name),
            ProcessFilter::Number(number) => process.experiment.checked_add(1) == Some(*number),
        }
    }
}

impl Filter {
    /// Whether it asks for nothing but processes and threads.
    #[must_use]
    pub fn only_of_threads(&self) -> bool {
        self.cpus.is_empty()
            && self.states.is_none()
            && self.time.is_none()
            && self.functions.is_empty()
    }

    /// Whether a process passes.
    #[must_use]
    pub fn takes(&self, process: &ProcessInfo) -> bool {
        self.processes.is_empty() || self.processes.iter().any(|wish| wish.is(process))
    }
}

/// A filter in the numbers of a model.
#[derive(Debug, Clone)]
pub struct Selection {
    threads: Vec<bool>,
    cpus: Vec<bool>,
    states: [bool; STATE_SLOTS],
    time: Range<u64>,
    /// By stack; none if all pass.
    stacks: Option<Vec<bool>>,
}

impl Selection {
    /// Looks up once what rows are then compared with.
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
            // The last instant belongs to those who ask for no time.
            time: filter.time.clone().unwrap_or(0..u64::MAX),
            stacks,
        }
    }

    /// Whether a row counts.
    #[must_use]
    pub fn passes(&self, row: &TickRow) -> bool {
        self.states[row.slot()] && self.passes_place(row)
    }

    /// Whether an overflow of a counter counts: it is in no state.
    #[must_use]
    pub fn passes_count(&self, count: &CounterOverflow) -> bool {
        self.states == [true; STATE_SLOTS] && self.passes_place(&count.row)
    }

    fn passes_place(&self, row: &TickRow) -> bool {
        self.time.contains(&row.time)
            && self.threads[row.thread.index()]
            && self.cpus[row.cpu.index()]
            && self
                .stacks
                .as_ref()
                .is_none_or(|stacks| stacks[row.stack.index()])
    }
}

impl Model {
    /// For each stack, whether it has a function of such a name.
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
