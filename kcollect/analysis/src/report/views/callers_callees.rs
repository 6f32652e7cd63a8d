//! Callers and callees of one function, as gprofng's `csingle` shows them.

use std::collections::BTreeSet;

use host::exit::Failure;

use super::View;
use super::chosen_function::{ChosenFunction, chosen_function};
use super::context::{Entity, ViewContext, metric_cells, metric_columns};
use crate::aggregate::{Measures, Relatives};
use crate::metric::{Flavor, Metrics};
use crate::model::FunctionId;
use crate::model::TOTAL;
use crate::report::table::{Cell, Column, Table, left_out};

pub(super) fn callers_callees(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let model = context.model;
    let totals = context.totals();
    let ChosenFunction {
        function,
        mut notes,
    } = chosen_function(context, &totals)?;
    let metrics = context
        .metrics(Metrics::of_functions)?
        .only(Flavor::Attributed);
    let times = Relatives::of(model, &totals, function);
    let counts = totals.counts.as_deref();
    let counts = counts.map(|totals| Relatives::of(model, totals, function));
    // As for gprofng, the caller of an outermost function is the whole.
    let entity = |role: &str, function: Option<FunctionId>, sums, counts| {
        let (name, object) = match function.map(|function| model.function(function)) {
            Some(function) => (
                function.name.clone(),
                Cell::Text(model.object(function.object).path.clone()),
            ),
            None => (TOTAL.to_owned(), Cell::Empty),
        };
        let cells = vec![Cell::Text(role.to_owned()), Cell::Text(name), object];
        Entity::new(cells, Measures::alone(sums, counts))
    };
    let sort = context.sort_of(&metrics)?;
    let limit = context.options.limit.unwrap_or(usize::MAX);
    let mut more = 0;
    let mut sorted = |mut entities: Vec<Entity>| {
        let shown = |entity: &Entity| {
            let mut values = metrics.list.iter();
            values.any(|metric| entity.value(metric.base, metric.flavor) != 0)
        };
        entities.retain(shown);
        entities.sort_by(|a, b| sort.order(a, b));
        more += entities.len().saturating_sub(limit);
        entities.truncate(limit);
        entities
    };
    let known = counts.iter().flat_map(|counts| counts.callers.keys());
    let known: BTreeSet<_> = times.callers.keys().chain(known).copied().collect();
    let callers = known.into_iter().map(|caller| {
        let counts = counts.as_ref().map(|counts| counts.of_caller(caller));
        entity("caller", caller, times.of_caller(caller), counts)
    });
    let callers = sorted(callers.collect());
    let known = counts.iter().flat_map(|counts| counts.callees.keys());
    let known: BTreeSet<_> = times.callees.keys().chain(known).copied().collect();
    let callees = known.into_iter().map(|callee| {
        let counts = counts.as_ref().map(|counts| counts.of_callee(callee));
        entity("callee", Some(callee), times.of_callee(callee), counts)
    });
    let callees = sorted(callees.collect());
    let whole = Entity::new(Vec::new(), totals.whole());
    let own_counts = counts.as_ref().map(|counts| &counts.own);
    let rows = callers
        .into_iter()
        .chain([entity("function", Some(function), &times.own, own_counts)])
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
            .map(|entity| {
                let numbers = metrics.list.iter();
                let numbers = numbers.flat_map(|metric| metric_cells(metric, &entity, &whole));
                numbers.chain(entity.cells.iter().cloned()).collect()
            })
            .collect(),
        verbatim: false,
        notes,
    })
}
