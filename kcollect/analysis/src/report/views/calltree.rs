//! The call tree, as gprofng's `calltree` shows it: each function below its caller, with the
//! attributed time.
//!
//! Stacks that differ only in offsets within functions are one path. Branches below the least share
//! or beyond the greatest depth are left out and counted.

use host::exit::Failure;

use super::View;
use super::context::{Entity, ViewContext, metric_cells, metric_columns};
use crate::aggregate::{Measures, Totals, add};
use crate::metric::{Flavor, Metrics, Sort};
use crate::model::{Callees, FunctionId, Model, StackId, Sums, ZERO_SUMS};
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
    let mut total = Entity::total(1, 3, totals.whole());
    total.cells[0] = Cell::Count(0);
    let least = sort.by.map_or(0.0, |(base, flavor)| {
        let min_ppm = context.options.min_ppm.unwrap_or(0);
        total.value(base, flavor) as f64 * f64::from(min_ppm) / 1e6
    });
    let mut walk = TreeWalk {
        model,
        callees: model.stacks.callees(),
        below,
        metrics: &metrics,
        sort,
        least,
        max_depth: context.options.depth.unwrap_or(usize::MAX),
        left_out: 0,
        pending: Vec::new(),
    };
    let limit = context.options.limit.unwrap_or(usize::MAX);
    let mut rows = vec![row(&metrics, &total, &total, "+-")];
    walk.push(&[StackId::EMPTY], 1, "  ");
    while let Some(branch) = walk.pending.pop() {
        if rows.len() > limit {
            walk.left_out += 1;
            continue;
        }
        let lines = branch.lines;
        rows.push(row(&metrics, &branch.entity, &total, &format!("{lines}+-")));
        let lines = lines + if branch.last { "   " } else { "|  " };
        walk.push(&branch.nodes, branch.depth + 1, &lines);
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
        notes: left_out(walk.left_out)
            .map(|line| line.replace("row", "branch").replace("branchs", "branches"))
            .into_iter()
            .collect(),
    })
}

/// A walk down the call tree.
struct TreeWalk<'a> {
    model: &'a Model,
    callees: Callees,
    below: Below,
    metrics: &'a Metrics,
    sort: Sort,
    /// Minimum value of a branch, in the metric of the order.
    least: f64,
    max_depth: usize,
    /// The number of branches that are left out.
    left_out: usize,
    /// The branches that are still to be shown, the next one last.
    pending: Vec<Branch>,
}

/// A branch of the call tree.
struct Branch {
    entity: Entity,
    /// The stacks of the path to it.
    nodes: Vec<StackId>,
    depth: usize,
    /// The lines before its name, which lead to other branches.
    lines: String,
    /// Whether it is the last one of its caller.
    last: bool,
}

impl TreeWalk<'_> {
    /// Adds the branches below a path, which consists of these stacks.
    fn push(&mut self, nodes: &[StackId], depth: usize, lines: &str) {
        let mut entities = children(self.model, &self.callees, &self.below, nodes, depth);
        entities.retain(|(entity, _)| {
            let mut values = self.metrics.list.iter();
            values.any(|metric| entity.value(metric.base, metric.flavor) != 0)
        });
        // Filtered before lines are drawn, since these lead only to branches that are shown.
        let all = entities.len();
        entities.retain(|(entity, _)| {
            let by = self.sort.by;
            let value = by.map_or(0, |(base, flavor)| entity.value(base, flavor));
            depth <= self.max_depth && value as f64 >= self.least
        });
        self.left_out += all - entities.len();
        entities.sort_by(|(a, _), (b, _)| self.sort.order(a, b));
        let last = entities.len().saturating_sub(1);
        let branches = entities.into_iter().enumerate().rev();
        let branches = branches.map(|(position, (entity, nodes))| Branch {
            entity,
            nodes,
            depth,
            lines: lines.to_owned(),
            last: position == last,
        });
        self.pending.extend(branches);
    }
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

/// The inclusive sums of each stack, for times and counts.
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

/// Returns the inclusive sums of each stack: its own, plus the sums of all stacks in which it is a
/// caller.
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
