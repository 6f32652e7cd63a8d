//! A recording that continues in one experiment after the other (`--rotate`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::directory::disk_usage_of;
use experiment_format::log::LogEvent;
use experiment_format::reader::Experiment;

use crate::command::Running;
use crate::experiment::opened::opened;
use crate::kcollect::{binary, experiments_in};

/// Starts a recording as a service, which ends an experiment at SIGHUP.
///
/// # Errors
/// When it cannot be started.
pub fn service(directory: &Path, options: &[&str], limit: Duration) -> Result<Running> {
    // A program that leads no process group becomes the session's leader, with its process id.
    // These checks may run below nohup(1), which has SIGHUP ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", "setsid"]);
    command.arg(binary()?).args(options).current_dir(directory);
    Running::start(&mut command, limit)
}

/// Waits until an experiment of a service has data.
///
/// # Errors
/// When the service ends before.
pub fn until_data(service: &mut Running, experiment: &Path) -> Result<()> {
    service.until("data", || {
        let log = fs::read_to_string(experiment.join("log.xml"));
        log.is_ok_and(|log| log.contains("<event kind=\"resume\""))
    })
}

/// Returns the number of an experiment in its series; 0 if it has none.
pub fn number(experiment: &Path) -> u64 {
    let name = experiment.file_stem().unwrap_or_default().to_string_lossy();
    let number = name.rsplit('.').next().unwrap_or_default();
    number.parse().unwrap_or(0)
}

/// Returns the experiments of a series, in their order.
///
/// # Errors
/// When the directory cannot be read.
pub fn series(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = experiments_in(directory)?;
    found.sort_by_key(|path| number(path));
    Ok(found)
}

/// Returns when an experiment began and ended, CLOCK_MONOTONIC nanoseconds.
///
/// # Errors
/// When it cannot be read, or is not closed.
pub fn span(path: &Path) -> Result<(u64, u64)> {
    let experiment = Experiment::open(path)?;
    let start = experiment.start().tstamp_ns;
    let exit = experiment.events().iter().find_map(|event| match event {
        LogEvent::Exit { at_ns } => Some((start + *at_ns).0),
        _ => None,
    });
    Ok((start.0, exit.context("it is not closed")?))
}

/// Checks that the experiments of a series are closed, and that each begins where the one before it
/// ends.
///
/// # Errors
/// When one is not, or they cannot be read.
pub fn closed_without_a_gap(all: &[PathBuf]) -> Result<()> {
    for path in all {
        ensure!(opened(path)?.closed, "{} is not closed", path.display());
    }
    for (before, path) in all.iter().zip(&all[1..]) {
        no_gap(before, path)?;
    }
    Ok(())
}

/// Checks that an experiment begins where the one before it ends.
///
/// # Errors
/// When it does not, or they cannot be read.
pub fn no_gap(before: &Path, path: &Path) -> Result<()> {
    let (ended, began) = (span(before)?.1, span(path)?.0);
    ensure!(
        ended == began,
        "{before:?} ends at {ended}, {path:?} begins at {began}"
    );
    Ok(())
}

/// Disk usage of experiments that share files, bytes. An experiment that is removed meanwhile
/// counts as 0.
pub fn disk_usage(experiments: &[PathBuf]) -> u64 {
    let mut files = HashMap::new();
    for path in experiments {
        files.extend(disk_usage_of(path).unwrap_or_default());
    }
    files.values().sum()
}
