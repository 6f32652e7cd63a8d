//! The views: each makes a [`Table`] of a model and of what was asked for.

mod about;
mod functions;
mod things;
mod triage;

use super::aggregate::{Totals, totals};
use super::filter::{Filter, Selection};
use super::metric::{Base, Flavor, Metric, MetricError, Metrics, Sort, offered};
use super::model::{Model, Sums};
use super::table::{Answer, Cell, Column, Table, left_out};
use crate::exit::{Failure, Kind};

/// A view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Where to look first.
    Triage,
    /// Functions by their time.
    Functions,
    /// Load objects by the time of their functions.
    Objects,
    /// Threads, by exact times where there are any.
    Threads,
    /// Processes, likewise.
    Processes,
    /// CPUs.
    Cpus,
    /// How it was recorded.
    Header,
    /// The experiments.
    Experiments,
    /// All metrics, of everything.
    Overview,
}

impl View {
    /// All of them, with what they are called and show.
    pub const ALL: [(View, &'static str, &'static str); 9] = [
        (
            View::Triage,
            "triage",
            "where to look first: the run, its losses, processes, hot functions, waiting places; the default",
        ),
        (View::Functions, "functions", "functions by their time"),
        (
            View::Objects,
            "objects",
            "load objects by the time of their functions",
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
pub struct Wish {
    /// Which rows count.
    pub filter: Filter,
    /// The metrics as they were typed; none: what suits the view.
    pub metrics: Option<String>,
    /// By what it is sorted, as it was typed; none: by the first metric.
    pub sort: Option<String>,
    /// So many rows, `<Total>` not counted; none: all.
    pub limit: Option<usize>,
}

/// What a view says of a model.
///
/// # Errors
/// A metric that is none, or of which nothing was recorded.
pub fn answer(model: &Model, view: View, wish: &Wish) -> Result<Answer, Failure> {
    let context = Context {
        model,
        wish,
        offered: offered(model),
    };
    let table = match view {
        View::Triage => return triage::page(&context).map(Answer::Page),
        View::Functions => functions::functions(&context),
        View::Objects => functions::objects(&context),
        View::Threads => things::threads(&context),
        View::Processes => things::processes(&context),
        View::Cpus => things::cpus(&context),
        View::Overview => about::overview(&context),
        View::Header => Ok(about::header(model)),
        View::Experiments => Ok(about::experiments(model)),
    };
    table.map(Answer::Table)
}

/// What all views need.
struct Context<'a> {
    model: &'a Model,
    wish: &'a Wish,
    offered: Vec<Base>,
}

impl Context<'_> {
    fn totals(&self) -> Totals {
        totals(self.model, &Selection::new(self.model, &self.wish.filter))
    }

    /// The metrics that were asked for, or else these.
    fn metrics(&self, otherwise: fn(&[Base]) -> Metrics) -> Result<Metrics, Failure> {
        match &self.wish.metrics {
            Some(text) => {
                Metrics::parse(text, &self.offered).map_err(|error| self.refuse("-m", &error))
            }
            None => Ok(otherwise(&self.offered)),
        }
    }

    fn sort(&self) -> Result<Option<Sort>, Failure> {
        let parsed = self
            .wish
            .sort
            .as_deref()
            .map(|text| Sort::parse(text, &self.offered));
        parsed
            .transpose()
            .map_err(|error| self.refuse("-s", &error))
    }

    fn refuse(&self, option: &str, error: &MetricError) -> Failure {
        let keywords: Vec<_> = self.offered.iter().map(|base| base.keyword()).collect();
        let cure = match keywords.is_empty() {
            true => "these experiments have no clock data".to_owned(),
            false => format!("e. or i. and one of {}", keywords.join(", ")),
        };
        Failure::new(Kind::Usage, format!("{option}: {error}"), cure)
    }

    /// The table of things with metrics: `<Total>` first, then those that have any of what is shown.
    fn sorted(
        &self,
        view: View,
        title: &str,
        metrics: &Metrics,
        things: Things,
    ) -> Result<Table, Failure> {
        let sort = self.sort()?.unwrap_or(Sort {
            by: metrics
                .list
                .first()
                .map(|metric| (metric.base, metric.flavor)),
            reverse: false,
        });
        let Things {
            columns,
            total,
            mut rows,
        } = things;
        rows.retain(|thing| {
            metrics
                .list
                .iter()
                .any(|metric| thing.value(metric.base, metric.flavor) != 0)
        });
        let name_order = |a: &Thing, b: &Thing| {
            let pairs = a.cells.iter().zip(&b.cells);
            pairs
                .map(|(a, b)| a.order(b))
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        };
        rows.sort_by(|a, b| {
            let order = match sort.by {
                Some((base, flavor)) => b.value(base, flavor).cmp(&a.value(base, flavor)),
                None => std::cmp::Ordering::Equal,
            };
            // Equal ones stand in the order of their names, whichever way round the values are.
            match (sort.by, sort.reverse) {
                (None, true) => name_order(b, a),
                (_, true) => order.reverse().then_with(|| name_order(a, b)),
                _ => order.then_with(|| name_order(a, b)),
            }
        });
        let more = self
            .wish
            .limit
            .map_or(0, |limit| rows.len().saturating_sub(limit));
        rows.truncate(rows.len() - more);
        let whole = total.clone();
        rows.insert(0, total);
        let own = |metrics: &[Metric]| metrics.iter().flat_map(metric_columns).collect::<Vec<_>>();
        let (ahead, behind) = metrics.list.split_at(metrics.name_at);
        let cells = |thing: &Thing, metrics: &[Metric]| {
            let cells = metrics
                .iter()
                .flat_map(|metric| metric_cells(metric, thing, &whole));
            cells.collect::<Vec<_>>()
        };
        let by = match sort.by {
            Some((base, flavor)) => format!("{} {} time", flavor_word(flavor), base.title()),
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
                .map(|thing| {
                    [
                        cells(thing, ahead),
                        thing.cells.clone(),
                        cells(thing, behind),
                    ]
                    .concat()
                })
                .collect(),
            notes: left_out(more).into_iter().collect(),
        })
    }
}

/// Things with times.
struct Things {
    /// What they are called, in columns.
    columns: Vec<Column>,
    /// The whole.
    total: Thing,
    /// The things.
    rows: Vec<Thing>,
}

/// A thing with its times.
#[derive(Clone)]
struct Thing {
    /// A cell for each of [`Things::columns`].
    cells: Vec<Cell>,
    exclusive: Sums,
    inclusive: Sums,
}

impl Thing {
    fn new(cells: Vec<Cell>, exclusive: &Sums, inclusive: &Sums) -> Thing {
        Thing {
            cells,
            exclusive: *exclusive,
            inclusive: *inclusive,
        }
    }

    /// The whole, which is called so in the column `at` of `count`.
    fn total(at: usize, count: usize, sums: &Sums) -> Thing {
        let mut cells = vec![Cell::Empty; count];
        cells[at] = Cell::Text("<Total>".to_owned());
        Thing::new(cells, sums, sums)
    }

    fn value(&self, base: Base, flavor: Flavor) -> i64 {
        base.of(match flavor {
            Flavor::Exclusive => &self.exclusive,
            Flavor::Inclusive | Flavor::Attributed => &self.inclusive,
        })
    }
}

fn flavor_word(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::Exclusive => "exclusive",
        Flavor::Inclusive => "inclusive",
        Flavor::Attributed => "attributed",
    }
}

fn metric_columns(metric: &Metric) -> Vec<Column> {
    let (letter, word) = match metric.flavor {
        Flavor::Exclusive => ("e", "Excl."),
        Flavor::Inclusive => ("i", "Incl."),
        Flavor::Attributed => ("a", "Attr."),
    };
    let (keyword, title) = (metric.base.keyword(), metric.base.title());
    let mut columns = Vec::new();
    if metric.time {
        columns.push(Column::number(
            format!("{letter}.{keyword}"),
            format!("{word}\n{title}\nsec."),
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

fn metric_cells(metric: &Metric, thing: &Thing, whole: &Thing) -> Vec<Cell> {
    let value = thing.value(metric.base, metric.flavor);
    let whole = whole.value(metric.base, metric.flavor);
    let mut cells = Vec::new();
    if metric.time {
        cells.push(Cell::Microseconds(value));
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
