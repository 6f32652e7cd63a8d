//! Ten thousand threads, a thousand processes: all are there, nothing is lost, and the end comes
//! soon.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment::opened::opened;
use tests::experiment::summary::RunSummary;
use tests::kcollect::Recording;
use tests::machine::Exclusive;
use tests::machine::loaded::Loaded;
use tests::workload;

const LIMIT: Duration = Duration::from_secs(90);

/// Maximum time from Ctrl-C to the end.
const MAX_END_TIME: Duration = Duration::from_secs(10);

/// Records many threads or processes; returns the lines of `threads.jsonl` and the summary.
fn many_processes(what: &str, count: usize) -> Result<(Vec<serde_json::Value>, RunSummary)> {
    let _machine = Exclusive::take()?;
    let before = Loaded::now()?;
    let mut load = std::process::Command::new(workload!("many_processes"));
    load.args([what, &count.to_string(), "3"]);
    let mut recording = Recording::start(["-F", "on", "-A", "off"], LIMIT)?;
    recording.until_running()?;
    let mut load = Running::start(&mut load, LIMIT)?;
    load.until_printed()?;
    load.finish()?.succeeded()?;
    let stopped = Instant::now();
    recording.signal(Signal::SIGINT)?;
    let recorded = recording.finish()?.succeeded()?;
    ensure!(
        stopped.elapsed() < MAX_END_TIME,
        "the end took {:?}",
        stopped.elapsed()
    );
    let experiment = recorded.experiment()?;
    opened(&experiment)?;
    let summary = RunSummary::of(&experiment)?;
    summary
        .complete()
        .with_context(|| recorded.finished.to_string())?;
    let text = fs::read_to_string(experiment.join("threads.jsonl"))?;
    // Blank lines separate the samples.
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(serde_json::from_str);
    let lines = lines.collect::<Result<_, _>>()?;
    before.nothing_more()?;
    Ok((lines, summary))
}

/// Returns the numbers under one key in the lines of the load.
fn numbers(lines: &[serde_json::Value], key: &str) -> BTreeSet<u64> {
    lines
        .iter()
        .filter(|line| line["name"].as_str() == Some("many_processes"))
        .filter_map(|line| line[key].as_u64())
        .collect()
}

#[test]
fn root_alone_ten_thousand_threads() -> Result<()> {
    const THREADS: usize = 10_000;
    let (lines, summary) = many_processes("threads", THREADS)?;
    let found = numbers(&lines, "tid").len();
    ensure!(found == THREADS + 1, "{found} threads: {summary:?}");
    Ok(())
}

#[test]
fn root_alone_a_thousand_processes() -> Result<()> {
    const PROCESSES: usize = 1000;
    let (lines, summary) = many_processes("processes", PROCESSES)?;
    let found = numbers(&lines, "pid").len();
    ensure!(found == PROCESSES + 1, "{found} processes");
    let followed = &summary.followed()?.processes;
    let of_load = followed
        .iter()
        .filter(|process| process.experiment.starts_with("_many_processes_PID_"))
        .count();
    eprintln!("{of_load} of them were followed");
    Ok(())
}
