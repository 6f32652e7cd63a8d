//! Threads, processes and CPUs by their time.
//!
//! Threads and processes are shown with exact times if the founder has them, unless something was
//! asked for that only ticks have: a metric, time, CPU, state or function.

use experiment_format::microstate::Microstate;
use host::exit::{ExitKind, Failure};
use rustc_hash::FxHashMap;

use super::{Context, Entities, Entity, View};
use crate::load::exact::{self, ExactTimes, ThreadTimes};
use crate::metric::{BaseMetric, Metrics};
use crate::model::{ExperimentId, ProcessInfo};
use crate::report::table::{self, Cell, Column, Table};

fn thread_columns() -> Vec<Column> {
    vec![
        Column::number("pid", "PID"),
        Column::number("tid", "TID"),
        Column::text("name", "Thread"),
        Column::text("process", "Process"),
    ]
}

fn process_columns() -> Vec<Column> {
    vec![
        Column::number("pid", "PID"),
        Column::text("name", "Process"),
        Column::number("threads", "Threads"),
        Column::text("experiment", "Experiment").hidden(),
        Column::text("command", "Command").hidden(),
    ]
}

pub(super) fn threads(context: &Context<'_>) -> Result<Table, Failure> {
    if let Some(threads) = exact_threads(context)? {
        let rows = threads.iter().map(|(process, thread)| {
            let cells = vec![
                Cell::Count(thread.pid.into()),
                Cell::Count(thread.tid.into()),
                Cell::Text(thread.name.clone()),
                Cell::Text(process.clone()),
            ];
            (cells, thread.states)
        });
        return exact(context, View::Threads, thread_columns(), rows.collect());
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

pub(super) fn processes(context: &Context<'_>) -> Result<Table, Failure> {
    let model = context.model;
    let with = |process: &ProcessInfo, threads: u64| {
        let info = model.experiment(ExperimentId(process.experiment));
        vec![
            Cell::Count(process.pid.into()),
            Cell::Text(process.name.clone()),
            Cell::Count(threads),
            Cell::Text(info.name.clone()),
            process.command_line.clone().map_or(Cell::Empty, Cell::Text),
        ]
    };
    if let Some(threads) = exact_threads(context)? {
        let mut by_pid: FxHashMap<u32, (String, u64, exact::States)> = FxHashMap::default();
        for (process, thread) in threads {
            let entry = by_pid.entry(thread.pid).or_default();
            entry.0 = process;
            entry.1 += 1;
            exact::add(&mut entry.2, &thread.states);
        }
        let rows = by_pid.into_iter().map(|(pid, (name, threads, states))| {
            let known = model
                .processes
                .iter()
                .rev()
                .find(|process| process.pid == pid);
            let process = ProcessInfo {
                pid,
                name,
                experiment: known.map_or(0, |process| process.experiment),
                command_line: known.and_then(|process| process.command_line.clone()),
                ..ProcessInfo::default()
            };
            (with(&process, threads), states)
        });
        return exact(context, View::Processes, process_columns(), rows.collect());
    }
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let totals = context.totals();
    let mut threads = vec![0; model.processes.len()];
    for thread in &model.threads {
        threads[thread.process.index()] += 1;
    }
    let cells_of = |index: usize| with(&model.processes[index], threads[index]);
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

pub(super) fn cpus(context: &Context<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_entities)?.exclusive();
    let totals = context.totals();
    let columns = vec![Column::text("name", "CPU")];
    let cells_of = |index: usize| vec![Cell::Text(format!("CPU {}", context.model.cpus[index]))];
    let entities = Entities {
        total: Entity::total(0, columns.len(), totals.whole()),
        columns,
        measures: (0..context.model.cpus.len())
            .map(|index| totals.both(|totals| &totals.cpus[index]))
            .collect(),
        cells_of: &cells_of,
    };
    context.sorted(View::Cpus, "CPUs", &metrics, entities)
}

/// Returns the exact times of all threads that pass, with their processes' names. None: ticks are
/// to be shown.
fn exact_threads(context: &Context<'_>) -> Result<Option<Vec<(String, ThreadTimes)>>, Failure> {
    let (model, options) = (context.model, context.options);
    if options.metrics.is_some() || options.sort.is_some() || !options.filter.only_of_threads() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for (index, info) in model.experiments.iter().enumerate() {
        if info.founder.index() != index {
            continue;
        }
        let read = ExactTimes::read(&info.source).map_err(|error| {
            Failure::new(
                ExitKind::NoInput,
                error.to_string(),
                "use -m to show ticks instead",
            )
        })?;
        let Some(times) = read else {
            return Ok(None);
        };
        let names: FxHashMap<u32, &ProcessInfo> = model
            .processes
            .iter()
            .filter(|process| {
                model.experiments[process.experiment as usize]
                    .founder
                    .index()
                    == index
            })
            .map(|process| (process.pid, process))
            .collect();
        for thread in times.threads {
            let process = names.get(&thread.pid).map_or_else(
                || ProcessInfo {
                    pid: thread.pid,
                    name: thread.name.clone(),
                    ..ProcessInfo::default()
                },
                |process| (*process).clone(),
            );
            let filter = &options.filter;
            let number = u64::from(thread.tid);
            if filter.takes(&process)
                && (filter.threads.is_empty() || filter.threads.contains(&number))
            {
                all.push((process.name, thread));
            }
        }
        if times.short_lived > 0
            && options.filter.processes.is_empty()
            && options.filter.threads.is_empty()
        {
            let short_lived = ThreadTimes {
                name: format!("({} short-lived threads)", times.short_lived),
                states: times.short_lived_states,
                ..ThreadTimes::default()
            };
            all.push((short_lived.name.clone(), short_lived));
        }
    }
    Ok(Some(all))
}

/// Makes a table of exact times, most time awake first.
fn exact(
    context: &Context<'_>,
    view: View,
    columns: Vec<Column>,
    mut rows: Vec<(Vec<Cell>, exact::States)>,
) -> Result<Table, Failure> {
    let states = &Microstate::ALL[..Microstate::PER_THREAD];
    let quiet = [Microstate::Sleep, Microstate::Stopped].map(|state| state as usize);
    let awake = |states: &exact::States| -> u64 {
        let parts = states.iter().enumerate();
        parts
            .filter(|(slot, _)| !quiet.contains(slot))
            .map(|(_, ns)| ns)
            .sum()
    };
    rows.sort_by_key(|(cells, states)| {
        let numbers = cells.iter().filter_map(|cell| match cell {
            Cell::Count(number) => Some(*number),
            _ => None,
        });
        (
            std::cmp::Reverse(awake(states)),
            numbers.collect::<Vec<_>>(),
        )
    });
    let mut all = [0; Microstate::PER_THREAD];
    for (_, states) in &rows {
        exact::add(&mut all, states);
    }
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
    let times = states.iter().map(|state| {
        let base = BaseMetric::State(*state);
        Column::number(
            format!("{}_s", base.keyword()),
            format!("{}\nsec.", base.title()),
        )
    });
    let times = times.chain([Column::number("total_s", "Total\nsec.")]);
    Ok(Table {
        view: view.name(),
        title: format!(
            "{}, by exact time awake",
            if view == View::Threads {
                "Threads"
            } else {
                "Processes"
            }
        ),
        columns: times.chain(columns).collect(),
        rows: rows
            .into_iter()
            .map(|(cells, states)| {
                let times = states.iter().copied().chain([states.iter().sum()]);
                times.map(Cell::Nanoseconds).chain(cells).collect()
            })
            .collect(),
        verbatim: false,
        notes: table::left_out(left_out).into_iter().collect(),
    })
}
