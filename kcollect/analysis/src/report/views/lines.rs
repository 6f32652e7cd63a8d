//! Source lines by their time, as gprofng's view `lines`.
//!
//! Exclusive times equal gprofng's. Inclusive times do where nothing was inlined: gprofng counts
//! only the line of the inlined code, while here the line that calls it has the time too. A line of
//! an inlined function is named after that function, not after the one it was compiled into.

use host::exit::Failure;

use super::View;
use super::context::{Entities, Entity, ViewContext};
use crate::aggregate::{self, Shares, Totals};
use crate::metric::Metrics;
use crate::model::{FrameId, Model, ObjectId, ZERO_SUMS};
use crate::report::table::{Cell, Column, Table};

/// Maximum number of load objects with a note of why their lines are missing.
const MAX_OBJECTS_NOTED: usize = 5;

pub(super) fn lines(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let all = &model.lines;
    let [shares] = aggregate::shares(model, &totals, [all.lines.len()], |frame| {
        [Some(all.of_frames[frame.index()])]
    });
    let columns = vec![
        Column::text("name", "Name"),
        Column::text("function", "Function").hidden(),
        Column::text("file", "File").hidden(),
        Column::number("line", "Line").hidden(),
        Column::text("object", "Object").hidden(),
    ];
    let cells_of = |index: usize| {
        let line = &all.lines[index];
        let function = model.function(line.function);
        let at = line
            .at
            .map(|(file, line)| (&*all.files[file as usize], line));
        let name = match at {
            Some((file, line)) => {
                let base = file.rsplit('/').next().unwrap_or(file);
                format!("{}, line {line} in \"{base}\"", function.name)
            }
            None if model.is_special(line.function) => function.name.clone(),
            None => format!(
                "<Function: {}, instructions without line numbers>",
                function.name
            ),
        };
        vec![
            Cell::Text(name),
            Cell::Text(function.name.clone()),
            at.map_or(Cell::Empty, |(file, _)| Cell::Text(file.to_owned())),
            at.map_or(Cell::Empty, |(_, line)| Cell::Count(line.into())),
            Cell::Text(model.object(function.object).path.clone()),
        ]
    };
    let entities = Entities {
        total: Entity::total(0, columns.len(), totals.whole()),
        columns,
        measures: (0..all.lines.len()).map(|index| shares.of(index)).collect(),
        cells_of: &cells_of,
    };
    let mut table = context.sorted(View::Lines, "Source lines", &metrics, entities)?;
    table.notes.extend(without_lines(model, &totals));
    Ok(table)
}

/// Notes why lines are missing in the load objects with the most time.
fn without_lines(model: &Model, totals: &Totals) -> Vec<String> {
    let of = |frame: FrameId| Some(model.function(model.frame(frame).function).object.0);
    let count = model.objects.len();
    let [
        Shares {
            exclusive,
            inclusive,
            ..
        },
    ] = aggregate::shares(model, totals, [count], |frame| [of(frame)]);
    let mut missing: Vec<_> = (0..count)
        .filter(|index| inclusive[*index] != ZERO_SUMS)
        .filter_map(|index| Some((index, model.lines.errors.get(index)?.as_ref()?)))
        .collect();
    let time = |index: usize| exclusive[index].iter().sum::<i64>();
    missing.sort_by_key(|(index, _)| std::cmp::Reverse(time(*index)));
    let more = missing.len().saturating_sub(MAX_OBJECTS_NOTED);
    let notes = missing
        .iter()
        .take(MAX_OBJECTS_NOTED)
        .map(|(index, error)| {
            let object = model.object(ObjectId(*index as u32));
            format!("{} {error}", object.path)
        });
    let mut notes: Vec<_> = notes.collect();
    if more > 0 {
        notes.push(format!("and {more} more load objects have no lines"));
    }
    notes
}
