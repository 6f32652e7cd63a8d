//! A thread that is not the leader of its process calls execve(2) and gets another tid: each thread
//! has the time that it lived, in reports too, whose sums equal the recording's.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use analysis::model::Model;
use analysis::report::views::{TableOptions, View, make};
use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use serde_json::Value;
use tests::command::run;
use tests::experiment::states::States;
use tests::experiment::summary::RunSummary;
use tests::experiment::threads;
use tests::kcollect::{binary, record};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(60);
const EXEC_THREAD: &str = env!("EXEC_THREAD_PROGRAM");
/// How far a thread's reported time may be from its recorded one, seconds: the clocks of two CPUs
/// differ, and a thread that has not exited has the rest of the time in its last state.
const MAX_THREAD_ERROR_S: f64 = 2e-5;

/// Returns the rows of a table, the total first.
fn rows(experiment: &Path, view: View) -> Result<Vec<Value>> {
    let model = Model::load(&[experiment.to_owned()])?;
    let table = make(&model, view, &TableOptions::default())?.json();
    let rows = table["rows"].as_array().context("no rows")?.clone();
    ensure!(rows.first().is_some_and(|row| row["name"] == "<Total>"));
    Ok(rows)
}

fn total_s(row: &Value) -> f64 {
    row["total_s"].as_f64().unwrap_or_default()
}

/// Checks that the tables of threads and of processes add up to what was recorded.
fn reports_conserve_time(experiment: &Path) -> Result<()> {
    let recorded = States::of(experiment)?;
    let all_s: f64 = recorded.processes.iter().map(|row| row.tracked_s).sum();
    let threads: u64 = recorded.processes.iter().map(|row| row.threads).sum();
    let most = MAX_THREAD_ERROR_S * threads as f64;
    for view in [View::Threads, View::Processes] {
        let rows = rows(experiment, view)?;
        let sum: f64 = rows[1..].iter().map(total_s).sum();
        let total = total_s(&rows[0]);
        ensure!(
            (sum - total).abs() < most && (total - all_s).abs() < most,
            "rows of {sum} s, <Total> of {total} s, of {all_s} s that were recorded"
        );
    }
    Ok(())
}

/// Checks that no thread is in a profile for the Firefox Profiler twice.
fn export_has_each_thread_once(experiment: &Path) -> Result<()> {
    let mut export = Command::new(binary()?);
    export.args(["export", "--to", "firefox", "-o", "-"]);
    let output = run(export.arg(experiment), LIMIT)?.succeeded()?.stdout;
    let profile: Value = serde_json::from_str(&output)?;
    let threads = profile["threads"].as_array().context("no threads")?;
    let mut seen = HashSet::new();
    for thread in threads {
        let number = (thread["pid"].to_string(), thread["tid"].to_string());
        ensure!(seen.insert(number.clone()), "{number:?} twice");
    }
    Ok(())
}

#[test]
fn root_a_thread_that_executes_a_program_gets_another_number() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(&["-p", "on", "-F", "load"], &[EXEC_THREAD], LIMIT)?;
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    threads::judge(&threads::lines(&experiment)?)?;
    let printed = &recorded.finished.stdout;
    let events: BTreeMap<&str, u64> = printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(event, number)| Some((event, number.parse().ok()?)))
        .collect();
    let at = |event: &str| events.get(event).copied().context(printed.clone());
    let between =
        |from: &str, to: &str| -> Result<f64> { Ok((at(to)? as f64 - at(from)? as f64) / 1e9) };
    let other = at("other")?;
    let all = rows(&experiment, View::Threads)?;
    let pid = all.iter().find(|row| row["tid"] == other);
    let pid = pid.context("the thread has no row under its first number")?["pid"].clone();
    let of = |tid: &Value| {
        let own = all
            .iter()
            .filter(|row| row["pid"] == pid && row["tid"] == *tid);
        own.map(total_s).collect::<Vec<_>>()
    };
    let own: Vec<f64> = all
        .iter()
        .filter(|row| row["pid"] == pid)
        .map(total_s)
        .collect();
    ensure!(
        own.len() == 4,
        "{own:?}: not two threads, the first one and the program's"
    );

    // Under its first number: until the kernel has ended the others, which is before the new
    // program can read a clock.
    let [lived] = of(&Value::from(other))[..] else {
        anyhow::bail!("not one row of {other}");
    };
    let (least, most) = (
        between("after_other", "exec")?,
        between("before_other", "again")?,
    );
    ensure!(
        (least..most).contains(&lived),
        "{lived} s, not {least} to {most} s"
    );
    // Under the process's number: the first thread, and after it has exited the thread that
    // executed the program. That one has all of its time under one of its numbers; when it gets
    // the second one is up to the scheduler, for it waits until all others have exited.
    let [one, two] = of(&pid)[..] else {
        anyhow::bail!("not two rows of {pid}");
    };
    // The program runs for longer than all that comes before it.
    let (first, next) = (one.min(two), one.max(two));
    let elapsed_s = States::of(&experiment)?.elapsed_s;
    let bounds = between("begin", "exec")?..elapsed_s - between("again", "end")?;
    ensure!(
        bounds.contains(&first),
        "{first} s of the first thread, not {bounds:?} s"
    );
    let bounds = between("after_other", "end")?..elapsed_s - between("begin", "before_other")?;
    ensure!(
        bounds.contains(&(lived + next)),
        "{lived} and {next} s of the thread that executes a program, not {bounds:?} s"
    );

    let states = States::of(&experiment)?;
    let pid = Pid(u32::try_from(pid.as_u64().context("no pid")?)?);
    let process = states.processes.iter().find(|row| row.pid == pid);
    let tracked_s = process.context("no row of the process")?.tracked_s;
    let sum: f64 = own.iter().sum();
    ensure!(
        (tracked_s - sum).abs() < 4.0 * MAX_THREAD_ERROR_S,
        "{tracked_s} s of the process, {sum} s of its threads"
    );
    reports_conserve_time(&experiment)?;
    export_has_each_thread_once(&experiment)
}
