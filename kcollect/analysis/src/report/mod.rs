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

use crate::filter;
use crate::load::lines;
use crate::model::{ExperimentInfo, Model};
use crate::sources::{Found, Loaded, Sources};
use experiment_format::text::printable_lines;
use host::exit::Failure;
use host::output::Output;
use serde_json::{Value, json};
use views::compare::Side;
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

/// What is reported, and how.
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
    /// What they are compared with: the earlier one of two experiments, or of two times.
    pub before: Option<Sources>,
}

impl ReportOptions {
    fn load(&self, sources: &Sources) -> Result<Loaded, Failure> {
        let table = &self.table;
        let mut loaded = sources.load(&table.filter, &table.lookup, None)?;
        if self.inline || self.view.wants_lines() {
            lines::add(&mut loaded.model, &table.lookup);
        }
        Ok(loaded)
    }
}

impl Loaded {
    fn require(&self, options: &ReportOptions) -> Result<(), Failure> {
        match options.view {
            // What they show is not made of ticks, or of ticks at other times too.
            View::Header
            | View::Experiments
            | View::Samples
            | View::Statistics
            | View::CriticalPath => Ok(()),
            _ => filter::require(&[&self.model], &self.filter),
        }
    }

    fn side(&self) -> Side<'_> {
        let path = |info: &ExperimentInfo| info.source.named().display().to_string();
        let named = || self.model.experiments.first().map_or(String::new(), path);
        Side {
            model: &self.model,
            filter: &self.filter,
            name: self.found.text().unwrap_or_else(named),
            length_ns: self.found.length_ns().unwrap_or(self.model.end_ns()),
        }
    }
}

/// Makes a report and prints it. What is missing is reported on standard error, and in the JSON.
///
/// # Errors
/// When there is no experiment, nothing of one can be read, or a metric has no data. When parts of
/// an experiment cannot be read, after the report of the rest.
pub fn report(options: &ReportOptions, output: &mut Output) -> Result<(), Failure> {
    let before = options.before.as_ref();
    let before = before.map(|sources| options.load(sources)).transpose()?;
    let loaded = options.load(&options.sources)?;
    let (report, heading, periods) = match &before {
        Some(before) => {
            // A process may run in one of them alone.
            before.require(options).or(loaded.require(options))?;
            let sides = [before.side(), loaded.side()];
            let report = views::compare::compare(sides, options.view, &options.table)?;
            let periods = [&before.found, &loaded.found].map(Found::json);
            let periods: Vec<_> = periods.into_iter().flatten().collect();
            (report, None, json!(periods))
        }
        None => {
            loaded.require(options)?;
            let mut table = options.table.clone();
            table.filter = loaded.filter.clone();
            let report = views::make(&loaded.model, options.view, &table)?;
            (report, loaded.found.text(), json!(loaded.found.json()))
        }
    };
    let all = || before.iter().chain([&loaded]).map(|loaded| &loaded.model);
    let complete = all().try_for_each(Model::require_all);
    let warnings: Vec<_> = all().flat_map(|model| model.warnings.clone()).collect();
    let text = match options.format {
        ReportFormat::Text => {
            let heading = heading.map_or_else(String::new, |time| format!("{time}\n\n"));
            heading + &report.text(output.width())
        }
        ReportFormat::Csv => report.csv(),
        ReportFormat::Json => {
            let mut value = report.json();
            value["warnings"] = warnings.clone().into();
            value["incomplete"] = complete.is_err().into();
            match periods {
                Value::Object(_) => value["period"] = periods,
                Value::Array(both) if !both.is_empty() => value["periods"] = both.into(),
                _ => {}
            }
            format!("{value:#}\n")
        }
    };
    // To free a hundred thousand rows takes longer than to print them, and the process ends now.
    std::mem::forget(report);
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
