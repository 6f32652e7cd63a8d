//! Finds the threads that woke others: a row has only the number of one.
//!
//! A number may belong to several threads one after the other. The thread with ticks closest to
//! the end of the wait is meant. A thread without ticks is known by the exact times of the founder.

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::load::exact::ExactTimes;
use crate::model::{ExperimentId, Model, ThreadId, TickRow};

/// A thread that woke another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waker {
    /// A thread of the model.
    Thread(ThreadId),
    /// A thread without ticks: a position in [`Wakers::others`].
    Other(u32),
}

/// A thread without ticks that woke another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherThread {
    tid: u32,
    /// Its process and names, if it has exact times.
    known: Option<(Pid, String, String)>,
}

/// The number and the names of a waker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakerNames<'a> {
    /// Its tid.
    pub tid: u64,
    /// The pid of its process, if known.
    pub pid: Option<Pid>,
    /// The name of its process; empty if it is not known.
    pub process: &'a str,
    /// Its own name; empty if it has none.
    pub thread: &'a str,
}

impl WakerNames<'_> {
    /// Returns a text for tables: the process, with the thread's name if that differs, such as
    /// `nginx/log`. A thread that is not known is `thread 123`.
    #[must_use]
    pub fn title(&self) -> String {
        match (self.process, self.thread) {
            ("", "") => format!("thread {}", self.tid),
            (process, "") => process.to_owned(),
            ("", thread) => thread.to_owned(),
            (process, thread) if process == thread => process.to_owned(),
            (process, thread) => format!("{process}/{thread}"),
        }
    }
}

/// A thread with the first and the last time of its ticks.
#[derive(Debug, Clone, Copy)]
struct SeenThread {
    thread: ThreadId,
    first_ns: Nanos,
    last_ns: Nanos,
}

impl SeenThread {
    /// Returns how far a time is from those of the ticks.
    fn distance(&self, at_ns: Nanos) -> Nanos {
        self.first_ns.saturating_sub(at_ns) + at_ns.saturating_sub(self.last_ns)
    }
}

/// The threads of a model by their numbers.
#[derive(Debug, Clone)]
pub struct Wakers {
    /// The first experiment of the recording of each experiment: numbers are those of a machine.
    firsts: Vec<ExperimentId>,
    threads: FxHashMap<(ExperimentId, u64), Vec<SeenThread>>,
    others: Vec<OtherThread>,
    /// The positions of the others.
    other_numbers: FxHashMap<(ExperimentId, u32), u32>,
}

impl Wakers {
    /// Reads the threads of a model, and exact times if threads without ticks woke others.
    #[must_use]
    pub fn new(model: &Model) -> Wakers {
        let firsts = model.experiments.iter().map(|info| info.first);
        Wakers::with_firsts(model, firsts.collect())
    }

    /// As [`Wakers::new`], given the first experiment of the recording of each experiment.
    pub(crate) fn with_firsts(model: &Model, firsts: Vec<ExperimentId>) -> Wakers {
        let mut seen: Vec<Option<(ExperimentId, SeenThread)>> = vec![None; model.threads.len()];
        for row in &model.rows {
            let (first, thread) = (firsts[row.experiment.index()], row.thread);
            let (_, seen) = seen[thread.index()].get_or_insert((
                first,
                SeenThread {
                    thread,
                    first_ns: row.time_ns,
                    last_ns: row.time_ns,
                },
            ));
            seen.first_ns = seen.first_ns.min(row.time_ns);
            seen.last_ns = seen.last_ns.max(row.time_ns);
        }
        let mut threads: FxHashMap<_, Vec<_>> = FxHashMap::default();
        for (first, seen) in seen.into_iter().flatten() {
            let key = (first, model.thread(seen.thread).tid);
            threads.entry(key).or_default().push(seen);
        }
        let mut wakers = Wakers {
            firsts,
            threads,
            others: Vec::new(),
            other_numbers: FxHashMap::default(),
        };
        wakers.add_others(model);
        wakers
    }

    /// Adds the wakers without ticks.
    fn add_others(&mut self, model: &Model) {
        let key = |row: &TickRow| (self.firsts[row.experiment.index()], row.waker);
        let has_ticks =
            |(first, tid): &(_, u32)| self.threads.contains_key(&(*first, u64::from(*tid)));
        let wakers = model.rows.iter().filter(|row| row.waker != 0).map(key);
        let missing: FxHashSet<_> = wakers.filter(|key| !has_ticks(key)).collect();
        if missing.is_empty() {
            return;
        }
        let mut known = FxHashMap::default();
        for (_, info) in model.founders() {
            // Damage is reported where the times are shown.
            let times = ExactTimes::read(&info.source).ok().flatten();
            for thread in times.unwrap_or_default().threads {
                let key = (info.first, thread.tid.0);
                if missing.contains(&key) {
                    known.insert(key, (thread.pid, thread.process, thread.name));
                }
            }
        }
        let mut missing: Vec<_> = missing.into_iter().collect();
        missing.sort_unstable();
        for (position, key) in (0..).zip(missing) {
            self.other_numbers.insert(key, position);
            self.others.push(OtherThread {
                tid: key.1,
                known: known.remove(&key),
            });
        }
    }

    /// Returns the thread that ended a blocked state. None: no thread did, or it is not known.
    #[must_use]
    pub fn of(&self, row: &TickRow) -> Option<Waker> {
        if row.waker == 0 {
            return None;
        }
        let first = self.firsts[row.experiment.index()];
        let same = self.threads.get(&(first, u64::from(row.waker)));
        let seen = same.and_then(|same| {
            let mut same = same.iter();
            match same.len() {
                1 => same.next(),
                _ => same.min_by_key(|seen| seen.distance(row.time_ns)),
            }
        });
        match seen {
            Some(seen) => Some(Waker::Thread(seen.thread)),
            None => {
                let other = self.other_numbers.get(&(first, row.waker));
                other.map(|position| Waker::Other(*position))
            }
        }
    }

    /// Returns the number of wakers without ticks, which are the first positions.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.others.len() as u32
    }

    /// Returns the number and the names of a waker of a model's rows.
    #[must_use]
    pub fn names<'a>(&'a self, model: &'a Model, waker: Waker) -> WakerNames<'a> {
        match waker {
            Waker::Thread(thread) => {
                let thread = model.thread(thread);
                let process = model.process(thread.process);
                WakerNames {
                    tid: thread.tid,
                    pid: Some(process.pid),
                    process: &process.name,
                    thread: &thread.name,
                }
            }
            Waker::Other(position) => {
                let other = &self.others[position as usize];
                let (pid, process, thread) = match &other.known {
                    Some((pid, process, thread)) => (Some(*pid), &**process, &**thread),
                    None => (None, "", ""),
                };
                WakerNames {
                    tid: other.tid.into(),
                    pid,
                    process,
                    thread,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{model_of_threads, row};

    #[test]
    fn the_thread_of_a_number_is_the_one_seen_closest_to_the_time() {
        // Process `a` with the threads 7 and 8; later, 8 is a thread of `b`.
        let mut model = model_of_threads(&[("a", 7, "a"), ("a", 8, "log"), ("b", 8, "b")]);
        model.rows = vec![row(0, 10), row(1, 20), row(1, 30), row(2, 100), row(2, 200)];
        let waits = [(8, 35), (8, 90), (7, 500), (9, 10), (0, 10)];
        let waits = waits.map(|(waker, at)| TickRow {
            waker,
            ..row(0, at)
        });
        model.rows.extend(waits);
        let wakers = Wakers::with_firsts(&model, vec![ExperimentId(0)]);
        let found = waits.map(|wait| {
            let waker = wakers.of(&wait)?;
            Some(wakers.names(&model, waker).title())
        });
        let found = found.map(|title| title.unwrap_or_default());
        assert_eq!(found, ["a/log", "b", "a", "thread 9", ""]);
        assert_eq!(wakers.others(), 1);
    }
}
