//! What views have in common: the context that they work on, the entities that tables have rows
//! for, and columns of metrics.

use std::cmp::Ordering;
use std::iter;

use experiment_format::log::CounterUnit;
use experiment_format::microstate::{Microstate, short_metric};
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};

use super::{TableOptions, View};
use crate::aggregate::{Measures, Totals, totals};
use crate::filter::Selection;
use crate::metric::{BaseMetric, Flavor, Metric, MetricError, Metrics, Sort};
use crate::model::{Model, Sums, ZERO_SUMS};
use crate::report::table::{Cell, Column, Table, left_out};

/// The model and the options from which a view makes its table.
pub(super) struct ViewContext<'a> {
    pub(super) model: &'a Model,
    pub(super) options: &'a TableOptions,
    pub(super) offered: Vec<BaseMetric>,
}

impl ViewContext<'_> {
    pub(super) fn totals(&self) -> Totals {
        totals(
            self.model,
            &Selection::new(self.model, &self.options.filter),
        )
    }

    /// Returns the metric of time on a CPU. Without Total CPU only CPUs were recorded, and no
    /// threads.
    pub(super) fn on_cpu(&self) -> BaseMetric {
        if self.offered.contains(&BaseMetric::TotalCpu) {
            BaseMetric::TotalCpu
        } else {
            BaseMetric::State(Microstate::KernelCpu)
        }
    }

    /// Returns the metric of all recorded time.
    pub(super) fn whole(&self) -> BaseMetric {
        if self.offered.contains(&BaseMetric::Total) {
            BaseMetric::Total
        } else {
            self.on_cpu()
        }
    }

    pub(super) fn metrics(
        &self,
        otherwise: fn(&[BaseMetric]) -> Metrics,
    ) -> Result<Metrics, Failure> {
        metrics(self.options, &self.offered, otherwise)
    }

    /// Returns the order asked for; by default, by the first metric.
    pub(super) fn sort_of(&self, metrics: &Metrics) -> Result<Sort, Failure> {
        let first = metrics.list.first();
        Ok(sort(self.options, &self.offered)?.unwrap_or(Sort {
            by: first.map(|metric| (metric.base, metric.flavor)),
            reverse: false,
        }))
    }

    /// Makes a table of entities with metrics: `<Total>` first, then those with any of the shown
    /// metrics.
    pub(super) fn sorted(
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
        let mut entities: Vec<_> = entities.collect();
        // Positions are sorted, since entities are large.
        let mut order: Vec<_> = (0..entities.len()).collect();
        order.sort_by(|a, b| sort.order(&entities[*a], &entities[*b]));
        order.truncate(limit);
        let (mut total, whole) = (total.clone(), total);
        let own = |metrics: &[Metric]| metrics.iter().flat_map(metric_columns).collect::<Vec<_>>();
        let (ahead, after) = metrics.list.split_at(metrics.name_at);
        let columns = [own(ahead), columns, own(after)].concat();
        let row = |entity: &mut Entity| {
            let mut row = Vec::with_capacity(columns.len());
            for metric in ahead {
                row.extend(metric_cells(metric, entity, &whole));
            }
            row.append(&mut entity.cells);
            for metric in after {
                row.extend(metric_cells(metric, entity, &whole));
            }
            row
        };
        let rows = iter::once(row(&mut total))
            .chain(order.into_iter().map(|at| row(&mut entities[at])))
            .collect();
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
            columns,
            rows,
            verbatim: false,
            notes: left_out(more).into_iter().collect(),
        })
    }
}

/// Returns the metrics asked for, or the default.
pub(super) fn metrics(
    options: &TableOptions,
    offered: &[BaseMetric],
    otherwise: fn(&[BaseMetric]) -> Metrics,
) -> Result<Metrics, Failure> {
    match &options.metrics {
        Some(text) => Metrics::parse(text, offered).map_err(|error| refuse("-m", offered, &error)),
        None => Ok(otherwise(offered)),
    }
}

pub(super) fn sort(
    options: &TableOptions,
    offered: &[BaseMetric],
) -> Result<Option<Sort>, Failure> {
    let parsed = options.sort.as_deref();
    let parsed = parsed.map(|text| Sort::parse(text, offered));
    parsed
        .transpose()
        .map_err(|error| refuse("-s", offered, &error))
}

pub(super) fn refuse(option: &str, offered: &[BaseMetric], error: &MetricError) -> Failure {
    let keywords: Vec<_> = offered.iter().map(|base| base.keyword()).collect();
    let hint = if keywords.is_empty() {
        "record with -p on: these experiments have no ticks".to_owned()
    } else {
        format!("e. or i. and one of {}", keywords.join(", "))
    };
    Failure::new(ExitKind::Usage, format!("{option}: {error}"), hint)
}

impl Sort {
    /// Compares two rows; equal values are ordered by name, whatever the order of values.
    pub(super) fn order(&self, a: &Entity, b: &Entity) -> Ordering {
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
    pub(super) fn order_of_values(&self, a: &Measures<'_>, b: &Measures<'_>) -> Ordering {
        let Some((base, flavor)) = self.by else {
            return Ordering::Equal;
        };
        let values = b.value(base, flavor).cmp(&a.value(base, flavor));
        if self.reverse {
            values.reverse()
        } else {
            values
        }
    }
}

/// Returns a title short enough for a table with ten states.
pub(super) fn short(keyword: &str) -> &str {
    match keyword {
        "block_io" => "I/O",
        other => short_metric(other),
    }
}

/// The entities that a table has rows for (functions, threads, lines, …), by number.
pub(super) struct Entities<'a> {
    /// The columns of their names.
    pub(super) columns: Vec<Column>,
    /// Everything together.
    pub(super) total: Entity,
    /// The values of each.
    pub(super) measures: Vec<Measures<'a>>,
    /// Makes the cells of [`Entities::columns`].
    pub(super) cells_of: &'a dyn Fn(usize) -> Vec<Cell>,
}

/// One entity with its values.
#[derive(Clone)]
pub(super) struct Entity {
    /// Its name: a cell for each of [`Entities::columns`].
    pub(super) cells: Vec<Cell>,
    pub(super) exclusive: Sums,
    pub(super) inclusive: Sums,
    /// Both for counters.
    pub(super) counts: Option<Box<(Sums, Sums)>>,
}

impl Entity {
    pub(super) fn new(cells: Vec<Cell>, measures: Measures<'_>) -> Entity {
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
    pub(super) fn total(at: usize, count: usize, measures: Measures<'_>) -> Entity {
        let mut cells = vec![Cell::Empty; count];
        cells[at] = Cell::Text("<Total>".to_owned());
        Entity::new(cells, measures)
    }

    pub(super) fn measures(&self) -> Measures<'_> {
        let counts = self.counts.as_deref();
        Measures {
            exclusive: &self.exclusive,
            inclusive: &self.inclusive,
            counts: counts.map(|(exclusive, inclusive)| (exclusive, inclusive)),
        }
    }

    pub(super) fn value(&self, base: BaseMetric, flavor: Flavor) -> i64 {
        self.measures().value(base, flavor)
    }
}

impl Measures<'_> {
    pub(super) fn value(&self, base: BaseMetric, flavor: Flavor) -> i64 {
        let counts = self.counts.unwrap_or((&ZERO_SUMS, &ZERO_SUMS));
        let (times, counts) = match flavor {
            Flavor::Exclusive => (self.exclusive, counts.0),
            Flavor::Inclusive | Flavor::Attributed => (self.inclusive, counts.1),
        };
        base.measure(times, counts)
    }
}

/// Returns a flavour's letter, its name, and its title.
pub(super) fn flavor_words(flavor: Flavor) -> (&'static str, &'static str, &'static str) {
    match flavor {
        Flavor::Exclusive => ("e", "exclusive", "Excl."),
        Flavor::Inclusive => ("i", "inclusive", "Incl."),
        Flavor::Attributed => ("a", "attributed", "Attr."),
    }
}

/// Returns the cell of a value.
pub(super) fn value_cell(base: BaseMetric, value: i64) -> Cell {
    match base {
        BaseMetric::Counter(counter) => match counter.unit {
            CounterUnit::Nanoseconds => Cell::Nanoseconds(Nanos(value.try_into().unwrap_or(0))),
            CounterUnit::Count | CounterUnit::Cycles => Cell::Count(value.try_into().unwrap_or(0)),
        },
        BaseMetric::Ratio(_) => Cell::Average(value as f64 / 1e6),
        _ => Cell::Microseconds(value),
    }
}

pub(super) fn metric_columns(metric: &Metric) -> Vec<Column> {
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
        let title = if metric.time {
            "\n\n%".to_owned()
        } else {
            format!("{word}\n{title}\n%")
        };
        columns.push(Column::number(format!("{letter}.%{keyword}"), title));
    }
    columns
}

pub(super) fn metric_cells(
    metric: &Metric,
    entity: &Entity,
    whole: &Entity,
) -> impl Iterator<Item = Cell> + use<> {
    let value = entity.value(metric.base, metric.flavor);
    let whole = whole.value(metric.base, metric.flavor);
    let time = metric.time.then(|| value_cell(metric.base, value));
    let share = metric.percent.then(|| Cell::share_of(value, whole));
    [time, share].into_iter().flatten()
}
