//! The self-test notices each part that does not work, and reports nothing on a machine that is
//! merely busy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::command::{Finished, run};
use tests::kcollect::{command, experiment_in};
use tests::machine::{Exclusive, Shared, online_cpus};

/// Time limit of one command on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Nothing is archived, which takes longer than the recording.
const RECORD: [&str; 6] = ["-F", "on", "-A", "off", "-t", "1.5"];
const RECORD_SHORT: [&str; 6] = ["-F", "on", "-A", "off", "-t", "0.7"];
/// The number of recordings alongside busy loops.
const BUSY_RECORDINGS: u32 = 8;
const BUSY_DOCTORS: u32 = 1;

/// Each part that can be switched off: its name, the exit status, the finding of `kcollect doctor`
/// and the subject of the recording's problem.
const PARTS: [(&str, i32, &str, &str); 4] = [
    (
        "sched_switch",
        70,
        "self-test: accounts",
        "context_switches",
    ),
    ("storage", 69, "self-test: accounts", "storage"),
    (
        "page_fault",
        70,
        "self-test: kernel faults",
        "kernel_faults",
    ),
    ("unwinder", 70, "self-test: user stacks", "user_stacks"),
];

/// Runs kcollect in a directory, with a part switched off.
fn sabotaged(part: &str, directory: &std::path::Path, arguments: &[&str]) -> Result<Finished> {
    let mut command = command(arguments)?;
    command
        .env("KCOLLECT_SABOTAGE", part)
        .current_dir(directory);
    run(&mut command, LIMIT)
}

fn summary(directory: &std::path::Path) -> Result<Value> {
    let path = experiment_in(directory)?.join("kcollect.json");
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

#[test]
fn root_each_part_that_is_switched_off_is_noticed() -> Result<()> {
    let _machine = Shared::take()?;
    for (part, status, finding, subject) in PARTS {
        let directory = tempfile::tempdir()?;
        let directory = directory.path();
        let doctor = sabotaged(part, directory, &["doctor", "--json"])?;
        ensure!(doctor.code() == status, "{part}: {doctor}");
        let json: Value = serde_json::from_str(&doctor.stdout)?;
        let findings = json["findings"].as_array().context("findings")?;
        let failed: Vec<_> = findings
            .iter()
            .filter(|finding| finding["verdict"] == "fail")
            .map(|finding| finding["name"].as_str().unwrap_or(""))
            .collect();
        ensure!(failed == [finding], "{part}: {failed:?}");

        let recorded = sabotaged(part, directory, &RECORD)?;
        ensure!(recorded.code() == status, "{part}: {recorded}");
        ensure!(
            recorded.stdout.starts_with("PROBLEM: "),
            "{part}: {recorded}"
        );
        let summary = summary(directory)?;
        let problems = summary["problems"].as_array().context("problems")?;
        ensure!(
            problems.len() == 1
                && problems[0]["subject"] == subject
                && problems[0]["exit_code"] == status,
            "{part}: {problems:#?}"
        );
        let experiment = experiment_in(directory)?;
        let report = run(command(["report"])?.arg(&experiment), LIMIT)?;
        ensure!(
            report
                .succeeded()?
                .stdout
                .trim_start()
                .starts_with("PROBLEM"),
            "{part}: the report does not begin with the problem"
        );
    }
    Ok(())
}

#[test]
fn root_a_program_that_does_not_load_has_its_log_in_a_file() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let refused = sabotaged("load", directory.path(), &RECORD)?;
    ensure!(refused.code() == 69, "{refused}");
    let message: Vec<_> = refused.stderr.lines().collect();
    ensure!(
        message.len() == 1
            && message[0].contains("kcollect-verifier.log")
            && message[0].contains("kc_sched_switch")
            && !message[0].contains("\\x0A"),
        "{refused}"
    );
    let log = directory.path().join("kcollect-verifier.log");
    let mode = fs::metadata(&log)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "{mode:o}");
    let log = fs::read_to_string(&log)?;
    ensure!(
        log.contains("kc_sched_switch") && log.lines().count() > 5,
        "{log}"
    );
    ensure!(
        experiment_in(directory.path()).is_err(),
        "there is an experiment"
    );
    let doctor = sabotaged("load", directory.path(), &["doctor"])?;
    ensure!(doctor.code() == 69, "{doctor}");
    Ok(())
}

/// Records, and fails if anything is reported.
fn record_without_problem(arguments: &[&str]) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let mut command = command(arguments)?;
    let recorded = run(command.current_dir(directory.path()), LIMIT)?.succeeded()?;
    let summary = summary(directory.path())?;
    ensure!(summary["problems"] == serde_json::json!([]), "{recorded}");
    Ok(summary)
}

/// Runs the doctor, and fails if a part of the self-test fails. Returns how many passed.
fn passed_in_doctor() -> Result<usize> {
    let doctor = run(&mut command(["doctor", "--json"])?, LIMIT)?.succeeded()?;
    let json: Value = serde_json::from_str(&doctor.stdout)?;
    let findings = json["findings"].as_array().context("findings")?;
    let of_test = findings.iter().filter(|finding| {
        let name = finding["name"].as_str();
        name.is_some_and(|name| name.starts_with("self-test"))
    });
    Ok(of_test.filter(|finding| finding["verdict"] == "ok").count())
}

#[test]
fn root_alone_nothing_is_reported_where_all_works() -> Result<()> {
    let _machine = Exclusive::take()?;
    record_without_problem(&RECORD)?;
    let passed = passed_in_doctor()?;
    ensure!(passed == 8, "{passed} parts of the self-test passed");
    Ok(())
}

/// It is over before the self-test is: 5 ms.
#[test]
fn root_alone_a_short_recording_ends_at_its_time() -> Result<()> {
    let _machine = Exclusive::take()?;
    let short = [
        "-F", "off", "-A", "off", "-p", "hi", "-x", "off", "-t", "0.005",
    ];
    let summary = record_without_problem(&short)?;
    let elapsed = summary["elapsed_s"].as_f64().context("elapsed_s")?;
    // The thread needs 31 ms.
    ensure!(elapsed < 0.03, "{elapsed} s");
    Ok(())
}

/// Stops the loops when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn root_alone_nothing_is_reported_under_busy_loops() -> Result<()> {
    let _machine = Exclusive::take()?;
    let stop = AtomicBool::new(false);
    let loops = 2 * online_cpus()?.len();
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..loops {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for turn in 0..BUSY_RECORDINGS {
            record_without_problem(&RECORD_SHORT).with_context(|| format!("recording {turn}"))?;
        }
        for turn in 0..BUSY_DOCTORS {
            passed_in_doctor().with_context(|| format!("doctor {turn}"))?;
        }
        Ok(())
    })
}
