//! Reports of experiments (`kcollect report`): tables as text, CSV or JSON.
//!
//! A report needs no privilege and only the experiment's directory. Names come from the experiment.
//! Files of the machine that makes the report are read only if it has the host name of the recorded
//! one, and only those that have not changed since.
//!
//! A new view is a variant of [`views::View`] with a function that makes a [`table::Table`].

mod pager;
pub mod table;
pub mod views;

use std::path::PathBuf;

use crate::filter::{self, Filter};
use crate::load::lines;
use crate::model::Model;
use crate::sources::{Found, Sources};
use experiment_format::text::printable_lines;
use host::exit::Failure;
use host::output::Output;
use views::{TableOptions, View};

/// How a report is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// A table of text.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// Comma-separated values.
    Csv,
}

/// What to report, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportOptions {
    /// The experiments.
    pub sources: Sources,
    /// The view.
    pub view: View,
    /// Whether inlined functions count as calls, in views that need no source lines otherwise.
    pub inline: bool,
    /// How its tables are made.
    pub table: TableOptions,
    /// The output format.
    pub format: ReportFormat,
    /// Whether two experiments are compared. Otherwise all are reported together.
    pub compare: bool,
}

/// Makes a report and prints it. What is missing is reported on standard error, and in the JSON.
///
/// # Errors
/// When there is no experiment, nothing of one can be read, or a metric has no data. When parts of
/// an experiment cannot be read, after the report of the rest.
pub fn report(options: &ReportOptions, output: &mut Output) -> Result<(), Failure> {
    let load = |paths: &[PathBuf]| -> Result<Model, Failure> {
        let mut model = Model::load_named(paths, &options.table.lookup)?;
        if options.inline || options.view.wants_lines() {
            lines::add(&mut model, &options.table.lookup);
        }
        Ok(model)
    };
    let require = |models: &[&Model], filter: &Filter| match options.view {
        // What they show is not made of ticks.
        View::Header | View::Experiments | View::Samples | View::Statistics => Ok(()),
        _ => filter::require(models, filter),
    };
    let one = |path: &PathBuf| load(std::slice::from_ref(path));
    let mut period = None;
    let (report, warnings, complete) = match (options.compare, &options.sources.named[..]) {
        (true, [a, b]) => {
            let (a, b) = (one(a)?, one(b)?);
            require(&[&a, &b], &options.table.filter)?;
            let report = views::compare::compare([&a, &b], options.view, &options.table)?;
            let complete = a.require_all().and_then(|()| b.require_all());
            (report, [a.warnings, b.warnings].concat(), complete)
        }
        _ => {
            let found = options.sources.find()?;
            let mut model = load(&found.paths)?;
            found.note(&mut model);
            let mut table = options.table.clone();
            found.limit(&mut table.filter);
            require(&[&model], &table.filter)?;
            let report = views::make(&model, options.view, &table)?;
            period = Some(found);
            let complete = model.require_all();
            (report, model.warnings, complete)
        }
    };
    let text = match options.format {
        ReportFormat::Text => {
            let period = period.as_ref().and_then(Found::text);
            let heading = period.map_or_else(String::new, |time| format!("{time}\n\n"));
            heading + &report.text(output.width())
        }
        ReportFormat::Csv => report.csv(),
        ReportFormat::Json => {
            let mut value = report.json();
            value["warnings"] = warnings.clone().into();
            value["incomplete"] = complete.is_err().into();
            if let Some(period) = period.as_ref().and_then(Found::json) {
                value["period"] = period;
            }
            format!("{value:#}\n")
        }
    };
    match options.format {
        ReportFormat::Json => output.json(text.trim_end()),
        ReportFormat::Text if output.width().is_some() && pager::show(&printable_lines(&text)) => {}
        ReportFormat::Text | ReportFormat::Csv => output.result(text.trim_end()),
    }
    // The view of the header shows them itself.
    if options.view != View::Header {
        warnings.iter().for_each(|warning| output.say(warning));
    }
    complete
}
