//! The call tree, as gprofng's `calltree` shows it: each function below its caller, with the
//! attributed time.
//!
//! Stacks that differ only in offsets within functions are one path. Branches below the least share
//! or beyond the greatest depth are left out and counted.

use host::exit::Failure;

use super::View;
use super::context::{Entity, ViewContext, metric_cells, metric_columns};
use crate::aggregate::{Measures, Totals, add};
use crate::metric::{Flavor, Metrics};
use crate::model::Callees;
use crate::model::{FunctionId, Model, StackId, Sums, ZERO_SUMS};
use crate::report::table::{Cell, Column, Table, left_out};

pub(super) fn calltree(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context
        .metrics(Metrics::of_functions)?
        .only(Flavor::Attributed);
    let sort = context.sort_of(&metrics)?;
    let model = context.model;
    let totals = context.totals();
    let below = Below {
        times: sums_below(model, &totals),
        counts: totals
            .counts
            .as_deref()
            .map(|totals| sums_below(model, totals)),
    };
    let callees = model.stacks.callees();
    let total = Entity::total(1, 3, totals.whole());
    let least = sort.by.map_or(0.0, |(base, flavor)| {
        total.value(base, flavor) as f64 * f64::from(context.options.least_ppm.unwrap_or(0)) / 1e6
    });
    let depth = context.options.depth.unwrap_or(usize::MAX);
    let limit = context.options.limit.unwrap_or(usize::MAX);

    let mut total = total;
    total.cells[0] = Cell::Count(0);
    let mut rows = vec![row(&metrics, &total, &total, "+-")];
    let (mut more, mut cut) = (0, 0);
    let mut pending = Vec::new();
    let mut push = |pending: &mut Vec<Pending>, nodes: &[StackId], own: usize, lines: &str| {
        let mut entities = children(model, &callees, &below, nodes, own);
        entities.retain(|(entity, _)| {
            let mut values = metrics.list.iter();
            values.any(|metric| entity.value(metric.base, metric.flavor) != 0)
        });
        let shown = |entity: &Entity| {
            let value = sort
                .by
                .map_or(0, |(base, flavor)| entity.value(base, flavor));
            own <= depth && value as f64 >= least
        };
        // Filtered first, since lines lead only to branches that are shown.
        let all = entities.len();
        entities.retain(|(entity, _)| shown(entity));
        more += all - entities.len();
        entities.sort_by(|(a, _), (b, _)| sort.order(a, b));
        let last = entities.len().saturating_sub(1);
        // Pushed in reverse, so that the first is on top.
        for (position, (entity, nodes)) in entities.into_iter().enumerate().rev() {
            pending.push(Pending {
                entity,
                nodes,
                depth: own,
                lines: lines.to_owned(),
                last: position == last,
            });
        }
    };
    push(&mut pending, &[StackId::EMPTY], 1, "  ");
    while let Some(Pending {
        entity,
        nodes,
        depth: own,
        lines,
        last,
    }) = pending.pop()
    {
        if rows.len() > limit {
            cut += 1;
            continue;
        }
        rows.push(row(&metrics, &entity, &total, &format!("{lines}+-")));
        let lines = lines + if last { "   " } else { "|  " };
        push(&mut pending, &nodes, own + 1, &lines);
    }
    let columns = metrics.list.iter().flat_map(metric_columns).chain([
        Column::number("depth", "Depth").hidden(),
        Column::text("tree", "Name"),
        Column::text("name", "Name").hidden(),
        Column::text("object", "Object").hidden(),
    ]);
    Ok(Table {
        view: View::CallTree.name(),
        title: "Call tree, by attributed time".to_owned(),
        columns: columns.collect(),
        rows,
        verbatim: false,
        notes: left_out(more + cut)
            .map(|line| line.replace("row", "branch").replace("branchs", "branches"))
            .into_iter()
            .collect(),
    })
}

/// A branch that is still to be shown.
struct Pending {
    entity: Entity,
    /// The stacks of this path.
    nodes: Vec<StackId>,
    depth: usize,
    lines: String,
    last: bool,
}

fn row(metrics: &Metrics, entity: &Entity, whole: &Entity, lines: &str) -> Vec<Cell> {
    let numbers = metrics.list.iter();
    let mut cells: Vec<_> = numbers
        .flat_map(|metric| metric_cells(metric, entity, whole))
        .collect();
    let [depth, name, object] = &entity.cells[..] else {
        return cells;
    };
    cells.extend([
        depth.clone(),
        Cell::Text(format!("{lines}{}", name.plain())),
        name.clone(),
        object.clone(),
    ]);
    cells
}

/// The result of [`sums_below`], for times and counts.
struct Below {
    times: Vec<Sums>,
    counts: Option<Vec<Sums>>,
}

impl Below {
    fn has(&self, stack: StackId) -> bool {
        let any = |sums: &Vec<Sums>| sums[stack.index()] != ZERO_SUMS;
        any(&self.times) || self.counts.as_ref().is_some_and(any)
    }
}

/// Returns for each stack the sums recorded with it and with all stacks it is a caller in.
fn sums_below(model: &Model, totals: &Totals) -> Vec<Sums> {
    let mut below = totals.stacks.clone();
    for (stack, caller, _) in model.stacks.iter().rev() {
        let sums = below[stack.index()];
        add(&mut below[caller.index()], &sums);
    }
    below
}

/// Returns the functions called from these stacks, which are one path.
fn children(
    model: &Model,
    callees: &Callees,
    below: &Below,
    nodes: &[StackId],
    depth: usize,
) -> Vec<(Entity, Vec<StackId>)> {
    let mut found: Vec<(FunctionId, StackId)> = Vec::new();
    for stack in nodes.iter().flat_map(|node| callees.of(*node)) {
        if below.has(stack)
            && let Some(leaf) = model.stacks.leaf(stack)
        {
            found.push((model.frame(leaf).function, stack));
        }
    }
    found.sort_unstable();
    let paths = found.chunk_by(|a, b| a.0 == b.0);
    paths
        .map(|path| {
            let function = model.function(path[0].0);
            let sum = |below: &[Sums]| {
                let mut sums = ZERO_SUMS;
                for (_, stack) in path {
                    add(&mut sums, &below[stack.index()]);
                }
                sums
            };
            let (sums, counts) = (sum(&below.times), below.counts.as_deref().map(sum));
            let cells = vec![
                Cell::Count(depth as u64),
                Cell::Text(function.name.clone()),
                Cell::Text(model.object(function.object).path.clone()),
            ];
            let nodes = path.iter().map(|(_, stack)| *stack).collect();
            (
                Entity::new(cells, Measures::alone(&sums, counts.as_ref())),
                nodes,
            )
        })
        .collect()
}
