//! Threads that the kernel makes in a process (`iou-sqp-…`, `iou-wrk-…`) never run user code: they
//! have their time, and no stack of theirs counts as incomplete.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::command::run;
use tests::experiment::followed::Followed;
use tests::experiment::summary::{RunSummary, complete};
use tests::experiment::threads;
use tests::kcollect::{command, record};
use tests::machine::{Shared, io_uring};
use tests::workload;

const LIMIT: Duration = Duration::from_secs(60);
/// How long the threads of io_uring are busy.
const MILLIS: u64 = 2000;

#[test]
fn root_the_kernels_threads_of_a_process_are_not_incomplete() -> Result<()> {
    let _machine = Shared::take()?;
    io_uring()?;
    let load = [workload!("uring_threads"), &MILLIS.to_string()];
    let recorded = record(&["-p", "hi", "-F", "load"], &load, LIMIT)?;
    let summary = RunSummary::of(&recorded.experiment()?)?;
    let followed = Followed::read(&recorded)?;
    let pid = *followed.pids().first().context("none is followed")?;
    let (process, _) = summary.followed()?.one(&followed.founder, pid)?;
    let ends = &process.user_stacks;
    let of = |end: &str| ends.get(end).copied().unwrap_or_default();
    // The thread that polls, and at least one worker: as long as they were on a CPU.
    let interval_s = summary.interval_us / 1e6;
    let workers_s = of("user_workers") as f64 * interval_s;
    let mut lines = threads::lines(&recorded.experiment()?)?;
    lines.retain(|line| line.name.starts_with("iou-"));
    let last: HashMap<_, _> = lines
        .iter()
        .map(|line| (line.tid, line.of("cpu")))
        .collect();
    let cpu_s = last.values().sum::<u64>() as f64 / 1e9;
    ensure!(
        last.len() >= 2 && cpu_s > 0.25 * MILLIS as f64 / 1e3,
        "{cpu_s} s of CPU of {} threads",
        last.len()
    );
    ensure!(
        workers_s > 0.9 * cpu_s,
        "{workers_s} s of the kernel's threads, {cpu_s} s of CPU: {ends:?}"
    );
    ensure!(
        complete(ends) >= 0.98 && of("missing") * 50 <= of("complete"),
        "{ends:?}"
    );
    // No stack of theirs says that something is missing.
    let mut report = command(["report".as_ref(), followed.founder.as_os_str()])?;
    let views = ["functions", "-m", "i.total:name", "-n", "1000", "--json"];
    let text = run(
        report.args(["--process", "uring_threads"]).args(views),
        LIMIT,
    )?
    .succeeded()?
    .stdout;
    let table: Value = serde_json::from_str(&text)?;
    let rows = table["rows"].as_array().context("no rows")?;
    let seconds = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["i.total"].as_f64())
    };
    let total = seconds("<Total>").with_context(|| format!("no total: {table}"))?;
    let failed = seconds("<Stack-unwind-failed>").unwrap_or(0.0);
    ensure!(
        total > 2.5 * MILLIS as f64 / 1e3 && failed < 0.02 * total,
        "{failed} s without callers, of {total} s"
    );
    Ok(())
}
