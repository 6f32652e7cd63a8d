//! Callers and callees of one function, as gprofng's `csingle` has them.

use std::collections::BTreeSet;

use host::exit::Failure;

use super::chosen_function::{Subject, subject};
use super::{Context, Thing, View, metric_cells, metric_columns};
use crate::aggregate::{Measures, Relatives};
use crate::metric::{Flavor, Metrics};
use crate::model::FunctionId;
use crate::model::TOTAL;
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
    let times = Relatives::of(model, &totals, function);
    let counts = totals.counts.as_deref();
    let counts = counts.map(|totals| Relatives::of(model, totals, function));
    // As for gprofng, whom nobody calls the whole does.
    let thing = |role: &str, function: Option<FunctionId>, sums, counts| {
        let (name, object) = match function.map(|function| model.function(function)) {
            Some(function) => (
                function.name.clone(),
                Cell::Text(model.object(function.object).path.clone()),
            ),
            None => (TOTAL.to_owned(), Cell::Empty),
        };
        let cells = vec![Cell::Text(role.to_owned()), Cell::Text(name), object];
        Thing::new(cells, Measures::alone(sums, counts))
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
    let known = counts.iter().flat_map(|counts| counts.callers.keys());
    let known: BTreeSet<_> = times.callers.keys().chain(known).copied().collect();
    let callers = known.into_iter().map(|caller| {
        let counts = counts.as_ref().map(|counts| counts.of_caller(caller));
        thing("caller", caller, times.of_caller(caller), counts)
    });
    let callers = sorted(callers.collect());
    let known = counts.iter().flat_map(|counts| counts.callees.keys());
    let known: BTreeSet<_> = times.callees.keys().chain(known).copied().collect();
    let callees = known.into_iter().map(|callee| {
        let counts = counts.as_ref().map(|counts| counts.of_callee(callee));
        thing("callee", Some(callee), times.of_callee(callee), counts)
    });
    let callees = sorted(callees.collect());
    let whole = Thing::new(Vec::new(), totals.whole());
    let own_counts = counts.as_ref().map(|counts| &counts.own);
    let rows = callers
        .into_iter()
        .chain([thing("function", Some(function), &times.own, own_counts)])
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
