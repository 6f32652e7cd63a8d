//! Where the CPUs' time went, summed while it is recorded: by process and by kernel stack.
//!
//! Kept so that the summary is there the moment the run ends, however long it was. Bounded: of
//! processes that came and went by the thousand the smallest are merged into one row, and how many
//! is said.

use std::collections::HashMap;

use experiment_format::stacks::StackUid;

use crate::cli::Target;

/// Rows of processes beyond which the small ones are merged.
const MOST_PROCESSES: usize = 16_384;

/// Ticks of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTicks {
    /// The process; 0 for work of interrupts on idle CPUs.
    pub pid: u32,
    /// Its last name, safe to print.
    pub name: String,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub kernel: u64,
}

impl ProcessTicks {
    /// All ticks.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.user + self.kernel
    }
}

/// Ticks of a process or thread that was named with `-T`, told apart from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetTicks {
    /// Which.
    pub target: Target,
    /// Its process's last name, where it had a tick.
    pub name: Option<String>,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub kernel: u64,
}

/// A kernel stack with its ticks; leaf first, callers as they are in the experiment.
#[derive(Debug)]
pub struct StackTicks {
    /// Its number in the experiment.
    pub uid: StackUid,
    /// Its ticks.
    pub ticks: u64,
}

/// The sums.
#[derive(Debug, Default)]
pub struct Accounts {
    processes: HashMap<(u32, u64), ProcessTicks>,
    merged: ProcessTicks,
    merged_processes: u64,
    /// Kernel stacks by their frames; truncated ones end in a frame of all ones.
    pub stacks: HashMap<Box<[u64]>, StackTicks>,
    /// The processes and threads of `-T`, in their order.
    pub targets: Vec<TargetTicks>,
}

impl Accounts {
    /// Nothing yet, but who is to be told apart.
    #[must_use]
    pub fn new(targets: &[Target]) -> Accounts {
        let target = |target: &Target| TargetTicks {
            target: *target,
            name: None,
            user: 0,
            kernel: 0,
        };
        Accounts {
            targets: targets.iter().map(target).collect(),
            ..Accounts::default()
        }
    }

    /// Adds ticks to the targets that they belong to.
    pub fn add_to_targets(&mut self, pid: u32, tid: u32, name: &str, user: u64, kernel: u64) {
        for row in &mut self.targets {
            if row.target.pid == pid && row.target.tid.is_none_or(|wanted| wanted == tid) {
                row.name = Some(name.to_owned());
                row.user += user;
                row.kernel += kernel;
            }
        }
    }

    /// The row of a process: `serial` tells two holders of one pid apart.
    pub fn process(&mut self, pid: u32, serial: u64) -> &mut ProcessTicks {
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&(pid, serial)) {
            self.merge_smaller_half();
        }
        self.processes
            .entry((pid, serial))
            .or_insert_with(|| ProcessTicks {
                pid,
                ..Default::default()
            })
    }

    /// All rows, most ticks first; the last may stand for many merged processes.
    #[must_use]
    pub fn by_process(&self) -> Vec<ProcessTicks> {
        let mut rows: Vec<_> = self.processes.values().cloned().collect();
        rows.sort_by(|a, b| b.ticks().cmp(&a.ticks()).then(a.pid.cmp(&b.pid)));
        if self.merged_processes > 0 {
            rows.push(ProcessTicks {
                name: format!("({} small processes)", self.merged_processes),
                ..self.merged.clone()
            });
        }
        rows
    }

    fn merge_smaller_half(&mut self) {
        let mut sizes: Vec<_> = self.processes.values().map(ProcessTicks::ticks).collect();
        let middle = sizes.len() / 2;
        let (_, median, _) = sizes.select_nth_unstable(middle);
        let median = *median;
        let (merged, count) = (&mut self.merged, &mut self.merged_processes);
        self.processes.retain(|_, row| {
            let kept = row.ticks() > median;
            if !kept {
                merged.user += row.user;
                merged.kernel += row.kernel;
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
    fn merging_bounds_the_rows_and_keeps_the_sum() {
        let mut accounts = Accounts::default();
        for pid in 0..100_000 {
            accounts.process(pid, 1).user += 1 + u64::from(pid % 100 == 0) * 50;
        }
        let rows = accounts.by_process();
        assert!(rows.len() <= MOST_PROCESSES + 1);
        assert_eq!(
            rows.iter().map(ProcessTicks::ticks).sum::<u64>(),
            100_000 + 1000 * 50
        );
        assert!(rows.last().unwrap().name.ends_with("small processes)"));
    }
}
