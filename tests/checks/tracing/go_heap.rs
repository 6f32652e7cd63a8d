//! The memory profile that a Go program keeps itself, against the program's own sums.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use analysis::model::Model;
use anyhow::{Context, Result, ensure};
use tests::command::{Running, run};
use tests::experiment::summary::RunSummary;
use tests::kcollect::{FinishedRecording, Recording, record};
use tests::machine::Shared;

use super::allocations::summed;
use super::memory::reported;

const LIMIT: Duration = Duration::from_secs(60);

/// Builds the program.
fn program(directory: &Path, flags: &[&str]) -> Result<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/go_heap.go");
    let program = directory.join("go_heap");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&program)
        .args(flags)
        .arg(source);
    go.env("GOCACHE", directory.join("cache"))
        .env("GOFLAGS", "");
    run(&mut go, LIMIT)?.succeeded()?;
    Ok(program.display().to_string())
}

#[test]
fn root_the_profile_of_a_go_program_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    for flags in [&[][..], &["-buildmode=pie"]] {
        let program = program(directory.path(), flags)?;
        let recorded = record(&["-H", "on", "-F", "load"], &[&program, "2.5"], LIMIT)?;
        let output = recorded.finished.stdout.clone();
        judge(&recorded, &output, false).with_context(|| format!("built with {flags:?}"))?;
    }
    Ok(())
}

/// What a program that runs already has not freed is there.
#[test]
fn root_the_profile_of_a_running_go_program_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let program = program(directory.path(), &[])?;
    let mut program = Running::start(Command::new(program).arg("30"), LIMIT)?;
    let pid = program.pid().to_string();
    program.until_printed()?;
    let mut recording = Recording::start(["-H", "on", "-F", "off", "-T", &pid], LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_millis(500));
    let recorded = recording.stop()?;
    ensure!(!program.ended()?, "it ended before the recording did");
    let output = program.output()?;
    judge(&recorded, &output, true)
}

/// `attached`: what was freed before the recording is not in it.
fn judge(recorded: &FinishedRecording, output: &str, attached: bool) -> Result<()> {
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    let words: Vec<_> = output.split_whitespace().collect();
    let number = |name: &str| -> Result<f64> {
        let at = words.iter().position(|word| *word == name);
        let word = at.and_then(|at| words.get(at + 1));
        Ok(word.with_context(|| output.to_owned())?.parse()?)
    };
    let (allocated, block) = (number("ALLOCATED")?, number("BLOCK")?);
    let probability = 1.0 - (-block / number("RATE")?).exp();
    // The deviation for n blocks, each sampled with probability p.
    let sigma = ((1.0 - probability) / (allocated / block * probability)).sqrt();
    ensure!(summed(&experiment, "go_profiles")? == 1, "no Go program");
    ensure!(
        summed(&experiment, "unprobed_processes")? == 0,
        "one without"
    );
    let model = Model::load(&[experiment])?;
    // The last of the dropped blocks may be alive.
    let few = 20.0 * block / probability;
    for (name, live) in [("main.keeps", true), ("main.drops", false)] {
        let [found_live, found, _] = reported(&model, name)?;
        if attached && !live {
            ensure!(found as f64 <= few, "{name}: {found}");
            continue;
        }
        let off = (found as f64 / allocated - 1.0) / sigma;
        ensure!(
            off.abs() < 5.0,
            "{name}: {found}, not {allocated}: {off:.1} sigma"
        );
        let expected = if live { found as f64 } else { 0.0 };
        ensure!(
            (found_live as f64 - expected).abs() <= few,
            "{name}: {found_live} live of {found}"
        );
    }
    Ok(())
}
