//! From records to rows: who lives, and what whoever died has counted. Pure; time and counters come
//! in.
//!
//! A thread's row at its end waits for its last words, one for each of its counters on each CPU.
//! They follow its end at once; where one is missing [`PATIENCE`] later, or at the end of
//! everything, the row has what the thread's own counter saw, and says so. So it has where last
//! words contradict each other: they are written into rings that were not made for it
//! ([`crate::perf::exit_counts`]), and all of a thread say how long it was on CPUs, to the nanosecond.

use std::collections::{BTreeMap, BTreeSet};

use crate::perf::reading::Value;
use crate::perf::records::Record;
use crate::rows::{Row, What};

/// For how long last words are waited for, nanoseconds.
pub const PATIENCE: u64 = 100_000_000;

/// A thread's own counters.
pub trait Reading {
    /// What they have counted so far, if they can be read.
    fn values(&self) -> Option<Vec<Value>>;
}

#[derive(Debug)]
struct Thread<O> {
    pid: u32,
    /// It was opened, and has no last words: its own counters have it all.
    root: bool,
    own: Option<O>,
    /// What its last row of a tick had.
    ticked: Vec<Value>,
    counted: Vec<Value>,
    /// Counters whose last words have come.
    words: BTreeSet<u64>,
    /// For how long it was on CPUs, as all its last words have to say.
    enabled_ns: Option<u64>,
    /// Its last words contradict each other.
    garbled: bool,
    ended: Option<u64>,
}

#[derive(Debug)]
struct Process {
    threads: BTreeSet<u32>,
    total: Vec<Value>,
    incomplete: bool,
}

/// All that is followed.
#[derive(Debug)]
pub struct Lives<O> {
    events: usize,
    /// How many last words each thread has that inherited its counters.
    words: usize,
    /// Processes that are forked are followed.
    family: bool,
    threads: BTreeMap<u32, Thread<O>>,
    processes: BTreeMap<u32, Process>,
    newcomers: Vec<u32>,
    /// Of all that have ended.
    total: Vec<Value>,
    /// Threads that were followed so far.
    pub followed: u64,
    /// Of how many of them the last words did not come.
    pub unheard: u64,
    /// Records that found no room.
    pub lost: u64,
}

impl<O: Reading> Lives<O> {
    /// Nobody, with so many events and last words a thread.
    #[must_use]
    pub fn new(events: usize, words: usize, family: bool) -> Lives<O> {
        Lives {
            events,
            words,
            family,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            newcomers: Vec::new(),
            total: vec![Value::default(); events],
            followed: 0,
            unheard: 0,
            lost: 0,
        }
    }

    /// A thread that was opened.
    pub fn root(&mut self, pid: u32, tid: u32, own: O) {
        self.begin(pid, tid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.root = true;
            thread.own = Some(own);
        }
    }

    /// Whether a thread was opened before its birth is told, which is a moment after it can be
    /// seen: it has inherited its counters besides. (Where records were lost, it may as well be
    /// another one that was given the id of one that is gone.)
    #[must_use]
    pub fn opened_unborn(&self, tid: u32) -> bool {
        let opened = |thread: &Thread<O>| thread.root && thread.ended.is_none();
        self.lost == 0 && self.threads.get(&tid).is_some_and(opened)
    }

    /// Threads that were born since the last call, and are not known to have ended.
    pub fn newcomers(&mut self) -> Vec<u32> {
        let mut newcomers = std::mem::take(&mut self.newcomers);
        let living = |tid: &u32| {
            let thread = self.threads.get(tid);
            thread.is_some_and(|thread| thread.ended.is_none())
        };
        newcomers.retain(living);
        newcomers
    }

    /// Gives a thread its own counters.
    pub fn adopt(&mut self, tid: u32, own: O) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.own = Some(own);
        }
    }

    /// Threads that are not known to have ended, each with its process.
    #[must_use]
    pub fn living(&self) -> Vec<(u32, u32)> {
        let threads = self.threads.iter();
        let living = threads.filter(|(_, thread)| thread.ended.is_none());
        living.map(|(tid, thread)| (thread.pid, *tid)).collect()
    }

    /// A thread is not there any more. Its end may still be told; if not, this was it.
    pub fn gone(&mut self, tid: u32, time_ns: u64) -> Vec<Row> {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.ended.get_or_insert(time_ns);
        }
        self.completed(tid)
    }

    /// Nobody is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    fn begin(&mut self, pid: u32, tid: u32) {
        self.followed += 1;
        let zeros = || vec![Value::default(); self.events];
        self.threads.insert(
            tid,
            Thread {
                pid,
                root: false,
                own: None,
                ticked: zeros(),
                counted: zeros(),
                words: BTreeSet::new(),
                enabled_ns: None,
                garbled: false,
                ended: None,
            },
        );
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            threads: BTreeSet::new(),
            total: vec![Value::default(); self.events],
            incomplete: false,
        });
        process.threads.insert(tid);
    }

    /// What a record means. `event_of` says which event a counter is of; none of one that was given
    /// up.
    pub fn take(
        &mut self,
        time_ns: u64,
        record: &Record,
        event_of: impl Fn(u64) -> Option<usize>,
    ) -> Vec<Row> {
        match record {
            Record::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            } => self.fork(time_ns, (*pid, *tid), (*parent_pid, *parent_tid)),
            Record::Exec { pid, name } => {
                self.renamed(*pid);
                let name = String::from_utf8_lossy(name).into_owned();
                vec![Row::of(time_ns, *pid, *pid, What::Exec(name), None)]
            }
            Record::Exit { pid, tid } => {
                if !self.threads.contains_key(tid) {
                    self.begin(*pid, *tid);
                }
                if let Some(thread) = self.threads.get_mut(tid) {
                    thread.ended = Some(time_ns);
                }
                self.completed(*tid)
            }
            Record::Read { tid, id, value, .. } => {
                let Some(number) = event_of(*id) else {
                    return Vec::new();
                };
                if let Some(thread) = self.threads.get_mut(tid) {
                    let enabled = *thread.enabled_ns.get_or_insert(value.enabled_ns);
                    let again = !thread.words.insert(*id);
                    thread.garbled |= again || enabled != value.enabled_ns;
                    thread.counted[number] = thread.counted[number].beside(*value);
                }
                self.completed(*tid)
            }
            Record::Lost { records } => {
                self.lost += records;
                Vec::new()
            }
        }
    }

    fn fork(&mut self, time_ns: u64, child: (u32, u32), parent: (u32, u32)) -> Vec<Row> {
        let (pid, tid) = child;
        if self.opened_unborn(tid)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.root = false;
            return vec![Row::of(time_ns, pid, tid, What::LwpCreate, None)];
        }
        // An id that was used before: whoever had it is gone, heard or not.
        let mut rows = self.bury(tid, time_ns);
        if pid == parent.0 {
            self.begin(pid, tid);
            self.newcomers.push(tid);
            rows.push(Row::of(time_ns, pid, tid, What::LwpCreate, None));
        } else {
            rows.push(Row::of(time_ns, parent.0, parent.1, What::Fork(pid), None));
            if self.family {
                self.begin(pid, tid);
                self.newcomers.push(tid);
            }
        }
        rows
    }

    /// The thread that execs takes the process's id; all others of the process are gone by then.
    fn renamed(&mut self, pid: u32) {
        let living = |tid: &&u32| {
            let thread = self.threads.get(*tid);
            thread.is_some_and(|thread| thread.ended.is_none())
        };
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.threads.iter().find(living) == Some(&pid) {
            return;
        }
        let Some(old) = process.threads.iter().find(living).copied() else {
            return;
        };
        process.threads.remove(&old);
        process.threads.insert(pid);
        if let Some(thread) = self.threads.remove(&old) {
            self.threads.insert(pid, thread);
        }
    }

    /// The rows of a thread that has ended and has said everything.
    fn completed(&mut self, tid: u32) -> Vec<Row> {
        let done = |thread: &Thread<O>| {
            thread.ended.is_some() && (thread.root || thread.words.len() >= self.words)
        };
        match self.threads.get(&tid).is_some_and(done) {
            true => self.bury(tid, 0),
            false => Vec::new(),
        }
    }

    /// The rows of those of whom nothing more is to be expected at this time.
    pub fn overdue(&mut self, time_ns: u64) -> Vec<Row> {
        let late = |thread: &Thread<O>| {
            let ended = thread.ended;
            ended.is_some_and(|ended| ended.saturating_add(PATIENCE) <= time_ns)
        };
        let late: Vec<_> = self
            .threads
            .iter()
            .filter(|(_, thread)| late(thread))
            .collect();
        let late: Vec<_> = late.into_iter().map(|(tid, _)| *tid).collect();
        late.into_iter()
            .flat_map(|tid| self.bury(tid, time_ns))
            .collect()
    }

    /// The rows of a thread's end, which was at this time if it was not told.
    fn bury(&mut self, tid: u32, time_ns: u64) -> Vec<Row> {
        let Some(thread) = self.threads.remove(&tid) else {
            return Vec::new();
        };
        let complete = thread.words.len() >= self.words && !thread.root && !thread.garbled;
        let own = thread.own.as_ref().and_then(Reading::values);
        let (values, whole) = match (complete, own) {
            (true, _) => (Some(thread.counted), true),
            (false, own) => (own, thread.root),
        };
        let whole = whole && values.is_some();
        self.unheard += u64::from(!whole);
        let time_ns = thread.ended.unwrap_or(time_ns);
        let mut row = Row::of(time_ns, thread.pid, tid, What::LwpExit, values);
        row.incomplete = !whole;
        let mut rows = Vec::new();
        let process = self.processes.get_mut(&thread.pid);
        if let Some(process) = process {
            process.threads.remove(&tid);
            process.incomplete |= !whole;
            for values in [&mut process.total, &mut self.total] {
                add(values, row.values.as_deref().unwrap_or_default());
            }
            rows.push(row);
            if process.threads.is_empty()
                && let Some(process) = self.processes.remove(&thread.pid)
            {
                let pid = thread.pid;
                let mut row = Row::of(time_ns, pid, pid, What::Exit, Some(process.total));
                row.incomplete = process.incomplete;
                rows.push(row);
            }
        }
        rows
    }

    /// A row for each thread that lives and can be read: what it counted since its last one.
    pub fn tick(&mut self, now: impl Fn() -> u64) -> Vec<Row> {
        let mut rows = Vec::new();
        for (tid, thread) in &mut self.threads {
            let Some(own) = thread.own.as_ref().filter(|_| thread.ended.is_none()) else {
                continue;
            };
            let time_ns = now();
            let Some(values) = own.values() else {
                continue;
            };
            let pairs = values.iter().zip(&thread.ticked);
            let since = pairs.map(|(now, then)| now.minus(*then)).collect();
            thread.ticked = values;
            rows.push(Row::of(time_ns, thread.pid, *tid, What::Tick, Some(since)));
        }
        rows
    }

    /// What rows have told: of all that have ended, and of those that live as of their last tick.
    #[must_use]
    pub fn told(&self) -> Vec<Value> {
        let mut told = self.total.clone();
        for thread in self.threads.values() {
            add(&mut told, &thread.ticked);
        }
        told
    }
}

fn add(sum: &mut [Value], values: &[Value]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum = sum.plus(*value);
    }
}

#[cfg(test)]
mod tests;
