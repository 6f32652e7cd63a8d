//! The load of a recording: one workload after the other, so that each has its CPU for itself, and
//! a look at kcollect's BPF programs while they are loaded.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::machine::work_cpu;
use tests::workload::loads;

use crate::runs::{LoadReport, SECONDS, WORKLOADS};
use crate::verifier;

/// Runs the load.
///
/// # Errors
/// When a workload fails.
pub(crate) fn main() -> Result<()> {
    let cpu = work_cpu()?;
    let sibling = Path::new(WORKLOADS).join("any");
    for load in loads::all() {
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

/// Prints a report as a line of JSON, which the judge reads.
#[expect(
    clippy::disallowed_methods,
    reason = "output that only the judge reads"
)]
fn print(output: &LoadReport) -> Result<()> {
    let line = serde_json::to_string(output)? + "\n";
    Ok(std::io::stdout().write_all(line.as_bytes())?)
}
