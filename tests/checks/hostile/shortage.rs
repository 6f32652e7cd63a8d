//! Memory or threads are short, the wall clock jumps, the collector is held up: what was recorded
//! opens, what is lost is counted, and nothing is left in the kernel.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::{Finished, Running};
use tests::experiment::opened::opened;
use tests::experiment::summary::{CpuStats, RunSummary};
use tests::kcollect::{Recording, binary, experiments_in};
use tests::machine::Exclusive;
use tests::machine::limited::Limited;
use tests::machine::loaded::Loaded;

const LIMIT: Duration = Duration::from_secs(40);

const UNAVAILABLE: i32 = 69;
const KILLED: i32 = 128 + 9;

/// Runs kcollect in a group for half a second.
fn short(limited: &Limited, directory: &Path, load: &[&str]) -> Result<Finished> {
    let kcollect = binary()?;
    let mut command = limited.command([kcollect.as_os_str()]);
    command.args([
        "-p", "hi", "-x", "off", "-F", "on", "-A", "off", "-t", "0.5",
    ]);
    command.args(load).current_dir(directory);
    Running::start(&mut command, LIMIT)?.finish()
}

/// Nothing was made, or what was made opens; of what was closed the statistics are right.
fn valid(directory: &Path, finished: &Finished) -> Result<()> {
    for experiment in experiments_in(directory)? {
        let log = std::fs::metadata(experiment.join("log.xml")).map_or(0, |log| log.len());
        if log == 0 && finished.code() == KILLED {
            continue;
        }
        let opened = opened(&experiment).with_context(|| finished.to_string())?;
        if opened.closed {
            balanced(&experiment, opened.ticks)?;
        }
    }
    Ok(())
}

/// What passed is what is written and what is lost.
fn balanced(experiment: &Path, ticks: u64) -> Result<()> {
    let summary = RunSummary::of(experiment)?;
    let lost = |name| {
        summary
            .losses
            .get(name)
            .copied()
            .unwrap_or(0)
            .cast_unsigned()
    };
    let lived: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
    let missing = lost("ring_full") + lost("not_written");
    ensure!(
        lived == summary.ticks + missing && ticks == summary.ticks,
        "{lived} ticks passed, {ticks} are in the file, {} in the statistics: {:?}",
        summary.ticks,
        summary.losses
    );
    Ok(())
}

#[test]
fn root_short_memory_is_an_error_or_a_kill() -> Result<()> {
    let _machine = Exclusive::take()?;
    let before = Loaded::now()?;
    let mut codes = Vec::new();
    for mib in [6, 16, 48, 256] {
        let (limited, directory) = (Limited::memory(mib << 20)?, tempfile::tempdir()?);
        let finished = short(&limited, directory.path(), &[])?;
        let code = finished.code();
        ensure!(
            [0, UNAVAILABLE, KILLED].contains(&code),
            "{mib} MiB: {finished}"
        );
        ensure!(!finished.stderr.contains("panicked"), "{finished}");
        valid(directory.path(), &finished).with_context(|| format!("{mib} MiB"))?;
        before.nothing_more()?;
        codes.push(code);
    }
    ensure!(codes.last() == Some(&0), "256 MiB are enough: {codes:?}");
    eprintln!("ended with {codes:?}");
    Ok(())
}

#[test]
fn root_a_limit_on_threads_is_an_error() -> Result<()> {
    let _machine = Exclusive::take()?;
    let before = Loaded::now()?;
    let mut codes = Vec::new();
    for threads in [1, 2, 3, 5, 9] {
        for load in [&[][..], &["--", "sleep", "0.3"]] {
            let (limited, directory) = (Limited::threads(threads)?, tempfile::tempdir()?);
            let finished = short(&limited, directory.path(), load)?;
            let code = finished.code();
            ensure!(
                [0, UNAVAILABLE, 126].contains(&code),
                "{threads} threads: {finished}"
            );
            ensure!(!finished.stderr.contains("panicked"), "{finished}");
            valid(directory.path(), &finished)?;
            codes.push(code);
        }
    }
    ensure!(codes.ends_with(&[0, 0]), "nine are enough: {codes:?}");
    before.nothing_more()
}

/// A wall clock that is so many seconds off until this value is dropped.
struct Stepped(i64);

impl Stepped {
    fn by(seconds: i64) -> Result<Self> {
        step(seconds)?;
        Ok(Self(seconds))
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // What was permitted once is permitted again.
        let _ = step(-self.0);
    }
}

/// Adds to CLOCK_REALTIME, which the kernel does at once and exactly.
fn step(seconds: i64) -> Result<()> {
    // SAFETY: a structure of numbers, for which zeros are good.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_SETOFFSET;
    change.time.tv_sec = seconds;
    // SAFETY: a valid structure, which the kernel reads and fills.
    let done = unsafe { libc::adjtimex(&raw mut change) };
    ensure!(done >= 0, "the clock: {}", io::Error::last_os_error());
    Ok(())
}

#[test]
fn root_the_wall_clock_may_jump() -> Result<()> {
    let _machine = Exclusive::take()?;
    let begun = Instant::now();
    let mut recording =
        Recording::start(["-p", "hi", "-x", "off", "-F", "on", "-A", "off"], LIMIT)?;
    recording.until_running()?;
    let ticking = Instant::now();
    // Seconds, back and forth: other programs that read it meanwhile are only seconds off.
    for seconds in [-3, 5] {
        sleep(Duration::from_millis(300));
        let stepped = Stepped::by(seconds)?;
        sleep(Duration::from_millis(300));
        drop(stepped);
    }
    let least = ticking.elapsed();
    let recorded = recording.stop()?;
    let most = begun.elapsed();
    let experiment = recorded.experiment()?;
    let opened = opened(&experiment)?;
    let summary = RunSummary::of(&experiment)?;
    summary.complete()?;
    ensure!(
        (least.as_secs_f64()..most.as_secs_f64()).contains(&summary.elapsed_s),
        "{} s passed, by a clock that did not jump between {least:?} and {most:?}",
        summary.elapsed_s
    );
    balanced(&experiment, opened.ticks)
}

/// Held up for seconds, at the usual interval: the rings have room for that, and nothing is lost.
#[test]
fn root_a_collector_that_is_stopped_for_seconds_loses_nothing() -> Result<()> {
    let _machine = Exclusive::take()?;
    let before = Loaded::now()?;
    let mut recording = Recording::start(["-x", "off", "-F", "on", "-A", "off"], LIMIT)?;
    recording.until_running()?;
    for _ in 0..2 {
        recording.signal(Signal::SIGSTOP)?;
        sleep(Duration::from_millis(2500));
        recording.signal(Signal::SIGCONT)?;
        sleep(Duration::from_millis(300));
    }
    let recorded = recording.stop()?;
    let experiment = recorded.experiment()?;
    let opened = opened(&experiment)?;
    RunSummary::of(&experiment)?.complete()?;
    balanced(&experiment, opened.ticks)?;
    drop(recorded);
    before.nothing_more()
}
