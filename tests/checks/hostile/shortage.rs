//! Memory or threads are short, the wall clock jumps, the collector is stopped: what was recorded
//! opens, what is lost is counted, and nothing is left in the kernel.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::{Finished, Running, copy_program, run};
use tests::experiment::opened::opened;
use tests::experiment::summary::{CpuStats, RunSummary};
use tests::kcollect::{Recording, binary, experiments_in};
use tests::machine::limited::Limited;
use tests::machine::loaded::Loaded;
use tests::machine::{Exclusive, Shared};
use tests::workload::proctorture::{PROCTORTURE, start};

const LIMIT: Duration = Duration::from_secs(40);

const UNAVAILABLE: i32 = 69;
const KILLED: i32 = 128 + 9;

/// The arguments of a recording of half a second at most.
const SHORT: [&str; 10] = [
    "-p", "hi", "-x", "off", "-F", "on", "-A", "off", "-t", "0.5",
];

/// Runs kcollect in a control group with a limit.
fn short(limited: &Limited, directory: &Path, load: &[&str]) -> Result<Finished> {
    let kcollect = binary()?;
    let mut command = limited.command([kcollect.as_os_str()]);
    command.args(SHORT).args(load).current_dir(directory);
    Running::start(&mut command, LIMIT)?.finish()
}

/// Checks that nothing was made, or that what was made opens and has the right statistics if it was
/// closed.
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

/// Checks that the ticks that passed are those that are written and those that are lost.
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
    let passed: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
    let missing = lost("ring_full") + lost("not_written");
    ensure!(
        passed == summary.ticks + missing && ticks == summary.ticks,
        "{passed} ticks passed, {ticks} are in the file, {} in the statistics: {:?}",
        summary.ticks,
        summary.losses
    );
    Ok(())
}

#[test]
fn root_short_memory_is_an_error_or_a_kill() -> Result<()> {
    let _machine = Shared::take()?;
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

/// The status of a program whose libraries cannot be loaded, by ld.so.
const LOADER_FAILED: i32 = 127;

/// RLIMIT_AS: a recording says at the start how much it may need, and records with that; a report
/// ends with an error. None aborts.
#[test]
fn root_a_limit_of_the_address_space_is_an_error() -> Result<()> {
    let _machine = Shared::take()?;
    let before = Loaded::now()?;
    let directory = tempfile::tempdir()?;
    let within = |kib: u64, args: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={}", kib << 10));
        command.arg(binary()?).args(args);
        let finished = run(command.current_dir(directory.path()), LIMIT)?;
        ensure!(!finished.stderr.contains("panicked"), "{finished}");
        Ok(finished)
    };
    let mut needed = 0;
    for mib in [30, 100, 200, 300, 600] {
        let finished = within(mib << 10, &SHORT)?;
        ensure!(finished.code() == UNAVAILABLE, "{mib} MiB: {finished}");
        let number = finished.stderr.split_once("ulimit -v ");
        let number = number.and_then(|(_, rest)| rest.split(',').next());
        needed = number.map_or(Ok(needed), str::parse)?;
    }
    let finished = within(needed, &SHORT)?;
    ensure!(needed > 0 && finished.code() == 0, "{needed}: {finished}");
    let experiments = experiments_in(directory.path())?;
    ensure!(experiments.len() == 1, "{experiments:?}");
    let experiment = experiments[0].to_string_lossy();
    // The minimum limit depends on the experiment: each report with less is refused, and with still
    // less the loader of the program's libraries fails.
    let mut refused = 0;
    for mib in (20..1000).step_by(4) {
        let finished = within(mib << 10, &["report", &experiment, "functions"])?;
        match finished.code() {
            0 => break,
            UNAVAILABLE => refused += 1,
            code => ensure!(
                code == LOADER_FAILED && refused == 0,
                "{mib} MiB: {finished}"
            ),
        }
    }
    ensure!(refused > 0, "no limit is too small");
    let finished = within(1000 << 10, &["report", &experiment, "functions"])?;
    finished.succeeded()?;
    before.nothing_more()
}

#[test]
fn root_a_limit_on_threads_is_an_error() -> Result<()> {
    let _machine = Shared::take()?;
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

/// RLIMIT_NPROC of a user who is not root: the last of kcollect's threads may be one too many, or
/// its load.
#[test]
fn root_a_users_limit_on_processes_is_an_error() -> Result<()> {
    // No other process is this user's.
    const USER: &str = "65433";
    // CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_SYSLOG and CAP_DAC_READ_SEARCH.
    const NAMES: &str = "+cap_39,+cap_38,+cap_19,+cap_34,+cap_2";
    let _machine = Shared::take()?;
    let before = Loaded::now()?;
    let mut codes = Vec::new();
    for processes in [1, 3, 5, 40] {
        let directory = tempfile::tempdir()?;
        let program = directory.path().join("kcollect");
        copy_program(binary()?, &program)?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        chown(directory.path(), Some(USER.parse()?), None)?;
        let mut command = Command::new("prlimit");
        command.arg(format!("--nproc={processes}:{processes}"));
        command.args([
            "setpriv",
            "--reuid",
            USER,
            "--regid",
            USER,
            "--clear-groups",
        ]);
        command.args(["--inh-caps", NAMES, "--ambient-caps", NAMES]);
        command
            .arg(&program)
            .args(SHORT)
            .args(["--", "sleep", "0.3"]);
        let home = directory.path();
        let finished = run(command.current_dir(home).env("HOME", home), LIMIT)?;
        let code = finished.code();
        ensure!(
            [0, UNAVAILABLE, 126].contains(&code),
            "{processes} processes: {finished}"
        );
        ensure!(!finished.stderr.contains("panicked"), "{finished}");
        valid(home, &finished)?;
        codes.push(code);
    }
    ensure!(
        codes.first() == Some(&UNAVAILABLE) && codes.last() == Some(&0),
        "{codes:?}"
    );
    before.nothing_more()
}

/// A wall clock that is off by this number of seconds until the value is dropped.
struct Stepped(i64);

impl Stepped {
    fn by(seconds: i64) -> Result<Self> {
        step(seconds)?;
        Ok(Self(seconds))
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // The first step was permitted, so this one is.
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
fn root_alone_the_wall_clock_may_jump() -> Result<()> {
    let _machine = Exclusive::take()?;
    let begun = Instant::now();
    let mut recording =
        Recording::start(["-p", "hi", "-x", "off", "-F", "on", "-A", "off"], LIMIT)?;
    recording.until_running()?;
    let ticking = Instant::now();
    let load = start(PROCTORTURE, &["jit:3000"])?;
    let map = format!("/tmp/perf-{}.map", load.pid());
    // Followed by now.
    sleep(Duration::from_millis(700));
    // By seconds, so that other programs that read the clock meanwhile are only seconds off; and by
    // hours for a moment, backwards: they may take what is written then for old, but not for new.
    for (seconds, ms) in [(-10, 1300), (5, 300), (-5 * 3600, 100)] {
        sleep(Duration::from_millis(200));
        let stepped = Stepped::by(seconds)?;
        if !fs::exists(&map)? {
            fs::write(&map, "1000 8 in_the_past\n")?;
        }
        sleep(Duration::from_millis(ms));
        drop(stepped);
    }
    load.finish()?.succeeded()?;
    fs::remove_file(&map)?;
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
    // What a process writes meanwhile is as old as the process.
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    ensure!(text.contains("\"functions\":1,"), "its map was not read");
    balanced(&experiment, opened.ticks)
}

/// kcollect is stopped for seconds, at the usual interval: the rings have space for that, and
/// nothing is lost.
#[test]
fn root_alone_a_collector_that_is_stopped_for_seconds_loses_nothing() -> Result<()> {
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
