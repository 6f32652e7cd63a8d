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
    /// Returns the name of the process, or one made from its pid. None: it is not known.
    #[must_use]
    pub fn process_name(&self) -> Option<String> {
        match self.process {
            "" => self.pid.map(|pid| format!("pid {pid}")),
            name => Some(name.to_owned()),
        }
    }

    /// Returns a text for exports: as [`WakerNames::title`], with the number, such as
    /// `nginx: log (812)`.
    #[must_use]
    pub fn numbered_title(&self) -> String {
        let tid = self.tid;
        match (self.process_name(), self.thread) {
            (None, _) => format!("thread {tid}"),
            (Some(process), thread) if thread.is_empty() || thread == process => {
                format!("{process} ({tid})")
            }
            (Some(process), thread) => format!("{process}: {thread} ({tid})"),
        }
    }

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

/// A thread with the time in which it has ticks.
#[derive(Debug, Clone, Copy)]
struct SeenThread {
    thread: ThreadId,
    start_ns: Nanos,
    end_ns: Nanos,
}

impl SeenThread {
    /// Returns how far a time is from those of the ticks.
    fn distance(&self, at_ns: Nanos) -> Nanos {
        let before_ns = self.start_ns.saturating_sub(at_ns);
        before_ns.max(at_ns.saturating_sub(self.end_ns))
    }
}

/// The threads of a model by their numbers. There are none if no thread woke another.
#[derive(Debug, Clone, Default)]
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
        let experiments = model.experiments.iter();
        let experiments = experiments.map(|info| (info.first, info.tick_us));
        Wakers::with_experiments(model, &experiments.collect::<Vec<_>>())
    }

    /// As [`Wakers::new`], given for each experiment the first one of its recording, and the
    /// length of a tick in microseconds.
    pub(crate) fn with_experiments(model: &Model, experiments: &[(ExperimentId, u32)]) -> Wakers {
        if model.rows.iter().all(|row| row.waker == 0) {
            return Wakers::default();
        }
        let of_row = |row: &TickRow| {
            let (first, tick_us) = experiments[row.experiment.index()];
            let tick_ns = Nanos::from_micros(tick_us.into());
            let length_ns = tick_ns.saturating_mul(row.ticks.unsigned_abs().into());
            let seen = SeenThread {
                thread: row.thread,
                start_ns: row.time_ns.saturating_sub(length_ns),
                end_ns: row.time_ns,
            };
            (first, seen)
        };
        let mut seen = vec![None; model.threads.len()];
        for row in model.rows.iter().filter(|row| row.ticks != 0) {
            let new = of_row(row);
            let (_, known) = seen[row.thread.index()].get_or_insert(new);
            known.start_ns = known.start_ns.min(new.1.start_ns);
            known.end_ns = known.end_ns.max(new.1.end_ns);
        }
        // When exact time without a tick was is known only roughly.
        for row in model.rows.iter().filter(|row| row.ticks == 0) {
            seen[row.thread.index()].get_or_insert_with(|| of_row(row));
        }
        let mut threads: FxHashMap<_, Vec<SeenThread>> = FxHashMap::default();
        for (first, seen) in seen.into_iter().flatten() {
            let key = (first, model.thread(seen.thread).tid);
            threads.entry(key).or_default().push(seen);
        }
        let mut wakers = Wakers {
            firsts: experiments.iter().map(|(first, _)| *first).collect(),
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

    /// The length of a tick.
    const TICK_US: u32 = 1;

    /// Returns the titles of the threads that ended waits: their numbers, and when that was.
    fn titles(mut model: Model, waits: &[(u32, u64)]) -> Vec<String> {
        let waits = waits.iter();
        let waits = waits.map(|(waker, at)| TickRow {
            waker: *waker,
            ..row(0, *at)
        });
        let waits: Vec<_> = waits.collect();
        model.rows.extend(&waits);
        let wakers = Wakers::with_experiments(&model, &[(ExperimentId(0), TICK_US)]);
        let title = |wait| {
            let waker = wakers.of(wait);
            waker.map_or(String::new(), |waker| wakers.names(&model, waker).title())
        };
        waits.iter().map(title).collect()
    }

    #[test]
    fn the_thread_of_a_number_is_the_one_seen_closest_to_the_time() {
        // Process `a` with the threads 7 and 8; later, 8 is a thread of `b`.
        let mut model = model_of_threads(&[("a", 7, "a"), ("a", 8, "log"), ("b", 8, "b")]);
        let rows = [(0, 10), (1, 20), (1, 30), (2, 100), (2, 200)];
        model.rows = rows.map(|(thread, at_us)| row(thread, at_us * 1000)).into();
        let waits = [(8, 35), (8, 90), (7, 500), (9, 10), (0, 10)];
        let waits = waits.map(|(waker, at_us)| (waker, at_us * 1000));
        let titles = titles(model, &waits);
        assert_eq!(titles, ["a/log", "b", "a", "thread 9", ""]);
    }

    #[test]
    fn ticks_last_until_their_time_and_exact_time_without_them_has_none() {
        // Thread 8 executes another program, which sleeps. Its last sample is at 9 ms.
        let mut model = model_of_threads(&[("sh", 7, "sh"), ("make", 8, ""), ("sh", 8, "")]);
        let ticks = |thread, at_ns, ticks| TickRow {
            ticks,
            ..row(thread, at_ns)
        };
        model.rows = vec![
            ticks(1, 9_000_000, 5000),
            ticks(2, 2_000_000, 2000),
            ticks(2, 9_000_000, 0),
        ];
        let titles = titles(model, &[(8, 1_000_000), (8, 3_900_000), (8, 9_000_000)]);
        assert_eq!(titles, ["sh", "make", "make"]);
    }

    #[test]
    fn titles_have_process_and_thread() {
        let title = |pid: Option<u32>, process, thread| {
            let names = WakerNames {
                tid: 812,
                pid: pid.map(Pid),
                process,
                thread,
            };
            [names.title(), names.numbered_title()]
        };
        assert_eq!(title(None, "", ""), ["thread 812", "thread 812"]);
        let pid = Some(810);
        assert_eq!(title(pid, "srv", "srv"), ["srv", "srv (812)"]);
        assert_eq!(title(pid, "srv", ""), ["srv", "srv (812)"]);
        assert_eq!(title(pid, "srv", "log"), ["srv/log", "srv: log (812)"]);
        assert_eq!(title(pid, "", "log"), ["log", "pid 810: log (812)"]);
    }
}
