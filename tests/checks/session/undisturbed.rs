//! A followed process is not disturbed: no signal arrives, no system call is interrupted, cut
//! short or ended early, nothing is mapped, opened, set or attached that is not there without
//! kcollect.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use tests::command::{Finished, run};
use tests::experiment::summary::RunSummary;
use tests::kcollect::record;
use tests::machine::Exclusive;

/// How long the load makes its calls, seconds.
const LOAD_S: &str = "3";
/// Minimum number of calls of each kind.
const TIMES: u64 = 20;
const LIMIT: Duration = Duration::from_secs(40);

/// The output of the load.
#[derive(Default)]
struct Report {
    pid: Pid,
    /// Numbers of calls by kind: all, interrupted, cut short, ended early.
    calls: BTreeMap<String, [u64; 4]>,
    /// Numbers of signals by signal.
    signals: BTreeMap<String, u64>,
    /// Executable mappings at the beginning and at the end.
    code: (u64, u64),
    /// The environment that it was started with.
    origin: BTreeSet<String>,
}

/// The thread that reads the rings has a real-time priority (`SCHED_FIFO`), so it does not wait for
/// the load. Those that process the records, and that open files for them, have nice values below
/// others. No other thread has either, nor has the load: nice values and policies are fields 19 and
/// 41 of proc_pid_stat(5).
#[test]
fn root_alone_only_some_threads_have_priority() -> Result<()> {
    let _machine = Exclusive::take()?;
    let look = "for turn in 1 2 3; do \
         for task in /proc/$PPID/task/*; do echo $(cut -d' ' -f2,19,41 $task/stat); done; sleep 0.1; done; \
         echo load; cut -d' ' -f19,41 /proc/self/stat";
    let recorded = record(&["-F", "on"], &["sh", "-c", look], LIMIT)?;
    let output = &recorded.finished.stdout;
    let (threads, load) = output.split_once("load\n").context("no load")?;
    for line in threads.lines() {
        // A thread that has just exited has no line.
        let Some((name, priority)) = line.split_once(' ') else {
            continue;
        };
        let expected = match name {
            "(reader)" => "0 1",
            "(kcollect)" | "(unwind-tables)" => "-10 0",
            "(open)" => "-20 0",
            "(archive)" => "19 0",
            _ => "0 0",
        };
        ensure!(priority == expected, "{line}: {output}");
    }
    for there in ["(reader) 0 1", "(kcollect) -10 0", "(unwind-tables) -10 0"] {
        ensure!(threads.contains(there), "{output}");
    }
    ensure!(load.lines().next() == Some("0 0"), "{output}");
    Ok(())
}

#[test]
fn root_alone_a_followed_process_is_not_disturbed() -> Result<()> {
    let _machine = Exclusive::take()?;
    // Without randomised addresses, maps can be compared.
    let load = ["setarch", "-R", env!("BACKGROUND_LOAD_PROGRAM"), LOAD_S];
    let alone = run(
        Command::new(load[0])
            .args(&load[1..])
            .env_remove("SUDO_UID")
            .env_remove("SUDO_GID")
            .env_remove("SUDO_USER"),
        LIMIT,
    )?;
    let alone = report(&alone.succeeded()?)?;
    let recorded = record(&["-p", "hi", "-F", "on"], &load, LIMIT)?;
    let watched = report(&recorded.finished)?;

    // If the load was not followed, this check would show nothing.
    let experiment = recorded.experiment()?;
    let summary = RunSummary::of(&experiment)?;
    let (process, _) = summary.followed()?.one(&experiment, watched.pid)?;
    let stacks = process.user_stacks.get("complete").copied();
    ensure!(
        stacks.unwrap_or_default() > 10_000,
        "few of its ticks have a user stack: {process:?}"
    );

    for (which, report) in [("alone", &alone), ("watched", &watched)] {
        for (kind, [times, interrupted, short, early]) in &report.calls {
            println!(
                "{which}: {kind} {times} times, {interrupted} interrupted, {short} short, {early} early"
            );
            ensure!(
                *times >= TIMES && interrupted + short + early == 0,
                "{which}: {kind}, {times} times: {interrupted} interrupted, {short} short, {early} ended otherwise"
            );
        }
        ensure!(
            report.signals.len() > 30 && report.signals.values().all(|times| *times == 0),
            "{which}: signals arrived: {:?}",
            report.signals
        );
        ensure!(
            report.code.0 == report.code.1,
            "{which}: {:?} executable mappings",
            report.code
        );
        ensure!(report.calls.len() > 15, "{which}: only {:?}", report.calls);
    }
    let only = |one: &Report, other: &Report| -> Vec<String> {
        one.origin.difference(&other.origin).cloned().collect()
    };
    let (lost, found) = (only(&alone, &watched), only(&watched, &alone));
    ensure!(
        lost.is_empty() && found.is_empty(),
        "alone it is started with {lost:#?}, watched with {found:#?}"
    );
    let traced = |line: &&String| line.contains("TracerPid:\t0");
    ensure!(watched.origin.iter().any(|line| traced(&line)), "traced");
    Ok(())
}

fn report(finished: &Finished) -> Result<Report> {
    let mut report = Report::default();
    for line in finished.stdout.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| -> Result<u64> {
            let word = words.get(at).with_context(|| line.to_owned())?;
            word.parse().with_context(|| line.to_owned())
        };
        match words.first() {
            Some(&"call") => {
                let counts = [number(2)?, number(3)?, number(4)?, number(5)?];
                report.calls.insert(words[1].to_owned(), counts);
            }
            Some(&"signal") => {
                report.signals.insert(words[1].to_owned(), number(2)?);
            }
            Some(&"code") => report.code = (number(1)?, number(2)?),
            Some(&"pid") => report.pid = Pid(u32::try_from(number(1)?)?),
            Some(&"origin") => {
                report.origin.insert(without_libc_signals(line));
            }
            // kcollect's own output.
            _ => {}
        }
    }
    Ok(report)
}

/// Returns a line without signals 32 and 33 among those that are ignored: they are the C library's
/// own, and whether a program begins with them ignored depends on the function that started it.
fn without_libc_signals(line: &str) -> String {
    const LIBC_SIGNALS: u64 = 3 << 31;
    let ignored = line
        .split_once("SigIgn:\t")
        .and_then(|(before, mask)| Some((before, u64::from_str_radix(mask.trim(), 16).ok()?)));
    match ignored {
        Some((before, mask)) => format!("{before}SigIgn:\t{:016x}", mask & !LIBC_SIGNALS),
        None => line.to_owned(),
    }
}
