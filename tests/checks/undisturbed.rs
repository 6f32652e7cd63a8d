//! A followed process does not notice it: no signal arrives, no system call is interrupted, cut
//! short or ended early, nothing is mapped, opened, set or attached that is not there without
//! kcollect.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::books::Books;
use tests::command::{Finished, run};
use tests::kcollect::record;
use tests::machine::Exclusive;

/// How long it makes its calls, seconds.
const SECONDS: &str = "3";
/// How often each kind of call is made at least.
const TIMES: u64 = 20;
const LIMIT: Duration = Duration::from_secs(40);

/// What the program tells.
#[derive(Default)]
struct Told {
    pid: i32,
    /// By kind: how often, and how many of these were interrupted, cut short or early.
    calls: BTreeMap<String, [u64; 4]>,
    /// By number: how often.
    signals: BTreeMap<String, u64>,
    /// Executable mappings at the beginning and at the end.
    code: (u64, u64),
    /// What it was started with.
    origin: BTreeSet<String>,
}

/// Who reads the rings does not wait in a row with the load: that is a real-time thread,
/// `SCHED_FIFO`. Another one of these lets those who work on what was read, `SCHED_RR`, go first in
/// turns. Nobody else is one, nor is the load: policies are field 41 of proc_pid_stat(5).
#[test]
fn root_readers_go_first_and_nobody_else() -> Result<()> {
    let look = "for turn in 1 2 3 4 5 6 7 8 9 10; do \
         for task in /proc/$PPID/task/*; do echo $(cut -d' ' -f2,41 $task/stat); done; sleep 0.013; done; \
         echo load; cut -d' ' -f41 /proc/self/stat";
    let recorded = record(&["-F", "on"], &["sh", "-c", look], LIMIT)?;
    let said = &recorded.finished.stdout;
    let (threads, load) = said.split_once("load\n").context("no load")?;
    for line in threads.lines() {
        // Of a thread that has just ended nothing is told.
        let Some((name, policy)) = line.rsplit_once(' ') else {
            continue;
        };
        let policies: &[_] = match name {
            "(reader)" | "(rt-priority)" => &["1"],
            "(kcollect)" | "(unwind-tables)" => &["0", "2"],
            _ => &["0"],
        };
        ensure!(policies.contains(&policy), "{line}: {said}");
    }
    for always in ["(reader) 1", "(rt-priority) 1"] {
        ensure!(threads.contains(always), "{said}");
    }
    ensure!(load.lines().next() == Some("0"), "{said}");
    Ok(())
}

#[test]
fn root_a_followed_process_is_not_disturbed() -> Result<()> {
    let _machine = Exclusive::take()?;
    // Without randomised addresses, maps can be compared.
    let load = ["setarch", "-R", env!("BYSTANDER_PROGRAM"), SECONDS];
    let alone = run(
        Command::new(load[0])
            .args(&load[1..])
            .env_remove("SUDO_UID")
            .env_remove("SUDO_GID")
            .env_remove("SUDO_USER"),
        LIMIT,
    )?;
    let alone = told(&alone.succeeded()?)?;
    let recorded = record(&["-p", "hi", "-F", "on"], &load, LIMIT)?;
    let watched = told(&recorded.finished)?;

    // It was followed, or this shows nothing.
    let experiment = recorded.experiment()?;
    let books = Books::of(&experiment)?;
    let (process, _) = books.followed()?.one(&experiment, watched.pid)?;
    let stacks = process.user_stacks.get("complete").copied();
    ensure!(
        stacks.unwrap_or_default() > 10_000,
        "few of its ticks have a user stack: {process:?}"
    );

    for (who, told) in [("alone", &alone), ("watched", &watched)] {
        for (kind, [times, interrupted, short, early]) in &told.calls {
            println!(
                "{who}: {kind} {times} times, {interrupted} interrupted, {short} short, {early} early"
            );
            ensure!(
                *times >= TIMES && interrupted + short + early == 0,
                "{who}: {kind}, {times} times: {interrupted} interrupted, {short} short, {early} ended otherwise"
            );
        }
        ensure!(
            told.signals.len() > 30 && told.signals.values().all(|times| *times == 0),
            "{who}: signals arrived: {:?}",
            told.signals
        );
        ensure!(
            told.code.0 == told.code.1,
            "{who}: {:?} executable mappings",
            told.code
        );
        ensure!(told.calls.len() > 15, "{who}: only {:?}", told.calls);
    }
    let only = |one: &Told, other: &Told| -> Vec<String> {
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

fn told(finished: &Finished) -> Result<Told> {
    let mut told = Told::default();
    for line in finished.stdout.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| -> Result<u64> {
            let word = words.get(at).with_context(|| line.to_owned())?;
            word.parse().with_context(|| line.to_owned())
        };
        match words.first() {
            Some(&"call") => {
                let counts = [number(2)?, number(3)?, number(4)?, number(5)?];
                told.calls.insert(words[1].to_owned(), counts);
            }
            Some(&"signal") => {
                told.signals.insert(words[1].to_owned(), number(2)?);
            }
            Some(&"code") => told.code = (number(1)?, number(2)?),
            Some(&"pid") => told.pid = i32::try_from(number(1)?)?,
            Some(&"origin") => {
                told.origin.insert(without_the_librarys(line));
            }
            // kcollect's own words.
            _ => {}
        }
    }
    Ok(told)
}

/// A line without signals 32 and 33 among those that are ignored: they are the C library's own, and
/// whether a program begins with them ignored is a matter of which of its functions started it.
fn without_the_librarys(line: &str) -> String {
    const OWN: u64 = 3 << 31;
    let ignored = line
        .split_once("SigIgn:\t")
        .and_then(|(before, mask)| Some((before, u64::from_str_radix(mask.trim(), 16).ok()?)));
    match ignored {
        Some((before, mask)) => format!("{before}SigIgn:\t{:016x}", mask & !OWN),
        None => line.to_owned(),
    }
}
