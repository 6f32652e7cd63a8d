//! SIGKILL at any moment leaves an experiment that opens, with every tick that was written, and
//! nothing in the kernel.
//!
//! It is done 10 times, or as often as `KCOLLECT_FAULTS` says. The moments come from a seed, so
//! many kills begin with the same moments as a few.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment;
use tests::experiment::opened::opened;
use tests::kcollect::{Recording, experiments_in};
use tests::machine::loaded::Loaded;
use tests::machine::{Shared, work_cpu};
use tests::random::SplitMix;
use tests::workload;

/// The environment variable that says how often.
const FAULTS: &str = "KCOLLECT_FAULTS";
const RUNS: u32 = 10;

/// The seed of the moments: a failure can be repeated, as far as the machine repeats itself.
const SEED: u64 = 0x6b63_6f6c_6c65_6374;

const LIMIT: Duration = Duration::from_secs(20);

/// The processes that are followed, except in the runs that follow none. Other processes of this
/// machine may be large, are not archived, and keep gprofng busy.
const LOAD: &str = "=^(spawner|true)$";

/// Every other time the processes that are followed are traced too.
const TRACED: &[&str] = &["-i", "on", "-s", "on"];

/// The part of a recording in which kcollect is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It loads its programs, looks at what runs, makes the experiment.
    Start,
    Recording,
    /// It closes an experiment and continues in the next one.
    Rotation,
    /// It got a signal to end: it closes threads, subexperiments, archives.
    End,
}

#[test]
fn root_kills_leave_experiments_that_open() -> Result<()> {
    let _machine = Shared::take()?;
    let before = Loaded::now()?;
    // Processes that come and go make events of all kinds.
    let cpu = work_cpu()?.to_string();
    let _load = Running::start(
        std::process::Command::new(workload!("spawner")).args(["3600", &cpu]),
        Duration::MAX,
    )?;
    let runs = std::env::var(FAULTS).ok().filter(|runs| !runs.is_empty());
    let runs = runs.map_or(Ok(RUNS), |runs| runs.parse())?;
    let mut random = SplitMix(SEED);
    for run in 0..runs {
        let phase = match run % 5 {
            0 => Phase::Start,
            1 => Phase::End,
            2 => Phase::Rotation,
            _ => Phase::Recording,
        };
        let follow = if run % 2 == 0 { LOAD } else { "off" };
        let traced = if run % 4 == 0 { TRACED } else { &[] };
        killed(phase, follow, traced, &mut random).with_context(|| {
            format!("run {run} of {runs}: {phase:?}, -F {follow} {traced:?}, seed {SEED:#x}")
        })?;
    }
    before.nothing_more()
}

fn killed(phase: Phase, follow: &str, traced: &[&str], random: &mut SplitMix) -> Result<()> {
    let options = ["-p", "hi", "-x", "off", "-F", follow];
    let period = match phase {
        Phase::Rotation => "1",
        _ => "1h",
    };
    let mut recording = Recording::start(
        options.iter().chain(traced).chain(&["--rotate", period]),
        LIMIT,
    )?;
    let mut written = 0;
    if phase == Phase::Start {
        sleep(Duration::from_millis(random.below(1200)));
    } else {
        let experiment = recording.until_running()?;
        sleep(match phase {
            Phase::Rotation => Duration::from_micros(970_000 + random.below(150_000)),
            _ => Duration::from_millis(random.below(1500)),
        });
        written = experiment::ticks(&experiment)?;
    }
    if phase == Phase::End {
        recording.signal(Signal::SIGINT)?;
        sleep(Duration::from_micros(random.below(60_000)));
    }
    let reported = recording.signal(Signal::SIGKILL);
    let killed = recording.finish()?;
    // It may have ended before the signal.
    let closed = phase == Phase::End && killed.finished.code() == 0;
    ensure!(
        closed || reported.is_ok() && killed.finished.code() == 128 + 9,
        "it was not killed: {}",
        killed.finished
    );

    // Killed before it made the directory, or before it wrote the first byte into it: there is
    // nothing to open.
    let mut all = experiments_in(killed.directory())?;
    all.sort();
    if phase == Phase::Rotation && all.len() > 1 {
        // The next one may not have its first byte yet.
        let next = all.pop().context("a second one")?;
        if std::fs::metadata(next.join("log.xml")).is_ok_and(|log| log.len() > 0) {
            let next = opened(&next)?;
            ensure!(!next.closed, "the next experiment is closed");
        }
    }
    let Some(experiment) = all.pop() else {
        ensure!(
            phase == Phase::Start,
            "no experiment, though {written} ticks were written"
        );
        return Ok(());
    };
    let log = std::fs::metadata(experiment.join("log.xml")).map_or(0, |file| file.len());
    if phase == Phase::Start && log == 0 {
        return Ok(());
    }

    let opened = opened(&experiment)?;
    ensure!(
        matches!(phase, Phase::End | Phase::Rotation) || !opened.closed,
        "the header does not say that the experiment was not closed"
    );
    let ticks = opened.ticks;
    ensure!(
        ticks >= written,
        "{ticks} ticks are left where {written} were"
    );
    Ok(())
}
