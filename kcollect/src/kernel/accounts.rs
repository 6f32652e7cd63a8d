//! Where time went, summed while it is recorded: by process, and by kernel stack.
//!
//! Kept so that the summary is there the moment the run ends, however long it was. Bounded: of
//! processes that came and went by the thousand the smallest are merged into one row, and how many
//! is said.

use std::cmp::Reverse;
use std::collections::HashMap;

use experiment_format::microstate::Microstate;
use experiment_format::stacks::StackUid;

use crate::cli::Target;

/// Rows of processes beyond which the small ones are merged.
const MOST_PROCESSES: usize = 16_384;

/// What one process did, all its threads together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTimes {
    /// The process; 0 for work of interrupts on idle CPUs.
    pub pid: u32,
    /// Its last name, safe to print.
    pub name: String,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub kernel: u64,
    /// Of those, ticks in traps: exceptions other than page faults, and interrupts.
    pub trap: u64,
    /// Nanoseconds by state, exact; time on a CPU, in whatever mode, is under user.
    pub ns: [u64; Microstate::PER_THREAD],
    /// Threads whose accounts are in it.
    pub threads: u64,
    /// For how long they were watched, all together, nanoseconds.
    pub lived: u64,
}

impl ProcessTimes {
    /// All ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.user + self.kernel
    }

    /// Nanoseconds by state: the time on a CPU, exact as a whole, split as its ticks are. A process
    /// too short for a tick spent its time being made and ended, in the kernel.
    #[must_use]
    pub fn states(&self) -> [u64; Microstate::PER_THREAD] {
        let [user, system, trap] = [Microstate::User, Microstate::System, Microstate::Trap]
            .map(|state| state.number() as usize);
        let on_cpu = self.ns[user];
        let part = |ticks: u64| match self.ticks() {
            0 => 0,
            all => (u128::from(on_cpu) * u128::from(ticks) / u128::from(all)) as u64,
        };
        let mut states = self.ns;
        states[user] = part(self.user);
        states[trap] = part(self.trap);
        states[system] = on_cpu - states[user] - states[trap];
        states
    }

    /// Nanoseconds neither asleep nor stopped: what makes a process worth a look.
    #[must_use]
    pub fn awake(&self) -> u64 {
        let quiet = [Microstate::Sleep, Microstate::Stopped];
        let quiet = quiet.map(|state| self.ns[state.number() as usize]);
        self.ns.iter().sum::<u64>() - quiet.iter().sum::<u64>()
    }

    /// Adds another process's.
    fn add(&mut self, other: &ProcessTimes) {
        self.user += other.user;
        self.kernel += other.kernel;
        self.trap += other.trap;
        self.threads += other.threads;
        self.lived += other.lived;
        for (sum, ns) in self.ns.iter_mut().zip(other.ns) {
            *sum += ns;
        }
    }
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
    processes: HashMap<(u32, u64), ProcessTimes>,
    merged: ProcessTimes,
    merged_processes: u64,
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

    /// Adds to the process that a thread belongs to, under the process's present name, and to the
    /// targets that are either. `serial` tells two holders of one pid apart.
    pub fn add(&mut self, (pid, serial): (u32, u64), tid: u32, name: String, times: &ProcessTimes) {
        for (target, row) in &mut self.targets {
            if target.pid == pid && target.tid.is_none_or(|wanted| wanted == tid) {
                row.name.clone_from(&name);
                row.add(times);
            }
        }
        let row = self.process(pid, serial);
        row.name = name;
        row.add(times);
    }

    fn process(&mut self, pid: u32, serial: u64) -> &mut ProcessTimes {
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&(pid, serial)) {
            self.merge_smaller_half();
        }
        self.processes
            .entry((pid, serial))
            .or_insert_with(|| ProcessTimes {
                pid,
                ..Default::default()
            })
    }

    /// All rows, those with most time awake first; the last may stand for many merged processes.
    #[must_use]
    pub fn by_process(&self) -> Vec<ProcessTimes> {
        let mut rows: Vec<_> = self.processes.values().cloned().collect();
        rows.sort_by_key(|row| (Reverse((row.awake(), row.ticks())), row.pid));
        if self.merged_processes > 0 {
            rows.push(ProcessTimes {
                name: format!("({} small processes)", self.merged_processes),
                ..self.merged.clone()
            });
        }
        rows
    }

    fn merge_smaller_half(&mut self) {
        let mut sizes: Vec<_> = self.processes.values().map(ProcessTimes::ticks).collect();
        let middle = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable(middle);
        let median = *median;
        let (merged, count) = (&mut self.merged, &mut self.merged_processes);
        self.processes.retain(|_, row| {
            let kept = row.ticks() > median;
            if !kept {
                merged.add(row);
                *count += 1;
            }
            kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_by_process_not_by_pid() {
        let mut accounts = Accounts::default();
        accounts.process(7, 1).user += 3;
        accounts.process(7, 2).kernel += 5;
        accounts.process(7, 1).user += 1;
        let rows = accounts.by_process();
        assert_eq!(
            rows.iter()
                .map(|row| (row.user, row.kernel))
                .collect::<Vec<_>>(),
            [(0, 5), (4, 0)]
        );
    }

    #[test]
    fn the_split_by_ticks_keeps_the_exact_sum() {
        let mut row = ProcessTimes {
            user: 1,
            kernel: 2,
            trap: 1,
            ..ProcessTimes::default()
        };
        row.ns[0] = 1_000_000_001;
        row.ns[7] = 5;
        let states = row.states();
        assert_eq!(states[..3], [333_333_333, 333_333_335, 333_333_333]);
        assert_eq!(states[7], 5);
        row = ProcessTimes {
            ns: row.ns,
            ..ProcessTimes::default()
        };
        assert_eq!(row.states()[..3], [0, 1_000_000_001, 0]);
    }

    #[test]
    fn merging_bounds_the_rows_and_keeps_the_sum() {
        let mut accounts = Accounts::default();
        for pid in 0..100_000 {
            accounts.process(pid, 1).user += 1 + u64::from(pid % 100 == 0) * 50;
        }
        let rows = accounts.by_process();
        assert!(rows.len() <= MOST_PROCESSES + 1);
        assert_eq!(
            rows.iter().map(ProcessTimes::ticks).sum::<u64>(),
            100_000 + 1000 * 50
        );
        assert!(rows.last().unwrap().name.ends_with("small processes)"));
    }
}
