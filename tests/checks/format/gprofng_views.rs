//! Every view of stock gprofng reads the experiment without a complaint, and all of them have the
//! same total.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment;
use tests::experiment::summary::RunSummary;
use tests::gprofng::{self, script};
use tests::kcollect::{FinishedRecording, record};
use tests::machine::{Shared, online_cpus, work_cpu};
use tests::workload;

/// How far two totals may differ, seconds: gprofng shows thousandths, and sums what it has not
/// rounded.
const ROUNDING_S: f64 = 0.0015;

fn recorded() -> Result<FinishedRecording> {
    let cpu = work_cpu()?.to_string();
    let options = [
        "-p",
        "hi",
        "-x",
        "off",
        "-C",
        "a comment & its <signs> 100% \"quoted\"",
    ];
    record(
        &options,
        &[workload!("spawner"), "3.3", &cpu],
        Duration::from_secs(40),
    )
}

#[test]
fn root_every_view_is_read() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = recorded()?;
    let experiment = recorded.experiment()?;
    let total =
        experiment::ticks(&experiment)? as f64 * experiment::interval_ns(&experiment)? / 1e9;

    let summary = RunSummary::of(&experiment)?;
    summary.complete()?;
    let in_file = experiment::ticks(&experiment)?;
    ensure!(
        summary.ticks == in_file,
        "kcollect.json says {} ticks, and {in_file} are in the file",
        summary.ticks
    );

    let functions = gprofng::functions(&experiment, None)?;
    let same = |what: &str, seconds: f64, rounded: usize| {
        let allowed = ROUNDING_S * rounded as f64;
        ensure!(
            (seconds - total).abs() <= allowed,
            "{what}: {seconds} s, and {total} s are in the file"
        );
        Ok(())
    };
    same("functions", functions.total()?, 1)?;
    same(
        "the sum of all functions",
        functions.sum(|_| true),
        functions.rows.len(),
    )?;
    for view in ["cpus", "threads", "samples", "processes", "seconds"] {
        let table = gprofng::objects(&experiment, view)?;
        same(view, table.total()?, 1)?;
        same(
            &format!("the sum of all {view}"),
            table.sum(|_| true),
            table.rows.len(),
        )?;
        ensure!(
            table.find("<Unknown>").is_none(),
            "{view}: ticks of no {view}: {table:?}"
        );
    }
    let cpus = gprofng::objects(&experiment, "cpus")?;
    for cpu in online_cpus()? {
        ensure!(
            cpus.get(&format!("CPU {cpu}")) > 0.0,
            "CPU {cpu} has no ticks: {cpus:?}"
        );
    }
    for view in [
        "calltree",
        "callers-callees",
        "gprof",
        "pcs",
        "statistics",
        "sample_list",
        "experiment_list",
    ] {
        let output = script(&["metrics e.kcpu:i.kcpu:name", view], &experiment)?.content()?;
        ensure!(!output.text.trim().is_empty(), "{view} is empty");
    }
    Ok(())
}

#[test]
fn root_header_objects_and_samples_hold_what_was_done() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = recorded()?;
    let experiment = recorded.experiment()?;

    let header = gprofng::header(&experiment)?;
    ensure!(
        header.closed && header.text.contains("No errors"),
        "{}",
        header.text
    );
    for part in [
        "a comment & its <signs> 100% \"quoted\"",
        "kcollect",
        "997 microsecs",
    ] {
        ensure!(
            header.text.contains(part),
            "{part:?} is not in the header:\n{}",
            header.text
        );
    }

    // The kernel's functions come from an archived image, not from a file that may be another
    // kernel's.
    let objects = script(&["objects"], &experiment)?.content()?;
    ensure!(
        objects.text.contains("vmlinux"),
        "no kernel among the load objects:\n{}",
        objects.text
    );

    // One sample a second, and the last piece.
    let samples = gprofng::objects(&experiment, "samples")?;
    ensure!(samples.things().count() >= 4, "{samples:?}");
    let detail = script(&["sample_detail all"], &experiment)?.content()?;
    for part in [
        "User CPU",
        "System CPU",
        "Individual samples",
        "Sample Number: 3",
    ] {
        ensure!(
            detail.text.contains(part),
            "{part:?} is not in sample_detail:\n{}",
            detail.text
        );
    }
    Ok(())
}

#[test]
fn root_the_json_summary_is_in_the_experiment() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(
        &["-p", "hi", "-x", "off", "-t", "1", "--json"],
        &[],
        Duration::from_secs(20),
    )?;
    let printed: serde_json::Value = serde_json::from_str(&recorded.finished.stdout)?;
    let kept = std::fs::read_to_string(recorded.experiment()?.join("kcollect.json"))?;
    let kept: serde_json::Value = serde_json::from_str(&kept)?;
    for part in [
        "interval_us",
        "ticks",
        "packets",
        "cpus",
        "losses",
        "processes",
    ] {
        ensure!(
            !kept[part].is_null() && kept[part] == printed[part],
            "{part}: {} and {}",
            kept[part],
            printed[part]
        );
    }
    Ok(())
}
