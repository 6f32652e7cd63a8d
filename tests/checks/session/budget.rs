//! The budget (`--budget`): if it is too small, kcollect gives up one thing after the other and
//! says so; the number of ticks does not change.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::log::LogEvent;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use tests::command::Running;
use tests::experiment::summary::RunSummary;
use tests::experiment::{interval_ns, packets};
use tests::kcollect::{experiments_in, record};
use tests::machine::disturbance::judge_times;
use tests::workload;

const LIMIT: Duration = Duration::from_secs(60);

/// How long the recording is, seconds: four decisions after five seconds each, and two seconds for
/// what the last one changes.
const RECORDING_S: &str = "22.5";

/// The time from which three of four firings are left out for certain, nanoseconds.
const QUARTER_RATE_FROM_NS: u64 = 20_700_000_000;

/// A shell starts programs for as long as the recording continues.
#[test]
fn root_alone_what_is_given_up_is_said_and_no_tick_is_lost() -> Result<()> {
    // The context switches of other programs would count most boundaries.
    judge_times(what_is_given_up_is_said_and_no_tick_is_lost)
}

fn what_is_given_up_is_said_and_no_tick_is_lost() -> Result<()> {
    let spinner = Running::start(
        Command::new(workload!("spin_user")).args(["24", "0"]),
        LIMIT,
    )?;
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "end=$(($(date +%s) + 24)); while [ $(date +%s) -lt $end ]; do /bin/true; done",
    ]);
    let shell = Running::start(&mut shell, LIMIT)?;
    let options = [
        "-x",
        "off",
        "-F",
        "on",
        "--budget",
        "0.01%",
        "-t",
        RECORDING_S,
    ];
    let recorded = record(&options, &[], LIMIT)?;
    for load in [spinner, shell] {
        load.finish()?.succeeded()?;
    }

    let path = recorded.experiment()?;
    let summary = RunSummary::of(&path)?;
    summary.without(&["ring_full", "not_written", "unaccounted"])?;
    for cpu in &summary.cpus {
        cpu.elapsed(interval_ns(&path)?, 1)?;
    }

    names_what_is_given_up(&path)?;
    ticks_share_stacks_later(&path)?;
    later_programs_have_no_experiment(&path)
}

/// The log warns of each level, and the summary names them.
fn names_what_is_given_up(path: &Path) -> Result<()> {
    let experiment = Experiment::open(path)?;
    let events = [experiment.events(), &experiment.warnings()?].concat();
    let warnings: Vec<_> = events
        .into_iter()
        .filter_map(|event| match event {
            LogEvent::Warning { text, .. } => Some(text),
            _ => None,
        })
        .collect();
    let warnings = warnings.join("\n");
    ensure!(warnings.matches("(--budget)").count() >= 4, "{warnings}");

    let text = std::fs::read_to_string(path.join("kcollect.json"))?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let changes = json["budget"]["changes"].as_array();
    let given_up: Vec<_> = changes
        .context("what was given up")?
        .iter()
        .map(|change| change["given_up"].as_str().unwrap_or_default())
        .collect();
    ensure!(
        given_up == ["few_copies", "few_experiments", "half_rate", "quarter_rate"],
        "{:#}",
        json["budget"]
    );
    Ok(())
}

fn ticks_share_stacks_later(path: &Path) -> Result<()> {
    // A CPU that is busy all the time has a packet for each firing, and for boundaries that a
    // context switch counts: 1.8 ticks on average were measured, and 1.02 to 1.35 while other
    // checks ran.
    let began = Experiment::open(path)?.start().tstamp_ns;
    let (before, late): (Vec<_>, Vec<_>) = packets(path)?
        .into_iter()
        .filter(|packet| packet.cpu == 0)
        .partition(|packet| packet.time_ns - began.0 < 5_000_000_000);
    let late = late
        .into_iter()
        .filter(|packet| packet.time_ns - began.0 >= QUARTER_RATE_FROM_NS);
    let late: Vec<_> = late.collect();
    let mean = |packets: &[tests::experiment::Packet]| {
        let ticks: u64 = packets.iter().map(|packet| packet.ticks).sum();
        ticks as f64 / packets.len().max(1) as f64
    };
    ensure!(
        mean(&before) < 1.2 && mean(&late) > 1.4,
        "{} ticks of a packet before, {} at a quarter of the rate",
        mean(&before),
        mean(&late)
    );
    Ok(())
}

/// No program of the second half has an experiment.
fn later_programs_have_no_experiment(path: &Path) -> Result<()> {
    let began = Experiment::open(path)?.start().tstamp_ns;
    let children = experiments_in(path)?;
    let mut starts = Vec::new();
    for child in children {
        let name = child
            .file_name()
            .context("a name")?
            .to_string_lossy()
            .into_owned();
        if name.starts_with("_true_PID_") {
            starts.push(first_packet_ns(&child)? - began);
        }
    }
    let late = starts
        .iter()
        .filter(|start| **start > Nanos::from_secs(11))
        .count();
    ensure!(
        !starts.is_empty() && late == 0,
        "{late} of {} began late",
        starts.len()
    );
    Ok(())
}

/// Returns when the first packet of an experiment was written.
fn first_packet_ns(path: &Path) -> Result<Nanos> {
    let ticks = Experiment::open(path)?.ticks()?;
    let times = ticks.map(|tick| tick.map(|tick| tick.shared.time_ns));
    let times: Vec<Nanos> = times.collect::<Result<_, _>>()?;
    times
        .into_iter()
        .min()
        .context("an experiment without ticks")
}
