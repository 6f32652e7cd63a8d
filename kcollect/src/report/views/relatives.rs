//! Callers and callees of one function, as gprofng's `csingle` has them.

use super::subject::{Subject, subject};
use super::{Context, Thing, View, metric_cells, metric_columns};
use crate::exit::Failure;
use crate::report::aggregate::Relatives;
use crate::report::metric::{Flavor, Metrics};
use crate::report::model::FunctionId;
use crate::report::resolve::TOTAL;
use crate::report::table::{Cell, Column, Table, left_out};

pub(super) fn callers_callees(context: &Context<'_>) -> Result<Table, Failure> {
    let model = context.model;
    let totals = context.totals();
    let Subject {
        function,
        mut notes,
    } = subject(context, &totals)?;
    let metrics = context
        .metrics(Metrics::of_functions)?
        .only(Flavor::Attributed);
    let Relatives {
        callers,
        own,
        callees,
    } = Relatives::of(model, &totals, function);
    // As for gprofng, whom nobody calls the whole does.
    let thing = |role: &str, function: Option<FunctionId>, sums| {
        let (name, object) = match function.map(|function| model.function(function)) {
            Some(function) => (
                function.name.clone(),
                Cell::Text(model.object(function.object).path.clone()),
            ),
            None => (TOTAL.to_owned(), Cell::Empty),
        };
        let cells = vec![Cell::Text(role.to_owned()), Cell::Text(name), object];
        Thing::new(cells, sums, sums)
    };
    let sort = context.sort_of(&metrics)?;
    let limit = context.wish.limit.unwrap_or(usize::MAX);
    let mut more = 0;
    let mut sorted = |mut things: Vec<Thing>| {
        let shown = |thing: &Thing| {
            let mut values = metrics.list.iter();
            values.any(|metric| thing.value(metric.base, metric.flavor) != 0)
        };
        things.retain(shown);
        things.sort_by(|a, b| sort.order(a, b));
        more += things.len().saturating_sub(limit);
        things.truncate(limit);
        things
    };
    let callers = callers
        .iter()
        .map(|(caller, sums)| thing("caller", *caller, sums));
    let callers = sorted(callers.collect());
    let callees = callees
        .iter()
        .map(|(callee, sums)| thing("callee", Some(*callee), sums));
    let callees = sorted(callees.collect());
    let whole = Thing::new(Vec::new(), &totals.all, &totals.all);
    let rows = callers
        .into_iter()
        .chain([thing("function", Some(function), &own)])
        .chain(callees);
    notes.extend(left_out(more));
    let columns = metrics.list.iter().flat_map(metric_columns).chain([
        Column::text("role", "Role"),
        Column::text("name", "Name"),
        Column::text("object", "Object").hidden(),
    ]);
    Ok(Table {
        view: View::CallersCallees.name(),
        title: format!(
            "Callers and callees of {}, by attributed time",
            model.function(function).name
        ),
        columns: columns.collect(),
        rows: rows
            .map(|thing| {
                let numbers = metrics.list.iter();
                let numbers = numbers.flat_map(|metric| metric_cells(metric, &thing, &whole));
                numbers.chain(thing.cells.iter().cloned()).collect()
            })
            .collect(),
        verbatim: false,
        notes,
    })
}
