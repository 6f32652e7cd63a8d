//! What one process can make grow, and how far: see the table in ARCHITECTURE.md.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::experiment::summary::RunSummary;
use tests::kcollect::record;
use tests::machine::alone;
use tests::workload::truth::Truth;

const LIMIT: Duration = Duration::from_secs(60);

/// Mappings that end before the process has another tick are not written: two changes at most for
/// each tick, which the rate bounds, whatever the process does.
#[test]
fn root_mappings_without_a_tick_are_not_written() -> Result<()> {
    alone(|| {
        let storm = env!("CARGO_BIN_EXE_map_storm");
        let recorded = record(&["-p", "on", "-F", "on"], &[storm, "3", "1"], LIMIT)?;
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
