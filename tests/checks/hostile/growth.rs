//! The bounds of everything that one process can make grow: see the table in docs/design/bounds.md.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::experiment::files_below;
use tests::experiment::opened::opened;
use tests::experiment::summary::RunSummary;
use tests::kcollect::{FinishedRecording, record};
use tests::machine::{Exclusive, alone, work_cpu};
use tests::workload;
use tests::workload::truth::Truth;

const LIMIT: Duration = Duration::from_secs(60);

/// Records a `storm` of one kind to its end.
fn storm(options: &[&str], seconds: &str, kind: &str) -> Result<FinishedRecording> {
    let cpu = work_cpu()?.to_string();
    let options = [&["-p", "on", "-A", "off", "-F", "all"], options].concat();
    record(&options, &[workload!("storm"), seconds, &cpu, kind], LIMIT)
}

/// Mappings that end before the process has another tick are not written: two changes at most for
/// each tick, which the rate bounds, whatever the process does.
#[test]
fn root_alone_mappings_without_a_tick_are_not_written() -> Result<()> {
    alone(|| {
        let recorded = storm(&[], "3", "turns")?;
        let founder = recorded.experiment()?;
        let summary = RunSummary::of(&founder)?;
        let truth = Truth::find(&recorded.finished.stdout)?;
        ensure!(truth.operations > 100_000, "{truth:?}");
        let followed = summary.followed()?;
        let (process, path) = followed.one(&founder, truth.pid)?;
        ensure!(process.ticks > 200, "{process:?}");
        let map = fs::read_to_string(path.join("map.xml")).context("map.xml")?;
        let changes = map.matches("<event ").count() as u64;
        ensure!(
            changes <= 3 * process.ticks + 1000,
            "{changes} changes in {} bytes for {} ticks and {} mappings",
            map.len(),
            process.ticks,
            truth.operations
        );
        Ok(())
    })
}

/// Returns the size of all files of an experiment, bytes.
fn size_of(experiment: &Path) -> Result<u64> {
    let files = files_below(experiment)?;
    let sizes = files.iter().map(|path| Ok(fs::symlink_metadata(path)?));
    let sizes: Vec<fs::Metadata> = sizes.collect::<Result<_>>()?;
    let files = sizes.iter().filter(|file| file.is_file());
    Ok(files.map(|file| file.len()).sum())
}

/// Checks that an experiment with a limit has at most that size, plus half as much again for what
/// cannot stop at once with the data, plus what each recording has: the founder's own files, and
/// the statistics.
fn limited(kind: &str, beyond: Option<&str>) -> Result<()> {
    const MAX_DATA_BYTES: u64 = 3 << 20;
    const MAX_OTHER_BYTES: u64 = 1 << 20;
    let recorded = storm(&["-L", "2"], "3", kind)?;
    let truth = Truth::find(&recorded.finished.stdout)?;
    let experiment = recorded.experiment()?;
    ensure!(opened(&experiment)?.closed, "{}", recorded.finished);
    let size = size_of(&experiment)?;
    ensure!(
        size <= MAX_DATA_BYTES + MAX_OTHER_BYTES,
        "{kind}: {size} bytes for {truth:?}"
    );
    if let Some(loss) = beyond {
        let stderr = &recorded.finished.stderr;
        ensure!(stderr.contains("-L"), "{}", recorded.finished);
        let summary = RunSummary::of(&experiment)?;
        let losses = &summary.followed()?.losses;
        ensure!(
            losses.get(loss).is_some_and(|count| *count > 0),
            "{kind}: {losses:?} for {truth:?}"
        );
    }
    Ok(())
}

#[test]
fn root_alone_a_limit_on_the_size_holds_for_mappings() -> Result<()> {
    let _machine = Exclusive::take()?;
    limited("mappings", Some("unwritten_mappings"))?;
    limited("files", Some("unwritten_mappings"))
}

#[test]
fn root_alone_a_limit_on_the_size_holds_for_functions() -> Result<()> {
    let _machine = Exclusive::take()?;
    limited("functions", Some("unwritten_functions"))
}

#[test]
fn root_alone_a_limit_on_the_size_holds_for_processes_threads_and_names() -> Result<()> {
    let _machine = Exclusive::take()?;
    for kind in ["processes", "execs", "threads", "names"] {
        limited(kind, None)?;
    }
    Ok(())
}

/// As many mappings are written as a process may have at a time, and the rest is counted.
#[test]
fn root_alone_more_mappings_than_are_written_are_counted() -> Result<()> {
    const MAX_MAPPINGS: usize = 65_536;
    let _machine = Exclusive::take()?;
    let recorded = storm(&[], "10", "mappings")?;
    let experiment = recorded.experiment()?;
    let truth = Truth::find(&recorded.finished.stdout)?;
    ensure!(truth.operations > 2 * MAX_MAPPINGS as u64, "{truth:?}");
    let summary = RunSummary::of(&experiment)?;
    let followed = summary.followed()?;
    let unwritten = followed.losses.get("unwritten_mappings");
    ensure!(unwritten > Some(&0), "{:?}", followed.losses);
    let (_, path) = followed.one(&experiment, truth.pid)?;
    let map = fs::read_to_string(path.join("map.xml")).context("map.xml")?;
    let events = map.lines().filter(|line| line.contains("foffset="));
    let written = events.filter(|line| line.contains("/storm")).count();
    ensure!(written <= MAX_MAPPINGS, "{written} mappings for {truth:?}");
    ensure!(
        written > MAX_MAPPINGS / 2,
        "{written} mappings for {truth:?}"
    );
    let warnings = fs::read_to_string(path.join("warnings.xml")).context("warnings.xml")?;
    ensure!(warnings.contains(&MAX_MAPPINGS.to_string()), "{warnings}");
    Ok(())
}

/// A recording ends when its time is over, whatever waits to be applied then: to open each of the
/// files takes longer than to map it.
#[test]
fn root_alone_a_storm_does_not_lengthen_the_recording() -> Result<()> {
    alone(|| {
        for kind in ["files", "processes"] {
            let recorded = storm(&["-t", "2"], "5", kind)?;
            let summary = RunSummary::of(&recorded.experiment()?)?;
            ensure!(
                (2.0..3.0).contains(&summary.elapsed_s),
                "{kind}: {} s: {}",
                summary.elapsed_s,
                recorded.finished
            );
        }
        Ok(())
    })
}
