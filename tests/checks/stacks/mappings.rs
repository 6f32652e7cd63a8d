//! Mappings change while user stacks are unwound.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment::followed::Followed;
use tests::kcollect::record;
use tests::machine::Shared;
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

/// What was read of the mappings while another thread changed them is not used: the stack is copied
/// and unwound later, and is as complete as others.
#[test]
fn root_a_thread_that_maps_files_spoils_no_stack_of_another() -> Result<()> {
    let _machine = Shared::take()?;
    let load = [PROCTORTURE, "maps", "deep:40,2000"];
    let recorded = record(&["-p", "hi", "-F", "=proctorture"], &load, LIMIT)?;
    let followed = Followed::read(&recorded)?;
    let raced = &followed.json["followed"]["raced_look_ups"];
    ensure!(raced.as_u64() > Some(0), "{raced}");
    let pid = *followed.pids().first().expect("one is followed");
    let process = followed.the(pid)?;
    let table = process.functions(None)?;
    let inclusive = |name: &str| table.find(name).map_or(0.0, |row| row.values[1]);
    let (burned, called) = (inclusive("burn_deep"), inclusive("main"));
    ensure!(
        burned > 0.5 && called >= 0.97 * burned,
        "burn_deep {burned} s, of which main called {called} s; {raced} raced"
    );
    Ok(())
}
