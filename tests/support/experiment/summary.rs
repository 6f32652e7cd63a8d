//! kcollect's own account of a run: what `--json` prints and `kcollect.json` in the experiment
//! holds.
//!
//! Only what the checks compare with other witnesses is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use experiment_format::ids::Pid;
use serde::Deserialize;

use crate::experiment::states::Detail;

/// The summary of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct RunSummary {
    /// The clock interval, microseconds.
    pub interval_us: f64,
    /// From the first to the last instant of the run, seconds.
    pub elapsed_s: f64,
    /// Whether the ticks of the idle task are in the experiment (`-x off`).
    #[serde(default)]
    pub idle_recorded: bool,
    /// The statistics of each CPU.
    pub cpus: Vec<CpuStats>,
    /// Parts of the states of all threads.
    #[serde(default)]
    pub detail_s: Detail,
    /// Ticks in the experiment.
    pub ticks: u64,
    /// What is missing or impaired, by cause.
    pub losses: BTreeMap<String, i64>,
    /// The followed processes, where any could be followed.
    followed: Option<FollowedStats>,
}

/// The followed processes.
#[derive(Clone, Debug, Deserialize)]
pub struct FollowedStats {
    /// One by one.
    pub processes: Vec<ProcessStats>,
    /// What was lost.
    pub losses: BTreeMap<String, u64>,
}

/// One followed process.
#[derive(Clone, Debug, Deserialize)]
pub struct ProcessStats {
    /// Its number.
    pub pid: Pid,
    /// The name of its experiment's directory, in the founder's.
    pub experiment: String,
    /// Its rank in a parallel program.
    pub mpi_rank: Option<u32>,
    /// The container that it was in: its `runtime` and `id`.
    pub container: Option<BTreeMap<String, String>>,
    /// Ticks of its threads in the experiment.
    pub ticks: u64,
    /// Ticks by the end of their user stacks, with `via_frame_pointer`, `via_scan` and `missing`.
    pub user_stacks: BTreeMap<String, u64>,
}

/// The account of one CPU, in ticks.
#[derive(Clone, Debug, Deserialize)]
pub struct CpuStats {
    /// Its id.
    pub cpu: usize,
    /// For how long it was recorded, nanoseconds.
    pub recorded_ns: f64,
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub kernel: u64,
    /// In the idle task.
    pub idle: u64,
    /// While the hypervisor ran something else.
    #[serde(default)]
    pub stolen: u64,
    /// Lost, since a ring was full.
    pub lost: u64,
}

/// Losses of ticks or events. All others are of something that is recorded, but impaired.
const LOSSES: [&str; 7] = [
    "ring_full",
    "not_written",
    "unaccounted",
    "sideband",
    "lock_waits",
    "io_calls",
    "blocks",
];

impl RunSummary {
    /// Reads the summary of an experiment.
    ///
    /// # Errors
    /// No summary, or not of this form.
    pub fn of(experiment: &Path) -> Result<Self> {
        let path = experiment.join("kcollect.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a summary that was printed.
    ///
    /// # Errors
    /// When they are not of this form.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the statistics of one CPU.
    ///
    /// # Errors
    /// No statistics of this CPU.
    pub fn cpu(&self, cpu: usize) -> Result<&CpuStats> {
        self.cpus
            .iter()
            .find(|summary| summary.cpu == cpu)
            .with_context(|| format!("no statistics of CPU {cpu}: {self:?}"))
    }

    /// Returns the statistics of the followed processes.
    ///
    /// # Errors
    /// When no process was followed.
    pub fn followed(&self) -> Result<&FollowedStats> {
        self.followed.as_ref().context("no process was followed")
    }

    /// Passes when nothing was lost.
    ///
    /// # Errors
    /// When something was.
    pub fn complete(&self) -> Result<()> {
        self.without(&LOSSES)
    }

    /// Passes when nothing was lost for these causes.
    ///
    /// # Errors
    /// When something was.
    pub fn without(&self, losses: &[&str]) -> Result<()> {
        for loss in losses {
            ensure!(
                self.losses.get(*loss) == Some(&0),
                "{loss} is not 0: {:?}",
                self.losses
            );
        }
        Ok(())
    }
}

impl CpuStats {
    /// Returns the number of ticks of the CPU.
    pub fn ticks(&self) -> u64 {
        self.user + self.kernel + self.idle + self.stolen
    }

    /// Checks that the ticks match the time for which the CPU was recorded, in one or more
    /// stretches: a stretch that begins and ends between two boundaries has one tick more or less,
    /// and boundaries may have moved by half an interval, to where the clock fires
    /// (`bpf/c/grid.h`).
    ///
    /// # Errors
    /// When they are not; the message has both numbers.
    pub fn elapsed(&self, interval_ns: f64, stretches: u32) -> Result<()> {
        let (ticks, intervals) = (self.ticks() as f64, self.recorded_ns / interval_ns);
        ensure!(
            (ticks - intervals).abs() <= 1.5 * f64::from(stretches),
            "{ticks} ticks in a time of {intervals:.2} intervals: {self:?}"
        );
        Ok(())
    }
}

impl FollowedStats {
    /// Returns the processes with a pid: several, if it was reused.
    pub fn all(&self, pid: Pid) -> impl Iterator<Item = &ProcessStats> {
        self.processes
            .iter()
            .filter(move |process| process.pid == pid)
    }

    /// Returns the one process with a pid, and its subexperiment.
    ///
    /// # Errors
    /// No such process, or more than one.
    pub fn one(&self, experiment: &Path, pid: Pid) -> Result<(&ProcessStats, PathBuf)> {
        let found: Vec<_> = self.all(pid).collect();
        match found.as_slice() {
            [one] => Ok((one, experiment.join(&one.experiment))),
            found => bail!("{} followed processes {pid}: {found:?}", found.len()),
        }
    }

    /// Returns the process whose experiment has this name.
    ///
    /// # Errors
    /// No such process.
    pub fn named(&self, experiment: &str) -> Result<&ProcessStats> {
        self.processes
            .iter()
            .find(|process| process.experiment == experiment)
            .with_context(|| format!("{experiment} is not in kcollect.json"))
    }
}

/// Returns the off-CPU ticks by the end of their user stack: all ticks without those on a CPU.
pub fn off_cpu(
    user_stacks: &BTreeMap<String, u64>,
    cpu_user_stacks: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let on_cpu = |end| cpu_user_stacks.get(end).copied().unwrap_or_default();
    user_stacks
        .iter()
        .map(|(end, ticks)| (end.clone(), ticks.saturating_sub(on_cpu(end))))
        .collect()
}

/// Returns the share of ticks with a complete user stack, of those that can have one.
pub fn complete(user_stacks: &BTreeMap<String, u64>) -> f64 {
    let of = |end: &str| user_stacks.get(end).copied().unwrap_or_default();
    let all: u64 = user_stacks
        .iter()
        .filter(|(end, _)| {
            !matches!(
                end.as_str(),
                "via_frame_pointer" | "via_scan" | "exiting" | "executing" | "user_workers"
            )
        })
        .map(|(_, ticks)| ticks)
        .sum();
    if all == 0 {
        return 1.0;
    }
    of("complete") as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_and_losses_are_seen() {
        let text = r#"{"version": "0", "interval_us": 997, "elapsed_s": 2.5, "ticks": 5,
            "cpus": [{"cpu": 1, "recorded_ns": 4985, "user": 1, "kernel": 2, "idle": 2, "lost": 0, "late_ticks": 0}],
            "losses": {"ring_full": 0, "not_written": 0, "unaccounted": 0, "sideband": 0, "lock_waits": 0, "io_calls": 0, "blocks": 0, "unnamed_ticks": 3},
            "followed": {"processes": [{"pid": 7, "experiment": "_a_PID_7.1.er", "ticks": 11, "mpi_rank": 3,
            "user_stacks": {"complete": 9, "depth_limit": 1, "missing": 0, "exiting": 1, "via_frame_pointer": 2}}], "losses": {"dropped_copies": 0}}}"#;
        let mut summary = RunSummary::parse(text).unwrap();
        assert_eq!(summary.cpu(1).unwrap().ticks(), 5);
        assert!(summary.cpu(1).unwrap().elapsed(1000.0, 1).is_ok());
        assert!(summary.cpu(1).unwrap().elapsed(1450.0, 1).is_err());
        assert!(summary.cpu(1).unwrap().elapsed(1450.0, 2).is_ok());
        assert!(summary.cpu(0).is_err());
        summary.complete().unwrap();
        let followed = summary.followed().unwrap();
        let (process, path) = followed.one(Path::new("/x"), Pid(7)).unwrap();
        assert!(path.ends_with("_a_PID_7.1.er") && process.mpi_rank == Some(3));
        assert_eq!(complete(&process.user_stacks), 0.9);
        assert!(followed.one(Path::new("/x"), Pid(8)).is_err() && followed.named("x").is_err());
        assert_eq!(complete(&BTreeMap::new()), 1.0);
        summary.losses.insert("ring_full".into(), 1);
        assert!(summary.complete().is_err());
    }
}
