//! Opens experiments in gprofng and in `kcollect report`, which have to agree, however the
//! recording ended.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::command::run;
use crate::experiment;
use crate::gprofng;
use crate::kcollect::command;

const LIMIT: Duration = Duration::from_secs(60);

/// The exit code of `kcollect report` if there is no tick to show.
const NO_DATA: i32 = 65;

/// An experiment that opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Ticks of CPUs in its files.
    pub ticks: u64,
    /// Whether its collector closed it.
    pub closed: bool,
}

/// Opens an experiment in gprofng and in kcollect's own report, with its subexperiments.
///
/// # Errors
/// When gprofng complains or shows other ticks than there are in the file, and when our report
/// fails or shows others.
pub fn opened(experiment: &Path) -> Result<Opened> {
    let output = gprofng::script(
        &["metrics e.kcpu:i.kcpu:name", "functions", "header"],
        experiment,
    )?;
    // A file may not be archived, since there was no time for it. The whole output is too long for
    // a message.
    let mut complaints = output.complaints();
    complaints.retain(|line| !line.contains("Can't open file: "));
    ensure!(complaints.is_empty(), "gprofng complains: {complaints:#?}");
    let ticks = experiment::ticks(experiment)?;
    let interval = experiment::interval_ns(experiment)?;
    let shown = output
        .table(2)
        .find("<Total>")
        .map_or(0.0, |row| row.values[0])
        * 1e9
        / interval;
    // gprofng rounds to a thousandth of a second.
    ensure!(
        (shown - ticks as f64).abs() < 1.0,
        "gprofng shows {shown} ticks of {ticks} in the file"
    );
    let reported = reported(experiment)? * 1e9 / interval;
    ensure!(
        (reported - ticks as f64).abs() < 1.0,
        "our report shows {reported} ticks of {ticks} in the file"
    );
    Ok(Opened {
        ticks,
        closed: !output.text.contains("not closed"),
    })
}

/// Returns the seconds of Kernel CPU time in our report of all functions.
fn reported(experiment: &Path) -> Result<f64> {
    let args = ["functions", "-m", "e.kcpu:name", "-n", "1", "--json"];
    let mut report = command(["report".as_ref(), experiment.as_os_str()])?;
    let finished = run(report.args(args), LIMIT)?;
    if finished.code() == NO_DATA {
        return Ok(0.0);
    }
    let finished = finished.succeeded()?;
    let table: serde_json::Value = serde_json::from_str(&finished.stdout)?;
    total(&table).with_context(|| finished.to_string())
}

fn total(table: &serde_json::Value) -> Option<f64> {
    table["rows"].as_array()?.first()?["e.kcpu"].as_f64()
}
