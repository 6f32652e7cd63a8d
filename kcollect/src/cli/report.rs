//! `kcollect report`: its words and options, and what they mean.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::filters::{self, Filters, number};
use crate::report::views::{View, Wish};
use crate::report::{Format, Request};

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct Report {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest ktest.N.er here), then the
    /// view: functions (the default), objects, threads, processes, cpus, overview, header or experiments
    #[arg(value_name = "EXPERIMENT... [VIEW]")]
    words: Vec<OsString>,
    /// The metrics, as gprofng has them: e. (exclusive) or i. (inclusive), with % for a share of the whole, and total,
    /// totalcpu, user, system, trap, textpfault, datapfault, kernelpfault, lock, sleep, wait, stop or kcpu; say
    /// e.user:i.%total:name
    #[arg(
        short = 'm',
        long,
        value_name = "METRIC:...",
        allow_hyphen_values = true
    )]
    metrics: Option<String>,
    /// Sort by this metric, or by name; a - ahead turns the order round
    #[arg(short = 's', long, value_name = "METRIC", allow_hyphen_values = true)]
    sort: Option<String>,
    #[command(flatten)]
    filters: Filters,
    /// So many rows
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    limit: Option<String>,
    /// As JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// As comma-separated values
    #[arg(long)]
    csv: bool,
}

/// From what was typed to what is to be reported.
pub(super) fn resolve(typed: Report) -> Result<Request, CliError> {
    let (experiments, view) = words(typed.words)?;
    let limit = typed
        .limit
        .as_deref()
        .map(|text| number("--limit", text))
        .transpose()?;
    Ok(Request {
        experiments,
        view,
        format: match (typed.json, typed.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Text,
        },
        wish: Wish {
            filter: typed.filters.resolve()?,
            metrics: typed.metrics,
            sort: typed.sort,
            limit,
        },
    })
}

/// Experiments up to the first word that names a view.
fn words(words: Vec<OsString>) -> Result<(Vec<PathBuf>, View), CliError> {
    let view_of = |word: &OsString| word.to_str().and_then(View::from_name);
    let at = words.iter().position(|word| view_of(word).is_some());
    let view = at
        .and_then(|at| view_of(&words[at]))
        .unwrap_or(View::Functions);
    let end = at.unwrap_or(words.len());
    if let Some(extra) = words.get(end + 1) {
        return Err(CliError::new(
            format!(
                "{}: {} takes no argument",
                extra.to_string_lossy(),
                view.name()
            ),
            "name experiments first, then the view; ./functions is an experiment of that name",
        ));
    }
    let experiments: Vec<_> = words.into_iter().take(end).map(PathBuf::from).collect();
    if let Some(other) = experiments
        .iter()
        .find(|path| !filters::is_experiment(path))
    {
        let views: Vec<_> = View::ALL.iter().map(|(_, name, _)| *name).collect();
        return Err(CliError::new(
            format!(
                "{} is neither an experiment, which ends in .er, nor a view",
                other.display()
            ),
            format!("the views are {}", views.join(", ")),
        ));
    }
    Ok((experiments, view))
}
