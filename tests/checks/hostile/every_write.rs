//! A disk that is full, or fails, at any one call that writes to it: strace lets the kernel refuse
//! the Nth call of a kind and all after it, as a disk does that has no space any more, or the Nth
//! alone, as one does where others make space again. Each time kcollect ends with an error that
//! says so, leaves an experiment that opens, and nothing in the kernel.
//!
//! N grows in increasing steps; with `KCOLLECT_FAULTS` set each single call is refused once, which
//! takes longer. strace counts the calls of each thread on their own, so several may be refused at
//! the same N.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::command::{Finished, run};
use tests::experiment::opened::opened;
use tests::experiment::summary::RunSummary;
use tests::kcollect::{binary, experiments_in};
use tests::machine::Shared;
use tests::machine::loaded::Loaded;
use tests::workload::proctorture::PROCTORTURE;

use crate::words_of;

const CANNOT_CREATE: i32 = 73;
const IO_ERROR: i32 = 74;
const LIMIT: Duration = Duration::from_secs(60);

/// Errors of refused calls.
const ERRORS: [(&str, i32); 3] = [
    ("ENOSPC", libc::ENOSPC),
    ("EIO", libc::EIO),
    ("EDQUOT", libc::EDQUOT),
];

#[test]
fn root_mkdirat_may_fail() -> Result<()> {
    may_fail("mkdirat")
}

#[test]
fn root_write_may_fail() -> Result<()> {
    may_fail("write")
}

#[test]
fn root_pwrite64_may_fail() -> Result<()> {
    may_fail("pwrite64")
}

#[test]
fn root_copy_file_range_may_fail() -> Result<()> {
    may_fail("copy_file_range")
}

#[test]
fn root_fallocate_may_fail() -> Result<()> {
    may_fail("fallocate")
}

#[test]
fn root_ftruncate_may_fail() -> Result<()> {
    may_fail("ftruncate")
}

#[test]
fn root_renameat_may_fail() -> Result<()> {
    may_fail("renameat")
}

/// Judges the failures of one kind of call by which an experiment is written.
fn may_fail(call: &str) -> Result<()> {
    let _machine = Shared::take()?;
    let each = std::env::var_os("KCOLLECT_FAULTS").is_some_and(|faults| !faults.is_empty());
    let before = Loaded::now()?;
    let mut wrong = Vec::new();
    let (mut nth, mut runs) = (1, 0);
    loop {
        let error = ERRORS[runs % ERRORS.len()];
        // Every other time only one call fails.
        let on = if runs % 2 == 0 { "+" } else { "" };
        let when = format!("{nth}{on}");
        let refused = refused(call, &when, error);
        let refused = refused.with_context(|| format!("{call} {when} says {}", error.0));
        match refused {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => wrong.push(error),
        }
        runs += 1;
        nth = if each { nth + 1 } else { 3 * nth };
    }
    ensure!(runs > 0, "{call} is not called: what is, instead?");
    eprintln!("{call}: {runs} runs, up to number {nth}");
    let words: Vec<_> = wrong.iter().map(|error| format!("{error:#}")).collect();
    ensure!(
        wrong.is_empty(),
        "{} runs:\n{}",
        wrong.len(),
        words.join("\n")
    );
    before.nothing_more()
}

/// Returns whether a call on the experiment was refused, after judging the consequences.
fn refused(call: &str, when: &str, (error, errno): (&str, i32)) -> Result<bool> {
    let directory = TempDir::new()?;
    let log = directory.path().join("strace");
    let experiments = directory.path().join("experiments");
    fs::create_dir(&experiments)?;
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "--seccomp-bpf", "-qq", "-y", "-e"])
        .arg(format!("trace={call}"))
        .arg("-e")
        .arg(format!("inject={call}:error={error}:when={when}"))
        .arg("-o")
        .args([&log, &binary()?])
        .args(["-p", "hi", "-x", "off", "-F", "=^proctorture$", "-d"])
        .args([&experiments, Path::new("--"), Path::new(PROCTORTURE)])
        .args(["one:200", "two:200"]);
    let finished = run(&mut strace, LIMIT)?;
    let log = fs::read_to_string(&log)?;
    let injected = log.lines().filter(|line| line.ends_with("(INJECTED)"));
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        injected.partition(|line| line.contains(&*experiments.to_string_lossy()));
    if here.is_empty() {
        return Ok(false);
    }
    let refused = Refused {
        errno,
        silent: elsewhere.iter().any(|line| line.contains("(2<")),
        for_good: when.ends_with('+'),
        copies_alone: here.iter().all(|line| line.contains("/archives")),
    };
    let code = finished.code();
    let output = format!("code {code}: {}\n{}", finished.stderr, here.join("\n"));
    judge(&experiments, &finished, &refused).context(output)?;
    Ok(true)
}

/// The calls that were refused.
struct Refused {
    /// The error.
    errno: i32,
    /// Messages on standard error were refused too.
    silent: bool,
    /// All later calls were refused too.
    for_good: bool,
    /// Only copies of load objects were refused, which the data do not need.
    copies_alone: bool,
}

fn judge(directory: &Path, finished: &Finished, refused: &Refused) -> Result<()> {
    ensure!(!finished.stderr.contains("panicked"), "it panicked");
    let left = experiments_in(directory)?;
    if finished.code() == CANNOT_CREATE {
        let left: Vec<_> = fs::read_dir(directory)?.collect::<Result<_, _>>()?;
        ensure!(left.is_empty(), "{left:?} is left");
    } else {
        let opened = opened(left.first().context("no experiment")?)?;
        ensure!(opened.ticks > 0 || finished.code() != 0, "no ticks");
    }
    match finished.code() {
        CANNOT_CREATE | IO_ERROR => {
            let reported = finished.stderr.contains(&words_of(refused.errno));
            ensure!(reported || refused.silent, "it does not say what failed");
        }
        0 if refused.copies_alone => {
            let experiment = left.first().context("no experiment")?;
            let text = fs::read_to_string(experiment.join("kcollect.json"))?;
            let summary: serde_json::Value = serde_json::from_str(&text)?;
            let archive = &summary["archive"];
            ensure!(
                refused.silent || archive.is_null() || archive["left_out"][0].is_object(),
                "it does not say that something was not archived"
            );
        }
        // The call was made again, and nothing is missing.
        0 if !refused.for_good => {
            let summary = RunSummary::of(left.first().context("no experiment")?)?;
            summary.complete()?;
        }
        _ => anyhow::bail!("such an end is not for this"),
    }
    Ok(())
}
