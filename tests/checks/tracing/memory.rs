//! The growth of memory (`-H growth`): functions that count what they got from the kernel and gave
//! back are recorded with exactly that, by gprofng and by our report.

use std::collections::BTreeMap;
use std::time::Duration;

use analysis::model::Model;
use analysis::report::views::{TableOptions, View, make};
use anyhow::{Context, Result, ensure};
use tests::experiment::summary::RunSummary;
use tests::gprofng::script;
use tests::kcollect::{FinishedRecording, experiments_in, record};
use tests::machine::Shared;
use tests::workload::memory::{GROWTH, counted};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns what the report has of a function, as [`counted`]; zeros where it has nothing.
pub(super) fn reported(model: &Model, name: &str) -> Result<[u64; 3]> {
    let report = make(model, View::Heap, &TableOptions::default())?.json();
    let rows = report["rows"].as_array().context("no rows")?;
    let row = rows.iter().find(|row| row["name"] == *name);
    let keys = ["i.heapleakbytes", "i.heapallocbytes", "i.heapalloccnt"];
    Ok(keys.map(|key| row.and_then(|row| row[key].as_u64()).unwrap_or(0)))
}

#[test]
fn root_what_each_function_got_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(&["-H", "growth", "-F", "load"], &[GROWTH], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let counted = counted(&recorded.finished.stdout, 6)?;
    let model = Model::load(&[recorded.experiment()?])?;
    for (name, expected) in &counted {
        let found = reported(&model, name)?;
        ensure!(found == *expected, "{name}: {found:?}, not {expected:?}");
    }
    // The peak is at least what all of them together had at a time.
    let peak = model.memory_peaks.first().context("no peak")?.bytes;
    let live: u64 = counted.values().map(|[live, ..]| live).sum();
    ensure!(peak >= live, "{peak} bytes at most, and {live} are left");
    agrees_with_gprofng(&recorded, &counted)
}

/// Checks the sums of gprofng's own reader, which replays the packets too.
pub(super) fn agrees_with_gprofng(
    recorded: &FinishedRecording,
    counted: &BTreeMap<&str, [u64; 3]>,
) -> Result<()> {
    let metrics = "metrics i+heapleakbytes:i+heapallocbytes:i+heapalloccnt:name";
    let output = script(&[metrics, "functions"], &recorded.experiment()?)?;
    let table = output.content()?.table(3);
    for (name, expected) in counted {
        let row = table.find(name).with_context(|| format!("no {name}"))?;
        let values: Vec<u64> = row.values.iter().map(|value| *value as u64).collect();
        ensure!(
            values == expected,
            "gprofng: {name}: {values:?}, not {expected:?}"
        );
    }
    Ok(())
}

/// A program that executes another one has nothing of it left.
#[test]
fn root_memory_ends_with_its_program() -> Result<()> {
    let _machine = Shared::take()?;
    let script = format!("{GROWTH} | cat; exec true");
    let recorded = record(
        &["-H", "growth", "-F", "load"],
        &["sh", "-c", &script],
        LIMIT,
    )?;
    let experiments = experiments_in(&recorded.experiment()?)?;
    ensure!(experiments.len() == 1, "{experiments:?}");
    let model = Model::load(&[recorded.experiment()?])?;
    let sums = model.allocations.iter().fold([0, 0], |[all, live], one| {
        [all + one.bytes, live + one.live_bytes]
    });
    // What is left is `true`'s, which gets less than the two together.
    ensure!(sums[1] > 0 && sums[1] < sums[0] * 2 / 3, "{sums:?}");
    Ok(())
}
