//! The user stacks of a program in its experiments: kcollect's own counts, and where incomplete
//! ones end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use serde::Deserialize;
use tests::experiment::summary::{complete, off_cpu};

/// The part of `kcollect.json` that is read here.
#[derive(Debug, Deserialize)]
struct RunSummary {
    followed: Followed,
}

#[derive(Debug, Deserialize)]
struct Followed {
    processes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
struct Process {
    experiment: String,
    user_stacks: BTreeMap<String, u64>,
    cpu_user_stacks: BTreeMap<String, u64>,
}

/// Ticks by how their user stack ended, and where. All is of ticks on a CPU, unless stated
/// otherwise: they are the harder ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    /// By the name of `kcollect.json`; those with a frame unwound by its frame pointer among them.
    by_end: BTreeMap<String, u64>,
    /// The same of ticks of threads that were off the CPU.
    asleep: BTreeMap<String, u64>,
    /// Ticks by the outermost frame of stacks that failed.
    last: BTreeMap<String, u64>,
}

/// The key of ticks with a frame found by its frame pointer. It is no end: these ticks have an end
/// too.
pub(crate) const VIA_FRAME_POINTER: &str = "via_frame_pointer";
/// The same for a frame found by a scan.
pub(crate) const VIA_SCAN: &str = "via_scan";
const COMPLETE: &str = "complete";
const EXITING: &str = "exiting";
const EXECUTING: &str = "executing";
const USER_WORKERS: &str = "user_workers";

impl Stacks {
    /// Returns the stacks of the processes of these names in an experiment.
    pub(crate) fn of(experiment: &Path, names: &[&str]) -> Result<Stacks> {
        let path = experiment.join("kcollect.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let summary: RunSummary = serde_json::from_str(&text)?;
        let mut stacks = Stacks::default();
        for process in &summary.followed.processes {
            if !name(&process.experiment).is_some_and(|name| names.contains(&name)) {
                continue;
            }
            for (end, ticks) in &process.cpu_user_stacks {
                *stacks.by_end.entry(end.clone()).or_default() += ticks;
            }
            for (end, ticks) in off_cpu(&process.user_stacks, &process.cpu_user_stacks) {
                *stacks.asleep.entry(end).or_default() += ticks;
            }
            stacks.look(&experiment.join(&process.experiment))?;
        }
        Ok(stacks)
    }

    /// Adds where the stacks of an experiment end that failed.
    fn look(&mut self, path: &Path) -> Result<()> {
        let experiment = Experiment::open(path)?;
        let (table, space) = (experiment.stacks()?, experiment.address_space()?);
        let mut archives = experiment.archives();
        let start = experiment.start().tstamp_ns;
        for tick in experiment.ticks()? {
            let tick = tick?;
            let Some(stack) = tick.shared.stack.and_then(|uid| table.get(uid)) else {
                continue;
            };
            let state = Microstate::try_from(tick.state);
            if stack.end != StackEnd::UnwindFailed || !state.is_ok_and(Microstate::in_total_cpu) {
                continue;
            }
            let at_ns = tick.shared.time_ns.saturating_sub(start);
            let place = match stack.frames.last().copied() {
                None => "no frame at all".to_owned(),
                Some(address) => {
                    // A mapped file need not be an ELF file: a memory image is not.
                    let function = archives.function_at(&space, address, at_ns).ok().flatten();
                    let place = space.find(address, at_ns);
                    let name = function.and_then(|function| function.name);
                    match (place, name) {
                        (Some(place), Some(name)) => {
                            format!("{name} ({}+{:#x})", place.object, place.offset)
                        }
                        (Some(place), None) => format!("{}+{:#x}", place.object, place.offset),
                        (None, _) => "memory without a file".to_owned(),
                    }
                }
            };
            *self.last.entry(place).or_default() += u64::from(tick.ticks.unsigned_abs());
        }
        Ok(())
    }

    /// Number of ticks, except ticks of exiting threads, which have no memory any more, and
    /// of threads that never run user code.
    pub(crate) fn ticks(&self) -> u64 {
        ticks(&self.by_end)
    }

    /// Returns the percent of ticks with this end.
    pub(crate) fn percent(&self, end: &str) -> f64 {
        100.0 * self.by_end.get(end).copied().unwrap_or(0) as f64 / (self.ticks() as f64).max(1.0)
    }

    /// Returns the percent of ticks that reach the thread's first function.
    pub(crate) fn complete(&self) -> f64 {
        self.percent(COMPLETE)
    }

    /// Returns the percent of ticks off the CPU that reach the thread's first function, if there
    /// are any.
    pub(crate) fn asleep_complete(&self) -> Option<f64> {
        (ticks(&self.asleep) > 0).then(|| 100.0 * complete(&self.asleep))
    }

    /// Returns the other ends with their ticks, the most frequent first.
    pub(crate) fn others(&self) -> Vec<(&str, u64)> {
        let others = self.by_end.iter().filter(|(end, ticks)| {
            **ticks > 0
                && ![
                    VIA_FRAME_POINTER,
                    VIA_SCAN,
                    EXITING,
                    EXECUTING,
                    USER_WORKERS,
                    COMPLETE,
                ]
                .contains(&end.as_str())
        });
        sorted(others)
    }

    /// Returns where stacks ended that failed, the most frequent first, without those at the depth
    /// limit.
    pub(crate) fn last(&self) -> Vec<(&str, u64)> {
        sorted(self.last.iter())
    }
}

fn ticks(by_end: &BTreeMap<String, u64>) -> u64 {
    let ends = by_end.iter().filter(|(end, _)| {
        ![
            VIA_FRAME_POINTER,
            VIA_SCAN,
            EXITING,
            EXECUTING,
            USER_WORKERS,
        ]
        .contains(&end.as_str())
    });
    ends.map(|(_, ticks)| ticks).sum()
}

fn sorted<'a>(counts: impl Iterator<Item = (&'a String, &'a u64)>) -> Vec<(&'a str, u64)> {
    let mut counts: Vec<_> = counts
        .map(|(what, ticks)| (what.as_str(), *ticks))
        .collect();
    counts.sort_by_key(|(_, ticks)| std::cmp::Reverse(*ticks));
    counts
}

/// Returns the process's name in the name of its experiment.
fn name(experiment: &str) -> Option<&str> {
    Some(experiment.strip_prefix('_')?.rsplit_once("_PID_")?.0)
}
