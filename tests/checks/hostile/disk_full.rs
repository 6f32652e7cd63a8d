//! Disks that are full, fill up, or cannot be written to.
//!
//! Full at the start: an error, and nothing is left over. Full in the middle: a valid experiment
//! up to there, and an exit code that says so.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::command::{Finished, Running, run};
use tests::experiment;
use tests::experiment::opened::opened;
use tests::gprofng;
use tests::kcollect::{binary, command, experiment_in, experiments_in, run_in};
use tests::machine::disturbance::judge_times;
use tests::machine::{Shared, SmallDisk};

use crate::words_of;

const CANNOT_CREATE: i32 = 73;
const IO_ERROR: i32 = 74;
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn root_full_at_the_start() -> Result<()> {
    let _machine = Shared::take()?;
    let disk = SmallDisk::of(256)?;
    disk.fill()?;
    let finished = run_in(disk.path(), &["-p", "hi", "-t", "1"], LIMIT)?;
    ensure!(
        [CANNOT_CREATE, IO_ERROR].contains(&finished.code()),
        "{finished}"
    );
    says_full(&finished)?;
    only_ballast(disk.path(), &finished)
}

#[test]
fn root_alone_full_in_the_middle() -> Result<()> {
    judge_times(|| {
        let disk = SmallDisk::of(64 * 1024)?;
        let mut command = command(["-p", "hi", "-x", "off", "-t", "10"])?;
        let mut running = Running::start(command.current_dir(disk.path()), LIMIT)?;
        running.until("a run event", || {
            experiment_in(disk.path())
                .and_then(|path| Ok(fs::read_to_string(path.join("log.xml"))?))
                .is_ok_and(|log| log.contains("kind=\"run\""))
        })?;
        sleep(Duration::from_secs(2));
        disk.fill()?;
        let finished = running.finish()?;
        ensure!(finished.code() == IO_ERROR, "{finished}");
        says_full(&finished)?;
        valid(&experiment_in(disk.path())?, 1.5, &finished)
    })
}

/// The experiments of a series that were complete stay so, and the last one is valid.
#[test]
fn root_alone_full_in_a_series() -> Result<()> {
    judge_times(|| {
        let disk = SmallDisk::of(64 * 1024)?;
        let options = ["-p", "hi", "-x", "off", "-t", "10", "--rotate", "1"];
        let mut running = Running::start(command(options)?.current_dir(disk.path()), LIMIT)?;
        running.until("a third experiment", || {
            experiments_in(disk.path()).is_ok_and(|all| all.len() >= 3)
        })?;
        // A copy of a load object that does not fit is removed, which frees its space.
        while !running.ended()? {
            disk.fill()?;
            running.in_time()?;
            sleep(Duration::from_millis(20));
        }
        let finished = running.finish()?;
        ensure!(finished.code() == IO_ERROR, "{finished}");
        says_full(&finished)?;
        let all = experiments_in(disk.path())?;
        ensure!(all.len() >= 3, "{all:?}: {finished}");
        for number in 1..=2 {
            let complete = disk.path().join(format!("ktest.{number}.er"));
            ensure!(opened(&complete)?.closed, "{number}: {finished}");
        }
        for path in all {
            // What did not fit is missing from the last one, and our report says so.
            let log = fs::metadata(path.join("log.xml")).map_or(0, |log| log.len());
            if log > 0 {
                let header = gprofng::script(&["header"], &path)?;
                let mut complaints = header.complaints();
                // There was no space for its copy.
                complaints.retain(|line| !line.contains("Can't open file: "));
                ensure!(complaints.is_empty(), "{path:?}: {complaints:?}");
                experiment::ticks(&path).with_context(|| finished.to_string())?;
            }
        }
        Ok(())
    })
}

#[test]
fn root_disks_of_many_sizes() -> Result<()> {
    let _machine = Shared::take()?;
    // Each size is too small for something else: the first file, a block of ticks, the archive of
    // the kernel.
    for kib in [8, 32, 100, 200, 400, 1000, 2000] {
        let disk = SmallDisk::of(kib)?;
        let finished = run_in(disk.path(), &["-p", "hi", "-x", "off", "-t", "1"], LIMIT)?;
        let context = format!("a disk of {kib} KiB: {finished}");
        match finished.code() {
            CANNOT_CREATE => only_ballast(disk.path(), &finished)?,
            IO_ERROR => valid(&experiment_in(disk.path())?, 0.0, &finished)?,
            _ => anyhow::bail!("{context}"),
        }
        says_full(&finished)?;
    }
    Ok(())
}

#[test]
fn root_a_limit_on_file_sizes_is_a_full_disk() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut command = Command::new("prlimit");
    command
        .arg("--fsize=150000")
        .arg(binary()?)
        .args(["-p", "hi", "-x", "off", "-t", "4"]);
    let finished = run(command.current_dir(directory.path()), LIMIT)?;
    match finished.code() {
        CANNOT_CREATE => only_ballast(directory.path(), &finished),
        IO_ERROR => valid(&experiment_in(directory.path())?, 0.0, &finished),
        _ => anyhow::bail!("{finished}"),
    }
}

#[test]
fn root_a_read_only_file_system() -> Result<()> {
    let _machine = Shared::take()?;
    let disk = SmallDisk::of(1024)?;
    disk.protect()?;
    let finished = run_in(disk.path(), &["-p", "hi", "-t", "1"], LIMIT)?;
    ensure!(finished.code() == CANNOT_CREATE, "{finished}");
    ensure!(
        finished.stderr.contains(&words_of(libc::EROFS)),
        "{finished}"
    );
    only_ballast(disk.path(), &finished)
}

fn says_full(finished: &Finished) -> Result<()> {
    ensure!(
        finished.stderr.contains(&words_of(libc::ENOSPC)),
        "it does not say that the disk is full: {finished}"
    );
    Ok(())
}

fn only_ballast(directory: &Path, finished: &Finished) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        ensure!(name == "ballast", "{name:?} was left over: {finished}");
    }
    Ok(())
}

/// Checks that an experiment opens, and has ticks of at least `seconds` seconds of each CPU.
fn valid(experiment: &Path, seconds: f64, finished: &Finished) -> Result<()> {
    let header = gprofng::script(&["header"], experiment)?.content()?;
    ensure!(
        experiments_in(experiment.parent().unwrap_or(experiment))?.len() == 1,
        "{finished}"
    );
    let ticks = experiment::ticks(experiment)?;
    if ticks > 0 {
        gprofng::functions(experiment, None)?;
    }
    let due = seconds * 1e9 / experiment::interval_ns(experiment)?;
    ensure!(
        ticks as f64 >= due,
        "{ticks} ticks where {due:.0} were due: {finished}\n{}",
        header.text
    );
    Ok(())
}
