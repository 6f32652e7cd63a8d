//! The page that shows where to look first: sentences that say it ([`super::headline`]), what was
//! recorded and lost, the processes, hot functions, where threads waited, traced locks, and what
//! has no name. The summary at the end of a recording has the same sentences and tables
//! ([`first_tables`]).
//!
//! Everything counts the ticks that pass the filter, except the table of processes, which has exact
//! times if they were recorded. Time on a CPU is Total CPU; if only CPUs and no threads were
//! recorded, it is Kernel CPU.

use std::cmp::Reverse;

use experiment_format::cause::Cause;
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use host::exit::Failure;

use super::context::{ViewContext, short};
use super::files::first_files;
use super::headline::{facts, sentences};
use super::locks::first_locks;
use super::suffered::{Waits, has_causes};
use super::waiting::waiting_by_state;
use super::{TableOptions, View, exact, threads};
use crate::aggregate::{Totals, functions};
use crate::load::exact::sum;
use crate::metric::BaseMetric;
use crate::model::{
    ExperimentId, ExperimentInfo, FunctionInfo, LossCounts, Model, StackId, TracedEvents,
};
use crate::report::table::{Cell, Column, PROBLEM, Table, TablePage};

/// The rows of a table without `-n`.
const DEFAULT_ROWS: usize = 10;
/// The rows of the table of functions without `-n`.
const DEFAULT_FUNCTIONS: usize = 15;

pub(super) fn page(context: &ViewContext<'_>) -> Result<TablePage, Failure> {
    let totals = context.totals();
    let model = context.model;
    let FirstTables {
        headline,
        mut tables,
    } = first_tables(context, &totals)?;
    tables.push(unresolved(context, &totals));
    tables.retain(|table| !table.rows.is_empty());
    Ok(TablePage {
        view: View::Triage.name(),
        headline,
        runs: recordings(model)
            .iter()
            .map(|founders| run(model, founders))
            .collect(),
        tables,
        data: Vec::new(),
    })
}

/// The tables that show where to look first.
#[derive(Debug, Default)]
pub struct FirstTables {
    /// Sentences that say it. None without exact times.
    pub headline: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// Makes the tables of processes, hot functions, places where threads waited, traced locks and
/// files. Those without rows are left out.
pub(super) fn first_tables(
    context: &ViewContext<'_>,
    totals: &Totals,
) -> Result<FirstTables, Failure> {
    let mut waits = has_causes(context.model).then(|| Waits::of(context));
    let (headline, processes) = processes(context, waits.as_mut())?;
    let mut tables = vec![
        processes,
        hot_functions(context, totals, context.on_cpu()),
        match &waits {
            Some(waits) => waits.table(context),
            None => waiting_by_state(context, totals),
        },
    ];
    if context.model.has(TracedEvents::Locks) {
        let limit = context.options.limit.unwrap_or(DEFAULT_ROWS);
        let locks = first_locks(context, Some(limit));
        // The first row is the total.
        tables.extend((locks.rows.len() > 1).then_some(locks));
    }
    if context.model.has(TracedEvents::Io) {
        let limit = context.options.limit.unwrap_or(DEFAULT_ROWS);
        let files = first_files(context, Some(limit));
        tables.extend((files.rows.len() > 1).then_some(files));
    }
    tables.retain(|table| !table.rows.is_empty());
    Ok(FirstTables { headline, tables })
}

/// Returns the founders of each recording, in the order of time.
fn recordings(model: &Model) -> Vec<Vec<ExperimentId>> {
    let mut recordings: Vec<Vec<ExperimentId>> = Vec::new();
    for (id, info) in model.founders() {
        let first = |known: &&mut Vec<ExperimentId>| model.experiment(known[0]).first == info.first;
        match recordings.iter_mut().find(first) {
            Some(known) => known.push(id),
            None => recordings.push(vec![id]),
        }
    }
    for founders in &mut recordings {
        founders.sort_by_key(|id| model.experiment(*id).offset_ns);
    }
    recordings
}

/// Returns the facts of a recording, and what it lost. The founders are at least one.
fn run(model: &Model, founders: &[ExperimentId]) -> Vec<(&'static str, Cell)> {
    let infos = || founders.iter().map(|id| model.experiment(*id));
    let info = model.experiment(founders[0]);
    let source = &info.source;
    let header = source.header();
    let comment = |key| source.comment(key).map(str::to_owned);
    let path = |info: &ExperimentInfo| info.source.named().display().to_string();
    let named = match infos().next_back() {
        Some(last) if founders.len() > 1 => {
            let count = founders.len();
            format!("{} to {}, {count} experiments", path(info), path(last))
        }
        _ => path(info),
    };
    let lengths = founders.iter().map(|id| model.length_ns(*id));
    let followed = model.processes.iter().filter(|process| {
        let experiment = ExperimentId(process.experiment);
        let own = model.experiment(experiment);
        process.followed && own.first == info.first && own.founder != experiment
    });
    let mut facts: Vec<_> = infos()
        .filter_map(|info| Some((PROBLEM, Cell::Text(info.problems()?))))
        .collect();
    facts.extend([
        ("experiment", Cell::Text(named)),
        ("host", Cell::Text(header.system.hostname.clone())),
    ]);
    if let Some(kernel) = comment("kernel: ") {
        facts.push(("kernel", Cell::Text(kernel)));
    }
    facts.extend([
        ("seconds", Cell::Nanoseconds(sum(lengths))),
        ("cpus", Cell::Count(header.system.cpus.len() as u64)),
        ("interval_us", Cell::Count(info.tick_us.into())),
        (
            "command",
            Cell::Text(comment("command: ").unwrap_or_else(|| header.command_line.clone())),
        ),
        ("followed", Cell::Count(followed.count() as u64)),
        ("losses", Cell::Text(losses(infos()))),
    ]);
    facts
}

/// Returns what a recording lost, or why that is unknown.
fn losses<'a>(mut infos: impl Iterator<Item = &'a ExperimentInfo> + Clone) -> String {
    match LossCounts::of_all(infos.clone()) {
        Some(losses) => losses.line(),
        None if infos.all(|info| info.source.is_closed()) => {
            "unknown: this collector counts none".to_owned()
        }
        None => "unknown: the experiment is not closed".to_owned(),
    }
}

/// Makes the sentences and the table of processes by state: of exact times if they were recorded.
/// Without those there are no sentences.
fn processes(
    context: &ViewContext<'_>,
    mut waits: Option<&mut Waits<'_>>,
) -> Result<(Vec<String>, Table), Failure> {
    let options = TableOptions {
        metrics: None,
        sort: None,
        ..context.options.clone()
    };
    let within = ViewContext {
        model: context.model,
        options: &options,
        offered: context.offered.clone(),
    };
    let limit = context.options.limit.unwrap_or(DEFAULT_ROWS);
    let mut headline = Vec::new();
    let mut table = match exact::runs(&within)? {
        Some(runs) => {
            let rows = exact_rows(&within, &runs, waits.as_deref());
            if let Some(waits) = &mut waits {
                waits.fit(&rows.shown);
            }
            let waits = waits.as_deref();
            headline = sentences(&facts(&within, &rows.shown, waits));
            exact_processes(&rows, waits.is_some(), limit)
        }
        None => {
            let on_cpu = format!("e.{}", context.on_cpu().keyword());
            let options = TableOptions {
                sort: Some(on_cpu),
                ..options.clone()
            };
            let within = ViewContext {
                options: &options,
                ..within
            };
            let mut table = threads::processes(&within)?;
            // The first row is the sum.
            table.cut(limit + 1);
            table
        }
    };
    for (index, column) in table.columns.iter_mut().enumerate() {
        let time =
            |row: &Vec<Cell>| matches!(row[index], Cell::Nanoseconds(_) | Cell::Microseconds(_));
        if table.rows.iter().any(time) {
            let zero = |row: &Vec<Cell>| matches!(&*row[index].plain(), "0." | "0.000");
            column.hidden |= table.rows.iter().all(zero);
            let key = column.key.trim_start_matches("e.").trim_end_matches("_s");
            column.title = short(key).to_owned();
        }
    }
    Ok((headline, table))
}

/// The states of the table of processes: those that hold work up first.
const PROCESS_STATES: [Microstate; Microstate::PER_THREAD] = [
    Microstate::User,
    Microstate::System,
    Microstate::Trap,
    Microstate::WaitCpu,
    Microstate::TextFault,
    Microstate::DataFault,
    Microstate::KernelFault,
    Microstate::UserLock,
    Microstate::Sleep,
    Microstate::Stopped,
];

/// The columns that text leaves out where waits have causes, so that the table fits into a terminal
/// of 100 columns: what of them was no idle time is suffered.
const BLOCKED_COLUMNS: [&str; 5] = [
    "textpfault_s",
    "datapfault_s",
    "kernelpfault_s",
    "block_io_s",
    "lock_s",
];
/// Traps are left out too if they are less than this part of the time in each row.
const MIN_TRAP_PART: u64 = 20;

/// The rows of the table of processes with exact times.
struct ExactRows {
    /// Those that are shown, the first ones first.
    shown: Vec<exact::ExactProcess>,
    /// The kcollect that made the recording.
    recorders: Vec<exact::ExactProcess>,
}

/// Returns the time on a CPU.
fn on_cpu_ns(row: &exact::ExactProcess) -> Nanos {
    let states = PROCESS_STATES[..3].iter();
    sum(states.map(|state| row.times.of(*state)))
}

/// Returns the time on a CPU, waiting for one, and suffered. What children or other threads of the
/// process did meanwhile is in their times.
fn wanted_ns(row: &exact::ExactProcess) -> Nanos {
    sum([
        on_cpu_ns(row),
        row.times.of(Microstate::WaitCpu),
        row.suffered_itself(),
    ])
}

/// Returns the rows of processes. Processes of one name that have exited are one row.
fn exact_rows(
    context: &ViewContext<'_>,
    runs: &[exact::ExactRun],
    waits: Option<&Waits<'_>>,
) -> ExactRows {
    let mut rows = exact::processes(context.model, runs, None);
    if let Some(waits) = waits {
        waits.limit_children(context.model, &mut rows);
    }
    let mut rows = exact::merge_ended(rows);
    if waits.is_some() {
        rows.sort_by_key(|row| Reverse(wanted_ns(row)));
    }
    let all = !context.options.filter.chooses_processes();
    let (recorders, shown) = rows.into_iter().partition(|row| all && row.is_recorder);
    ExactRows { shown, recorders }
}

/// Makes the table of processes. The kcollect that made the recording is a line below.
fn exact_processes(rows: &ExactRows, has_causes: bool, limit: usize) -> Table {
    let states = PROCESS_STATES.map(BaseMetric::State);
    let time = |base: &BaseMetric| Column::number(format!("{}_s", base.keyword()), "");
    let (ahead, after) = states.split_at(PROCESS_STATES.len() - 3);
    let suffered = Column::number("suffered_s", "");
    let cause = Column::text("cause", "Cause");
    let columns = ahead
        .iter()
        .map(time)
        .chain(exact::detail_columns())
        .chain(has_causes.then_some(suffered))
        .chain(after.iter().map(time))
        .chain([Column::number("total_s", "").hidden()])
        .chain(threads::process_columns())
        .chain(has_causes.then_some(cause))
        .chain([Column::text("why", "Held up by, s")]);
    let cells = |row: &exact::ExactProcess| {
        let (ahead, after) = PROCESS_STATES.split_at(PROCESS_STATES.len() - 3);
        let time = |state: &Microstate| Cell::Nanoseconds(row.times.of(*state));
        let cause = row.largest_cause().map(Cause::keyword);
        let cause = cause.map_or(Cell::Empty, |cause| Cell::Text(cause.to_owned()));
        ahead
            .iter()
            .map(time)
            .chain(exact::detail_cells(&row.times))
            .chain(has_causes.then(|| Cell::Nanoseconds(row.suffered())))
            .chain(after.iter().map(time))
            .chain([Cell::Nanoseconds(sum(row.times.states))])
            .chain(threads::process_cells(row))
            .chain(has_causes.then_some(cause))
            .chain([Cell::Text(row.times.held_up())])
            .collect()
    };
    let by = if has_causes {
        "waiting for one, and suffered waits"
    } else {
        "waiting for one, in page faults and for I/O"
    };
    let mut table = Table {
        view: View::Processes.name(),
        title: format!("Processes by time on a CPU, {by}; exact seconds"),
        columns: columns.collect(),
        rows: rows.shown.iter().map(cells).collect(),
        ..Table::default()
    };
    table.cut(limit);
    if has_causes {
        let mut shown = rows.shown.iter().take(limit);
        let has_trap =
            shown.any(|row| row.times.of(Microstate::Trap) > wanted_ns(row) / MIN_TRAP_PART);
        for column in &mut table.columns {
            let key = &*column.key;
            column.hidden |= BLOCKED_COLUMNS.contains(&key) || key == "trap_s" && !has_trap;
            if key == "threads" {
                column.title = "Thr".to_owned();
            }
        }
    }
    if let Some(pid) = rows.recorders.iter().find_map(|row| row.pid) {
        table.notes.push(format!(
            "kcollect itself (PID {pid}) has no row: it was on a CPU for {:.3} s of the recording",
            sum(rows.recorders.iter().map(on_cpu_ns)).as_secs_f64()
        ));
    }
    table
}

fn hot_functions(context: &ViewContext<'_>, totals: &Totals, base: BaseMetric) -> Table {
    let model = context.model;
    let shares = functions(model, totals).functions;
    let whole = base.of(&totals.all);
    let mut found: Vec<_> = (0..)
        .zip(&model.functions)
        .map(|(id, function)| {
            let own = base.of(&shares.exclusive[id as usize]);
            let all = base.of(&shares.inclusive[id as usize]);
            (own, all, function)
        })
        .filter(|(own, ..)| *own > 0)
        .collect();
    found.sort_by(|a, b| (Reverse(a.0), &a.2.name).cmp(&(Reverse(b.0), &b.2.name)));
    let side = |function: &FunctionInfo| if function.kernel { "kernel" } else { "user" };
    let rows = found.iter().map(|(own, all, function)| {
        vec![
            Cell::Microseconds(*own),
            Cell::share_of(*own, whole),
            Cell::Microseconds(*all),
            Cell::Text(side(function).to_owned()),
            Cell::Text(function.name.clone()),
            Cell::Text(model.object(function.object).table_name()),
        ]
    });
    let mut table = Table {
        view: View::Functions.name(),
        title: format!(
            "Functions of user and kernel code by exclusive {} time; seconds by ticks",
            base.title()
        ),
        columns: vec![
            Column::number("self_s", "self s"),
            Column::number("percent", "%"),
            Column::number("total_s", "total s"),
            Column::text("side", "Code"),
            Column::text("name", "Function"),
            Column::text("object", "Object"),
        ],
        rows: rows.collect(),
        ..Table::default()
    };
    table.cut(context.options.limit.unwrap_or(DEFAULT_FUNCTIONS));
    table
}

/// The time of a load object's stacks without a name or callers.
#[derive(Debug, Clone, Copy, Default)]
struct Unresolved {
    /// Time of stacks whose leaf is in the object and has no name.
    unnamed_us: i64,
    /// Time of stacks that end in the object, although there are more callers.
    cut_us: i64,
    /// Time of all stacks whose leaf is in the object.
    all_us: i64,
}

/// Makes the table of load objects with missing names or broken stacks.
fn unresolved(context: &ViewContext<'_>, totals: &Totals) -> Table {
    let model = context.model;
    let base = context.whole();
    let whole = base.of(&totals.all);
    let mut unresolved: Vec<Unresolved> = vec![Unresolved::default(); model.objects.len()];
    for (stack, sums) in totals.stacks.iter().enumerate() {
        let time = base.of(sums);
        if time == 0 {
            continue;
        }
        let mut outermost: Option<&FunctionInfo> = None;
        for (depth, function) in model.stack_functions(StackId(stack as u32)).enumerate() {
            if depth == 0 {
                let leaf = &mut unresolved[function.object.index()];
                leaf.all_us += time;
                if model.is_unnamed(function) {
                    leaf.unnamed_us += time;
                }
            }
            if model.is_mark(function) {
                // A mark without frames belongs to its own object.
                let at = outermost.unwrap_or(function);
                unresolved[at.object.index()].cut_us += time;
            }
            outermost = Some(function);
        }
    }
    let mut found: Vec<_> = model
        .objects
        .iter()
        .zip(&unresolved)
        .filter(|(_, unresolved)| unresolved.unnamed_us + unresolved.cut_us > 0)
        .collect();
    found.sort_by_key(|(object, unresolved)| {
        (
            Reverse(unresolved.unnamed_us + unresolved.cut_us),
            &object.path,
        )
    });
    let rows = found.iter().map(|(object, unresolved)| {
        vec![
            Cell::Microseconds(unresolved.unnamed_us),
            Cell::share_of(unresolved.unnamed_us, whole),
            Cell::Microseconds(unresolved.cut_us),
            Cell::share_of(unresolved.cut_us, whole),
            Cell::Microseconds(unresolved.all_us),
            Cell::Text(object.table_name()),
            Cell::Text(object.path.clone()),
        ]
    });
    let mut table = Table {
        view: "unresolved",
        title: format!(
            "Time without function names or with incomplete stacks, by load object; % of {} time",
            base.title()
        ),
        columns: vec![
            Column::number("unnamed_s", "no name s"),
            Column::number("unnamed_percent", "%"),
            Column::number("cut_stack_s", "cut stack s"),
            Column::number("cut_stack_percent", "%"),
            Column::number("total_s", "total s"),
            Column::text("name", "Object"),
            Column::text("path", "Path").hidden(),
        ],
        rows: rows.collect(),
        ..Table::default()
    };
    table.cut(context.options.limit.unwrap_or(DEFAULT_ROWS));
    table
}
