//! The functions in which threads waited, and the functions of the program for which they did.
//!
//! Where waits have causes, those that threads suffered have rows, and the rest is summed up
//! ([`super::suffered`]). Experiments without causes have the table of this module, by state.
//!
//! A wait begins deep in the kernel or in a runtime. The innermost function outside of the
//! scheduler explains it, and the innermost function of the program's own code leads to its cause.
//! A compiler may have inlined the latter into a function of its runtime, which is then in the
//! stack in its place. For the waits that are shown, such functions are looked up in the debug
//! information.

use std::cmp::Reverse;

use experiment_format::microstate::Microstate;
use rustc_hash::FxHashMap;

use super::context::{ViewContext, short};
use crate::aggregate::Totals;
use crate::filter::Selection;
use crate::load::lines::SymbolFiles;
use crate::model::own_code::is_runtime;
use crate::model::{
    ExperimentId, FunctionId, ObjectId, ObjectKind, ProcessId, ProcessInfo, STATE_SLOTS, StackId,
    ThreadId,
};
use crate::report::table::{Cell, Column, Table, left_out};
use crate::symbol::demangle;

/// The waiting places of each state without `-n`.
const DEFAULT_PLACES: usize = 5;
/// A thread that sleeps in one place for this share of its time has nothing to do: an idle shell, a
/// thread of a pool without work, most threads of the kernel.
const IDLE_PERCENT: i64 = 99;
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

/// A place where threads waited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingPlace<'a> {
    /// Position in [`WAITING_STATES`].
    order: usize,
    /// The name of the process.
    process: &'a str,
    function: FunctionId,
    caller: Option<FunctionId>,
}

/// How long threads waited in a place.
#[derive(Debug, Clone, Copy)]
struct Waited {
    /// In all stacks of the place, microseconds.
    us: i64,
    /// How much of it is sleep of threads that did nothing else.
    idle_us: i64,
    /// The stack with most of it, and how much.
    longest: (i64, StackId),
}

impl Waited {
    fn add(&mut self, other: &Waited) {
        self.us += other.us;
        self.idle_us += other.idle_us;
        self.longest = self.longest.max(other.longest);
    }
}

/// Makes the table of places where threads waited, of ticks without causes: for each state with at
/// least a hundredth of the time of unintended waiting.
pub(super) fn waiting_by_state(context: &ViewContext<'_>, totals: &Totals) -> Table {
    let model = context.model;
    let of_state = |state: Microstate| totals.all[state as usize];
    let unwanted = |state: &&Microstate| !matches!(state, Microstate::Sleep | Microstate::Stopped);
    let whole: i64 = WAITING_STATES
        .iter()
        .filter(unwanted)
        .map(|state| of_state(*state))
        .sum();
    let is_shown = |place: &WaitingPlace<'_>, waited: &Waited| {
        waited.us > 0 && of_state(WAITING_STATES[place.order]) * 100 >= whole
    };
    let name = |function: FunctionId| &*model.function(function).name;
    let mut found: Vec<_> = waiting_places(context)
        .into_iter()
        .filter(|(place, waited)| is_shown(place, waited))
        .collect();
    found.sort_by_key(|(place, waited)| {
        let names = (name(place.function), place.caller.map(name));
        let others = waited.us - waited.idle_us;
        let times = (Reverse(others), Reverse(waited.us));
        (place.order, times, place.process, names)
    });
    let places = context.options.limit.unwrap_or(DEFAULT_PLACES);
    let (mut more, mut before, mut seen) = (0, usize::MAX, 0);
    found.retain(|(place, _)| {
        seen = if before == place.order { seen + 1 } else { 0 };
        before = place.order;
        more += usize::from(seen >= places);
        seen < places
    });
    let stacks = found
        .iter()
        .map(|(place, waited)| (place.caller, waited.longest.1));
    let inlined = inlined_callers(context, &stacks.collect::<Vec<_>>());
    let rows: Vec<_> = found
        .iter()
        .zip(inlined)
        .map(|((place, waited), inlined)| {
            let state = WAITING_STATES[place.order];
            let caller = place.caller.map(|caller| name(caller).to_owned());
            vec![
                Cell::Microseconds(waited.us),
                Cell::share_of(waited.us, of_state(state)),
                Cell::Text(short(state.metric().unwrap_or_default()).to_owned()),
                Cell::Text(place.process.to_owned()),
                Cell::Text(name(place.function).to_owned()),
                inlined.or(caller).map_or(Cell::Empty, Cell::Text),
            ]
        })
        .collect();
    let mut notes: Vec<_> = left_out(more).into_iter().collect();
    if rows
        .iter()
        .any(|row| row[2] == Cell::Text("wait".to_owned()))
    {
        let note = "wait: for a CPU; the function is where the thread was when it became runnable";
        notes.push(note.to_owned());
    }
    if found.iter().any(|(_, waited)| waited.idle_us > 0) {
        let note = "sleep: places where threads did nothing but sleep come last";
        notes.push(note.to_owned());
    }
    Table {
        view: "waiting",
        title: "Where threads waited, by state; seconds by ticks".to_owned(),
        columns: vec![
            Column::number("off_cpu_s", "off-CPU s"),
            Column::number("percent", "% of state"),
            Column::text("state", "State"),
            Column::text("process", "Process"),
            Column::text("name", "Function"),
            Column::text("caller", "On behalf of"),
        ],
        rows,
        verbatim: false,
        notes,
    }
}

/// Returns the time of each waiting place.
fn waiting_places<'a>(context: &ViewContext<'a>) -> FxHashMap<WaitingPlace<'a>, Waited> {
    let model = context.model;
    let mut order_of = [None; STATE_SLOTS];
    for (order, state) in WAITING_STATES.iter().enumerate() {
        order_of[*state as usize] = Some(order);
    }
    let selection = Selection::new(model, &context.options.filter);
    let mut by_stack: FxHashMap<(ThreadId, StackId, usize), i64> = FxHashMap::default();
    let mut of_threads: FxHashMap<ThreadId, i64> = FxHashMap::default();
    let recorders = recorders(context);
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        *of_threads.entry(row.thread).or_default() += row.micros;
        if let Some(order) = order_of[row.slot()]
            && !recorders.contains(&model.thread(row.thread).process)
        {
            *by_stack.entry((row.thread, row.stack, order)).or_default() += row.micros;
        }
    }
    let mut of_place: FxHashMap<_, Waited> = FxHashMap::default();
    for ((thread, stack, order), us) in by_stack {
        let Some((function, caller)) = model.waits_at(stack) else {
            continue;
        };
        let waited = Waited {
            us,
            idle_us: 0,
            longest: (us, stack),
        };
        let place = of_place.entry((thread, order, function, caller));
        place.and_modify(|all| all.add(&waited)).or_insert(waited);
    }
    let mut places: FxHashMap<_, Waited> = FxHashMap::default();
    for ((thread, order, function, caller), mut waited) in of_place {
        let all = of_threads.get(&thread).copied().unwrap_or_default();
        if WAITING_STATES[order] == Microstate::Sleep && waited.us * 100 >= all * IDLE_PERCENT {
            waited.idle_us = waited.us;
        }
        let place = WaitingPlace {
            order,
            process: &model.process(model.thread(thread).process).name,
            function,
            caller,
        };
        let place = places.entry(place);
        place.and_modify(|all| all.add(&waited)).or_insert(waited);
    }
    places
}

/// Returns the processes that made the recordings, unless processes were asked for.
pub(super) fn recorders(context: &ViewContext<'_>) -> Vec<ProcessId> {
    let model = context.model;
    let is_recorder = |process: &ProcessInfo| {
        let founder = model.experiment(ExperimentId(process.experiment)).founder;
        process.pid == model.experiment(founder).source.header().pid
    };
    let all = !context.options.filter.chooses_processes();
    let processes = (0..).map(ProcessId).zip(&model.processes);
    let recorders = processes.filter(|(_, process)| all && is_recorder(process));
    recorders.map(|(id, _)| id).collect()
}

/// Returns, for each place without a function of the program's own in its stack, the innermost one
/// that a compiler inlined into a function of the runtime. A place is its caller and its stack.
pub(super) fn inlined_callers(
    context: &ViewContext<'_>,
    found: &[(Option<FunctionId>, StackId)],
) -> Vec<Option<String>> {
    let model = context.model;
    let mut wanted: Vec<(ObjectId, Vec<u64>)> = Vec::new();
    // For each waiting place, the positions of its frames in `wanted`.
    let mut places: Vec<Vec<(usize, usize)>> = Vec::new();
    for (caller, stack) in found {
        let is_runtime = |caller| is_runtime(&model.function(caller).name);
        let mut frames = Vec::new();
        if caller.is_some_and(is_runtime) {
            for frame in model.stack(*stack) {
                let object = model.function(frame.function).object;
                if !model.is_of_program(frame) || model.object(object).kind != ObjectKind::File {
                    continue;
                }
                let known = wanted.iter().position(|(known, _)| *known == object);
                let at = known.unwrap_or_else(|| {
                    wanted.push((object, Vec::new()));
                    wanted.len() - 1
                });
                wanted[at].1.push(frame.offset);
                frames.push((at, wanted[at].1.len() - 1));
            }
        }
        places.push(frames);
    }
    if wanted.is_empty() {
        return vec![None; found.len()];
    }
    let resolved = SymbolFiles::new(model, &context.options.lookup).resolve(&wanted);
    let own = |(object, position): (usize, usize)| {
        let frames = resolved.get(object)?.frames.get(position)?;
        let names = frames.iter().filter_map(|frame| frame.function.as_deref());
        let mut names = names.map(|name| demangle(name).into_owned());
        names.find(|name| !is_runtime(name))
    };
    let callers = places.into_iter();
    callers
        .map(|frames| frames.into_iter().find_map(own))
        .collect()
}
