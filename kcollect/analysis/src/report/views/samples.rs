//! Exact times of the machine and of processes, by sample (gprofng's `sample_detail`) and for the
//! whole run (`statistics`).
//!
//! They come from `overview`, which has times of experiments and nothing finer, so filters for
//! threads, CPUs, states or functions are refused. Times there are cumulative; differences of
//! neighbours are shown. A founder's times cover all threads of the machine, its subexperiments
//! included, so there is no sum.

use experiment_format::microstate::Microstate;
use experiment_format::reader::Sample;
use experiment_format::units::Nanos;
use experiment_format::usage::UsageRecord;
use host::exit::{ExitKind, Failure};

use super::View;
use super::context::ViewContext;
use crate::load::exact::sum;
use crate::metric::BaseMetric;
use crate::model::{ExperimentInfo, ProcessInfo};
use crate::report::table::{Cell, Column, Table};

/// The key of a column, and the value of a record in it.
type UsageCount = (&'static str, fn(&UsageRecord) -> u64);

/// Counts that are shown in addition to times, in gprofng's order.
const USAGE_COUNTS: [UsageCount; 12] = [
    ("minor_faults", |usage| usage.minor_faults),
    ("major_faults", |usage| usage.major_faults),
    ("swaps", |usage| usage.swaps),
    ("blocks_in", |usage| usage.blocks_in),
    ("blocks_out", |usage| usage.blocks_out),
    ("messages_sent", |usage| usage.messages_sent),
    ("messages_received", |usage| usage.messages_received),
    ("signals", |usage| usage.signals),
    ("voluntary_switches", |usage| usage.voluntary_switches),
    ("involuntary_switches", |usage| usage.involuntary_switches),
    ("system_calls", |usage| usage.system_calls),
    ("io_chars", |usage| usage.io_chars),
];

pub(super) fn samples(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let mut rows = Vec::new();
    for (number, info) in chosen(context)? {
        let samples = read(info)?;
        let within = |pair: &&[Sample]| {
            let time = context.options.filter.time_in(context.model, info);
            time.contains(&(info.offset_ns + pair[1].at_ns).saturating_sub(Nanos(1)))
        };
        for (position, pair) in samples
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| within(pair))
        {
            let mut cells = vec![Cell::Count(position as u64 + 1)];
            cells.extend(between(info, &pair[0], &pair[1]));
            cells.extend([
                Cell::Text(pair[1].label.clone()),
                Cell::Text(info.name.clone()),
                Cell::Count(number),
            ]);
            rows.push(cells);
        }
    }
    let columns = [Column::number("sample", "Sample")].into_iter();
    let columns = columns.chain(columns_between()).chain([
        Column::text("label", "Ends at"),
        Column::text("experiment", "Experiment"),
        Column::number("number", "Number").hidden(),
    ]);
    Ok(shown(
        View::Samples,
        "Exact times by sample, seconds",
        columns.collect(),
        rows,
        context,
    ))
}

pub(super) fn statistics(context: &ViewContext<'_>) -> Result<Table, Failure> {
    if context.options.filter.time.is_some() {
        return Err(refused("--time"));
    }
    let mut rows = Vec::new();
    for (number, info) in chosen(context)? {
        let samples = read(info)?;
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            continue;
        };
        let mut cells = between(info, first, last);
        cells.extend([Cell::Text(info.name.clone()), Cell::Count(number)]);
        rows.push(cells);
    }
    let columns = columns_between().into_iter().chain([
        Column::text("experiment", "Experiment"),
        Column::number("number", "Number").hidden(),
    ]);
    Ok(shown(
        View::Statistics,
        "Exact times of the whole run, seconds",
        columns.collect(),
        rows,
        context,
    ))
}

fn refused(option: &str) -> Failure {
    Failure::new(
        ExitKind::Usage,
        format!("{option}: samples do not have it"),
        "samples can be filtered by --process and --time; other filters work with functions and threads",
    )
}

/// Returns the experiments with their numbers: the founders, or the experiments of the processes
/// asked for.
fn chosen<'a>(context: &ViewContext<'a>) -> Result<Vec<(u64, &'a ExperimentInfo)>, Failure> {
    let filter = &context.options.filter;
    let unsupported = [
        ("--thread", !filter.threads.is_empty()),
        ("--cpu", !filter.cpus.is_empty()),
        ("--state", filter.states.is_some()),
        ("--function", !filter.functions.is_empty()),
        ("--cause", !filter.reasons.is_empty()),
        ("--suffered", filter.suffered),
        ("--waker", !filter.wakers.is_empty()),
    ];
    if let Some((option, _)) = unsupported.into_iter().find(|(_, asked)| *asked) {
        return Err(refused(option));
    }
    let model = context.model;
    let of_process = |process: &ProcessInfo| filter.takes(process);
    let all = (1..).zip(&model.experiments);
    let chosen = all.filter(|(number, info)| {
        if !filter.chooses_processes() {
            info.founder.index() as u64 + 1 == *number
        } else {
            info.process
                .is_some_and(|process| of_process(model.process(process)))
        }
    });
    Ok(chosen.collect())
}

/// Reads the samples that have a record.
fn read(info: &ExperimentInfo) -> Result<Vec<Sample>, Failure> {
    let samples = info.source.samples().map_err(|error| {
        Failure::new(
            ExitKind::NoInput,
            error.to_string(),
            "use a view of ticks, such as functions, which does not need samples",
        )
    })?;
    Ok(samples
        .into_iter()
        .filter(|sample| sample.usage.is_some())
        .collect())
}

fn columns_between() -> Vec<Column> {
    let mut columns = vec![
        Column::number("start_s", "start").hidden(),
        Column::number("end_s", "end"),
        Column::number("duration_s", "lasted"),
        Column::number("threads", "threads"),
    ];
    for state in &Microstate::ALL[..Microstate::PER_THREAD] {
        let keyword = BaseMetric::State(*state).keyword();
        columns.push(Column::number(
            format!("{keyword}_s"),
            super::context::short(keyword),
        ));
    }
    columns.push(Column::number("total_s", "total"));
    columns
        .extend(USAGE_COUNTS.map(|(key, _)| Column::number(key, key.replace('_', " ")).hidden()));
    columns
}

/// Returns the usage between two samples. As for gprofng, threads are the average number, and time
/// in no state is sleep.
fn between(info: &ExperimentInfo, first: &Sample, last: &Sample) -> Vec<Cell> {
    let (default_first, default_last) = (UsageRecord::default(), UsageRecord::default());
    let (a, b) = (
        first.usage.as_ref().unwrap_or(&default_first),
        last.usage.as_ref().unwrap_or(&default_last),
    );
    let lasted = last.at_ns.saturating_sub(first.at_ns);
    let total = b.real_ns.saturating_sub(a.real_ns);
    let mut states: [Nanos; Microstate::PER_THREAD] =
        std::array::from_fn(|slot| b.states_ns[slot].saturating_sub(a.states_ns[slot]));
    let known = sum(states);
    let sleep = &mut states[Microstate::Sleep as usize];
    *sleep = sleep.saturating_add(total.saturating_sub(known));
    let threads = match lasted {
        Nanos::ZERO => 0.0,
        _ => total.0 as f64 / lasted.0 as f64,
    };
    let mut cells = vec![
        Cell::Nanoseconds(info.offset_ns.saturating_add(first.at_ns)),
        Cell::Nanoseconds(info.offset_ns.saturating_add(last.at_ns)),
        Cell::Nanoseconds(lasted),
        Cell::Average(threads),
    ];
    cells.extend(states.map(Cell::Nanoseconds));
    cells.push(Cell::Nanoseconds(total));
    cells.extend(USAGE_COUNTS.map(|(_, of)| Cell::Count(of(b).saturating_sub(of(a)))));
    cells
}

/// Makes the table. Text leaves out states without time.
fn shown(
    view: View,
    title: &str,
    mut columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    context: &ViewContext<'_>,
) -> Table {
    for (index, column) in columns.iter_mut().enumerate() {
        column.hidden |= matches!(rows.first(), Some(row) if matches!(row[index], Cell::Nanoseconds(_)))
            && rows
                .iter()
                .all(|row| row[index] == Cell::Nanoseconds(Nanos::ZERO));
    }
    let mut table = Table {
        view: view.name(),
        title: title.to_owned(),
        columns,
        rows,
        ..Table::default()
    };
    table.cut(context.options.limit.unwrap_or(usize::MAX));
    table
}
