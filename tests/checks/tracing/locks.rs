//! Waits for locks (`-s`): a program that knows how often and for how long it was blocked at each
//! of its locks is recorded with exactly these waits, by gprofng and by our report; nothing is
//! recorded of other processes; and waits beyond a bound are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use analysis::metric::offered;
use analysis::model::Model;
use analysis::report::views::{TableOptions, View, make};
use anyhow::{Context, Result, ensure};
use experiment_format::losses::{RecordedTotals, phrase};
use experiment_format::packet::SyncRecord;
use experiment_format::units::Nanos;
use tests::command::Running;
use tests::experiment::summary::RunSummary;
use tests::experiment::sync_records;
use tests::gprofng::{display, script};
use tests::kcollect::{FinishedRecording, experiments_in, record, sub_experiment};
use tests::machine::disturbance::judge_times;
use tests::machine::{Shared, work_cpu};
use tests::workload;
use tests::workload::compat32;
use tests::workload::locked::{LOCKED, Lock, each_wait};

const LIMIT: Duration = Duration::from_secs(60);

/// How much longer a wait may be by the program's clock than by the kernel's, on average of all
/// waits at a lock, nanoseconds: entering the kernel and returning. 24 us were measured in a
/// virtual machine.
const MAX_CALL_NS: f64 = 100_000.0;
/// The same for the first wait at a lock, whose code may run for the first time: 316 us were
/// measured, of a join.
const MAX_FIRST_CALL_NS: f64 = 1_000_000.0;

/// The bound of traced waits, as in bpf/abi/c/limits.h.
const MAX_WAITS_PER_CPU_AND_SECOND: u64 = 5000;

/// Returns the experiment of the program itself.
fn own(recorded: &FinishedRecording) -> Result<PathBuf> {
    sub_experiment(&recorded.experiment()?, "_locked_PID_")
}

/// Returns the time of some waits, nanoseconds.
fn nanos<'a>(waits: impl IntoIterator<Item = &'a SyncRecord>) -> f64 {
    let each = waits
        .into_iter()
        .map(|wait| wait.shared.time_ns - wait.requested_ns);
    each.sum::<Nanos>().0 as f64
}

#[test]
fn root_alone_every_wait_is_recorded_at_its_lock() -> Result<()> {
    judge_times(|| {
        let recorded = record(&["-s", "all", "-F", "load"], &[LOCKED, "2"], LIMIT)?;
        RunSummary::of(&recorded.experiment()?)?.complete()?;
        let locks = Lock::all(&recorded.finished.stdout)?;
        let waits = sync_records(&own(&recorded)?)?;
        for (lock, there) in each_wait(&locks, &waits)? {
            let recorded_ns = nanos(there);
            let calls_ns = lock.nanos as f64 - recorded_ns;
            ensure!(
                (0.0..=MAX_FIRST_CALL_NS + MAX_CALL_NS * lock.waits as f64).contains(&calls_ns),
                "{recorded_ns} ns are recorded at {lock:?}"
            );
        }
        agrees_with_gprofng(&recorded, &waits)?;
        reported(&recorded, &locks, &waits)
    })
}

/// Checks the sums of gprofng's own reader, which has each packet in whole microseconds.
fn agrees_with_gprofng(recorded: &FinishedRecording, waits: &[SyncRecord]) -> Result<()> {
    let output = script(
        &["metrics e.sync:e+syncn:name", "functions"],
        &recorded.experiment()?,
    )?;
    let table = output.content()?.table(2);
    let total = table.find("<Total>").context("no <Total>")?;
    let (seconds, count) = (total.values[0], total.values[1]);
    ensure!(
        (-0.001..=0.001 + 1e-6 * waits.len() as f64).contains(&(nanos(waits) / 1e9 - seconds))
            && count as usize == waits.len(),
        "gprofng has {count} waits of {seconds} s, of {} of {} ns",
        waits.len(),
        nanos(waits)
    );
    let header = display(&own(recorded)?, &["-header"]);
    ensure!(
        header.contains("Synchronization tracing, threshold = 0 microsecs.; Native-APIs"),
        "{header}"
    );
    Ok(())
}

/// Checks that our report has them by lock, with the functions of the program that waited.
fn reported(recorded: &FinishedRecording, locks: &[Lock], waits: &[SyncRecord]) -> Result<()> {
    let model = Model::load(&[recorded.experiment()?])?;
    let words: Vec<_> = offered(&model).iter().map(|base| base.keyword()).collect();
    ensure!(
        words.contains(&"sync") && words.contains(&"syncn"),
        "{words:?}"
    );
    let report = make(&model, View::Locks, &TableOptions::default())?.json();
    let rows = report["rows"].as_array().context("no rows")?;
    let mut by_object: BTreeMap<u64, Vec<&SyncRecord>> = BTreeMap::new();
    for wait in waits {
        by_object.entry(wait.object).or_default().push(wait);
    }
    ensure!(rows.len() == 1 + by_object.len(), "{report}");
    for (object, waits) in by_object {
        let name = match object {
            0 => "(unknown)".to_owned(),
            object => format!("{object:#x}"),
        };
        let row = rows.iter().find(|row| row["lock"] == name.as_str());
        let row = row.with_context(|| format!("no {name} in {report}"))?;
        let seconds = row["sync"].as_f64().context("no time")?;
        ensure!(
            row["syncn"] == waits.len()
                && (seconds - nanos(waits.iter().copied()) / 1e9).abs() < 1e-6,
            "{row}"
        );
        let callers = [
            ("mutex", "want_mutex"),
            ("semaphore", "take"),
            ("join", "main"),
        ];
        for (lock, caller) in callers {
            let own = locks.iter().find(|own| own.name == lock);
            let own = own.context("no such lock")?;
            ensure!(
                !waits.iter().any(|wait| own.has(wait)) || row["caller"] == caller,
                "{row} of {own:?}"
            );
        }
    }
    Ok(())
}

/// A threshold leaves out shorter waits, and a running process can be chosen. Another process that
/// waits for locks is not recorded.
#[test]
fn root_waits_of_a_chosen_process_from_a_threshold_on() -> Result<()> {
    let _machine = Shared::take()?;
    // They run for longer than the recording, and end with their handles.
    let mut chosen = Running::start(Command::new(LOCKED).args(["60", "3000"]), LIMIT)?;
    let mut other = Running::start(Command::new(LOCKED).args(["60"]), LIMIT)?;
    let pid = chosen.pid().to_string();
    let recorded = record(
        &["-s", "2500", "-F", "off", "-T", &pid, "-t", "2"],
        &[],
        LIMIT,
    )?;
    ensure!(!chosen.ended()? && !other.ended()?, "a program has ended");
    let founder = recorded.experiment()?;
    let experiments = experiments_in(&founder)?;
    ensure!(
        experiments.len() == 1 && experiments[0].ends_with(format!("_locked_PID_{pid}.1.er")),
        "{experiments:?}"
    );
    ensure!(sync_records(&founder)?.is_empty(), "waits in the founder");
    let waits = sync_records(&experiments[0])?;
    let shortest = waits
        .iter()
        .map(|wait| wait.shared.time_ns - wait.requested_ns)
        .min();
    // Five threads wait for 3 ms again and again.
    ensure!(
        waits.len() > 1000 && shortest.is_some_and(|shortest| shortest >= Nanos(2_500_000)),
        "{} waits of {shortest:?} ns and more",
        waits.len()
    );
    Ok(())
}

/// Two threads that wake each other as fast as they can are recorded up to the bound, and what is
/// beyond is counted.
#[test]
fn root_waits_beyond_the_bound_are_counted() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(
        &["-s", "all", "-F", "load"],
        &[LOCKED, "ping", "300000"],
        LIMIT,
    )?;
    let summary = RunSummary::of(&recorded.experiment()?)?;
    let left_out = summary.losses.get("lock_waits").copied().unwrap_or(0);
    let waits = sync_records(&own(&recorded)?)?.len() as u64;
    // The first and the last second may be in it only in part.
    let seconds = summary.elapsed_s as u64 + 2;
    let bound = MAX_WAITS_PER_CPU_AND_SECOND * summary.cpus.len() as u64 * seconds;
    ensure!(
        left_out > 0 && waits > MAX_WAITS_PER_CPU_AND_SECOND && waits <= bound,
        "{waits} waits, and {left_out} left out"
    );
    let shown = phrase("lock_waits", left_out, &RecordedTotals::default());
    ensure!(
        recorded.finished.stdout.contains(&shown),
        "{shown}: {}",
        recorded.finished
    );
    Ok(())
}

/// A lock that lends its waiter's priority to its owner is waited for by another command of futex,
/// and Rust's own mutexes and joins are futexes too.
#[test]
fn root_waits_of_rust_and_of_locks_that_lend_priority() -> Result<()> {
    const FUTEX_LOCK_PI: u32 = 6;
    const FUTEX_WAIT_BITSET: u32 = 9;
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    for (variant, kind, function) in [
        ("mutex", FUTEX_WAIT_BITSET, "want_mutex"),
        // The function of the workload that calls futex(2).
        ("pi", FUTEX_LOCK_PI, "futex"),
    ] {
        let load = [workload!("state_lock"), "1", &cpu, variant];
        let recorded = record(&["-s", "all", "-F", "load"], &load, LIMIT)?;
        let experiment = sub_experiment(&recorded.experiment()?, "_state_lock_PID_")?;
        let waits = sync_records(&experiment)?;
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for wait in waits.iter().filter(|wait| wait.kind == Some(kind)) {
            *counts.entry(wait.object).or_default() += 1;
        }
        // The others are joins.
        let most = counts.iter().max_by_key(|(_, count)| **count);
        let (lock, count) = most.with_context(|| format!("{variant}: {waits:?}"))?;
        ensure!(
            *lock != 0 && *count > 100 && *count * 10 > waits.len() * 9,
            "{variant}: {counts:x?} of {} waits",
            waits.len()
        );
        let model = Model::load(&[recorded.experiment()?])?;
        let report = make(&model, View::Locks, &TableOptions::default())?.json();
        let rows = report["rows"].as_array().context("no rows")?;
        let address = format!("{lock:#x}");
        let row = rows.iter().find(|row| row["lock"] == address.as_str());
        let caller = row.and_then(|row| row["caller"].as_str()).unwrap_or("");
        ensure!(caller.contains(function), "{variant}: {report}");
    }
    Ok(())
}

/// A 32-bit program has the futex in another register.
#[test]
fn root_waits_of_a_32_bit_program() -> Result<()> {
    let _machine = Shared::take()?;
    if !compat32::is_supported() {
        return Ok(());
    }
    let cpu = work_cpu()?.to_string();
    let load = [workload!("compat32"), "1", &cpu, "futex"];
    let options = ["-s", "all", "-F", "load", "--descendants"];
    let recorded = record(&options, &load, LIMIT)?;
    let mut waits = Vec::new();
    for experiment in experiments_in(&recorded.experiment()?)? {
        waits.extend(sync_records(&experiment)?);
    }
    let narrow = waits
        .iter()
        .filter(|wait| (1..1 << 32).contains(&wait.object));
    let objects: BTreeSet<_> = narrow.clone().map(|wait| wait.object).collect();
    ensure!(
        narrow.clone().count() > 100
            && objects.len() == 1
            && narrow.clone().all(|wait| wait.kind == Some(0)),
        "{waits:?}"
    );
    Ok(())
}
