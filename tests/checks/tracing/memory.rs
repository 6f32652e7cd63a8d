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

const LIMIT: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("GROWTH_PROGRAM");

/// Returns for each function the bytes that it got, those that are left, and in how many pieces it
/// got them.
fn counted(output: &str) -> Result<BTreeMap<&str, [u64; 3]>> {
    let lines = output
        .lines()
        .filter_map(|line| line.strip_prefix("memory "));
    let functions: BTreeMap<_, _> = lines
        .map(|line| -> Result<_> {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, allocated, live, count] = words[..] else {
                anyhow::bail!("{line:?}");
            };
            Ok((name, [live.parse()?, allocated.parse()?, count.parse()?]))
        })
        .collect::<Result<_>>()?;
    ensure!(functions.len() == 6, "{output}");
    Ok(functions)
}

#[test]
fn root_what_each_function_got_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(&["-H", "growth", "-F", "load"], &[PROGRAM], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let counted = counted(&recorded.finished.stdout)?;
    let model = Model::load(&[recorded.experiment()?])?;
    let report = make(&model, View::Heap, &TableOptions::default())?.json();
    let rows = report["rows"].as_array().context("no rows")?;
    for (name, expected) in &counted {
        let row = rows.iter().find(|row| row["name"] == *name);
        let row = row.with_context(|| format!("no {name} in {report}"))?;
        let keys = ["i.heapleakbytes", "i.heapallocbytes", "i.heapalloccnt"];
        let found = keys.map(|key| row[key].as_u64().unwrap_or(0));
        ensure!(found == *expected, "{name}: {found:?}, not {expected:?}");
    }
    // The peak is at least what all of them together had at a time.
    let peak = model.memory_peaks.first().context("no peak")?.bytes;
    let live: u64 = counted.values().map(|[live, ..]| live).sum();
    ensure!(peak >= live, "{peak} bytes at most, and {live} are left");
    agrees_with_gprofng(&recorded, &counted)
}

/// Checks the sums of gprofng's own reader, which replays the packets too.
fn agrees_with_gprofng(
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
    let script = format!("{PROGRAM} | cat; exec true");
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
