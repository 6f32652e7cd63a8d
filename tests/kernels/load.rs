//! The load of a recording: one workload after the other, so that each has its CPU for itself, and
//! a look at kcollect's BPF programs while they are loaded.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Link, MapCore as _, ObjectBuilder};
use tests::machine::work_cpu;
use tests::workload::loads;

use crate::runs::{LoadReport, SCHED_EXT, SCHED_EXT_DIRECTORY, SCHEDULER, SECONDS, WORKLOADS};
use crate::verifier;

/// The workloads that are run by a scheduler of sched_ext.
const SCHEDULED: [&str; 4] = [
    "spin_user",
    "state_sleep nanosleep",
    "state_lock mutex",
    "state_wait",
];

/// Runs the load.
///
/// # Errors
/// When a workload fails.
pub(crate) fn main() -> Result<()> {
    let of_program = std::env::args().nth(2).as_deref() == Some(SCHED_EXT);
    let _scheduler = of_program.then(schedule_by_program).transpose()?;
    let cpu = work_cpu()?;
    let sibling = Path::new(WORKLOADS).join("any");
    let chosen = |load: &loads::Load| !of_program || SCHEDULED.contains(&load.to_string().as_str());
    for load in loads::all().filter(chosen) {
        if let Err(error) = load.possible() {
            print(&LoadReport::Impossible(format!("{load}: {error:#}")))?;
            continue;
        }
        print(&LoadReport::Turn(load.to_string()))?;
        let args = load.args(&sibling, SECONDS, cpu);
        let status = Command::new(&args[0])
            .args(&args[1..])
            .status()
            .with_context(|| args.join(" "))?;
        ensure!(status.success(), "{load}: {status}");
    }
    print(&LoadReport::Programs(verifier::loaded()))
}

/// Lets a BPF program schedule all threads, until the result is dropped.
fn schedule_by_program() -> Result<Link> {
    let mut object = ObjectBuilder::default().open_file(SCHEDULER)?.load()?;
    let mut maps = object.maps_mut();
    let mut scheduler = maps
        .find(|map| map.name() == "scheduler")
        .context("no scheduler")?;
    let link = scheduler.attach_struct_ops()?;
    let state = fs::read_to_string(Path::new(SCHED_EXT_DIRECTORY).join("state"))?;
    ensure!(state.trim() == "enabled", "sched_ext is {state}");
    Ok(link)
}

/// Prints a report as a line of JSON, which the judge reads.
#[expect(
    clippy::disallowed_methods,
    reason = "output that only the judge reads"
)]
fn print(output: &LoadReport) -> Result<()> {
    let line = serde_json::to_string(output)? + "\n";
    Ok(std::io::stdout().write_all(line.as_bytes())?)
}
