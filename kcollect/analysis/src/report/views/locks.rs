//! Locks by the time that threads waited for them, from traced waits (`-s` of a recording).
//!
//! A lock is an address in a process: the address of the futex word. The data has no name for it,
//! so its row has two functions of the stack with most of the time: the function of the C library
//! or runtime in which threads waited, and the program's function that called it.

use std::cmp::Reverse;

use experiment_format::packet::UNKNOWN_KIND;
use experiment_format::units::Nanos;
use host::exit::Failure;
use rustc_hash::{FxHashMap, FxHashSet};

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{LockWaitRow, ProcessId, StackId, ThreadId, TracedEvents, lock_name};
use crate::report::table::{Cell, Column, Table};

/// The sums of the waits for one lock.
#[derive(Debug, Default)]
struct Waits {
    count: u64,
    sum_ns: i64,
    longest_ns: i64,
    threads: FxHashSet<ThreadId>,
    /// The time in each stack, nanoseconds.
    stacks: FxHashMap<StackId, i64>,
    /// The kind of the last wait.
    kind: Option<u32>,
}

impl Waits {
    fn add(&mut self, wait: &LockWaitRow) {
        self.count += 1;
        self.sum_ns += wait.duration_ns;
        self.longest_ns = self.longest_ns.max(wait.duration_ns);
        self.threads.insert(wait.row.thread);
        *self.stacks.entry(wait.row.stack).or_default() += wait.duration_ns;
        self.kind = wait.kind;
    }

    /// Returns the cells of its figures, given the time of all waits.
    fn cells(&self, whole_ns: i64) -> Vec<Cell> {
        let mean_ms = match self.count {
            0 => 0.0,
            count => self.sum_ns as f64 / 1e6 / count as f64,
        };
        vec![
            Cell::Nanoseconds(Nanos(self.sum_ns.unsigned_abs())),
            Cell::share_of(self.sum_ns, whole_ns),
            Cell::Count(self.count),
            Cell::Average(mean_ms),
            Cell::Average(self.longest_ns as f64 / 1e6),
            Cell::Count(self.threads.len() as u64),
        ]
    }
}

pub(super) fn locks(context: &ViewContext<'_>) -> Result<Table, Failure> {
    context.model.require(TracedEvents::Locks)?;
    Ok(first_locks(context, context.options.limit))
}

/// Makes the table of all locks together and of the first ones.
pub(super) fn first_locks(context: &ViewContext<'_>, limit: Option<usize>) -> Table {
    let model = context.model;
    let selection = Selection::new(model, &context.options.filter);
    let mut locks: FxHashMap<(ProcessId, u64), Waits> = FxHashMap::default();
    let mut whole = Waits::default();
    for wait in model
        .waits
        .iter()
        .filter(|wait| selection.passes_event(&wait.row))
    {
        let process = model.thread(wait.row.thread).process;
        locks.entry((process, wait.object)).or_default().add(wait);
        whole.add(wait);
    }
    let mut found: Vec<_> = locks.into_iter().collect();
    found.sort_by_key(|((process, object), waits)| (Reverse(waits.sum_ns), process.0, *object));
    let mut rows = vec![whole.cells(whole.sum_ns)];
    rows[0].push(Cell::Text("<Total>".to_owned()));
    rows[0].resize(COLUMNS, Cell::Empty);
    rows.extend(found.iter().map(|((process, object), waits)| {
        let name = |function| Cell::Text(model.function(function).name.clone());
        let (library, caller) = model.functions_of_lock(&waits.stacks);
        let mut cells = waits.cells(whole.sum_ns);
        cells.extend([
            Cell::Text(lock_name(*object)),
            Cell::Text(model.process(*process).name.clone()),
            Cell::Count(model.process(*process).pid.into()),
            library.map_or(Cell::Empty, name),
            caller.map_or(Cell::Empty, name),
            waits
                .kind
                .map_or(Cell::Empty, |kind| Cell::Text(operation(kind))),
        ]);
        cells
    }));
    let mut table = Table {
        view: View::Locks.name(),
        title: "Locks by the time that threads waited for them; exact seconds of traced waits"
            .to_owned(),
        columns: vec![
            Column::number("sync", "waited s"),
            Column::number("%sync", "%"),
            Column::number("syncn", "waits"),
            Column::number("mean_ms", "mean ms"),
            Column::number("longest_ms", "longest ms"),
            Column::number("threads", "threads"),
            Column::text("lock", "Lock"),
            Column::text("process", "Process"),
            Column::number("pid", "PID").hidden(),
            Column::text("function", "Function"),
            Column::text("caller", "On behalf of"),
            Column::text("operation", "Operation").hidden(),
        ],
        rows,
        ..Table::default()
    };
    table.cut_after_total(limit);
    table
}

/// The number of columns of the table.
const COLUMNS: usize = 12;

/// Returns Linux's name of a kind of wait.
fn operation(kind: u32) -> String {
    match kind {
        0 => "FUTEX_WAIT".to_owned(),
        6 => "FUTEX_LOCK_PI".to_owned(),
        9 => "FUTEX_WAIT_BITSET".to_owned(),
        11 => "FUTEX_WAIT_REQUEUE_PI".to_owned(),
        13 => "FUTEX_LOCK_PI2".to_owned(),
        449 => "futex_waitv".to_owned(),
        455 => "futex_wait".to_owned(),
        UNKNOWN_KIND => "unknown".to_owned(),
        other => format!("futex operation {other}"),
    }
}
