//! Descriptors are short: a recording that has too few says so before it begins, and one that has
//! enough for itself follows every process, however many there are.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::{Finished, Running, run};
use tests::experiment::files_below;
use tests::experiment::opened::opened;
use tests::experiment::summary::RunSummary;
use tests::kcollect::{binary, experiment_in, experiments_in};
use tests::machine::loaded::Loaded;
use tests::machine::{Exclusive, Shared};
use tests::workload;

const LIMIT: Duration = Duration::from_secs(60);
const UNAVAILABLE: i32 = 69;

/// Returns kcollect's command with this limit of descriptors, soft and hard.
fn limited(descriptors: u64, args: &[&str], directory: &Path) -> Result<Command> {
    let mut command = Command::new("prlimit");
    command
        .arg(format!("--nofile={descriptors}:{descriptors}"))
        .arg(binary()?)
        .args(args)
        .current_dir(directory);
    Ok(command)
}

fn short(descriptors: u64, more: &[&str], directory: &Path) -> Result<Finished> {
    let args = [&["-A", "off", "-t", "0.3"], more].concat();
    run(&mut limited(descriptors, &args, directory)?, LIMIT)
}

/// Returns the number of descriptors that an error message says are needed.
fn needed(finished: &Finished) -> Result<u64> {
    ensure!(finished.code() == UNAVAILABLE, "{finished}");
    let line = finished.stderr.trim();
    ensure!(
        line.lines().count() == 1 && line.contains("ulimit -n"),
        "it has no hint: {finished}"
    );
    let number = line.split_once("needs ").map(|(_, rest)| rest);
    let number = number.and_then(|rest| rest.split([' ', ':']).next());
    number
        .context("no number")
        .and_then(|number| Ok(number.parse()?))
        .with_context(|| finished.to_string())
}

/// With too few descriptors kcollect says how many it needs, and with this number it records.
#[test]
fn root_too_few_descriptors_are_refused_at_the_start() -> Result<()> {
    let _machine = Shared::take()?;
    let counter = ["-h", "page-faults"];
    for more in [&[][..], &counter] {
        let directory = tempfile::tempdir()?;
        let mut due = 0;
        for descriptors in [4, 8, 64] {
            due = needed(&short(descriptors, more, directory.path())?)?;
        }
        // The count without the counter is the doctor's, which knows none.
        let enough = match short(due, more, directory.path())? {
            finished if finished.code() == 0 => finished,
            finished => short(needed(&finished)?, more, directory.path())?,
        };
        ensure!(enough.code() == 0, "{enough}");
        let experiments = experiments_in(directory.path())?;
        ensure!(experiments.len() == 1, "{experiments:?}");
        ensure!(opened(&experiments[0])?.closed, "{enough}");
    }
    Ok(())
}

/// As many processes as descriptors, and two held of each where they are not short.
#[test]
fn root_alone_more_processes_than_descriptors_are_all_followed() -> Result<()> {
    const PROCESSES: usize = 300;
    let _machine = Exclusive::take()?;
    let before = Loaded::now()?;
    let directory = tempfile::tempdir()?;
    let mut load = Command::new(workload!("many_processes"));
    load.args(["processes", &PROCESSES.to_string(), "4"]);
    let mut load = Running::start(&mut load, LIMIT)?;
    load.until_printed()?;
    // It begins before they exit, and ends after that.
    let args = ["-p", "on", "-F", "=many_processes", "-t", "5"];
    let finished = run(&mut limited(300, &args, directory.path())?, LIMIT)?;
    load.finish()?.succeeded()?;
    ensure!(finished.code() == 0, "{finished}");
    let experiment = experiment_in(directory.path())?;
    ensure!(opened(&experiment)?.closed, "{finished}");
    let summary = RunSummary::of(&experiment)?;
    summary.complete()?;
    let followed = summary.followed()?;
    let count = followed.processes.len();
    ensure!(count > PROCESSES, "{count} of {PROCESSES} and their parent");
    for process in &followed.processes {
        let log = experiment.join(&process.experiment).join("log.xml");
        ensure!(log.metadata()?.len() > 0, "{}", log.display());
    }
    let unread = followed.losses["unread_at_exit"];
    ensure!(
        unread > 0 && unread < PROCESSES as u64,
        "{unread} processes exited unread"
    );
    for path in files_below(&experiment)? {
        let empty = path.is_file() && path.metadata()?.len() == 0;
        ensure!(!empty, "{} is empty", path.display());
    }
    before.nothing_more()
}
