//! Callers and callees of one function, as gprofng's `csingle` has them.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::{Context, Thing, View, metric_cells, metric_columns};
use crate::exit::{Failure, Kind};
use crate::report::aggregate::Relatives;
use crate::report::filter::Pattern;
use crate::report::metric::{Flavor, Metrics};
use crate::report::model::{FunctionId, Model};
use crate::report::resolve::TOTAL;
use crate::report::table::{Cell, Column, Table, left_out};

/// How many names are offered in place of one that is none.
const NEAREST: usize = 5;

pub(super) fn callers_callees(context: &Context<'_>) -> Result<Table, Failure> {
    let model = context.model;
    let Some(wanted) = &context.wish.subject else {
        return Err(Failure::new(
            Kind::Usage,
            "callers-callees: of which function?",
            "name it: kcollect report callers-callees malloc",
        ));
    };
    let function = find(model, wanted)?;
    let metrics = context
        .metrics(Metrics::of_functions)?
        .only(Flavor::Attributed);
    let totals = context.totals();
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
        notes: left_out(more).into_iter().collect(),
    })
}

/// The function of a name; or of a name and a load object, if several have the name, `main <sort>`; or the only one that a
/// regular expression describes.
fn find(model: &Model, wanted: &str) -> Result<FunctionId, Failure> {
    let qualified = |id: FunctionId| {
        let function = model.function(id);
        let object = model.object(function.object);
        [
            format!("{} {}", function.name, object.short_name()),
            format!("{} {}", function.name, object.path),
        ]
    };
    let all = || (0..model.functions.len() as u32).map(FunctionId);
    let mut found: Vec<_> = all()
        .filter(|id| {
            let function = model.function(*id);
            function.name == wanted || function.mangled.as_deref() == Some(wanted)
        })
        .collect();
    if found.is_empty() {
        found = all()
            .filter(|id| qualified(*id).iter().any(|name| name == wanted))
            .collect();
    }
    if found.is_empty()
        && let Ok(pattern) = Pattern::new(wanted)
    {
        found = all()
            .filter(|id| pattern.matches(&model.function(*id).name))
            .collect();
    }
    match found[..] {
        [function] => Ok(function),
        [] => {
            let names = model.functions.iter().map(|function| &*function.name);
            Err(Failure::new(
                Kind::Usage,
                format!("callers-callees: no function is {wanted}"),
                format!("the nearest are {}", nearest(names, wanted).join(", ")),
            ))
        }
        _ => {
            // As short as tells them apart.
            let mut uses: FxHashMap<String, usize> = FxHashMap::default();
            for id in &found {
                let function = model.function(*id);
                let [short, _] = qualified(*id);
                *uses.entry(function.name.clone()).or_default() += 1;
                *uses.entry(short).or_default() += 1;
            }
            let labels = found.iter().take(NEAREST).map(|id| {
                let [short, long] = qualified(*id);
                let name = &model.function(*id).name;
                match (uses[name], uses[&short]) {
                    (1, _) => format!("'{name}'"),
                    (_, 1) => format!("'{short}'"),
                    _ => format!("'{long}'"),
                }
            });
            let labels = labels.collect::<Vec<_>>().join(", ");
            let more = found.len().saturating_sub(NEAREST);
            let more = if more == 0 {
                String::new()
            } else {
                format!(" and {more} more")
            };
            Err(Failure::new(
                Kind::Usage,
                format!("callers-callees: {} functions are {wanted}", found.len()),
                format!("name one of {labels}{more}"),
            ))
        }
    }
}

/// The names that look most like one that is none.
fn nearest<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let mut near: Vec<_> = names
        .map(|name| {
            // Names of C++ and Rust are long, and their last part is what is remembered.
            let last = name.split('(').next().unwrap_or(name);
            let last = last.rsplit("::").next().unwrap_or(last).to_lowercase();
            (
                Reverse((1000.0 * strsim::jaro_winkler(&last, &wanted)) as u32),
                name,
            )
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter()
        .map(|(_, name)| name)
        .take(NEAREST)
        .collect()
}
