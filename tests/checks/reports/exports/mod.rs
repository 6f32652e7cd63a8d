//! What `kcollect export` and `kcollect flame` write has the sums of `kcollect report`, in every
//! format and with any names; and the programs of these formats read it, if they are installed
//! here.

mod firefox;
mod hostile;
mod perfetto;
mod pprof;
mod speedscope;
mod sums;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use analysis::aggregate;
use analysis::export::ExportFormat;
use analysis::filter::Selection;
use analysis::metric::BaseMetric;
use analysis::model::Model;
use anyhow::{Context, Result, ensure};
use tests::kcollect::{record, run_in};
use tests::machine::{Shared, work_cpu};
use tests::{command, workload};

use self::hostile::{NAMES, hostile};
use self::sums::{agree, threads_only, total_of};

/// Maximum time that a reading program takes.
const READER: Duration = Duration::from_secs(120);

/// Runs kcollect on an experiment, and returns its output.
fn kcollect(arguments: &[&str], experiment: &Path) -> Result<String> {
    let directory = experiment.parent().context("no parent")?;
    let experiment = experiment.to_str().context("its name is no text")?;
    let arguments = [arguments, &[experiment]].concat();
    Ok(run_in(directory, &arguments, READER)?.succeeded()?.stdout)
}

/// Returns the output of a program that reads a file; none if it is not installed, which is
/// reported.
fn reader(typed: &mut Command) -> Result<Option<String>> {
    let name = typed.get_program().to_string_lossy().into_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut there = std::env::split_paths(&path);
    if !there.any(|directory| directory.join(&name).is_file()) {
        eprintln!("{name} is not installed: nothing is read by it");
        return Ok(None);
    }
    Ok(Some(command::run(typed, READER)?.succeeded()?.stdout))
}

/// Checks that the programs of the formats read what kcollect writes, and find the same in it.
fn read_by_others(experiment: &Path) -> Result<()> {
    let model = Model::load(&[experiment.to_owned()])?;
    let filter = threads_only();
    let totals = aggregate::totals(&model, &Selection::new(&model, &filter)).all;
    let directory = experiment.parent().context("no parent")?;
    let stem = experiment.file_stem().context("no name")?.to_string_lossy();
    let made = |extension: &str| directory.join(format!("{stem}.{extension}"));
    for (_, name, extension, _) in ExportFormat::ALL {
        let output = kcollect(&["export", "--to", name], experiment)?;
        ensure!(
            output.starts_with(&format!("{stem}.{extension}: ")),
            "{output}"
        );
        let file = std::fs::metadata(made(extension))?;
        ensure!(file.is_file() && file.mode() & 0o777 == 0o600);
        ensure!(file.uid() == std::fs::metadata(experiment)?.uid());
    }
    // Its own unit and colours, and the same sum.
    for (arguments, base) in [
        (&["flame"][..], BaseMetric::TotalCpu),
        (&["flame", "--all"], BaseMetric::Total),
    ] {
        if base.of(&totals) > 0 {
            kcollect(arguments, experiment)?;
            let mode = std::fs::metadata(made("svg"))?.mode();
            ensure!(mode & 0o777 == 0o600, "{mode:o}");
            let svg = std::fs::read_to_string(made("svg"))?;
            ensure!(total_of(&svg)? == base.of(&totals));
        }
    }

    pprof::read(&made("pb.gz"), &totals)?;
    perfetto::read(&made("perfetto-trace"))?;
    speedscope::read(&made("speedscope.json"))?;
    firefox::read(&made("firefox.json.gz"))
}

#[test]
fn a_failed_export_is_reported_and_leaves_nothing() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let run = |arguments: &[&str]| -> Result<(i32, String)> {
        let done = run_in(directory.path(), arguments, READER)?;
        Ok((done.code(), done.stderr))
    };
    let name = "made.1.er";
    for (arguments, code, message) in [
        (&["export", name][..], 64, "--to"),
        (&["export", name, "--to", "x"], 64, "--to x"),
        (&["export", "x", "--to", "pprof"], 64, "x"),
        (
            &["export", name, "--to", "pprof", "--process", "99"],
            65,
            "kcollect: ",
        ),
        (&["flame", name, "--process", "nosuch,99"], 65, "nosuch"),
        (&["report", name, "--process", "nosuch"], 65, "nosuch"),
        (
            &["export", name, "--to", "pprof", "-o", "no/such/place"],
            73,
            "no/such/place",
        ),
        (
            &["export", name, "--to", "pprof", "-o", "x.er"],
            64,
            "-o x.er",
        ),
        (&["flame", "none.er"], 66, "none.er"),
        (&["flame", name, "--by", "x"], 64, "--by x"),
        (&["flame", "--state", "kcpu"], 66, "kcollect: "),
    ] {
        let (was, output) = run(arguments)?;
        ensure!(
            was == code && output.contains(message),
            "{arguments:?}: {was} {output}"
        );
        ensure!(output.lines().count() == 1, "{output}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path())?.collect::<Result<_, _>>()?;
    ensure!(left.len() == 1, "{left:?}");
    // Not through a link, and what was there is replaced as a whole.
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious")?;
    std::os::unix::fs::symlink(&victim, directory.path().join("made.1.folded"))?;
    kcollect(&["export", "--to", "folded"], &experiment)?;
    ensure!(std::fs::read_to_string(&victim)? == "precious");
    let (code, _) = run(&["flame", name, "-o", "/dev/null"])?;
    ensure!(code == 0);
    Ok(())
}

#[test]
fn two_experiments_are_compared() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let name = "made.1.er";
    let arguments = ["flame", "--all", "--diff", name, name, "-o", "-"];
    let svg = run_in(directory.path(), &arguments, READER)?
        .succeeded()?
        .stdout;
    let model = Model::load(&[experiment])?;
    let totals = aggregate::totals(&model, &Selection::new(&model, &threads_only())).all;
    ensure!(total_of(&svg)? == totals.iter().sum::<i64>());
    // Nothing has changed, and says so.
    ensure!(svg.matches("; 0.00%)").count() > NAMES.len(), "{svg}");
    ensure!(!svg.contains("%; +") && !svg.contains("%; -"));
    Ok(())
}

#[test]
fn root_a_recording_is_exported_and_read_by_other_programs() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let recorded = record(
        &["-p", "hi", "-F", "=mixed|spawner"],
        &[workload!("spawner"), "1.3", &cpu],
        Duration::from_secs(40),
    )?;
    let experiment = recorded.experiment()?;
    let model = Model::load(std::slice::from_ref(&experiment))?;
    agree(&model, &threads_only())?;
    read_by_others(&experiment)
}
