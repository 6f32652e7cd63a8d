//! Events that are counted on a kernel: a program that causes a known number of them is recorded
//! with each, where it was caused.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tests::gprofng::script;
use tests::kcollect::sub_experiment;

use crate::runs::{CALLS, PAGES};

/// A counter in `kcollect.json`.
#[derive(Debug, Deserialize)]
struct Counter {
    name: String,
    events: u64,
    recorded: u64,
    lost: u64,
    unreported: u64,
}

#[derive(Debug, Deserialize)]
struct Summary {
    counters: Vec<Counter>,
}

/// Judges an experiment of the program.
pub(crate) fn judge(founder: &Path) -> Result<()> {
    let text = fs::read_to_string(founder.join("kcollect.json"))?;
    let summary: Summary = serde_json::from_str(&text)?;
    ensure!(summary.counters.len() == 2, "{summary:?}");
    let own = sub_experiment(founder, "_overflowing_PID_")?;
    for (counter, leaf, times) in [
        ("page-faults", "touch", PAGES),
        ("syscalls:sys_enter_getppid", "ask", CALLS),
    ] {
        let found = summary.counters.iter().find(|found| found.name == counter);
        let found = found.with_context(|| format!("no {counter} in {summary:?}"))?;
        ensure!(
            found.lost == 0 && found.recorded + found.unreported == found.events,
            "{found:?}"
        );
        let metric = counter.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        let founders = functions(founder, &format!("K_{metric}"), "<Total>")?;
        ensure!(founders == found.recorded, "{founders} of {found:?}");
        // On one path as many, on the other three times as many; code is faulted in once, and a few
        // stacks may end early.
        let (there, times) = (functions(&own, &metric, leaf)?, 4 * times.parse::<u64>()?);
        ensure!(
            (times - times / 100..times + 4).contains(&there),
            "{counter}: {there} of {times} in {leaf}"
        );
    }
    Ok(())
}

/// Returns the events of a function and of all that it calls, by stock gprofng.
fn functions(experiment: &Path, metric: &str, name: &str) -> Result<u64> {
    let metrics = format!("metrics i+{metric}:name");
    let table = script(&[&metrics, "functions"], experiment)?
        .content()?
        .table(1);
    let row = table
        .find(name)
        .with_context(|| format!("no {name} in {table:?}"))?;
    Ok(row.values[0] as u64)
}
