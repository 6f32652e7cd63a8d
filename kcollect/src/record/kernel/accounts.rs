//! Where time went, summed while it is recorded: by thread while it lives, by process, by kernel
//! stack, and of the whole machine.
//!
//! Kept so that the summary is there the moment the run ends, however long it was. Bounded: of
//! processes that came and went by the thousand the smallest are merged into one row, and how many
//! is said.

use std::cmp::Reverse;
use std::collections::HashMap;

use bpf::ThreadTimes;
use experiment_format::microstate::Microstate;
use experiment_format::stacks::StackUid;
use user_collector::process::ProcessInstance;

use super::times::{Ticks, Times};
use crate::plan::Target;

/// Rows of processes beyond which the small ones are merged.
const MAX_PROCESS_ROWS: usize = 16_384;

/// What one process did, all its threads together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTimes {
    /// The process; 0 for work of interrupts on idle CPUs.
    pub pid: u32,
    /// Its last name, safe to print.
    pub name: String,
    /// Threads whose accounts are in it.
    pub threads: u64,
    /// The sum of theirs.
    pub times: Times,
}

/// The thread and process that some time belongs to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The process.
    pub instance: ProcessInstance,
    /// The thread.
    pub tid: u32,
    /// The process's present name, safe to print.
    pub name: String,
}

/// A kernel stack with its ticks; leaf first, callers as they are in the experiment.
#[derive(Debug)]
pub struct StackTicks {
    /// Its number in the experiment.
    pub uid: StackUid,
    /// Its ticks on a CPU.
    pub ticks: u64,
    /// Ticks of threads that were away from the CPUs in it, by state.
    pub away: [u64; Microstate::PER_THREAD],
}

impl StackTicks {
    /// A stack without a tick yet.
    #[must_use]
    pub fn new(uid: StackUid) -> StackTicks {
        StackTicks {
            uid,
            ticks: 0,
            away: [0; Microstate::PER_THREAD],
        }
    }
}

/// The sums.
#[derive(Debug, Default)]
pub struct Accounts {
    processes: HashMap<ProcessInstance, ProcessTimes>,
    merged: ProcessTimes,
    merged_processes: u64,
    /// Threads that live, as they were told of last, by what tells them apart.
    living: HashMap<u64, ThreadTimes>,
    /// The ticks on a CPU of threads that live, by tid.
    ticks: HashMap<u32, Ticks>,
    ended: Times,
    /// Kernel stacks by their frames; truncated ones end in a frame of all ones.
    pub stacks: HashMap<Box<[u64]>, StackTicks>,
    /// The processes and threads of `-T`, in their order, told apart from the start.
    pub targets: Vec<(Target, ProcessTimes)>,
}

impl Accounts {
    /// Nothing yet, but who is to be told apart.
    #[must_use]
    pub fn new(targets: &[Target]) -> Accounts {
        let times = |target: &Target| ProcessTimes {
            pid: target.pid,
            ..ProcessTimes::default()
        };
        Accounts {
            targets: targets
                .iter()
                .map(|target| (*target, times(target)))
                .collect(),
            ..Accounts::default()
        }
    }

    /// Adds ticks on a CPU.
    pub fn tick(&mut self, owner: Owner, state: Microstate, ticks: u64) {
        let ticks = Ticks::of(state, ticks);
        if owner.instance.pid() != 0 {
            self.ticks.entry(owner.tid).or_default().add(&ticks);
        }
        let times = Times {
            ticks,
            ..Times::default()
        };
        self.add(owner, 0, &times);
    }

    /// A thread lives on, and has done this until now.
    pub fn lives(&mut self, thread: ThreadTimes) {
        self.living.insert(thread.task, thread);
    }

    /// A thread has ended. Gives its times, ticks included.
    pub fn ends(&mut self, owner: Owner, thread: &ThreadTimes) -> Times {
        self.living.remove(&thread.task);
        let ticks = self.ticks.remove(&thread.head.tid).unwrap_or_default();
        let times = Times::of(thread, ticks);
        self.ended.add(&times);
        // Its ticks are in the process's sum already.
        let exact = Times::of(thread, Ticks::default());
        self.add(owner, 1, &exact);
        times
    }

    /// The threads that live, with their times, as they were told of last.
    pub fn living(&self) -> impl Iterator<Item = (&ThreadTimes, Times)> {
        self.living.values().map(|thread| {
            let ticks = self.ticks.get(&thread.head.tid);
            (
                thread,
                Times::of(thread, ticks.copied().unwrap_or_default()),
            )
        })
    }

    /// What the processes have done until now, and how many threads of each live;
    /// `instance` returns the process that has a number now. Small ones may be missing.
    #[must_use]
    pub fn processes_now(
        &self,
        instance: impl Fn(u32) -> ProcessInstance,
    ) -> HashMap<ProcessInstance, (Times, usize)> {
        let ended = self.processes.iter();
        let mut sums: HashMap<_, _> = ended.map(|(key, row)| (*key, (row.times, 0))).collect();
        for thread in self.living.values() {
            let pid = thread.head.pid;
            let (times, living) = sums.entry(instance(pid)).or_default();
            // Its ticks are in the process's sum already.
            times.add(&Times::of(thread, Ticks::default()));
            *living += 1;
        }
        sums
    }

    /// All threads, those that ended and those that live, and how many live.
    #[must_use]
    pub fn system(&self) -> (Times, usize) {
        let mut sum = self.ended;
        self.living().for_each(|(_, times)| sum.add(&times));
        (sum, self.living.len())
    }

    /// To the process that a thread belongs to, under its present name, and to the targets that are
    /// either.
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
        if self.processes.len() >= MAX_PROCESS_ROWS && !self.processes.contains_key(&instance) {
            self.merge_smaller_half();
        }
        self.processes
            .entry(instance)
            .or_insert_with(|| ProcessTimes {
                pid: instance.pid(),
                ..Default::default()
            })
    }

    /// All rows, those with most time awake first; the last may stand for many merged processes.
    #[must_use]
    pub fn by_process(&self) -> Vec<ProcessTimes> {
        let mut rows: Vec<_> = self.processes.values().cloned().collect();
        rows.sort_by_key(|row| (Reverse((row.times.awake(), row.times.ticks.sum())), row.pid));
        if self.merged_processes > 0 {
            rows.push(ProcessTimes {
                name: format!("({} small processes)", self.merged_processes),
                ..self.merged.clone()
            });
        }
        rows
    }

    fn merge_smaller_half(&mut self) {
        let size = |row: &ProcessTimes| (row.times.awake(), row.times.ticks.sum());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: u32, serial: u64) -> Owner {
        Owner {
            instance: ProcessInstance::new(pid, serial),
            tid: pid,
            name: "x".into(),
        }
    }

    #[test]
    fn rows_are_by_process_not_by_pid() {
        let mut accounts = Accounts::default();
        accounts.tick(owner(7, 1), Microstate::User, 3);
        accounts.tick(owner(7, 2), Microstate::System, 5);
        accounts.tick(owner(7, 1), Microstate::User, 1);
        let rows = accounts.by_process();
        let ticks = rows.iter().map(|row| row.times.ticks);
        assert_eq!(
            ticks
                .map(|ticks| (ticks.user, ticks.kernel))
                .collect::<Vec<_>>(),
            [(0, 5), (4, 0)]
        );
    }

    #[test]
    fn a_thread_counts_once_whether_it_lives_or_has_ended() {
        let mut accounts = Accounts::default();
        let mut thread = ThreadTimes {
            task: 9,
            lived: 10,
            ..ThreadTimes::default()
        };
        thread.head.tid = 7;
        thread.ns[0] = 10;
        accounts.tick(owner(7, 1), Microstate::User, 3);
        accounts.lives(thread);
        accounts.lives(ThreadTimes {
            lived: 20,
            ..thread
        });
        assert_eq!(accounts.system().1, 1);
        assert_eq!(accounts.system().0.lived, 20);
        thread.lived = 30;
        let times = accounts.ends(owner(7, 1), &thread);
        assert_eq!((times.lived, times.ticks.user), (30, 3));
        let (system, living) = accounts.system();
        assert_eq!((system, living), (times, 0));
        let rows = accounts.by_process();
        assert_eq!((rows[0].times, rows[0].threads), (times, 1));
    }

    #[test]
    fn merging_bounds_the_rows_and_keeps_the_sum() {
        let mut accounts = Accounts::default();
        for pid in 0..100_000 {
            let ticks = 1 + u64::from(pid % 100 == 0) * 50;
            accounts.tick(owner(pid, 1), Microstate::User, ticks);
        }
        let rows = accounts.by_process();
        assert!(rows.len() <= MAX_PROCESS_ROWS + 1);
        assert_eq!(
            rows.iter().map(|row| row.times.ticks.sum()).sum::<u64>(),
            100_000 + 1000 * 50
        );
        assert!(rows.last().unwrap().name.ends_with("small processes)"));
    }
}
