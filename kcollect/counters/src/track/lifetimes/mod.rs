//! From records of threads to rows: which threads run, and what those that exited have counted.
//! Pure: times and counters are arguments.
//!
//! The row of a thread's exit waits for its exit counts, one for each of its counters on each CPU.
//! They follow the exit at once. Where one is missing after [`EXIT_COUNTS_TIMEOUT_NS`], or at the
//! end of the run, the row has what the thread's own counter has, and is marked as incomplete. So
//! it is where exit counts contradict each other, since their rings are not made for several CPUs
//! ([`crate::perf::exit_counts`]): all of a thread have the time that it was on CPUs, and have to
//! agree on it to the nanosecond.

use std::collections::{BTreeMap, BTreeSet};

use types::ids::{Pid, Tid};
use types::units::Nanos;

use crate::perf::reading::CounterValue;
use crate::perf::records::TaskRecord;
use crate::rows::{CountRow, RowKind};

/// How long after an exit its exit counts may arrive.
pub const EXIT_COUNTS_TIMEOUT_NS: Nanos = Nanos::from_millis(100);

/// A running thread's own counters.
pub trait LiveCounters {
    /// Reads what they have counted so far. None: they cannot be read.
    fn values(&self) -> Option<Vec<CounterValue>>;
}

/// A thread that is followed, until its row is printed.
#[derive(Debug)]
struct ThreadLifetime<C> {
    pid: Pid,
    /// Whether it was opened: it then has no exit counts, and its own counters have all its counts.
    opened: bool,
    counters: Option<C>,
    /// Its counts at its last tick.
    at_last_tick: Vec<CounterValue>,
    /// The sums of its exit counts.
    counted: Vec<CounterValue>,
    /// The ids of the counters whose exit counts have arrived.
    exit_counts: BTreeSet<u64>,
    /// How long it was on CPUs, on which all its exit counts have to agree.
    enabled_ns: Option<Nanos>,
    /// Whether its exit counts contradict each other.
    contradictory: bool,
    exit_ns: Option<Nanos>,
}

/// The counts of a process: the sums of its threads.
#[derive(Debug)]
struct ProcessCounts {
    threads: BTreeSet<Tid>,
    total: Vec<CounterValue>,
    incomplete: bool,
}

/// All followed threads and their processes.
#[derive(Debug)]
pub struct ThreadLifetimes<C> {
    /// The number of events.
    events: usize,
    /// The number of exit counts of each thread that inherited its counters.
    exit_counts_per_thread: usize,
    /// Whether forked processes are followed.
    follow_forks: bool,
    threads: BTreeMap<Tid, ThreadLifetime<C>>,
    processes: BTreeMap<Pid, ProcessCounts>,
    new_threads: Vec<Tid>,
    /// The counts of all threads that have exited.
    exited_total: Vec<CounterValue>,
    /// The number of threads that were followed so far.
    pub followed_threads: u64,
    /// The number of threads without usable exit counts.
    pub missing_exit_counts: u64,
    /// The number of records that were lost.
    pub lost_records: u64,
}

impl<C: LiveCounters> ThreadLifetimes<C> {
    /// Returns lifetimes without threads. `exit_counts_per_thread` is the number of exit counts of
    /// each thread that inherits its counters.
    #[must_use]
    pub fn new(
        events: usize,
        exit_counts_per_thread: usize,
        follow_forks: bool,
    ) -> ThreadLifetimes<C> {
        ThreadLifetimes {
            events,
            exit_counts_per_thread,
            follow_forks,
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            new_threads: Vec::new(),
            exited_total: vec![CounterValue::default(); events],
            followed_threads: 0,
            missing_exit_counts: 0,
            lost_records: 0,
        }
    }

    /// Adds a thread whose counters were opened.
    pub fn add_opened(&mut self, pid: Pid, tid: Tid, counters: C) {
        self.add_thread(pid, tid);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.opened = true;
            thread.counters = Some(counters);
        }
    }

    /// Whether a thread was opened before its fork was recorded: a thread is listed a moment before
    /// that. It then has inherited its counters too. (Where records were lost, it may be another
    /// thread that got the number of one that exited.)
    #[must_use]
    pub fn opened_before_fork_record(&self, tid: Tid) -> bool {
        let opened = |thread: &ThreadLifetime<C>| thread.opened && thread.exit_ns.is_none();
        self.lost_records == 0 && self.threads.get(&tid).is_some_and(opened)
    }

    /// Returns the threads that were created since the last call and still run.
    pub fn take_new_threads(&mut self) -> Vec<Tid> {
        let mut threads = std::mem::take(&mut self.new_threads);
        let running = |tid: &Tid| {
            let thread = self.threads.get(tid);
            thread.is_some_and(|thread| thread.exit_ns.is_none())
        };
        threads.retain(running);
        threads
    }

    /// Sets a thread's own counters.
    pub fn set_counters(&mut self, tid: Tid, counters: C) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.counters = Some(counters);
        }
    }

    /// Returns the threads that still run, each with its process.
    #[must_use]
    pub fn running_threads(&self) -> Vec<(Pid, Tid)> {
        let threads = self.threads.iter();
        let running = threads.filter(|(_, thread)| thread.exit_ns.is_none());
        running.map(|(tid, thread)| (thread.pid, *tid)).collect()
    }

    /// Sets the exit of a thread that does not exist any more, and whose record may have been lost.
    pub fn exited(&mut self, tid: Tid, time_ns: Nanos) -> Vec<CountRow> {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.exit_ns.get_or_insert(time_ns);
        }
        self.finish_if_complete(tid)
    }

    /// Whether no thread is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    fn add_thread(&mut self, pid: Pid, tid: Tid) {
        self.followed_threads += 1;
        let zeros = || vec![CounterValue::default(); self.events];
        self.threads.insert(
            tid,
            ThreadLifetime {
                pid,
                opened: false,
                counters: None,
                at_last_tick: zeros(),
                counted: zeros(),
                exit_counts: BTreeSet::new(),
                enabled_ns: None,
                contradictory: false,
                exit_ns: None,
            },
        );
        let process = self.processes.entry(pid).or_insert_with(|| ProcessCounts {
            threads: BTreeSet::new(),
            total: vec![CounterValue::default(); self.events],
            incomplete: false,
        });
        process.threads.insert(tid);
    }

    /// Applies a record, and returns the rows that it causes. `event_of` returns the number of a
    /// counter's event; None for a counter that was closed.
    pub fn apply(
        &mut self,
        time_ns: Nanos,
        record: &TaskRecord,
        event_of: impl Fn(u64) -> Option<usize>,
    ) -> Vec<CountRow> {
        match record {
            TaskRecord::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            } => self.fork(time_ns, (*pid, *tid), (*parent_pid, *parent_tid)),
            TaskRecord::Exec { pid, name } => {
                self.apply_exec(*pid);
                let name = String::from_utf8_lossy(name).into_owned();
                vec![CountRow::of_thread(
                    time_ns,
                    *pid,
                    pid.leader(),
                    RowKind::Exec(name),
                    None,
                )]
            }
            TaskRecord::Exit { pid, tid } => {
                if !self.threads.contains_key(tid) {
                    self.add_thread(*pid, *tid);
                }
                if let Some(thread) = self.threads.get_mut(tid) {
                    thread.exit_ns = Some(time_ns);
                }
                self.finish_if_complete(*tid)
            }
            TaskRecord::ExitCount { tid, id, value, .. } => {
                let Some(number) = event_of(*id) else {
                    return Vec::new();
                };
                if let Some(thread) = self.threads.get_mut(tid) {
                    let enabled = *thread.enabled_ns.get_or_insert(value.enabled_ns);
                    let again = !thread.exit_counts.insert(*id);
                    thread.contradictory |= again || enabled != value.enabled_ns;
                    thread.counted[number] = thread.counted[number].plus_other_cpu(*value);
                }
                self.finish_if_complete(*tid)
            }
            TaskRecord::Lost { records } => {
                self.lost_records += records;
                Vec::new()
            }
        }
    }

    fn fork(&mut self, time_ns: Nanos, child: (Pid, Tid), parent: (Pid, Tid)) -> Vec<CountRow> {
        let (pid, tid) = child;
        if self.opened_before_fork_record(tid)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.opened = false;
            return vec![CountRow::of_thread(
                time_ns,
                pid,
                tid,
                RowKind::LwpCreate,
                None,
            )];
        }
        // Where the number was used before, that thread has exited.
        let mut rows = self.finish_thread(tid, time_ns);
        if pid == parent.0 {
            self.add_thread(pid, tid);
            self.new_threads.push(tid);
            rows.push(CountRow::of_thread(
                time_ns,
                pid,
                tid,
                RowKind::LwpCreate,
                None,
            ));
        } else {
            rows.push(CountRow::of_thread(
                time_ns,
                parent.0,
                parent.1,
                RowKind::Fork(pid),
                None,
            ));
            if self.follow_forks {
                self.add_thread(pid, tid);
                self.new_threads.push(tid);
            }
        }
        rows
    }

    /// Renumbers the thread that executed a program, which then has the process's number. All other
    /// threads of the process have exited by then.
    fn apply_exec(&mut self, pid: Pid) {
        let leader = pid.leader();
        let running = |tid: &&Tid| {
            let thread = self.threads.get(*tid);
            thread.is_some_and(|thread| thread.exit_ns.is_none())
        };
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.threads.iter().find(running) == Some(&leader) {
            return;
        }
        let Some(old) = process.threads.iter().find(running).copied() else {
            return;
        };
        process.threads.remove(&old);
        process.threads.insert(leader);
        if let Some(thread) = self.threads.remove(&old) {
            self.threads.insert(leader, thread);
        }
    }

    /// Returns the rows of a thread's exit if all its exit counts have arrived.
    fn finish_if_complete(&mut self, tid: Tid) -> Vec<CountRow> {
        let complete = |thread: &ThreadLifetime<C>| {
            thread.exit_ns.is_some()
                && (thread.opened || thread.exit_counts.len() >= self.exit_counts_per_thread)
        };
        if self.threads.get(&tid).is_some_and(complete) {
            self.finish_thread(tid, Nanos::ZERO)
        } else {
            Vec::new()
        }
    }

    /// Returns the rows of threads whose exit counts should have arrived by now.
    pub fn finish_overdue(&mut self, time_ns: Nanos) -> Vec<CountRow> {
        let late = |thread: &ThreadLifetime<C>| {
            let exit_ns = thread.exit_ns;
            exit_ns.is_some_and(|exit_ns| exit_ns.saturating_add(EXIT_COUNTS_TIMEOUT_NS) <= time_ns)
        };
        let late: Vec<_> = self
            .threads
            .iter()
            .filter(|(_, thread)| late(thread))
            .collect();
        let late: Vec<_> = late.into_iter().map(|(tid, _)| *tid).collect();
        late.into_iter()
            .flat_map(|tid| self.finish_thread(tid, time_ns))
            .collect()
    }

    /// Removes a thread, and returns the rows of its exit, which was at `time_ns` if it is not
    /// known.
    fn finish_thread(&mut self, tid: Tid, time_ns: Nanos) -> Vec<CountRow> {
        let Some(thread) = self.threads.remove(&tid) else {
            return Vec::new();
        };
        let complete = thread.exit_counts.len() >= self.exit_counts_per_thread
            && !thread.opened
            && !thread.contradictory;
        let own = thread.counters.as_ref().and_then(LiveCounters::values);
        let (values, whole) = match (complete, own) {
            (true, _) => (Some(thread.counted), true),
            (false, own) => (own, thread.opened),
        };
        let whole = whole && values.is_some();
        self.missing_exit_counts += u64::from(!whole);
        let time_ns = thread.exit_ns.unwrap_or(time_ns);
        let mut row = CountRow::of_thread(time_ns, thread.pid, tid, RowKind::LwpExit, values);
        row.incomplete = !whole;
        let mut rows = Vec::new();
        let process = self.processes.get_mut(&thread.pid);
        if let Some(process) = process {
            process.threads.remove(&tid);
            process.incomplete |= !whole;
            for values in [&mut process.total, &mut self.exited_total] {
                add(values, row.values.as_deref().unwrap_or_default());
            }
            rows.push(row);
            if process.threads.is_empty()
                && let Some(process) = self.processes.remove(&thread.pid)
            {
                let pid = thread.pid;
                let mut row = CountRow::of_thread(
                    time_ns,
                    pid,
                    pid.leader(),
                    RowKind::Exit,
                    Some(process.total),
                );
                row.incomplete = process.incomplete;
                rows.push(row);
            }
        }
        rows
    }

    /// Returns a row for each running thread with counters: what it counted since its last tick.
    pub fn tick(&mut self, now: impl Fn() -> Nanos) -> Vec<CountRow> {
        let mut rows = Vec::new();
        for (tid, thread) in &mut self.threads {
            let Some(own) = thread
                .counters
                .as_ref()
                .filter(|_| thread.exit_ns.is_none())
            else {
                continue;
            };
            let time_ns = now();
            let Some(values) = own.values() else {
                continue;
            };
            let pairs = values.iter().zip(&thread.at_last_tick);
            let since = pairs.map(|(now, then)| now.minus(*then)).collect();
            thread.at_last_tick = values;
            rows.push(CountRow::of_thread(
                time_ns,
                thread.pid,
                *tid,
                RowKind::Tick,
                Some(since),
            ));
        }
        rows
    }

    /// Returns the sum of all rows: of exited threads, and of running ones up to their last tick.
    #[must_use]
    pub fn counts_in_rows(&self) -> Vec<CounterValue> {
        let mut sum = self.exited_total.clone();
        for thread in self.threads.values() {
            add(&mut sum, &thread.at_last_tick);
        }
        sum
    }
}

fn add(sum: &mut [CounterValue], values: &[CounterValue]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum = sum.plus(*value);
    }
}

#[cfg(test)]
mod tests;
