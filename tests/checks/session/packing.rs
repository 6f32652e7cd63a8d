//! The experiments of a series are packed once they are complete (`--pack`): each reads as before,
//! and as a whole one once it is unpacked, also after a kill at any moment.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::packed::packed_file;
use experiment_format::reader::Experiment;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::command::run;
use tests::experiment::opened::opened;
use tests::experiment::series::{closed_without_a_gap, series, service, until_data};
use tests::experiment::summary::{CpuStats, RunSummary};
use tests::kcollect::{command, record};
use tests::machine::{Shared, work_cpu};
use tests::random::SplitMix;
use tests::workload;

const LIMIT: Duration = Duration::from_secs(60);

/// Unpacks an experiment into a directory.
fn unpacked(experiment: &Path, to: &Path) -> Result<PathBuf> {
    let words = ["unpack".as_ref(), experiment.as_os_str()];
    let words = words.into_iter().chain(["-d".as_ref(), to.as_os_str()]);
    run(&mut command(words)?, LIMIT)?.succeeded()?;
    Ok(to.join(experiment.file_name().context("a name")?))
}

/// Returns the rows of a report in JSON.
fn rows(experiment: &Path, view: &str) -> Result<Value> {
    let words = ["report".as_ref(), experiment.as_os_str(), view.as_ref()];
    let words = words.into_iter().chain(["--json".as_ref()]);
    let text = run(&mut command(words)?, LIMIT)?.succeeded()?.stdout;
    let mut report: Value = serde_json::from_str(&text)?;
    Ok(report["rows"].take())
}

#[test]
fn root_a_series_that_is_packed_reads_as_before() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let options = [
        "-p", "hi", "-x", "off", "-F", "load", "--rotate", "1", "--pack",
    ];
    let load = [workload!("spin_user"), "5.5", &cpu];
    let recorded = record(&options, &load, LIMIT)?;
    let all = series(recorded.directory())?;
    let whole = tempfile::tempdir()?;
    let (mut directories, mut count) = (Vec::new(), 0);
    for path in &all {
        if packed_file(path).is_none() {
            directories.push(path.clone());
            continue;
        }
        count += 1;
        let mut left: Vec<_> = fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<_>>()?;
        left.sort();
        ensure!(left == ["archives", "kcollect.tar.zst"], "{left:?}");
        let directory = unpacked(path, whole.path())?;
        for view in ["functions", "processes", "threads", "objects"] {
            let (packed, unpacked) = (rows(path, view)?, rows(&directory, view)?);
            ensure!(packed == unpacked, "{view}: {packed:#} {unpacked:#}");
        }
        let summary = RunSummary::of(&directory)?;
        summary.complete()?;
        ensure!(
            opened(&directory)?.closed,
            "{} is not closed",
            path.display()
        );
        directories.push(directory);
    }
    ensure!(
        count + 2 >= all.len() && count >= 3,
        "{count} of {all:?} are packed: {}",
        recorded.finished
    );
    ensure!(
        packed_file(&all[all.len() - 1]).is_none(),
        "the last one is packed"
    );
    closed_without_a_gap(&directories)?;
    // What was being packed at the end is as it was.
    for path in all
        .iter()
        .flat_map(|path| [path.clone(), path.join("archives")])
    {
        let names = fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<Result<Vec<_>>>()?;
        let incomplete = |name: &OsString| name.as_encoded_bytes().starts_with(b".incomplete");
        ensure!(
            !names.iter().any(incomplete),
            "{}: {names:?}",
            path.display()
        );
    }
    // The copies of load objects are one for all.
    let shared = fs::read_dir(all[0].join("archives"))?
        .map(|entry| Ok(entry?.metadata()?.nlink()))
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        shared
            .iter()
            .filter(|links| **links >= count as u64)
            .count()
            > 0,
        "{shared:?}"
    );
    Ok(())
}

#[test]
fn root_kills_while_it_packs_lose_nothing() -> Result<()> {
    const KILLS: usize = 6;
    let _machine = Shared::take()?;
    let mut random = SplitMix(0x7061_636b);
    let mut packed = 0;
    for kill in 0..KILLS {
        // With the least budget it sleeps for long after each write; else it is through at once.
        let budget: &[&str] = match kill % 2 {
            0 => &["--budget", "0.1%"],
            _ => &[],
        };
        let directory = tempfile::tempdir()?;
        let options = [
            "-p", "hi", "-x", "off", "-F", "on", "-A", "off", "--rotate", "1", "--pack",
        ];
        let mut running = service(directory.path(), &[&options[..], budget].concat(), LIMIT)?;
        until_data(&mut running, &directory.path().join("ktest.1.er"))?;
        let next = directory.path().join("ktest.2.er/log.xml");
        running.until("another experiment", || next.exists())?;
        sleep(Duration::from_micros(random.below(300_000)));
        running.signal(Signal::SIGKILL)?;
        running.finish()?;
        let first = directory.path().join("ktest.1.er");
        packed += usize::from(packed_file(&first).is_some());
        let experiment = Experiment::open(&first)?;
        ensure!(experiment.is_closed(), "kill {kill}: it is not closed");
        let summary = RunSummary::of(experiment.path())?;
        summary.complete().with_context(|| format!("kill {kill}"))?;
        let counted: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
        let ticks = tests::experiment::ticks(experiment.path())?;
        ensure!(ticks == counted, "kill {kill}: {ticks} ticks of {counted}");
    }
    ensure!(packed < KILLS, "all were packed before the kill");
    Ok(())
}

/// Returns the inodes of the copies of load objects. One that is being made counts as none: it is
/// removed where the recording is killed.
fn copies(experiment: &Path) -> HashSet<u64> {
    let entries = fs::read_dir(experiment.join("archives"));
    let entries = entries.into_iter().flatten().flatten();
    let complete = entries.filter(|entry| {
        let name = entry.file_name();
        !name.as_encoded_bytes().starts_with(b".incomplete")
    });
    complete
        .filter_map(|entry| Some(entry.metadata().ok()?.ino()))
        .collect()
}

#[test]
fn root_what_a_killed_recording_left_is_packed_by_the_next_one() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let path = |number: u32| directory.path().join(format!("ktest.{number}.er"));
    // So slowly that nothing is packed before the kill.
    let options = ["-p", "hi", "-F", "load", "--rotate", "1", "--pack"];
    let load = ["sleep", "60"];
    let slowly = [&options[..], &["--budget", "0.1%"], &load].concat();
    let mut running = service(directory.path(), &slowly, LIMIT)?;
    until_data(&mut running, &directory.path().join("ktest.1.er"))?;
    // With the kernel, the C library, the linker, the load and what has no file. The third one may
    // not have begun when the recording is killed.
    let left = [path(1), path(2)];
    running.until("a third experiment", || {
        path(3).exists() && left.iter().all(|path| copies(path).len() >= 5)
    })?;
    running.signal(Signal::SIGKILL)?;
    running.finish()?;
    // One of another recording, that was not to be packed.
    let other = directory.path().join("ktest.0.er");
    let words = ["-p", "on", "-o", "ktest.0.er", "-t", "0.2"];
    let mut alone = command(words)?;
    run(alone.current_dir(directory.path()), LIMIT)?.succeeded()?;

    // The pace of the default takes a minute on a busy machine.
    let fast = [&options[..], &["--budget", "100%"], &load].concat();
    let mut running = service(directory.path(), &fast, LIMIT)?;
    let packed = || left.iter().all(|path| packed_file(path).is_some());
    running.until("packed experiments", packed)?;
    running.signal(Signal::SIGTERM)?;
    running.finish()?;
    ensure!(Experiment::open(&left[0])?.is_closed(), "the first is open");
    for path in &left {
        Experiment::open(path)?;
    }
    ensure!(packed_file(&other).is_none(), "it was not to be packed");
    // Their load objects are there, and they have those in common.
    let common = copies(&left[0]).intersection(&copies(&left[1])).count();
    ensure!(common >= 3, "{common} copies in common");
    Ok(())
}
