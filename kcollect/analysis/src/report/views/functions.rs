//! Functions and load objects by their time.

use host::exit::Failure;

use super::View;
use super::context::{Entities, Entity, ViewContext};
use crate::aggregate;
use crate::metric::Metrics;
use crate::report::table::{Cell, Column, Table};

pub(super) fn functions(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let shares = aggregate::functions(model, &totals).functions;
    let columns = vec![
        Column::text("name", "Name"),
        Column::text("object", "Object").hidden(),
        Column::text("mangled", "Mangled").hidden(),
        Column::text("kernel", "Kernel").hidden(),
    ];
    let cells_of = |index: usize| {
        let function = &model.functions[index];
        let mangled = function.mangled.clone().map_or(Cell::Empty, Cell::Text);
        vec![
            Cell::Text(function.name.clone()),
            Cell::Text(model.object(function.object).path.clone()),
            mangled,
            Cell::Text(if function.kernel { "kernel" } else { "user" }.to_owned()),
        ]
    };
    let entities = Entities {
        total: Entity::total(0, columns.len(), totals.whole()),
        columns,
        measures: (0..model.functions.len())
            .map(|index| shares.of(index))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Functions, "Functions", &metrics, entities)
}

pub(super) fn objects(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let shares = aggregate::functions(model, &totals).objects;
    let columns = vec![
        Column::text("name", "Name"),
        Column::text("path", "Path").hidden(),
        Column::text("kernel", "Kernel").hidden(),
    ];
    let cells_of = |index: usize| {
        let object = &model.objects[index];
        vec![
            Cell::Text(object.table_name()),
            Cell::Text(object.path.clone()),
            Cell::Text(if object.kernel { "kernel" } else { "user" }.to_owned()),
        ]
    };
    let entities = Entities {
        total: Entity::total(0, columns.len(), totals.whole()),
        columns,
        measures: (0..model.objects.len())
            .map(|index| shares.of(index))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Objects, "Load objects", &metrics, entities)
}
