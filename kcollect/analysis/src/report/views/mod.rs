//! The views: each makes a [`Table`] of a model and of what was asked for.

mod callers_callees;
mod calltree;
mod chosen_function;
pub mod compare;
mod disasm;
mod experiments;
mod functions;
mod lines;
mod samples;
mod source;
mod threads;
mod triage;

use std::cmp::Ordering;

use experiment_format::log::CounterUnit;
use host::exit::{Failure, Kind};

use super::table::{Cell, Column, Report, Table, left_out};
use crate::aggregate::{Measures, Totals, totals};
use crate::filter::{Filter, Selection};
use crate::load::lines::LookupPaths;
use crate::metric::{BaseMetric, Flavor, Metric, MetricError, Metrics, Sort, offered};
use crate::model::{Model, Sums, ZERO_SUMS};

/// A view.
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
    /// Processes, likewise.
    Processes,
    /// CPUs.
    Cpus,
    /// Exact times from sample to sample.
    Samples,
    /// Exact times on the whole.
    Statistics,
    /// How it was recorded.
    Header,
    /// The experiments.
    Experiments,
    /// All metrics, of everything.
    Overview,
}

impl View {
    /// All of them, with what they are called and show.
    pub const ALL: [(View, &'static str, &'static str); 16] = [
        (
            View::Triage,
            "triage",
            "where to look first: the run, its losses, processes, hot functions, waiting places; the default",
        ),
        (View::Functions, "functions", "functions by their time"),
        (
            View::CallersCallees,
            "callers-callees",
            "callers and callees of the function that is named behind it, with the time attributed to them",
        ),
        (
            View::CallTree,
            "calltree",
            "functions under those that called them, down to --depth and --percent",
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
            "with a function behind it: the source of its file, with the time of each line",
        ),
        (
            View::Disasm,
            "disasm",
            "with a function behind it: its instructions, with the time of each",
        ),
        (
            View::Threads,
            "threads",
            "threads, by exact times where these were recorded and -m asks for no others",
        ),
        (View::Processes, "processes", "processes, likewise"),
        (View::Cpus, "cpus", "CPUs"),
        (View::Overview, "overview", "all metrics, of everything"),
        (
            View::Samples,
            "samples",
            "exact times from sample to sample",
        ),
        (View::Statistics, "statistics", "exact times on the whole"),
        (
            View::Header,
            "header",
            "how it was recorded, and what was lost",
        ),
        (
            View::Experiments,
            "experiments",
            "the experiments, with gprofng's numbers of them",
        ),
    ];

    /// The view that is called so.
    #[must_use]
    pub fn from_name(name: &str) -> Option<View> {
        let mut all = View::ALL.iter();
        all.find(|(_, own, _)| *own == name).map(|(view, ..)| *view)
    }

    /// Whether it needs [`crate::load::lines::add`].
    #[must_use]
    pub fn wants_lines(self) -> bool {
        matches!(self, View::Lines | View::Source | View::Disasm)
    }

    /// Whether it is of one function, [`TableOptions::function`].
    #[must_use]
    pub fn wants_function(self) -> bool {
        matches!(self, View::CallersCallees | View::Source | View::Disasm)
    }

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = View::ALL.iter();
        all.find(|(view, ..)| *view == self)
            .map_or("", |(_, name, _)| name)
    }
}

/// What a view is asked to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// Which rows count.
    pub filter: Filter,
    /// The metrics as they were typed; none: what suits the view.
    pub metrics: Option<String>,
    /// By what it is sorted, as it was typed; none: by the first metric.
    pub sort: Option<String>,
    /// So many rows, `<Total>` not counted; none: all.
    pub limit: Option<usize>,
    /// The function that the view is of, as it was typed: its name, its symbol, either with a load
    /// object behind it, or a regular expression that fits no other.
    pub function: Option<String>,
    /// Where source and debug files are looked for.
    pub lookup: LookupPaths,
    /// How deep the call tree goes: 1 is the first function of each thread. None: to its leaves.
    pub depth: Option<usize>,
    /// Branches of the call tree that have fewer than so many millionths of the whole are left out.
    pub least_ppm: Option<u32>,
}

/// What a view says of a model.
///
/// # Errors
/// A metric that is none, or of which nothing was recorded.
pub fn make(model: &Model, view: View, options: &TableOptions) -> Result<Report, Failure> {
    let context = Context {
        model,
        options,
        offered: offered(model),
    };
    let table = match view {
        View::Triage => return triage::page(&context).map(Report::Page),
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
        View::Samples => samples::samples(&context),
        View::Statistics => samples::statistics(&context),
        View::Header => Ok(experiments::header(model)),
        View::Experiments => Ok(experiments::experiments(model)),
    };
    table.map(Report::Table)
}

/// What all views need.
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

    /// By what was asked for, or else by the first metric.
    fn sort_of(&self, metrics: &Metrics) -> Result<Sort, Failure> {
        let first = metrics.list.first();
        Ok(sort(self.options, &self.offered)?.unwrap_or(Sort {
            by: first.map(|metric| (metric.base, metric.flavor)),
            reverse: false,
        }))
    }

    /// The table of entities with metrics: `<Total>` first, then those that have any of what is
    /// shown.
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
            // Names are made of those alone that may be among the first.
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

/// The metrics that were asked for, or else these.
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
        true => "these experiments have no clock data".to_owned(),
        false => format!("e. or i. and one of {}", keywords.join(", ")),
    };
    Failure::new(Kind::Usage, format!("{option}: {error}"), cure)
}

impl Sort {
    /// Equal ones stand in the order of their names, whichever way round the values are.
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

    /// The same without names.
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

/// A heading that leaves room for ten of them.
fn short(keyword: &str) -> &str {
    match keyword {
        "textpfault" => "tfault",
        "datapfault" => "dfault",
        "kernelpfault" => "kfault",
        other => other,
    }
}

/// Entities with times, by number.
struct Entities<'a> {
    /// What they are called, in columns.
    columns: Vec<Column>,
    /// The whole.
    total: Entity,
    /// What each has.
    measures: Vec<Measures<'a>>,
    /// A cell for each of the columns.
    cells_of: &'a dyn Fn(usize) -> Vec<Cell>,
}

/// A entity with its times.
#[derive(Clone)]
struct Entity {
    /// What it is called: a cell for each of [`Entities::columns`].
    cells: Vec<Cell>,
    exclusive: Sums,
    inclusive: Sums,
    /// The same two of counters.
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

    /// The whole, which is called so in the column `at` of `count`.
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

/// Its letter, and what it is called in full and in short.
fn flavor_words(flavor: Flavor) -> (&'static str, &'static str, &'static str) {
    match flavor {
        Flavor::Exclusive => ("e", "exclusive", "Excl."),
        Flavor::Inclusive => ("i", "inclusive", "Incl."),
        Flavor::Attributed => ("a", "attributed", "Attr."),
    }
}

/// A value as it is shown.
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
