//! The cost and the results of a profiler: measured while it ends, and read from what it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::UsageWho;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Deserialize;
use tests::command::{Finished, POLL_INTERVAL, Running};
use tests::experiment::summary::{complete, off_cpu};
use tests::kcollect::experiment_in;
use tests::oracle::perf_losses::perf_events;

use crate::load::cpu_time;
use crate::setting::Kind;

/// The size of lightswitch's profile without samples is 119 bytes.
const MIN_PROFILE_BYTES: u64 = 500;

/// What a profiler took, from its start to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Took {
    /// CPU time of its process, seconds. The time of its hooks in other processes is not included:
    /// the loads show it.
    pub(crate) cpu_s: Option<f64>,
    /// Peak resident memory of its process, bytes.
    pub(crate) rss: Option<u64>,
    /// The time from Ctrl-C to the first output of its result, or to its end if it prints none.
    pub(crate) answer: Option<Duration>,
    /// What it wrote: an experiment without the copies of programs, `perf.data`, or the text that
    /// it printed.
    pub(crate) bytes: Option<u64>,
    /// Ticks of CPUs in it. perf's samples by time are such.
    pub(crate) ticks: Option<u64>,
    /// What it reports as lost: ticks, threads, events.
    pub(crate) lost: Option<u64>,
    /// The share of ticks on a CPU whose user stack reaches the thread's first function, of those
    /// that can have a user stack, by the profiler's own count.
    pub(crate) complete: Option<f64>,
    pub(crate) own: Option<Own>,
}

/// kcollect's own numbers.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Ticks of threads, on a CPU and away from it.
    pub(crate) thread_ticks: u64,
    /// The number of packets that the ticks of CPUs and threads are in.
    pub(crate) packets: u64,
    pub(crate) cpu_s: f64,
    /// Recorded, but impaired: cut stacks, late events.
    pub(crate) impaired: u64,
    /// The numbers of followed processes, if any were followed.
    pub(crate) followed: Option<Followed>,
}

/// The numbers of followed processes.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    /// The share of complete user stacks of the ticks off the CPU.
    pub(crate) asleep: f64,
    /// Machine code that unwind tables were made for, bytes.
    pub(crate) text: u64,
    /// The size of these tables, bytes.
    pub(crate) tables: u64,
    /// The kernel's memory for the tables of running processes, bytes.
    pub(crate) kernel: u64,
}

impl Took {
    /// Returns what a profiler wrote that has ended with its load.
    pub(crate) fn written_in(directory: &Path) -> Result<Self> {
        Ok(Self {
            bytes: Some(bytes_in(directory)?),
            ..Self::default()
        })
    }

    /// Ends a profiler as Ctrl-C does, and returns its numbers.
    pub(crate) fn of(kind: Kind, mut running: Running, directory: &Path) -> Result<Self> {
        // This is for all reaped children; until the end only this one is reaped.
        let before = cpu_time(UsageWho::RUSAGE_CHILDREN)?;
        let pid = running.pid();
        let mut rss = peak_rss(pid);
        running.signal(Signal::SIGINT)?;
        let (stopped, mut answer) = (Instant::now(), None);
        while !running.ended()? {
            // The peak only grows, and /proc has no value after the process has ended.
            rss = peak_rss(pid).or(rss);
            if answer.is_none() && running.has_printed()? {
                answer = Some(stopped.elapsed());
            }
            running.in_time()?;
            sleep(POLL_INTERVAL);
        }
        let answer = answer.unwrap_or_else(|| stopped.elapsed());
        let finished = running.finish()?;
        let cpu = cpu_time(UsageWho::RUSAGE_CHILDREN)? - before;
        let took = Self {
            cpu_s: Some(cpu.as_secs_f64()),
            rss,
            answer: Some(answer),
            ..Self::default()
        };
        if kind.is_kcollect() {
            RunSummary::read(&experiment_in(directory)?, finished)?.add_to(took)
        } else if matches!(kind, Kind::Offcputime | Kind::Profile) {
            Ok(Self {
                bytes: Some(finished.succeeded()?.stdout.len() as u64),
                ..took
            })
        } else if kind == Kind::Lightswitch {
            let finished = finished.succeeded()?;
            let profile = directory.join("profile.pb").metadata()?.len();
            ensure!(
                profile > MIN_PROFILE_BYTES,
                "its profile of {profile} bytes has no sample: {finished}"
            );
            let said = [finished.stdout, finished.stderr].concat();
            Ok(Self {
                bytes: Some(profile),
                complete: share_after(&said, "stacks successfully unwound: "),
                ..took
            })
        } else {
            // By Ctrl-C it ends with a signal, as it should; that it wrote is what it says last.
            ensure!(finished.stderr.contains("Captured and wrote"), "{finished}");
            let data = directory.join("perf.data");
            let events = perf_events(&data)?;
            Ok(Self {
                bytes: Some(data.metadata()?.len()),
                ticks: (kind != Kind::Sched).then_some(events.recorded),
                lost: Some(events.lost),
                ..took
            })
        }
    }
}

/// Returns the percentage that follows `words`, as a share.
fn share_after(text: &str, words: &str) -> Option<f64> {
    let number = text.split(words).nth(1)?.split('%').next()?;
    Some(number.parse::<f64>().ok()? / 100.0)
}

/// Returns the size of all files below a directory, bytes.
fn bytes_in(directory: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() {
            bytes_in(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(sum)
}

/// Returns the most memory that a process has had resident, bytes.
fn peak_rss(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Losses of what is in the experiment, but impaired. All others are of what is not in it.
const IMPAIRED: [&str; 10] = [
    "unnamed_ticks",
    "truncated_stacks",
    "missing_stacks",
    "late_ticks",
    "late_events",
    "not_held",
    "stale_mapping",
    "unread_mappings",
    "unwritten_mappings",
    "unwritten_functions",
];

/// The part of `kcollect.json` that is read here.
#[derive(Debug, Deserialize)]
struct RunSummary {
    ticks: u64,
    packets: u64,
    // Its name until November 2026, for `--against`.
    #[serde(alias = "arrays")]
    thread_packets: u64,
    /// Not of every kcollect that may be compared.
    #[serde(default)]
    thread_ticks: u64,
    cost: Cost,
    losses: BTreeMap<String, u64>,
    followed: Option<FollowedStats>,
}

#[derive(Debug, Deserialize)]
struct Cost {
    cpu_s: f64,
    bytes_written: u64,
}

#[derive(Debug, Deserialize)]
struct FollowedStats {
    user_stacks: BTreeMap<String, u64>,
    cpu_user_stacks: BTreeMap<String, u64>,
    table_use: TableUse,
    tables: Tables,
    losses: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct TableUse {
    row_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Tables {
    text_bytes: u64,
    table_bytes: u64,
}

impl RunSummary {
    fn read(experiment: &Path, finished: Finished) -> Result<Self> {
        finished.succeeded()?;
        let path = experiment.join("kcollect.json");
        serde_json::from_str(&fs::read_to_string(&path)?)
            .with_context(|| path.display().to_string())
    }

    fn add_to(self, took: Took) -> Result<Took> {
        let of_following = self.followed.as_ref().map(|followed| &followed.losses);
        let losses = || self.losses.iter().chain(of_following.into_iter().flatten());
        let impaired = losses()
            .filter(|(name, _)| IMPAIRED.contains(&name.as_str()))
            .map(|(_, count)| count)
            .sum();
        let lost = losses().map(|(_, count)| count).sum::<u64>() - impaired;
        Ok(Took {
            bytes: Some(self.cost.bytes_written),
            ticks: Some(self.ticks),
            lost: Some(lost),
            complete: self
                .followed
                .as_ref()
                .map(|followed| complete(&followed.cpu_user_stacks)),
            own: Some(Own {
                thread_ticks: self.thread_ticks,
                packets: self.packets + self.thread_packets,
                cpu_s: self.cost.cpu_s,
                impaired,
                followed: self.followed.map(|followed| Followed {
                    asleep: complete(&off_cpu(&followed.user_stacks, &followed.cpu_user_stacks)),
                    text: followed.tables.text_bytes,
                    tables: followed.tables.table_bytes,
                    kernel: followed.table_use.row_bytes,
                }),
            }),
            ..took
        })
    }
}
