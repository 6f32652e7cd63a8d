//! The views: each makes a [`Table`] from a model and options.

mod callers_callees;
mod calls;
mod calltree;
mod chosen_function;
pub mod compare;
mod disasm;
mod exact;
mod experiments;
mod files;
mod functions;
mod heap;
mod lines;
mod locks;
mod samples;
mod source;
mod threads;
mod triage;
mod unnamed;
mod waiting;

use std::cmp::Ordering;

use experiment_format::log::CounterUnit;
use experiment_format::microstate::short_metric;
use host::exit::{ExitKind, Failure};

use super::table::{Cell, Column, Report, Table, left_out};
use crate::aggregate::{Measures, Totals, totals};
use crate::filter::{Filter, Selection};
use crate::load::lines::LookupPaths;
use crate::metric::{BaseMetric, Flavor, Metric, MetricError, Metrics, Sort, offered};
use crate::model::{GroupKind, Model, Sums, ZERO_SUMS};

/// A way to show an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Where to look first.
    Triage,
    /// Functions by their time.
    Functions,
    /// Callers and callees of one function.
    CallersCallees,
    /// Functions under those that called them.
    CallTree,
    /// Load objects by the time of their functions.
    Objects,
    /// Source lines by their time.
    Lines,
    /// The source of a function's file, with the time of each line.
    Source,
    /// The instructions of a function, with the time of each.
    Disasm,
    /// Threads, by exact times where there are any.
    Threads,
    /// Processes, by exact times where there are any.
    Processes,
    /// CPUs.
    Cpus,
    /// Locks by the traced waits for them.
    Locks,
    /// Files by the traced system calls that do I/O.
    Files,
    /// These system calls by name.
    Calls,
    /// Functions by the memory that they allocated.
    Heap,
    /// Exact times from sample to sample.
    Samples,
    /// Exact times of the whole run.
    Statistics,
    /// How it was recorded.
    Header,
    /// The experiments.
    Experiments,
    /// All metrics, for everything together.
    Overview,
}

impl View {
    /// All views with their names and descriptions.
    pub const ALL: [(View, &'static str, &'static str); 20] = [
        (
            View::Triage,
            "triage",
            "where to look first: the run, its losses, processes, hot functions, waiting places; the default",
        ),
        (View::Functions, "functions", "functions by their time"),
        (
            View::CallersCallees,
            "callers-callees",
            "followed by a function: its callers and callees, with the time attributed to them",
        ),
        (
            View::CallTree,
            "calltree",
            "functions below their callers, down to --depth and --percent",
        ),
        (
            View::Objects,
            "objects",
            "load objects by the time of their functions",
        ),
        (View::Lines, "lines", "source lines by their time"),
        (
            View::Source,
            "source",
            "followed by a function: the source of its file, with the time of each line",
        ),
        (
            View::Disasm,
            "disasm",
            "followed by a function: its instructions, with the time of each",
        ),
        (
            View::Threads,
            "threads",
            "threads, by exact times if recorded and without -m",
        ),
        (View::Processes, "processes", "processes, in the same way"),
        (View::Cpus, "cpus", "CPUs"),
        (
            View::Overview,
            "overview",
            "all metrics, for everything together",
        ),
        (
            View::Locks,
            "locks",
            "locks by the time that threads waited for them, if recorded with -s",
        ),
        (
            View::Files,
            "files",
            "files by the time that was spent on their reads, writes and other calls, if recorded with -i",
        ),
        (View::Calls, "calls", "these calls by name, in the same way"),
        (
            View::Heap,
            "heap",
            "functions by the memory that they, and what they call, allocated and that was not freed, if recorded with -H",
        ),
        (
            View::Samples,
            "samples",
            "exact times from sample to sample",
        ),
        (
            View::Statistics,
            "statistics",
            "exact times of the whole run",
        ),
        (
            View::Header,
            "header",
            "how it was recorded, and what was lost",
        ),
        (
            View::Experiments,
            "experiments",
            "the experiments, with their numbers in gprofng",
        ),
    ];

    /// Returns the view of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<View> {
        let mut all = View::ALL.iter();
        all.find(|(_, own, _)| *own == name).map(|(view, ..)| *view)
    }

    /// Returns whether it needs [`crate::load::lines::add`].
    #[must_use]
    pub fn wants_lines(self) -> bool {
        matches!(self, View::Lines | View::Source | View::Disasm)
    }

    /// Returns whether it shows one function, [`TableOptions::function`].
    #[must_use]
    pub fn wants_function(self) -> bool {
        matches!(self, View::CallersCallees | View::Source | View::Disasm)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = View::ALL.iter();
        all.find(|(view, ..)| *view == self)
            .map_or("", |(_, name, _)| name)
    }
}

/// How a view's table is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// The ticks that count.
    pub filter: Filter,
    /// The metrics as typed. None: the view's default.
    pub metrics: Option<String>,
    /// The sort order as typed. None: by the first metric.
    pub sort: Option<String>,
    /// Maximum number of rows beside `<Total>`. None: all.
    pub limit: Option<usize>,
    /// The function to show, as typed: its name or symbol, either with a load object after it, or a
    /// regular expression that matches one function.
    pub function: Option<String>,
    /// Of processes: what they belong to, each a row.
    pub by: Option<GroupKind>,
    /// Of functions: those without names, by load object, and what to install.
    pub unnamed: bool,
    /// Where source and debug files are looked for.
    pub lookup: LookupPaths,
    /// Depth of the call tree: 1 is the outermost function of each thread. None: to its leaves.
    pub depth: Option<usize>,
    /// Branches of the call tree with less than this share of the whole, in millionths, are left
    /// out.
    pub least_ppm: Option<u32>,
}

/// Makes the report of a view.
///
/// # Errors
/// When a metric is unknown or has no data, or the view cannot be made.
pub fn make(model: &Model, view: View, options: &TableOptions) -> Result<Report, Failure> {
    let context = Context {
        model,
        options,
        offered: offered(model),
    };
    let table = match view {
        View::Triage => return triage::page(&context).map(Report::Page),
        View::Functions if options.unnamed => unnamed::unnamed(&context),
        View::Functions => functions::functions(&context),
        View::CallersCallees => callers_callees::callers_callees(&context),
        View::CallTree => calltree::calltree(&context),
        View::Objects => functions::objects(&context),
        View::Lines => lines::lines(&context),
        View::Source => source::source(&context),
        View::Disasm => disasm::disassembly(&context),
        View::Threads => threads::threads(&context),
        View::Processes => threads::processes(&context),
        View::Cpus => threads::cpus(&context),
        View::Overview => experiments::overview(&context),
        View::Locks => locks::locks(&context),
        View::Files => files::files(&context),
        View::Calls => calls::calls(&context),
        View::Heap => heap::heap(&context),
        View::Samples => samples::samples(&context),
        View::Statistics => samples::statistics(&context),
        View::Header => Ok(experiments::header(model)),
        View::Experiments => Ok(experiments::experiments(model)),
    };
    table.map(Report::Table)
}

/// Makes the tables that the summary of a recording shows: processes, hot functions, and places
/// where threads waited. Those without rows are left out.
///
/// # Errors
/// When exact times cannot be read.
pub fn first_tables(model: &Model) -> Result<Vec<Table>, Failure> {
    let context = Context {
        model,
        options: &TableOptions::default(),
        offered: offered(model),
    };
    triage::first_tables(&context, &context.totals())
}

/// What all views work on.
struct Context<'a> {
    model: &'a Model,
    options: &'a TableOptions,
    offered: Vec<BaseMetric>,
}

impl Context<'_> {
    fn totals(&self) -> Totals {
        totals(
            self.model,
            &Selection::new(self.model, &self.options.filter),
        )
    }

    fn metrics(&self, otherwise: fn(&[BaseMetric]) -> Metrics) -> Result<Metrics, Failure> {
        metrics(self.options, &self.offered, otherwise)
    }

    /// Returns the order asked for, or that of the first metric.
    fn sort_of(&self, metrics: &Metrics) -> Result<Sort, Failure> {
        let first = metrics.list.first();
        Ok(sort(self.options, &self.offered)?.unwrap_or(Sort {
            by: first.map(|metric| (metric.base, metric.flavor)),
            reverse: false,
        }))
    }

    /// Makes a table of entities with metrics: `<Total>` first, then those with any of the shown
    /// metrics.
    fn sorted(
        &self,
        view: View,
        title: &str,
        metrics: &Metrics,
        entities: Entities<'_>,
    ) -> Result<Table, Failure> {
        let sort = self.sort_of(metrics)?;
        let Entities {
            columns,
            total,
            measures,
            cells_of,
        } = entities;
        let mut shown: Vec<_> = (0..).zip(measures).collect();
        shown.retain(|(_, measures)| {
            let mut list = metrics.list.iter();
            list.any(|metric| measures.value(metric.base, metric.flavor) != 0)
        });
        let limit = self.options.limit.unwrap_or(shown.len());
        let more = shown.len().saturating_sub(limit);
        if more > 0 && limit > 0 {
            // Names are made only for entities that may be among the first.
            let mut first = shown.clone();
            let (_, (_, last), _) = first
                .select_nth_unstable_by(limit - 1, |(_, a), (_, b)| sort.order_of_values(a, b));
            shown.retain(|(_, measures)| sort.order_of_values(measures, last).is_le());
        }
        let entities = shown
            .iter()
            .map(|(index, measures)| Entity::new(cells_of(*index), *measures));
        let mut rows: Vec<_> = entities.collect();
        rows.sort_by(|a, b| sort.order(a, b));
        rows.truncate(limit);
        let whole = total.clone();
        rows.insert(0, total);
        let own = |metrics: &[Metric]| metrics.iter().flat_map(metric_columns).collect::<Vec<_>>();
        let (ahead, behind) = metrics.list.split_at(metrics.name_at);
        let cells = |entity: &Entity, metrics: &[Metric]| {
            let cells = metrics
                .iter()
                .flat_map(|metric| metric_cells(metric, entity, &whole));
            cells.collect::<Vec<_>>()
        };
        let by = match sort.by {
            Some((base, flavor)) => {
                let time = if base.is_time() { " time" } else { "" };
                format!("{} {}{time}", flavor_words(flavor).1, base.title())
            }
            None => "name".to_owned(),
        };
        Ok(Table {
            view: view.name(),
            title: format!(
                "{title}, by {}{by}",
                if sort.reverse { "least " } else { "" }
            ),
            columns: [own(ahead), columns, own(behind)].concat(),
            rows: rows
                .iter()
                .map(|entity| {
                    [
                        cells(entity, ahead),
                        entity.cells.clone(),
                        cells(entity, behind),
                    ]
                    .concat()
                })
                .collect(),
            verbatim: false,
            notes: left_out(more).into_iter().collect(),
        })
    }
}

/// Returns the metrics asked for, or the default.
fn metrics(
    options: &TableOptions,
    offered: &[BaseMetric],
    otherwise: fn(&[BaseMetric]) -> Metrics,
) -> Result<Metrics, Failure> {
    match &options.metrics {
        Some(text) => Metrics::parse(text, offered).map_err(|error| refuse("-m", offered, &error)),
        None => Ok(otherwise(offered)),
    }
}

fn sort(options: &TableOptions, offered: &[BaseMetric]) -> Result<Option<Sort>, Failure> {
    let parsed = options.sort.as_deref();
    let parsed = parsed.map(|text| Sort::parse(text, offered));
    parsed
        .transpose()
        .map_err(|error| refuse("-s", offered, &error))
}

fn refuse(option: &str, offered: &[BaseMetric], error: &MetricError) -> Failure {
    let keywords: Vec<_> = offered.iter().map(|base| base.keyword()).collect();
    let cure = match keywords.is_empty() {
        true => "record with -p on: these experiments have no ticks".to_owned(),
        false => format!("e. or i. and one of {}", keywords.join(", ")),
    };
    Failure::new(ExitKind::Usage, format!("{option}: {error}"), cure)
}

impl Sort {
    /// Compares two rows; equal values are ordered by name, whatever the order of values.
    fn order(&self, a: &Entity, b: &Entity) -> Ordering {
        let names = || {
            let pairs = a.cells.iter().zip(&b.cells);
            let mut orders = pairs.map(|(a, b)| a.order(b));
            orders
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        match (self.by, self.reverse) {
            (None, true) => names().reverse(),
            (None, false) => names(),
            _ => self
                .order_of_values(&a.measures(), &b.measures())
                .then_with(names),
        }
    }

    /// Compares values alone.
    fn order_of_values(&self, a: &Measures<'_>, b: &Measures<'_>) -> Ordering {
        let Some((base, flavor)) = self.by else {
            return Ordering::Equal;
        };
        let values = b.value(base, flavor).cmp(&a.value(base, flavor));
        match self.reverse {
            true => values.reverse(),
            false => values,
        }
    }
}

/// Returns a title short enough for a table with ten states.
fn short(keyword: &str) -> &str {
    match keyword {
        "block_io" => "I/O",
        other => short_metric(other),
    }
}

/// The entities that a table has rows for (functions, threads, lines, …), by number.
struct Entities<'a> {
    /// The columns of their names.
    columns: Vec<Column>,
    /// Everything together.
    total: Entity,
    /// The values of each.
    measures: Vec<Measures<'a>>,
    /// Makes the cells of [`Entities::columns`].
    cells_of: &'a dyn Fn(usize) -> Vec<Cell>,
}

/// One entity with its values.
#[derive(Clone)]
struct Entity {
    /// Its name: a cell for each of [`Entities::columns`].
    cells: Vec<Cell>,
    exclusive: Sums,
    inclusive: Sums,
    /// Both for counters.
    counts: Option<Box<(Sums, Sums)>>,
}

impl Entity {
    fn new(cells: Vec<Cell>, measures: Measures<'_>) -> Entity {
        Entity {
            cells,
            exclusive: *measures.exclusive,
            inclusive: *measures.inclusive,
            counts: measures
                .counts
                .map(|(exclusive, inclusive)| Box::new((*exclusive, *inclusive))),
        }
    }

    /// Everything together, with the name `<Total>` in column `at` of `count`.
    fn total(at: usize, count: usize, measures: Measures<'_>) -> Entity {
        let mut cells = vec![Cell::Empty; count];
        cells[at] = Cell::Text("<Total>".to_owned());
        Entity::new(cells, measures)
    }

    fn measures(&self) -> Measures<'_> {
        let counts = self.counts.as_deref();
        Measures {
            exclusive: &self.exclusive,
            inclusive: &self.inclusive,
            counts: counts.map(|(exclusive, inclusive)| (exclusive, inclusive)),
        }
    }

    fn value(&self, base: BaseMetric, flavor: Flavor) -> i64 {
        self.measures().value(base, flavor)
    }
}

impl Measures<'_> {
    fn value(&self, base: BaseMetric, flavor: Flavor) -> i64 {
        let counts = self.counts.unwrap_or((&ZERO_SUMS, &ZERO_SUMS));
        let (times, counts) = match flavor {
            Flavor::Exclusive => (self.exclusive, counts.0),
            Flavor::Inclusive | Flavor::Attributed => (self.inclusive, counts.1),
        };
        base.measure(times, counts)
    }
}

/// Returns a flavour's letter, its name, and its title.
fn flavor_words(flavor: Flavor) -> (&'static str, &'static str, &'static str) {
    match flavor {
        Flavor::Exclusive => ("e", "exclusive", "Excl."),
        Flavor::Inclusive => ("i", "inclusive", "Incl."),
        Flavor::Attributed => ("a", "attributed", "Attr."),
    }
}

/// Returns the cell of a value.
fn value_cell(base: BaseMetric, value: i64) -> Cell {
    match base {
        BaseMetric::Counter(counter) => match counter.unit {
            CounterUnit::Nanoseconds => Cell::Nanoseconds(value.try_into().unwrap_or(0)),
            CounterUnit::Count | CounterUnit::Cycles => Cell::Count(value.try_into().unwrap_or(0)),
        },
        BaseMetric::Ratio(_) => Cell::Average(value as f64 / 1e6),
        _ => Cell::Microseconds(value),
    }
}

fn metric_columns(metric: &Metric) -> Vec<Column> {
    let (letter, _, word) = flavor_words(metric.flavor);
    let (keyword, title) = (metric.base.keyword(), metric.base.title());
    let mut columns = Vec::new();
    if metric.time {
        columns.push(Column::number(
            format!("{letter}.{keyword}"),
            format!("{word}\n{title}\n{}", metric.base.unit()),
        ));
    }
    if metric.percent {
        let title = match metric.time {
            true => "\n\n%".to_owned(),
            false => format!("{word}\n{title}\n%"),
        };
        columns.push(Column::number(format!("{letter}.%{keyword}"), title));
    }
    columns
}

fn metric_cells(metric: &Metric, entity: &Entity, whole: &Entity) -> Vec<Cell> {
    let value = entity.value(metric.base, metric.flavor);
    let whole = whole.value(metric.base, metric.flavor);
    let mut cells = Vec::new();
    if metric.time {
        cells.push(value_cell(metric.base, value));
    }
    if metric.percent {
        let share = if whole == 0 {
            0.0
        } else {
            value as f64 / whole as f64
        };
        cells.push(Cell::Share(share));
    }
    cells
}
