//! Callers and callees of one function, as gprofng's `csingle` shows them.

use std::collections::BTreeSet;

use host::exit::Failure;

use super::View;
use super::chosen_function::{ChosenFunction, chosen_function};
use super::context::{Entity, ViewContext, metric_cells, metric_columns};
use crate::aggregate::{Measures, Relatives};
use crate::metric::{Flavor, Metrics};
use crate::model::{FunctionId, Model, TOTAL};
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
    let (mut callers, mut callees) = (
        callers(model, &times, counts.as_ref()),
        callees(model, &times, counts.as_ref()),
    );
    let sort = context.sort_of(&metrics)?;
    let limit = context.options.limit.unwrap_or(usize::MAX);
    let mut more = 0;
    for entities in [&mut callers, &mut callees] {
        entities.retain(|entity| {
            let mut values = metrics.list.iter();
            values.any(|metric| entity.value(metric.base, metric.flavor) != 0)
        });
        entities.sort_by(|a, b| sort.order(a, b));
        more += entities.len().saturating_sub(limit);
        entities.truncate(limit);
    }
    let whole = Entity::new(Vec::new(), totals.whole());
    let own_counts = counts.as_ref().map(|counts| &counts.own);
    let own = Measures::alone(&times.own, own_counts);
    let rows = callers
        .into_iter()
        .chain([entity(model, "function", Some(function), own)])
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

/// Returns the callers of a function, with what is attributed to each. As for gprofng, the caller
/// of an outermost function is the whole.
fn callers(model: &Model, times: &Relatives, counts: Option<&Relatives>) -> Vec<Entity> {
    let known = counts.into_iter().flat_map(|counts| counts.callers.keys());
    let known: BTreeSet<_> = times.callers.keys().chain(known).copied().collect();
    let entities = known.into_iter().map(|caller| {
        let counts = counts.map(|counts| counts.of_caller(caller));
        let measures = Measures::alone(times.of_caller(caller), counts);
        entity(model, "caller", caller, measures)
    });
    entities.collect()
}

/// Returns the callees of a function, with what is attributed to each.
fn callees(model: &Model, times: &Relatives, counts: Option<&Relatives>) -> Vec<Entity> {
    let known = counts.into_iter().flat_map(|counts| counts.callees.keys());
    let known: BTreeSet<_> = times.callees.keys().chain(known).copied().collect();
    let entities = known.into_iter().map(|callee| {
        let counts = counts.map(|counts| counts.of_callee(callee));
        let measures = Measures::alone(times.of_callee(callee), counts);
        entity(model, "callee", Some(callee), measures)
    });
    entities.collect()
}

/// Returns the entity of a function in this role. Without a function it is the whole.
fn entity(
    model: &Model,
    role: &str,
    function: Option<FunctionId>,
    measures: Measures<'_>,
) -> Entity {
    let (name, object) = match function.map(|function| model.function(function)) {
        Some(function) => (
            function.name.clone(),
            Cell::Text(model.object(function.object).path.clone()),
        ),
        None => (TOTAL.to_owned(), Cell::Empty),
    };
    let cells = vec![Cell::Text(role.to_owned()), Cell::Text(name), object];
    Entity::new(cells, measures)
}
