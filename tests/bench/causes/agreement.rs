//! How far the causes in an experiment agree with a person.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use analysis::load::exact::ExactTimes;
use analysis::model::{Model, TickRow};
use anyhow::{Context, Result, ensure};
use experiment_format::cause::{Cause, WaitKind};
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use tests::workload::waits::{Subject, Verdict};

/// What a person says of some waits. The first rule that fits a wait counts.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The threads that wait.
    pub(crate) who: Who,
    /// A function that is in the stack of the wait; empty: any.
    pub(crate) function: Cow<'static, str>,
    /// What the waits are.
    pub(crate) verdict: Verdict,
}

/// Threads.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    /// One thread.
    Thread(Pid, Tid),
    /// The threads with a name.
    Named(&'static str),
    /// The main threads of processes with a name.
    Main(&'static str),
    /// The other threads of processes with a name.
    Others(&'static str),
}

impl Rule {
    /// Returns what a thread says of itself.
    pub(crate) fn of(subject: &Subject) -> impl Iterator<Item = Rule> {
        subject.waits.iter().map(|(function, verdict)| Rule {
            who: Who::Thread(subject.pid, subject.tid),
            function: function.clone().into(),
            verdict: *verdict,
        })
    }

    fn fits(&self, model: &Model, row: &TickRow) -> bool {
        let thread = model.thread(row.thread);
        let process = model.process(thread.process);
        let mut functions = model.stack_functions(row.stack);
        self.who
            .has(process.pid, thread.tid, &thread.name, &process.name)
            && (self.function.is_empty() || functions.any(|one| one.symbol() == self.function))
    }
}

impl Who {
    fn has(&self, pid: Pid, tid: u64, thread: &str, process: &str) -> bool {
        let is_main = tid == u64::from(pid);
        match self {
            Who::Thread(of, one) => *of == pid && u64::from(*one) == tid,
            Who::Named(name) => thread == *name,
            Who::Main(name) => process == *name && is_main,
            Who::Others(name) => process == *name && !is_main,
        }
    }
}

/// Waits that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waits {
    thread: String,
    function: Cow<'static, str>,
    verdict: Verdict,
    cause: Cause,
    /// The name of the thread that ended them.
    waker: String,
}

/// The blocked times of a load's threads, microseconds.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// The judged ticks, with the exact times that they stand for.
    ticks: BTreeMap<Waits, i64>,
    /// Right, undecided and wrong, by the exact times of threads all of whose waits are of one
    /// kind, and by the ticks of the others.
    exact: [i64; 3],
}

impl Agreement {
    /// Compares an experiment with what a person says.
    ///
    /// # Errors
    /// When it cannot be read, or no wait is judged.
    pub(crate) fn of(experiment: &Path, rules: &[Rule]) -> Result<Self> {
        let model = Model::load(&[experiment.to_owned()])?;
        let mut agreement = Self::default();
        let exact = ExactTimes::read(&model.experiments[0].source)?.context("no exact times")?;
        let mut judged = HashSet::new();
        for thread in &exact.threads {
            let tid = u64::from(thread.tid);
            let of_thread = |rule: &&Rule| {
                let (name, process) = (&thread.name, &thread.process);
                rule.who.has(thread.pid, tid, name, process)
            };
            let mut verdicts = rules.iter().filter(of_thread).map(|rule| rule.verdict);
            let Some(verdict) = verdicts.next().filter(|one| verdicts.all(|it| it == *one)) else {
                continue;
            };
            judged.insert((thread.pid, tid));
            for cause in Cause::ALL {
                let us = thread.times.of_cause(cause) / Nanos::from_micros(1);
                agreement.exact[outcome(verdict, cause)] += i64::try_from(us)?;
            }
        }
        let names = model.threads.iter().filter(|thread| thread.tid > 0);
        let names: HashMap<u64, &str> = names
            .map(|thread| (thread.tid, thread.name.as_str()))
            .collect();
        for row in model.rows.iter().filter(|row| is_blocked(row)) {
            let Some(rule) = rules.iter().find(|rule| rule.fits(&model, row)) else {
                continue;
            };
            let thread = model.thread(row.thread);
            let cause = Cause::try_from(row.cause).unwrap_or_default();
            if !judged.contains(&(model.process(thread.process).pid, thread.tid)) {
                agreement.exact[outcome(rule.verdict, cause)] += row.micros;
            }
            let waker = names.get(&u64::from(row.waker));
            let key = Waits {
                thread: thread.name.clone(),
                function: rule.function.clone(),
                verdict: rule.verdict,
                cause,
                waker: waker.map_or("nobody", |name| name).to_owned(),
            };
            *agreement.ticks.entry(key).or_default() += row.micros;
        }
        ensure!(agreement.exact != [0; 3], "no wait is judged");
        Ok(agreement)
    }

    /// Returns the columns of the table: the shares that are right, undecided and wrong, and what
    /// is right by ticks alone, percent.
    pub(crate) fn cells(&self) -> [String; 4] {
        let share = |us: i64, all_us: i64| match all_us {
            0 => "-".to_owned(),
            all_us => format!("{:.1}", us as f64 / all_us as f64 * 100.0),
        };
        let all_us = self.exact.iter().sum();
        let [right, undecided, wrong] = self.exact.map(|us| share(us, all_us));
        let by_ticks = self.ticks.iter().filter(|(waits, _)| waits.is_right());
        let by_ticks = share(by_ticks.map(|(_, us)| us).sum(), self.ticks.values().sum());
        [right, undecided, wrong, by_ticks]
    }

    /// Returns a line on each kind of wait that is not right, the longest first.
    pub(crate) fn differences(&self) -> impl Iterator<Item = String> {
        let all_us: i64 = self.ticks.values().sum();
        let mut others: Vec<_> = self.ticks.iter().collect();
        // Less than a hundredth of the time is not worth a line.
        others.retain(|(waits, us)| !waits.is_right() && **us * 100 > all_us);
        others.sort_by_key(|(_, us)| -**us);
        others.into_iter().map(move |(waits, us)| {
            let Waits {
                thread,
                function,
                verdict,
                cause,
                waker,
            } = waits;
            format!(
                "{:.1} % are waits of {thread} in {function}, ended by {waker}, which are \
                 {verdict:?} and recorded as {}",
                *us as f64 / all_us as f64 * 100.0,
                cause.keyword()
            )
        })
    }
}

impl Waits {
    fn is_right(&self) -> bool {
        outcome(self.verdict, self.cause) == RIGHT
    }
}

/// Positions in [`Agreement::exact`].
const RIGHT: usize = 0;
const UNDECIDED: usize = 1;
const WRONG: usize = 2;

fn outcome(verdict: Verdict, cause: Cause) -> usize {
    match (verdict, cause.kind()) {
        (_, WaitKind::Undecided) => UNDECIDED,
        (Verdict::Suffered, WaitKind::Suffered) | (Verdict::Idle, WaitKind::Idle) => RIGHT,
        (Verdict::Suffered, WaitKind::Idle) | (Verdict::Idle, WaitKind::Suffered) => WRONG,
    }
}

/// Returns whether the ticks are of a thread that was blocked.
fn is_blocked(row: &TickRow) -> bool {
    use Microstate::{DataFault, KernelFault, Sleep, TextFault, UserLock};
    let states = [TextFault, DataFault, KernelFault, UserLock, Sleep];
    states.iter().any(|state| *state as u8 == row.state)
}
