//! A reader and judge of `threads.jsonl`, which has what changed of each thread at every sample.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::{Pid, Tid};
use serde::Deserialize;

/// A line of the file. Its kind follows from the fields that it has.
#[derive(Clone, Debug, Deserialize)]
pub struct ThreadLine {
    /// The process.
    #[serde(default)]
    pub pid: Pid,
    /// The thread.
    #[serde(default)]
    pub tid: Tid,
    /// The thread's name.
    #[serde(default)]
    pub name: String,
    /// The time, nanoseconds since the start.
    #[serde(default)]
    pub at_ns: u64,
    /// Whether it has ended.
    #[serde(default)]
    pub ended: bool,
    /// The state it is in.
    pub state: Option<String>,
    /// The number of a sample.
    pub sample: Option<u64>,
    /// The label of a sample.
    pub label: Option<String>,
    /// The number of threads that exist, at a sample.
    #[serde(default)]
    pub threads: u64,
    /// How many short-lived threads the line sums up.
    pub short_lived: Option<u64>,
    /// Tracked time, nanoseconds.
    pub tracked_ns: u64,
    /// Nanoseconds by state.
    pub states_ns: BTreeMap<String, u64>,
    /// Details of these times, nanoseconds.
    pub detail_ns: BTreeMap<String, u64>,
    /// The kernel's counts.
    pub counts: BTreeMap<String, u64>,
}

/// How far two clocks of the kernel may differ at one instant, nanoseconds.
const MAX_CLOCK_DIFFERENCE_NS: u64 = 20_000;
/// How much faster one clock may go than another: times of threads are the scheduler's, instants
/// are CLOCK_MONOTONIC's, which a time service may slow or speed up by so much.
pub const MAX_CLOCK_DRIFT_SHARE: f64 = 6e-4;
/// How long a thread without a line in a periodic sample may have left the state of its last line,
/// nanoseconds.
const MAX_LEFT_OUT_NS: u64 = 10_000_000;

impl ThreadLine {
    /// Returns the nanoseconds in a state; `cpu` is any mode on a CPU.
    pub fn of(&self, state: &str) -> u64 {
        let of = |state: &str| self.states_ns.get(state).copied().unwrap_or_default();
        match state {
            "cpu" => of("user") + of("system") + of("trap"),
            state => of(state),
        }
    }
}

/// Returns all lines of an experiment.
///
/// # Errors
/// No lines, or one that cannot be read.
pub fn lines(experiment: &Path) -> Result<Vec<ThreadLine>> {
    let path = experiment.join("threads.jsonl");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

/// Compares the lines with each other: the threads' lines add up to the samples' lines, and times
/// never shrink. Returns the samples.
///
/// # Errors
/// A sum differs from its parts; the message names it.
pub fn judge(lines: &[ThreadLine]) -> Result<Vec<&ThreadLine>> {
    const STATES: [&str; 8] = [
        "cpu",
        "textpfault",
        "datapfault",
        "kernelpfault",
        "lock",
        "sleep",
        "wait",
        "stop",
    ];
    let mut living: HashMap<(Pid, Tid), &ThreadLine> = HashMap::new();
    let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
    let mut samples: Vec<&ThreadLine> = Vec::new();
    // Threads with a line since the last sample.
    let mut written: HashSet<(Pid, Tid)> = HashSet::new();
    for line in lines {
        let sum: u64 = line.states_ns.values().sum();
        ensure!(
            sum == line.tracked_ns,
            "the states add up to {sum}: {line:?}"
        );
        let detail = |name: &str| line.detail_ns.get(name).copied().unwrap_or_default();
        ensure!(
            detail("preempted") + detail("throttled") + detail("stolen") <= line.of("wait")
                && detail("block_io") <= line.tracked_ns - line.of("cpu") - line.of("wait"),
            "more of a part than of the whole: {line:?}"
        );
        if line.sample.is_none() {
            if line.ended || line.short_lived.is_some() {
                living.remove(&(line.pid, line.tid));
                written.remove(&(line.pid, line.tid));
                for state in STATES {
                    *ended.entry(state).or_default() += line.of(state);
                }
            } else {
                living.insert((line.pid, line.tid), line);
                written.insert((line.pid, line.tid));
            }
            continue;
        }
        ensure!(line.sample == Some(samples.len() as u64), "{line:?}");
        ensure!(
            line.threads == living.len() as u64,
            "{} live: {line:?}",
            living.len()
        );
        let left_out_ns = match line.label.as_deref() {
            Some("periodic") => (living.len() - written.len()) as u64 * MAX_LEFT_OUT_NS,
            _ => 0,
        };
        written.clear();
        for state in STATES {
            let last = samples.last().map_or(0, |last| last.of(state));
            ensure!(line.of(state) >= last, "{state} shrank to {line:?}");
            let known: u64 = living.values().map(|thread| thread.of(state)).sum();
            // Threads without a line at this sample are where they were.
            let unchanged = living
                .values()
                .filter(|thread| thread.state.as_deref() == Some(state))
                .map(|thread| line.at_ns.saturating_sub(thread.at_ns));
            let (count, since) = unchanged.fold((0, 0), |(count, sum), ns| (count + 1, sum + ns));
            let expected = known + since + ended.get(state).copied().unwrap_or_default();
            let allowed = left_out_ns
                + (count + 1) * MAX_CLOCK_DIFFERENCE_NS
                + (since as f64 * MAX_CLOCK_DRIFT_SHARE) as u64;
            ensure!(
                line.of(state).abs_diff(expected) <= allowed,
                "{state}: {} ns at the sample, {expected} ns by the threads: {line:?}; without a \
                 line then: {:?}",
                line.of(state),
                living
                    .values()
                    .filter(|thread| thread.at_ns < line.at_ns)
                    .collect::<Vec<_>>()
            );
        }
        samples.push(line);
    }
    Ok(samples)
}
