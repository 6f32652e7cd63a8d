//! Reports of experiments, by anybody, on any machine, from the directory alone.
//!
//! Data flow one way: [`open`] → [`model`] → [`filter`] → [`aggregate`] → [`views`] → [`table`].
//!
//! ```no_run
//! # use kcollect::report::{aggregate, filter::{Filter, Selection}, model::Model};
//! # fn main() -> Result<(), kcollect::exit::Failure> {
//! let model = Model::load(&["ktest.1.er".into()])?;
//! let selection = Selection::new(&model, &Filter::default());
//! // Rows with their stacks.
//! for row in model.rows.iter().filter(|row| selection.passes(row)) {
//!     let thread = model.thread(row.thread);
//!     let leaf_first: Vec<&str> = model.stack_functions(row.stack).map(|function| &*function.name).collect();
//!     println!("{} {} {} µs {leaf_first:?}", row.time, thread.tid, model.microseconds(row));
//! }
//! // Sums, in vectors by number.
//! let totals = aggregate::totals(&model, &selection);
//! let functions = aggregate::functions(&model, &totals).functions;
//! for (function, sums) in model.functions.iter().zip(&functions.inclusive) {
//!     println!("{} {sums:?}", function.name);
//! }
//! # Ok(()) }
//! ```
//!
//! * **[`Model`]**: vectors of experiments, processes, threads, CPUs, load objects, functions,
//!   frames and rows, and a trie of stacks. Ids (`ThreadId`, `StackId`, …) are positions in them;
//!   `model.thread(id)` and so on look them up.
//! * **[`TickRow`](model::TickRow)**: 32 bytes: time, stack, thread, experiment, CPU, ticks, state, detail.
//!   `model.microseconds(row)` is its length, `row.slot()` its place in [`Sums`](model::Sums), an
//!   array of microseconds by state.
//! * **[`Stacks`](stacks::Stacks)**: `model.stack(id)` gives the [`StackFrame`](model::StackFrame)s, leaf
//!   first; `stacks.caller(id)`, `stacks.leaf(id)`; `stacks.iter()` gives all, callers before
//!   callees; `stacks.callees()` the way down, for trees.
//! * **[`StackFrame`](model::StackFrame)**: a function and the offset in its load object's file: all that
//!   source lines and inlined functions need; [`lines::add`] finds these, for views that want them.
//!   A mark of an unfinished stack is a frame too, with a function of the special object.
//! * **[`Filter`](filter::Filter)** is what is asked for, [`Selection`](filter::Selection) the same
//!   for one model.
//! * **[`aggregate`]**: [`totals`](aggregate::totals) by stack, thread, process, CPU, experiment;
//!   [`functions`](aggregate::functions) exclusive and inclusive by function and by load object;
//!   and [`Relatives`](aggregate::Relatives), callers and callees of one function with what is
//!   attributed to them.
//! * **[`BaseMetric`](metric::BaseMetric)**`::of(&Sums)` is the value of one of gprofng's metrics;
//!   [`Metrics`](metric::Metrics) a list of them as it is typed, [`offered`](metric::offered) those
//!   that the experiments have data of.
//! * **[`ExactTimes`](exact::ExactTimes)**: nanoseconds of each thread by state, read when a view
//!   wants them.
//! * `experiment.summary()` is `kcollect.json`: losses, costs, and what else the triage page needs.
//! * **[`Table`](table::Table)** is what a view says, or a [`TablePage`](table::TablePage) of them; it prints
//!   itself as text, CSV or JSON.
//!
//! A new view is a variant of [`views::View`] with a function that makes a [`table::Table`].
//!
//! Names come from the experiment. The files of the machine that reads are looked into only if it
//! has the name of the one that was recorded, and for those alone that have not changed since.

mod pager;
pub mod table;
pub mod views;

use std::path::{Path, PathBuf};

use crate::load::{lines, open};
use crate::model::Model;
use host::exit::Failure;
use host::output::Output;
use views::{TableOptions, View};

/// How a report is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
    /// Comma-separated values.
    Csv,
}

/// A report, as it is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportOptions {
    /// The experiments; none: the newest here.
    pub experiments: Vec<PathBuf>,
    /// What is shown of them.
    pub view: View,
    /// Whether inlined functions count as called, in views that don't ask for source lines anyway.
    pub inline: bool,
    /// How.
    pub table: TableOptions,
    /// As what.
    pub format: ReportFormat,
    /// Whether two experiments are compared; else all are reported together.
    pub compare: bool,
}

/// Makes a report and prints it. What is missing from it is told on standard error, and in the
/// JSON.
///
/// # Errors
/// When there is no experiment, or nothing of one can be read, or a metric is asked for that it has
/// no data of.
pub fn report(options: &ReportOptions, output: &mut Output) -> Result<(), Failure> {
    let newest = |paths: &[PathBuf]| match paths {
        [] => open::newest(Path::new(".")).map(|path| vec![path]),
        paths => Ok(paths.to_vec()),
    };
    let load = |paths: &[PathBuf]| -> Result<Model, Failure> {
        let mut model = Model::load(paths)?;
        if options.inline || options.view.wants_lines() {
            lines::add(&mut model, &options.table.lookup);
        }
        Ok(model)
    };
    let one = |path: &PathBuf| load(std::slice::from_ref(path));
    let (answer, warnings) = match (options.compare, &options.experiments[..]) {
        (true, [a, b]) => {
            let (a, b) = (one(a)?, one(b)?);
            let answer = views::compare::compare([&a, &b], options.view, &options.table)?;
            (answer, [a.warnings, b.warnings].concat())
        }
        (_, paths) => {
            let model = load(&newest(paths)?)?;
            let answer = views::make(&model, options.view, &options.table)?;
            (answer, model.warnings)
        }
    };
    let text = match options.format {
        ReportFormat::Text => answer.text(output.width()),
        ReportFormat::Csv => answer.csv(),
        ReportFormat::Json => {
            let mut value = answer.json();
            value["warnings"] = warnings.clone().into();
            format!("{value:#}\n")
        }
    };
    let terminal = output.width().is_some() && options.format == ReportFormat::Text;
    if !terminal || !pager::show(&text) {
        output.result(text.trim_end());
    }
    // The view of it says so itself.
    if options.view != View::Header {
        warnings.iter().for_each(|warning| output.say(warning));
    }
    Ok(())
}
