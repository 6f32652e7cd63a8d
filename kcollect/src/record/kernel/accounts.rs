//! Sums of times and ticks during the recording: by thread until it exits, by process, and for the
//! whole machine.
//!
//! They are added up as events arrive, so that the summary needs no second pass over a long run.
//! The number of rows is bounded: the smallest processes are merged into one row, which states
//! their number.

use std::cmp::Reverse;
use std::collections::HashSet;

use bpf_abi::{RecordHeader, ThreadRecord};
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::units::Ticks;
use rustc_hash::FxHashMap;
use user_collector::process::ProcessInstance;

use super::shown_names::shown_name;
use super::times::{OnCpuTicks, Times};
use crate::plan::Target;
use crate::record::activity::TypedHeader;
use crate::record::processes::{Process, instance_of};

/// Number of process rows at which the smaller half is merged, without a limit (`-L`).
const MAX_PROCESS_ROWS: usize = 16_384;
/// With a limit, one row is kept per this many bytes of the limit: four times what a row takes in
/// `kcollect.json`.
const LIMIT_OF_ROW_BYTES: u64 = 4 << 10;
/// Min number of process rows at which the smaller half is merged, however low the limit is.
const MIN_PROCESS_ROWS: usize = 64;
/// How much the offset between the scheduler's clock and CLOCK_MONOTONIC may change while the
/// accounts of all threads are closed, nanoseconds.
const MAX_CLOCK_CHANGE_NS: u64 = 1_000_000;

/// The times of one process, all its threads together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTimes {
    /// The process; 0 for interrupts on idle CPUs.
    pub pid: Pid,
    /// Its last name, safe to print.
    pub name: String,
    /// Number of threads whose exact times are included.
    pub threads: u64,
    /// The sum over its threads.
    pub times: Times,
}

/// The thread and process that times are added to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The process.
    pub instance: ProcessInstance,
    /// The thread.
    pub tid: Tid,
    /// The process's current name, safe to print.
    pub name: String,
}

impl Owner {
    /// Returns the owner of what a thread of a process did.
    #[must_use]
    pub fn of(process: Option<&Process>, header: &RecordHeader) -> Owner {
        let name = process.and_then(|process| process.name.as_deref());
        Owner {
            instance: instance_of(process, header.pid()),
            tid: header.tid(),
            name: shown_name(header.pid(), name),
        }
    }
}

/// A task of the kernel, by a number that no other living thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(u64);

impl TaskId {
    /// Returns the task of a record.
    #[must_use]
    pub fn of(thread: &ThreadRecord) -> TaskId {
        TaskId(thread.task)
    }
}

/// The last records of threads that had not exited, by their tasks.
pub type LivingThreads = FxHashMap<TaskId, ThreadRecord>;

/// The sums of an experiment.
#[derive(Debug, Default)]
pub struct Accounts {
    processes: FxHashMap<ProcessInstance, ProcessTimes>,
    max_rows: usize,
    merged: ProcessTimes,
    merged_processes: u64,
    /// The latest record of each thread that has not exited, by their tasks.
    living: LivingThreads,
    /// The same at the beginning of these sums; another experiment has the times until then.
    before: LivingThreads,
    /// On-CPU ticks of the threads that have not exited, by tid.
    ticks: FxHashMap<Tid, OnCpuTicks>,
    /// The sum of all threads that have exited, or were closed when the recording stopped.
    exited: Times,
    /// The processes and threads of `-T`, in the order of the command line. Their times are kept
    /// separately from the start, so that merging does not affect them.
    pub targets: Vec<(Target, ProcessTimes)>,
}

impl Accounts {
    /// Returns empty sums, with a separate row for each target. `limit` is how many bytes are to be
    /// written. What threads did until the records `before` is not added.
    #[must_use]
    pub fn new(targets: &[Target], limit: Option<u64>, before: LivingThreads) -> Accounts {
        let times = |target: &Target| ProcessTimes {
            pid: target.pid,
            ..ProcessTimes::default()
        };
        Accounts {
            targets: targets
                .iter()
                .map(|target| (*target, times(target)))
                .collect(),
            max_rows: max_rows(limit),
            before,
            ..Accounts::default()
        }
    }

    /// Adds on-CPU ticks.
    pub fn tick(&mut self, owner: Owner, state: Microstate, ticks: Ticks) {
        let ticks = OnCpuTicks::of(state, ticks);
        if owner.instance.pid() != Pid(0) {
            self.ticks.entry(owner.tid).or_default().add(&ticks);
        }
        let times = Times {
            ticks,
            ..Times::default()
        };
        self.add(owner, 0, &times);
    }

    /// Stores the latest record of a thread that has not exited.
    pub fn update_living(&mut self, thread: ThreadRecord) {
        self.living.insert(TaskId::of(&thread), thread);
    }

    /// Adds a thread's last record to the sums. Returns its times, ticks included.
    pub fn add_exited(&mut self, owner: Owner, thread: &ThreadRecord) -> Times {
        self.living.remove(&TaskId::of(thread));
        let ticks = self.ticks.remove(&thread.header.tid()).unwrap_or_default();
        let times = self.times_of(thread, ticks);
        self.exited.add(&times);
        // The process's sum has the thread's ticks already.
        let exact = self.times_of(thread, OnCpuTicks::default());
        self.before.remove(&TaskId::of(thread));
        self.add(owner, 1, &exact);
        times
    }

    /// Returns the times of a thread in these sums.
    fn times_of(&self, thread: &ThreadRecord, ticks: OnCpuTicks) -> Times {
        let times = Times::of(thread, ticks);
        // Another thread may have the number, if this one's last record was lost.
        let same = |before: &&ThreadRecord| {
            before.header.tid == thread.header.tid && before.tracked_ns <= thread.tracked_ns
        };
        match self.before.get(&TaskId::of(thread)).filter(same) {
            Some(before) => times.since(&Times::of(before, OnCpuTicks::default())),
            None => times,
        }
    }

    /// Ends the sums. The next experiment's sums begin with what this returns.
    #[must_use]
    pub fn take_living(&mut self) -> LivingThreads {
        std::mem::take(&mut self.living)
    }

    /// Returns the latest record and times of each thread that has not exited.
    pub fn living(&self) -> impl Iterator<Item = (&ThreadRecord, Times)> {
        self.living.values().map(|thread| {
            let ticks = self.ticks.get(&thread.header.tid());
            let ticks = ticks.copied().unwrap_or_default();
            (thread, self.times_of(thread, ticks))
        })
    }

    /// Returns the threads without a last record, once all other threads have theirs. The kernel
    /// had already removed them from its list of threads, and they have not left their CPU for the
    /// last time.
    pub fn unclosed(&self) -> impl Iterator<Item = &ThreadRecord> {
        let until = self.living.values().map(|thread| thread.as_of_ns).max();
        let until = until.unwrap_or_default();
        let unclosed = move |thread: &&ThreadRecord| thread.as_of_ns + MAX_CLOCK_CHANGE_NS < until;
        self.living.values().filter(unclosed)
    }

    /// Returns the processes that have threads.
    #[must_use]
    pub fn living_processes(&self) -> HashSet<Pid> {
        let living = self.living.values();
        living.map(|thread| thread.header.pid()).collect()
    }

    /// The times of some processes until now, and how many threads of each are alive. `instance`
    /// returns the process that has a pid now. Processes whose rows were merged are missing.
    #[must_use]
    pub fn of_processes(
        &self,
        processes: impl Iterator<Item = ProcessInstance>,
        instance: impl Fn(Pid) -> ProcessInstance,
    ) -> FxHashMap<ProcessInstance, (Times, usize)> {
        let row = |key: &ProcessInstance| self.processes.get(key);
        let times = |key| (key, (row(&key).map(|row| row.times).unwrap_or_default(), 0));
        let mut sums: FxHashMap<_, _> = processes.map(times).collect();
        for thread in self.living.values() {
            if let Some((times, living)) = sums.get_mut(&instance(thread.header.pid())) {
                // The process's sum has the thread's ticks already.
                times.add(&self.times_of(thread, OnCpuTicks::default()));
                *living += 1;
            }
        }
        sums.retain(|key, (_, living)| *living > 0 || row(key).is_some());
        sums
    }

    /// Returns the times of all threads, exited ones included, and the number of those that have
    /// not exited.
    #[must_use]
    pub fn system(&self) -> (Times, usize) {
        let mut sum = self.exited;
        self.living().for_each(|(_, times)| sum.add(&times));
        (sum, self.living.len())
    }

    /// Adds times to the thread's process, under its current name, and to each target that is this
    /// process or thread.
    fn add(&mut self, owner: Owner, threads: u64, times: &Times) {
        for (target, row) in &mut self.targets {
            if target.pid == owner.instance.pid()
                && target.tid.is_none_or(|wanted| wanted == owner.tid)
            {
                row.name.clone_from(&owner.name);
                row.threads += threads;
                row.times.add(times);
            }
        }
        let row = self.process(owner.instance);
        row.name = owner.name;
        row.threads += threads;
        row.times.add(times);
    }

    fn process(&mut self, instance: ProcessInstance) -> &mut ProcessTimes {
        if self.processes.len() >= self.max_rows && !self.processes.contains_key(&instance) {
            self.merge_smaller_half();
        }
        self.processes
            .entry(instance)
            .or_insert_with(|| ProcessTimes {
                pid: instance.pid(),
                ..Default::default()
            })
    }

    /// Returns how many processes have no row of their own, because there were too many.
    #[must_use]
    pub fn merged_processes(&self) -> u64 {
        self.merged_processes
    }

    /// Returns all rows, the busiest first. The last one may be the sum of many
    /// merged processes.
    #[must_use]
    pub fn by_process(&self) -> Vec<ProcessTimes> {
        let mut rows: Vec<_> = self.processes.values().cloned().collect();
        rows.sort_by_key(|row| {
            (
                Reverse((row.times.busy_ns(), row.times.ticks.sum())),
                row.pid,
            )
        });
        if self.merged_processes > 0 {
            rows.push(ProcessTimes {
                name: format!("({} small processes)", self.merged_processes),
                ..self.merged.clone()
            });
        }
        rows
    }

    fn merge_smaller_half(&mut self) {
        let size = |row: &ProcessTimes| (row.times.busy_ns(), row.times.ticks.sum());
        let mut sizes: Vec<_> = self.processes.values().map(size).collect();
        let middle = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable(middle);
        let median = *median;
        let (merged, count) = (&mut self.merged, &mut self.merged_processes);
        self.processes.retain(|_, row| {
            let kept = size(row) > median;
            if !kept {
                merged.threads += row.threads;
                merged.times.add(&row.times);
                *count += 1;
            }
            kept
        });
    }
}

/// Returns the number of process rows at which the smaller half is merged.
fn max_rows(limit: Option<u64>) -> usize {
    let rows = limit.map_or(usize::MAX, |limit| (limit / LIMIT_OF_ROW_BYTES) as usize);
    rows.clamp(MIN_PROCESS_ROWS, MAX_PROCESS_ROWS)
}

#[cfg(test)]
mod tests {
    use experiment_format::units::Nanos;

    use super::*;

    fn owner(pid: Pid, instance: u64) -> Owner {
        Owner {
            instance: ProcessInstance::new(pid, instance),
            tid: pid.leader(),
            name: "x".into(),
        }
    }

    #[test]
    fn rows_are_by_process_not_by_pid() {
        let mut accounts = Accounts::new(&[], None, LivingThreads::default());
        accounts.tick(owner(Pid(7), 1), Microstate::User, Ticks(3));
        accounts.tick(owner(Pid(7), 2), Microstate::System, Ticks(5));
        accounts.tick(owner(Pid(7), 1), Microstate::User, Ticks(1));
        let rows = accounts.by_process();
        let ticks = rows.iter().map(|row| row.times.ticks);
        assert_eq!(
            ticks
                .map(|ticks| (ticks.user, ticks.kernel))
                .collect::<Vec<_>>(),
            [(Ticks::ZERO, Ticks(5)), (Ticks(4), Ticks::ZERO)]
        );
    }

    #[test]
    fn a_thread_counts_once_before_and_after_its_exit() {
        let mut accounts = Accounts::new(&[], None, LivingThreads::default());
        let mut thread = ThreadRecord {
            task: 9,
            tracked_ns: 10,
            ..ThreadRecord::default()
        };
        thread.header.tid = 7;
        thread.ns[0] = 10;
        accounts.tick(owner(Pid(7), 1), Microstate::User, Ticks(3));
        accounts.update_living(thread);
        accounts.update_living(ThreadRecord {
            tracked_ns: 20,
            ..thread
        });
        assert_eq!(accounts.system().1, 1);
        assert_eq!(accounts.system().0.tracked_ns, Nanos(20));
        thread.tracked_ns = 30;
        let times = accounts.add_exited(owner(Pid(7), 1), &thread);
        assert_eq!((times.tracked_ns, times.ticks.user), (Nanos(30), Ticks(3)));
        let (system, living) = accounts.system();
        assert_eq!((system, living), (times, 0));
        let rows = accounts.by_process();
        assert_eq!((rows[0].times, rows[0].threads), (times, 1));
    }

    #[test]
    fn a_thread_whose_last_record_is_missing_is_unclosed() {
        let mut accounts = Accounts::new(&[], None, LivingThreads::default());
        let thread = |task, as_of_ns| ThreadRecord {
            task,
            as_of_ns,
            ..ThreadRecord::default()
        };
        const END_NS: u64 = 5_000_000_000;
        assert_eq!(accounts.unclosed().count(), 0);
        for task in 1..=3 {
            accounts.update_living(thread(task, 4_000_000_000));
        }
        // Between two samples that is so for all.
        assert_eq!(accounts.unclosed().count(), 0);
        accounts.update_living(thread(1, END_NS));
        accounts.update_living(thread(2, END_NS - 500));
        assert_eq!(accounts.unclosed().count(), 1);
        accounts.add_exited(owner(Pid(3), 1), &thread(3, END_NS));
        assert_eq!(accounts.unclosed().count(), 0);
    }

    #[test]
    fn processes_have_the_times_of_their_threads_until_now() {
        let mut accounts = Accounts::new(&[], None, LivingThreads::default());
        for (pid, task) in [(7, 1), (7, 2), (8, 3), (9, 4)] {
            let mut thread = ThreadRecord {
                task,
                tracked_ns: 10 * task,
                ..ThreadRecord::default()
            };
            (thread.header.pid, thread.header.tid) = (pid, 100 + task as u32);
            match pid {
                8 => drop(accounts.add_exited(owner(Pid(pid), 1), &thread)),
                _ => accounts.update_living(thread),
            }
        }
        let instance = |pid| ProcessInstance::new(pid, 1);
        let wanted = [7, 8, 10].map(|pid| instance(Pid(pid)));
        let sums = accounts.of_processes(wanted.into_iter(), instance);
        let sum = |pid| {
            let sum = sums.get(&instance(Pid(pid)));
            sum.map(|(times, living)| (times.tracked_ns.0, *living))
        };
        assert_eq!(
            [7, 8, 9, 10].map(sum),
            [Some((30, 2)), Some((30, 0)), None, None]
        );
    }

    #[test]
    fn sums_of_the_next_experiment_begin_where_the_last_one_ended() {
        let thread = |tracked_ns| {
            let mut thread = ThreadRecord {
                task: 9,
                tracked_ns,
                ..ThreadRecord::default()
            };
            thread.header.tid = 7;
            thread.ns[3] = tracked_ns;
            thread.counts.read_calls = tracked_ns / 10;
            thread
        };
        let mut first = Accounts::new(&[], None, LivingThreads::default());
        first.update_living(thread(30));
        let living = first.take_living();
        let mut second = Accounts::new(&[], None, living);
        second.tick(owner(Pid(7), 1), Microstate::User, Ticks(3));
        second.update_living(thread(50));
        let now = second.system().0;
        assert_eq!(
            (now.tracked_ns, now.ns[3], now.ticks.user),
            (Nanos(20), Nanos(20), Ticks(3))
        );
        assert_eq!(now.counts.read_calls, 2);
        let times = second.add_exited(owner(Pid(7), 1), &thread(70));
        assert_eq!((times.tracked_ns, times.ticks.user), (Nanos(40), Ticks(3)));
        // Another thread in its place.
        let times = second.add_exited(owner(Pid(7), 1), &thread(10));
        assert_eq!(times.tracked_ns, Nanos(10));
    }

    #[test]
    fn merging_bounds_the_rows_and_keeps_the_sum() {
        let mut accounts = Accounts::new(&[], None, LivingThreads::default());
        for pid in 0..100_000 {
            let ticks = 1 + u64::from(pid % 100 == 0) * 50;
            accounts.tick(owner(Pid(pid), 1), Microstate::User, Ticks(ticks));
        }
        let rows = accounts.by_process();
        assert!(rows.len() <= MAX_PROCESS_ROWS + 1);
        assert_eq!(
            rows.iter().map(|row| row.times.ticks.sum()).sum::<Ticks>(),
            Ticks(100_000 + 1000 * 50)
        );
        assert!(rows.last().unwrap().name.ends_with("small processes)"));
        assert_eq!(max_rows(None), MAX_PROCESS_ROWS);
        assert_eq!(max_rows(Some(0)), MIN_PROCESS_ROWS);
        assert_eq!(max_rows(Some(2 << 20)), 512);
    }
}
