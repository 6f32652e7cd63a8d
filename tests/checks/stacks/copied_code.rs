//! Code that a program has copied from its file to anonymous memory at the same addresses has its
//! names and its callers.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::command::Running;
use tests::experiment::followed::Followed;
use tests::kcollect::{Recording, record};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(60);
/// The program (`workloads/copied_code.c`).
const COPIED_CODE: &str = env!("COPIED_CODE_PROGRAM");

/// Checks that all callers of the function that spins are there, in so large a part of its time.
fn judge(followed: &Followed, part: f64) -> Result<()> {
    let sub = followed.subs.first().context("none is followed")?;
    let table = sub.functions(None)?;
    let seconds = |name: &str, value: usize| {
        let row = table.find(name);
        row.map_or(0.0, |row| row.values[value])
    };
    let (own, total) = (seconds("hot_inner", 0), table.total()?);
    ensure!(
        own > part * total,
        "hot_inner {own} s of {total} s: {table:?}"
    );
    for caller in ["hot_outer", "phase", "main"] {
        let inclusive = seconds(caller, 1);
        ensure!(
            inclusive > part * total,
            "{caller} {inclusive} s of {total} s: {table:?}"
        );
    }
    Ok(())
}

#[test]
fn root_code_that_is_copied_from_its_file_has_its_callers() -> Result<()> {
    let _machine = Shared::take()?;
    for way in ["moved", "mapped"] {
        let load = [COPIED_CODE, way, "4000"];
        let recorded = record(&["-p", "hi", "-F", "load"], &load, LIMIT)?;
        let followed = Followed::read(&recorded)?;
        // The first stacks show that there is such code.
        judge(&followed, 0.85).context(way)?;
    }
    Ok(())
}

/// The code was copied before the recording begins.
#[test]
fn root_code_that_was_copied_earlier_has_its_callers() -> Result<()> {
    let _machine = Shared::take()?;
    let mut program = Command::new(COPIED_CODE);
    program.args(["moved", "30000"]);
    let running = Running::start(&mut program, LIMIT)?;
    sleep(Duration::from_millis(300));
    let only = format!("={}", running.pid());
    let mut recording = Recording::start(["-p", "hi", "-F", &only], LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_secs(4));
    let recorded = recording.stop()?;
    let followed = Followed::read(&recorded)?;
    drop(running);
    judge(&followed, 0.85)
}
