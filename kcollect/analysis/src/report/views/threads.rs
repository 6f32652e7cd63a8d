//! Threads, processes and CPUs by their time.
//!
//! Threads and processes are shown with exact times if the founder has them, unless something was
//! asked for that only ticks have: a metric, time, CPU, state or function.

use std::cmp::Ordering;

use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::units::Nanos;
use host::exit::Failure;

use super::View;
use super::context::{Entities, Entity, ViewContext};
use super::exact::{self, ExactProcess};
use crate::aggregate::{Measures, add};
use crate::filter::Selection;
use crate::load::exact::{ExactSums, sum};
use crate::metric::{BaseMetric, Metrics};
use crate::model::{ExperimentId, GroupKind, Sums, ZERO_SUMS};
use crate::report::table::{self, Cell, Column, Table};

fn thread_columns() -> Vec<Column> {
    vec![
        Column::number("pid", "PID"),
        Column::number("tid", "TID"),
        Column::text("name", "Thread"),
        Column::text("process", "Process"),
    ]
}

pub(super) fn process_columns() -> Vec<Column> {
    vec![
        Column::number("pid", "PID"),
        Column::text("name", "Process"),
        Column::number("processes", "Processes").hidden(),
        Column::number("threads", "Threads"),
        Column::text("experiment", "Experiment").hidden(),
        Column::text("command", "Command").hidden(),
    ]
}

/// Returns the cells of [`process_columns`].
pub(super) fn process_cells(process: &ExactProcess) -> Vec<Cell> {
    vec![
        process
            .pid
            .map_or(Cell::Empty, |pid| Cell::Count(pid.into())),
        Cell::Text(process.title()),
        Cell::Count(process.processes),
        Cell::Count(process.threads),
        Cell::Text(process.experiment.clone()),
        process.command.clone().map_or(Cell::Empty, Cell::Text),
    ]
}

pub(super) fn threads(context: &ViewContext<'_>) -> Result<Table, Failure> {
    if let Some(runs) = exact::runs(context)? {
        let threads = runs.iter().flat_map(|run| &run.threads).map(|thread| {
            let cells = vec![
                Cell::Count(thread.pid.into()),
                Cell::Count(thread.tid.into()),
                Cell::Text(thread.name.clone()),
                Cell::Text(thread.process.clone()),
            ];
            (cells, thread.times)
        });
        let short_lived = runs.iter().flat_map(|run| &run.short_lived).map(|sums| {
            let cells = vec![
                Cell::Empty,
                Cell::Empty,
                Cell::Text(format!("({} short-lived threads)", sums.threads)),
                Cell::Text(sums.process.clone()),
            ];
            (cells, sums.times)
        });
        let mut rows: Vec<_> = threads.chain(short_lived).collect();
        rows.sort_by(|(a, a_times), (b, b_times)| {
            let busy = b_times.busy_ns().cmp(&a_times.busy_ns());
            busy.then_with(|| {
                let orders = a.iter().zip(b).map(|(a, b)| a.order(b));
                orders.fold(Ordering::Equal, Ordering::then)
            })
        });
        let columns = thread_columns();
        return Ok(exact_table(
            context,
            View::Threads,
            "Threads",
            columns,
            rows,
        ));
    }
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let (model, totals) = (context.model, context.totals());
    let columns = thread_columns();
    let cells_of = |index: usize| {
        let thread = &model.threads[index];
        let process = model.process(thread.process);
        vec![
            Cell::Count(process.pid.into()),
            Cell::Count(thread.tid),
            Cell::Text(thread.name.clone()),
            Cell::Text(process.name.clone()),
        ]
    };
    let entities = Entities {
        total: Entity::total(2, columns.len(), totals.whole()),
        columns,
        measures: (0..model.threads.len())
            .map(|index| totals.both(|totals| &totals.threads[index]))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Threads, "Threads", &metrics, entities)
}

pub(super) fn processes(context: &ViewContext<'_>) -> Result<Table, Failure> {
    if let Some(by) = context.options.by {
        return groups(context, by);
    }
    if let Some(runs) = exact::runs(context)? {
        let rows = exact::processes(context.model, &runs, None).into_iter();
        let rows = rows.map(|process| (process_cells(&process), process.times));
        let columns = process_columns();
        return Ok(exact_table(
            context,
            View::Processes,
            "Processes",
            columns,
            rows.collect(),
        ));
    }
    let model = context.model;
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let totals = context.totals();
    let mut threads = vec![0; model.processes.len()];
    for thread in &model.threads {
        threads[thread.process.index()] += 1;
    }
    let cells_of = |index: usize| {
        let process = &model.processes[index];
        let info = model.experiment(ExperimentId(process.experiment));
        process_cells(&ExactProcess {
            pid: Some(process.pid),
            name: process.name.clone(),
            processes: 1,
            threads: threads[index],
            experiment: info.name.clone(),
            command: process.command_line.clone(),
            ..ExactProcess::default()
        })
    };
    let columns = process_columns();
    let entities = Entities {
        total: Entity::total(1, columns.len(), totals.whole()),
        columns,
        measures: (0..model.processes.len())
            .map(|index| totals.both(|totals| &totals.processes[index]))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Processes, "Processes", &metrics, entities)
}

fn group_columns(by: GroupKind) -> Vec<Column> {
    let name = by.name();
    let title = name[..1].to_uppercase() + &name[1..];
    vec![
        Column::text("name", title),
        Column::number("processes", "Processes"),
        Column::number("threads", "Threads"),
    ]
}

/// Makes the table of what processes belong to, which is known only for followed processes.
fn groups(context: &ViewContext<'_>, by: GroupKind) -> Result<Table, Failure> {
    let columns = group_columns(by);
    let cells = |name: &str, processes, threads| {
        vec![
            Cell::Text(name.to_owned()),
            Cell::Count(processes),
            Cell::Count(threads),
        ]
    };
    let title = columns[0].title.clone() + "s";
    if let Some(runs) = exact::runs(context)? {
        let rows = exact::merge_groups(exact::processes(context.model, &runs, Some(by)));
        let rows = rows.into_iter().map(|row| {
            let cells = cells(&row.name, row.processes, row.threads);
            (cells, row.times)
        });
        return Ok(exact_table(
            context,
            View::Processes,
            &title,
            columns,
            rows.collect(),
        ));
    }
    let (model, totals) = (context.model, context.totals());
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let counts = totals.counts.as_deref();
    let (mut names, mut sums): (Vec<String>, Vec<GroupSums>) = (Vec::new(), Vec::new());
    for (index, process) in model.processes.iter().enumerate() {
        let name = process.group(by);
        let known = names.iter().position(|known| *known == name);
        let at = known.unwrap_or_else(|| {
            names.push(name);
            sums.push(GroupSums::default());
            sums.len() - 1
        });
        sums[at].processes += 1;
        add(&mut sums[at].ticks, &totals.processes[index]);
        if let Some(counts) = counts {
            add(&mut sums[at].counts, &counts.processes[index]);
        }
    }
    for thread in &model.threads {
        let name = model.process(thread.process).group(by);
        if let Some(at) = names.iter().position(|known| *known == name) {
            sums[at].threads += 1;
        }
    }
    let cells_of = |index: usize| cells(&names[index], sums[index].processes, sums[index].threads);
    let entities = Entities {
        total: Entity::total(0, columns.len(), totals.whole()),
        columns,
        measures: sums
            .iter()
            .map(|sums| Measures::alone(&sums.ticks, counts.map(|_| &sums.counts)))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Processes, &title, &metrics, entities)
}

/// The sums of processes that belong together.
struct GroupSums {
    processes: u64,
    threads: u64,
    ticks: Sums,
    counts: Sums,
}

impl Default for GroupSums {
    fn default() -> GroupSums {
        GroupSums {
            processes: 0,
            threads: 0,
            ticks: ZERO_SUMS,
            counts: ZERO_SUMS,
        }
    }
}

pub(super) fn cpus(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let totals = context.totals();
    let stolen = stolen_by_cpu(context);
    let all_stolen = sum(stolen.iter().copied());
    let column = Column::number("stolen_s", "Stolen\nsec.");
    let column = match all_stolen {
        Nanos::ZERO => column.hidden(),
        _ => column,
    };
    let columns = vec![column, Column::text("name", "CPU")];
    let cells_of = |index: usize| {
        let name = format!("CPU {}", context.model.cpus[index]);
        vec![Cell::Nanoseconds(stolen[index]), Cell::Text(name)]
    };
    let mut total = Entity::total(1, columns.len(), totals.whole());
    total.cells[0] = Cell::Nanoseconds(all_stolen);
    let entities = Entities {
        total,
        columns,
        measures: (0..context.model.cpus.len())
            .map(|index| totals.both(|totals| &totals.cpus[index]))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Cpus, "CPUs", &metrics, entities)
}

/// Returns for each CPU for how long the hypervisor ran something else there, nanoseconds.
pub(super) fn stolen_by_cpu(context: &ViewContext<'_>) -> Vec<Nanos> {
    let model = context.model;
    let selection = Selection::new(model, &context.options.filter);
    let mut stolen = vec![Nanos::ZERO; model.cpus.len()];
    let rows = model.rows.iter();
    for row in rows.filter(|row| u32::from(row.detail) == Detail::Stolen.number()) {
        if selection.passes(row) {
            let ns = Nanos::from_micros(u64::try_from(row.micros).unwrap_or(0));
            stolen[row.cpu.index()] = sum([stolen[row.cpu.index()], ns]);
        }
    }
    stolen
}

/// Makes a table of exact times, the busiest first: of each row the cells of its own columns, and
/// its times.
fn exact_table(
    context: &ViewContext<'_>,
    view: View,
    title: &str,
    columns: Vec<Column>,
    mut rows: Vec<(Vec<Cell>, ExactSums)>,
) -> Table {
    let mut all = ExactSums::default();
    rows.iter().for_each(|(_, times)| all.add(times));
    let mut total = vec![Cell::Empty; columns.len()];
    if let Some(name) = columns.iter().position(|column| column.key == "name") {
        total[name] = Cell::Text("<Total>".to_owned());
    }
    let left_out = context
        .options
        .limit
        .map_or(0, |limit| rows.len().saturating_sub(limit));
    rows.truncate(rows.len() - left_out);
    rows.insert(0, (total, all));
    let states = Microstate::ALL[..Microstate::PER_THREAD].iter();
    let columns = states
        .map(|state| {
            let base = BaseMetric::State(*state);
            Column::number(
                format!("{}_s", base.keyword()),
                format!("{}\nsec.", base.title()),
            )
        })
        .chain([Column::number("total_s", "Total\nsec.")])
        .chain(exact::detail_columns())
        .chain(columns)
        .chain([Column::text("why", "Held up by, sec.")]);
    let columns: Vec<_> = columns.collect();
    let cells = |(cells, times): (Vec<Cell>, ExactSums)| {
        let states = times.states.iter().copied();
        states
            .chain([sum(times.states)])
            .map(Cell::Nanoseconds)
            .chain(exact::detail_cells(&times))
            .chain(cells)
            .chain([Cell::Text(times.held_up())])
            .collect()
    };
    Table {
        view: view.name(),
        title: format!(
            "{title} by time on a CPU, waiting for one, in page faults and for I/O; exact"
        ),
        rows: rows.into_iter().map(cells).collect(),
        columns,
        verbatim: false,
        notes: table::left_out(left_out).into_iter().collect(),
    }
}
