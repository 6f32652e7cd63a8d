//! Compares two experiments, or two times, side by side, with difference (gprofng's `compare
//! delta`) and quotient (`compare ratio`).
//!
//! Entities are matched by name: functions with their load object's name, processes by their own,
//! whatever the pid. Times are shown as recorded: if one run was longer, a note says so, and
//! nothing is scaled.

use std::collections::BTreeMap;

use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};

use super::context::{Entity, flavor_words};
use super::{TableOptions, View};
use crate::aggregate::{self, Measures, Totals, add};
use crate::filter::{Filter, Selection};
use crate::metric::{BaseMetric, Flavor, Metric, Metrics, offered};
use crate::model::{Model, ZERO_SUMS};
use crate::report::table::{Cell, Column, Report, Table, TablePage};

/// The rows of each table of the page without `-n`.
const DEFAULT_ROWS: usize = 10;

/// One side of a comparison.
#[derive(Debug)]
pub struct Side<'a> {
    /// Its data.
    pub model: &'a Model,
    /// The ticks that are compared.
    pub filter: &'a Filter,
    /// Its name.
    pub name: String,
    /// How long was recorded, nanoseconds.
    pub length_ns: Nanos,
}

/// Entities of both models by name, with the values of each.
type Pairs = BTreeMap<Vec<String>, [Entity; 2]>;

/// Makes the comparison: of functions, of processes, in total ([`View::Overview`]), or all of these
/// ([`View::Triage`]).
///
/// # Errors
/// When the view has no comparison, or a metric is unknown or has no data in one of them.
pub fn compare(
    sides: [Side<'_>; 2],
    view: View,
    options: &TableOptions,
) -> Result<Report, Failure> {
    let models = sides.each_ref().map(|side| side.model);
    let [a, b] = models.map(offered);
    let times = a
        .into_iter()
        .filter(|base| base.is_time() && !matches!(base, BaseMetric::Counter(_)));
    let bases: Vec<_> = times.filter(|base| b.contains(base)).collect();
    let both = Both {
        totals: sides
            .each_ref()
            .map(|side| aggregate::totals(side.model, &Selection::new(side.model, side.filter))),
        models,
        sides,
        bases,
        options,
    };
    match view {
        View::Triage => {
            let mut tables = vec![both.overview(), both.processes()?, both.functions()?];
            for table in &mut tables[1..] {
                table.cut(options.limit.unwrap_or(DEFAULT_ROWS));
            }
            // The same metrics for all three tables.
            tables[0].notes.clear();
            tables[1].notes.retain(|note| !both.notes().contains(note));
            Ok(Report::Page(TablePage {
                headline: Vec::new(),
                view: "compare",
                runs: Vec::new(),
                tables,
                data: Vec::new(),
            }))
        }
        View::Overview => Ok(Report::Table(both.overview())),
        View::Processes | View::Functions => {
            let mut table = match view {
                View::Processes => both.processes()?,
                _ => both.functions()?,
            };
            table.cut(options.limit.unwrap_or(usize::MAX));
            Ok(Report::Table(table))
        }
        _ => Err(Failure::new(
            ExitKind::Usage,
            format!("--compare: {} cannot be compared", view.name()),
            "compare functions, processes, overview, or all three without a view",
        )),
    }
}

/// The two sides of a comparison, and their common metrics.
struct Both<'a> {
    models: [&'a Model; 2],
    sides: [Side<'a>; 2],
    totals: [Totals; 2],
    bases: Vec<BaseMetric>,
    options: &'a TableOptions,
}

impl Both<'_> {
    fn functions(&self) -> Result<Table, Failure> {
        let mut pairs = Pairs::new();
        for (side, model) in self.models.iter().enumerate() {
            let shares = aggregate::functions(model, &self.totals[side]).functions;
            for (index, function) in model.functions.iter().enumerate() {
                let name = vec![
                    function.name.clone(),
                    model.object(function.object).short_name(),
                ];
                let entity = Entity::new(Vec::new(), shares.of(index));
                collect(&mut pairs, name, side, &entity);
            }
        }
        let columns = vec![
            Column::text("name", "Name"),
            Column::text("object", "Object").hidden(),
        ];
        let metrics = self.metrics(Metrics::of_functions)?;
        self.table("functions", "Functions", columns, &metrics, pairs)
    }

    fn processes(&self) -> Result<Table, Failure> {
        let mut pairs = Pairs::new();
        for (side, model) in self.models.iter().enumerate() {
            for (process, sums) in model.processes.iter().zip(&self.totals[side].processes) {
                let name = vec![process.name.clone()];
                let sums = Measures::alone(sums, None);
                collect(&mut pairs, name, side, &Entity::new(Vec::new(), sums));
            }
        }
        let columns = vec![Column::text("name", "Process")];
        let metrics = self.metrics(Metrics::of_functions)?.exclusive();
        self.table("processes", "Processes by name", columns, &metrics, pairs)
    }

    /// Makes the table of the metrics with data on both sides.
    fn overview(&self) -> Table {
        let mut rows: Vec<_> = self
            .bases
            .iter()
            .map(|base| (base, [0, 1].map(|side| base.of(&self.totals[side].all))))
            .filter(|(_, values)| *values != [0, 0])
            .collect();
        rows.sort_by_key(|(_, [a, b])| std::cmp::Reverse((b - a).abs()));
        let rows = rows.into_iter().map(|(base, [a, b])| {
            let names = [base.keyword(), base.title()].map(|name| Cell::Text(name.to_owned()));
            names.into_iter().chain(four(a, b)).collect()
        });
        Table {
            view: "overview",
            title: "All metrics, by difference".to_owned(),
            columns: vec![
                Column::text("metric", "Metric"),
                Column::text("title", "Time"),
                Column::number("a", "A sec."),
                Column::number("b", "B sec."),
                Column::number("delta", "delta"),
                Column::number("ratio", "ratio"),
            ],
            rows: rows.collect(),
            verbatim: false,
            notes: self.notes(),
        }
    }

    fn metrics(&self, otherwise: fn(&[BaseMetric]) -> Metrics) -> Result<Metrics, Failure> {
        super::context::metrics(self.options, &self.bases, otherwise)
    }

    fn notes(&self) -> Vec<String> {
        let [a, b] = self.sides.each_ref();
        let length =
            |side: &Side<'_>| format!("{}: {:.3} s", side.name, side.length_ns.as_secs_f64());
        vec![format!("A is {}; B is {}", length(a), length(b))]
    }

    fn table(
        &self,
        view: &'static str,
        title: &str,
        columns: Vec<Column>,
        metrics: &Metrics,
        pairs: Pairs,
    ) -> Result<Table, Failure> {
        let sort = super::context::sort(self.options, &self.bases)?;
        let first = metrics.list.first();
        let by = match sort {
            Some(sort) => sort.by,
            None => first.map(|metric| (metric.base, metric.flavor)),
        };
        let reverse = sort.is_some_and(|sort| sort.reverse);
        let values = |pair: &[Entity; 2], (base, flavor): (BaseMetric, Flavor)| {
            [pair[0].value(base, flavor), pair[1].value(base, flavor)]
        };
        let mut rows: Vec<_> = pairs
            .into_iter()
            .filter(|(_, pair)| {
                let mut list = metrics.list.iter();
                list.any(|metric| values(pair, (metric.base, metric.flavor)) != [0, 0])
            })
            .collect();
        if let Some(by) = by {
            rows.sort_by_key(|(_, pair)| {
                let [a, b] = values(pair, by);
                std::cmp::Reverse((b - a).abs())
            });
        }
        if reverse {
            rows.reverse();
        }
        let mut total = vec![String::new(); columns.len()];
        total[0] = "<Total>".to_owned();
        let whole = [0, 1].map(|side| {
            let all = &self.totals[side].all;
            Entity::new(Vec::new(), Measures::alone(all, None))
        });
        rows.insert(0, (total, whole));
        let numbers = metrics.list.iter().flat_map(metric_columns);
        Ok(Table {
            view,
            title: match by {
                Some((base, flavor)) => format!(
                    "{title}, by the {}difference of {} {} time",
                    if reverse { "least " } else { "" },
                    flavor_words(flavor).1,
                    base.title()
                ),
                None => format!("{title}, by name"),
            },
            columns: numbers.chain(columns).collect(),
            rows: rows
                .into_iter()
                .map(|(names, pair)| {
                    let numbers = metrics.list.iter().flat_map(|metric| {
                        let [a, b] = values(&pair, (metric.base, metric.flavor));
                        four(a, b)
                    });
                    numbers.chain(names.into_iter().map(Cell::Text)).collect()
                })
                .collect(),
            verbatim: false,
            notes: self.notes(),
        })
    }
}

/// Adds values to the entity of a name.
fn collect(pairs: &mut Pairs, name: Vec<String>, side: usize, entity: &Entity) {
    if entity.exclusive == ZERO_SUMS && entity.inclusive == ZERO_SUMS {
        return;
    }
    let pair = pairs.entry(name).or_insert_with(|| {
        [0, 1].map(|_| Entity::new(Vec::new(), Measures::alone(&ZERO_SUMS, None)))
    });
    add(&mut pair[side].exclusive, &entity.exclusive);
    add(&mut pair[side].inclusive, &entity.inclusive);
}

/// Returns the cells of both values, their difference and their quotient, which is empty if the
/// first is 0.
fn four(a: i64, b: i64) -> [Cell; 4] {
    [
        Cell::Microseconds(a),
        Cell::Microseconds(b),
        Cell::Delta(b - a),
        match a {
            0 => Cell::Empty,
            a => Cell::Ratio(b as f64 / a as f64),
        },
    ]
}

fn metric_columns(metric: &Metric) -> [Column; 4] {
    let (letter, _, word) = flavor_words(metric.flavor);
    let key = format!("{letter}.{}", metric.base.keyword());
    let column = |suffix: &str, title: String| Column::number(format!("{key}:{suffix}"), title);
    [
        column("a", format!("{word}\n{}\nA sec.", metric.base.title())),
        column("b", "\n\nB sec.".to_owned()),
        column("delta", "\n\ndelta".to_owned()),
        column("ratio", "\n\nratio".to_owned()),
    ]
}
