//! Finds the function that was named for `callers-callees`, `source` or `disasm`.
//!
//! A name is compared with shown names and symbols; then with a load object after it, as `main
//! <sort>`; then with copies that compilers make for some callers, `work.constprop.0`; then as a
//! regular expression. If several functions have the same name, the one with most time is chosen,
//! and a note lists the others. A regular expression has to match exactly one.

use std::cmp::Reverse;

use host::exit::{ExitKind, Failure};
use rustc_hash::FxHashMap;

use super::context::ViewContext;
use crate::aggregate::{self, Totals};
use crate::filter::{Pattern, nearest};
use crate::model::{FunctionId, Model};

/// Maximum number of names that are listed if several functions match.
const MAX_SUGGESTIONS: usize = 5;

/// The function that was chosen.
pub(super) struct ChosenFunction {
    pub(super) function: FunctionId,
    /// Other functions of the name, and how to ask for them.
    pub(super) notes: Vec<String>,
}

/// Returns the function that was typed.
pub(super) fn chosen_function(
    context: &ViewContext<'_>,
    totals: &Totals,
) -> Result<ChosenFunction, Failure> {
    let model = context.model;
    let wanted = context.options.function.as_deref().unwrap_or_default();
    let inclusive = aggregate::functions(model, totals).functions.inclusive;
    let time = |function: FunctionId| inclusive[function.index()].iter().sum::<i64>();
    let all = || (0..model.functions.len() as u32).map(FunctionId);

    let is = |id: &FunctionId| {
        let function = model.function(*id);
        function.name == wanted || function.mangled.as_deref() == Some(wanted)
    };
    let is_in = |id: &FunctionId| qualified(model, *id).iter().any(|name| name == wanted);
    let is_copy = |id: &FunctionId| {
        let rest = model.function(*id).name.strip_prefix(wanted);
        rest.is_some_and(|rest| !wanted.is_empty() && rest.starts_with('.'))
    };
    let named: [&dyn Fn(&FunctionId) -> bool; 3] = [&is, &is_in, &is_copy];
    for fits in named {
        let mut found: Vec<_> = all().filter(fits).collect();
        // Without times, the first function wins.
        found.sort_by_key(|id| Reverse(time(*id)));
        if let Some((function, _)) = found.split_first() {
            let names = telling_apart(model, &found);
            let others = names[1..].iter().zip(&found[1..]).map(|(name, id)| {
                let object = model.object(model.function(*id).object);
                format!("there is also {name} in {}", object.path)
            });
            return Ok(ChosenFunction {
                function: *function,
                notes: others.collect(),
            });
        }
    }

    let pattern = Pattern::new(wanted).ok().filter(|_| !wanted.is_empty());
    let fits = |id: &FunctionId| {
        let name = &model.function(*id).name;
        pattern.as_ref().is_some_and(|fits| fits.matches(name))
    };
    let mut found: Vec<_> = all().filter(fits).collect();
    found.sort_by_key(|id| Reverse(time(*id)));
    match found[..] {
        [function] => Ok(ChosenFunction {
            function,
            notes: Vec::new(),
        }),
        [] => {
            let names = model.functions.iter().map(|function| &*function.name);
            let near = nearest(names, wanted);
            Err(Failure::new(
                ExitKind::NoInput,
                format!("{wanted} is in no recorded stack"),
                if near.is_empty() {
                    "kcollect report functions shows all".to_owned()
                } else {
                    format!("the nearest are {}", near.join(", "))
                },
            ))
        }
        _ => {
            let names = telling_apart(model, &found);
            let more = match names.len().saturating_sub(MAX_SUGGESTIONS) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let names = names[..names.len().min(MAX_SUGGESTIONS)].join(", ");
            Err(Failure::new(
                ExitKind::Usage,
                format!("{} functions match {wanted}", found.len()),
                format!("name one of {names}{more}"),
            ))
        }
    }
}

/// Returns a function's name followed by its load object's name, in short and in full.
fn qualified(model: &Model, id: FunctionId) -> [String; 2] {
    let function = model.function(id);
    let object = model.object(function.object);
    [
        format!("{} {}", function.name, object.short_name()),
        format!("{} {}", function.name, object.path),
    ]
}

/// Returns a unique name for each, as short as possible, quoted for a shell.
fn telling_apart(model: &Model, functions: &[FunctionId]) -> Vec<String> {
    let mut uses: FxHashMap<String, usize> = FxHashMap::default();
    for id in functions {
        let [short, _] = qualified(model, *id);
        *uses.entry(model.function(*id).name.clone()).or_default() += 1;
        *uses.entry(short).or_default() += 1;
    }
    let label = |id: &FunctionId| {
        let [short, long] = qualified(model, *id);
        let name = &model.function(*id).name;
        match (uses[name], uses[&short]) {
            (1, _) => format!("'{name}'"),
            (_, 1) => format!("'{short}'"),
            _ => format!("'{long}'"),
        }
    };
    functions.iter().map(label).collect()
}
