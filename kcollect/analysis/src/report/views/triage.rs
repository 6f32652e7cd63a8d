//! The page that shows where to look first: what was recorded and lost, the processes, hot
//! functions, where threads waited, and what has no name.
//!
//! Everything counts the ticks that pass the filter, except the table of processes, which has exact
//! times if they were recorded. Time on a CPU is Total CPU; if only CPUs and no threads were
//! recorded, it is Kernel CPU.

use std::cmp::Reverse;

use experiment_format::kernel::is_scheduler;
use experiment_format::log::LogEvent;
use experiment_format::microstate::Microstate;
use host::exit::Failure;
use rustc_hash::FxHashMap;

use super::{Context, TableOptions, View, short, threads};
use crate::aggregate::{Totals, functions};
use crate::metric::BaseMetric;
use crate::model::{
    ExperimentInfo, FunctionId, FunctionInfo, Model, ObjectId, ObjectKind, StackFrame, StackId,
};
use crate::model::{TRUNCATED, UNKNOWN, UNWIND_FAILED};
use crate::report::table::{Cell, Column, Table, TablePage, left_out};

/// Rows of a table, unless asked for otherwise.
const DEFAULT_ROWS: usize = 10;
/// Waiting places of each state, unless asked for otherwise.
const DEFAULT_PLACES: usize = 5;
/// The states in which a thread waits, the most interesting first. Sleep and stop are mostly
/// intended.
const WAITING_STATES: [Microstate; 7] = [
    Microstate::UserLock,
    Microstate::WaitCpu,
    Microstate::DataFault,
    Microstate::KernelFault,
    Microstate::TextFault,
    Microstate::Sleep,
    Microstate::Stopped,
];

pub(super) fn page(context: &Context<'_>) -> Result<TablePage, Failure> {
    let totals = context.totals();
    let model = context.model;
    let on_cpu = match context.offered.contains(&BaseMetric::TotalCpu) {
        true => BaseMetric::TotalCpu,
        false => BaseMetric::State(Microstate::KernelCpu),
    };
    let tables = [
        processes(context)?,
        hot_functions(context, &totals, on_cpu, true),
        hot_functions(context, &totals, on_cpu, false),
        waiting(context, &totals),
        unresolved(context, &totals, on_cpu),
    ];
    let founders = model.experiments.iter().enumerate();
    let founders = founders.filter(|(index, info)| info.founder.index() == *index);
    Ok(TablePage {
        view: View::Triage.name(),
        runs: founders.map(|(_, info)| run(model, info)).collect(),
        tables: tables
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect(),
    })
}

/// Returns the facts of a run, and what it lost.
fn run(model: &Model, info: &ExperimentInfo) -> Vec<(&'static str, Cell)> {
    let source = &info.source;
    let header = source.header();
    let comment = |key: &str| {
        let events = source.events().iter().filter_map(|event| match event {
            LogEvent::Comment { text, .. } => Some(text),
            _ => None,
        });
        let mut comments = header.comments.iter().chain(events);
        comments
            .find_map(|text| text.strip_prefix(key))
            .map(str::to_owned)
    };
    let family = model
        .experiments
        .iter()
        .filter(|other| std::ptr::eq(model.experiment(other.founder), info));
    let end = family.clone().map(|other| other.end_ns).max();
    let mut facts = vec![
        (
            "experiment",
            Cell::Text(source.path().display().to_string()),
        ),
        ("host", Cell::Text(header.system.hostname.clone())),
    ];
    if let Some(kernel) = comment("kernel: ") {
        facts.push(("kernel", Cell::Text(kernel)));
    }
    facts.extend([
        ("seconds", Cell::Nanoseconds(end.unwrap_or(info.end_ns))),
        ("cpus", Cell::Count(header.system.cpus.len() as u64)),
        ("interval_us", Cell::Count(info.tick_us.into())),
        (
            "command",
            Cell::Text(comment("command: ").unwrap_or_else(|| header.command_line.clone())),
        ),
        ("followed", Cell::Count(family.count() as u64 - 1)),
        ("losses", Cell::Text(losses(info))),
    ]);
    facts
}

/// Returns what the recording lost, or why that is unknown.
fn losses(info: &ExperimentInfo) -> String {
    match info.losses() {
        Some(losses) => losses.line(),
        None if info.source.is_closed() => "unknown: this collector counts none".to_owned(),
        None => "unknown: the experiment is not closed".to_owned(),
    }
}

/// Makes the table of processes by state. Text leaves out states without time.
fn processes(context: &Context<'_>) -> Result<Table, Failure> {
    let options = TableOptions {
        metrics: None,
        sort: None,
        limit: Some(context.options.limit.unwrap_or(DEFAULT_ROWS)),
        ..context.options.clone()
    };
    let within = Context {
        model: context.model,
        options: &options,
        offered: context.offered.clone(),
    };
    let mut table = threads::processes(&within)?;
    for (index, column) in table.columns.iter_mut().enumerate() {
        let time =
            |row: &Vec<Cell>| matches!(row[index], Cell::Nanoseconds(_) | Cell::Microseconds(_));
        if table.rows.iter().any(time) {
            column.hidden |= table.rows.iter().all(|row| row[index].plain() == "0.");
            let key = column.key.trim_start_matches("e.").trim_end_matches("_s");
            column.title = short(key).to_owned();
        }
    }
    table.title = format!("{}, seconds by state", table.title);
    Ok(table)
}

fn hot_functions(context: &Context<'_>, totals: &Totals, base: BaseMetric, kernel: bool) -> Table {
    let model = context.model;
    let shares = functions(model, totals).functions;
    let whole = base.of(&totals.all);
    let mut found: Vec<_> = (0..)
        .zip(&model.functions)
        .filter(|(_, function)| function.kernel == kernel)
        .map(|(id, function)| {
            let own = base.of(&shares.exclusive[id as usize]);
            let all = base.of(&shares.inclusive[id as usize]);
            (own, all, function)
        })
        .filter(|(own, ..)| *own > 0)
        .collect();
    found.sort_by(|a, b| (Reverse(a.0), &a.2.name).cmp(&(Reverse(b.0), &b.2.name)));
    let side = if kernel { "kernel" } else { "user" };
    let rows = found.iter().map(|(own, all, function)| {
        vec![
            Cell::Microseconds(*own),
            share(*own, whole),
            Cell::Microseconds(*all),
            Cell::Text(function.name.clone()),
            Cell::Text(object_name(model, function.object)),
        ]
    });
    let mut table = Table {
        view: match kernel {
            true => "kernel_functions",
            false => "user_functions",
        },
        title: format!(
            "Functions of {side} code, by exclusive {} time",
            base.title()
        ),
        columns: vec![
            Column::number("self_s", "self s"),
            Column::number("percent", "%"),
            Column::number("total_s", "total s"),
            Column::text("name", "Function"),
            Column::text("object", "Object"),
        ],
        rows: rows.collect(),
        verbatim: false,
        notes: Vec::new(),
    };
    table.cut(context.options.limit.unwrap_or(DEFAULT_ROWS));
    table
}

fn share(part: i64, whole: i64) -> Cell {
    Cell::Share(match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    })
}

fn object_name(model: &Model, object: ObjectId) -> String {
    let object = model.object(object);
    match object.kind {
        ObjectKind::Special => UNKNOWN.to_owned(),
        _ => object.short_name(),
    }
}

/// Makes the table of places where threads waited, for each state with at least a hundredth of the
/// time of unintended waiting.
fn waiting(context: &Context<'_>, totals: &Totals) -> Table {
    let model = context.model;
    let of_state = |state: Microstate| totals.all[state as usize];
    let unwanted = |state: &&Microstate| !matches!(state, Microstate::Sleep | Microstate::Stopped);
    let whole: i64 = WAITING_STATES
        .iter()
        .filter(unwanted)
        .map(|state| of_state(*state))
        .sum();
    let mut places: FxHashMap<(usize, FunctionId, Option<FunctionId>), i64> = FxHashMap::default();
    for (stack, sums) in totals.stacks.iter().enumerate() {
        if WAITING_STATES
            .iter()
            .all(|state| sums[*state as usize] == 0)
        {
            continue;
        }
        let Some((place, caller)) = waits_at(model, StackId(stack as u32)) else {
            continue;
        };
        for (order, state) in WAITING_STATES.iter().enumerate() {
            *places.entry((order, place, caller)).or_default() += sums[*state as usize];
        }
    }
    let name = |function: FunctionId| model.function(function).name.clone();
    let mut found: Vec<_> = places
        .into_iter()
        .filter(|((order, ..), time)| *time > 0 && of_state(WAITING_STATES[*order]) * 100 >= whole)
        .map(|((order, place, caller), time)| (order, Reverse(time), name(place), caller.map(name)))
        .collect();
    found.sort();
    let places = context.options.limit.unwrap_or(DEFAULT_PLACES);
    let (mut more, mut before, mut seen) = (0, usize::MAX, 0);
    let mut rows = Vec::new();
    for (order, Reverse(time), place, caller) in found {
        seen = if before == order { seen + 1 } else { 0 };
        before = order;
        if seen >= places {
            more += 1;
            continue;
        }
        let state = WAITING_STATES[order];
        rows.push(vec![
            Cell::Microseconds(time),
            share(time, of_state(state)),
            Cell::Text(short(state.metric().unwrap_or_default()).to_owned()),
            Cell::Text(place),
            caller.map_or(Cell::Empty, Cell::Text),
        ]);
    }
    Table {
        view: "waiting",
        title: "Where threads waited, by state".to_owned(),
        columns: vec![
            Column::number("off_cpu_s", "off-CPU s"),
            Column::number("percent", "% of state"),
            Column::text("state", "State"),
            Column::text("name", "Waited in"),
            Column::text("caller", "On behalf of"),
        ],
        rows,
        verbatim: false,
        notes: left_out(more).into_iter().collect(),
    }
}

/// Returns the innermost function that explains a wait, and the innermost user function outside C
/// libraries that led to it; if all user code is a C library's, its innermost one.
fn waits_at(model: &Model, stack: StackId) -> Option<(FunctionId, Option<FunctionId>)> {
    let telling = |frame: &&StackFrame| {
        let function = model.function(frame.function);
        !(is_mark(model, function) || function.kernel && is_scheduler(&function.name))
    };
    let place = model.stack(stack).find(telling)?.function;
    let user = |frame: &&StackFrame| {
        let function = model.function(frame.function);
        !function.kernel && !is_mark(model, function)
    };
    let own = |frame: &&StackFrame| {
        let object = model.function(frame.function).object;
        user(frame) && !is_c_library(&model.object(object).path)
    };
    let caller = model
        .stack(stack)
        .find(own)
        .or_else(|| model.stack(stack).find(user));
    Some((place, caller.map(|frame| frame.function)))
}

/// Returns whether a function is the mark of an unfinished stack.
fn is_mark(model: &Model, function: &FunctionInfo) -> bool {
    model.object(function.object).kind == ObjectKind::Special
        && matches!(&*function.name, TRUNCATED | UNWIND_FAILED)
}

/// Returns whether a load object is a library that waits on behalf of its callers.
fn is_c_library(path: &str) -> bool {
    let base = path.rsplit('/').next().unwrap_or(path);
    ["libc.", "libc-", "libpthread", "ld-", "libstdc++", "[vdso]"]
        .iter()
        .any(|prefix| base.starts_with(prefix))
}

/// Time without a name or without callers, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Unresolved {
    /// Time with a nameless leaf.
    nameless: i64,
    /// Time of stacks that break off here, so that callers are unknown.
    broken: i64,
    /// Time of all leaves in this object.
    all: i64,
}

/// Makes the table of load objects with missing names or broken stacks.
fn unresolved(context: &Context<'_>, totals: &Totals, on_cpu: BaseMetric) -> Table {
    let model = context.model;
    let base = match context.offered.contains(&BaseMetric::Total) {
        true => BaseMetric::Total,
        false => on_cpu,
    };
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
                leaf.all += time;
                if is_nameless(model, function) {
                    leaf.nameless += time;
                }
            }
            if is_mark(model, function) {
                // A mark without frames belongs to its own object.
                let at = outermost.unwrap_or(function);
                unresolved[at.object.index()].broken += time;
            }
            outermost = Some(function);
        }
    }
    let mut found: Vec<_> = model
        .objects
        .iter()
        .zip(&unresolved)
        .zip(0..)
        .filter(|((_, unresolved), _)| unresolved.nameless + unresolved.broken > 0)
        .collect();
    found.sort_by_key(|((object, unresolved), _)| {
        (
            Reverse(unresolved.nameless + unresolved.broken),
            &object.path,
        )
    });
    let rows = found.iter().map(|((object, unresolved), id)| {
        vec![
            Cell::Microseconds(unresolved.nameless),
            share(unresolved.nameless, whole),
            Cell::Microseconds(unresolved.broken),
            share(unresolved.broken, whole),
            Cell::Microseconds(unresolved.all),
            Cell::Text(object_name(model, ObjectId(*id))),
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
        verbatim: false,
        notes: Vec::new(),
    };
    table.cut(context.options.limit.unwrap_or(DEFAULT_ROWS));
    table
}

/// Returns whether a function is an address without a name.
fn is_nameless(model: &Model, function: &FunctionInfo) -> bool {
    function.name.starts_with("<static>@")
        || model.object(function.object).kind == ObjectKind::Special && function.name == UNKNOWN
}
