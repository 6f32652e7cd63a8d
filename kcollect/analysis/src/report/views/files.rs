//! Files by the traced system calls that do I/O (`-i` of a recording), with the time of the calls,
//! their number, and the bytes that they moved.
//!
//! A file is a name: that with which a descriptor was opened, in whatever process. A call that
//! failed counts as an error, whatever it was to do.

use std::cmp::Reverse;

use experiment_format::units::Nanos;
use host::exit::Failure;
use rustc_hash::{FxHashMap, FxHashSet};

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{CallClass, FileId, IoCallRow, ProcessId, TracedEvents};
use crate::report::table::{Cell, Column, Table};

/// The sums of calls of one kind.
#[derive(Debug, Default)]
struct CallSums {
    count: u64,
    sum_ns: i64,
    bytes: u64,
}

impl CallSums {
    fn add(&mut self, call: &IoCallRow) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(call.duration_ns);
        self.bytes = self.bytes.saturating_add(call.bytes);
    }
}

/// The calls on a file.
#[derive(Debug, Default)]
struct FileCalls {
    all: CallSums,
    reads: CallSums,
    writes: CallSums,
    others: CallSums,
    errors: CallSums,
    longest_ns: i64,
    processes: FxHashSet<ProcessId>,
}

impl FileCalls {
    fn add(&mut self, call: &IoCallRow, process: ProcessId) {
        self.all.add(call);
        self.longest_ns = self.longest_ns.max(call.duration_ns);
        self.processes.insert(process);
        let class = match call.class() {
            CallClass::Read => &mut self.reads,
            CallClass::Write => &mut self.writes,
            CallClass::Other => &mut self.others,
            CallClass::Error => &mut self.errors,
        };
        class.add(call);
    }

    /// Returns the cells of its figures, given the time of all calls.
    fn cells(&self, whole_ns: i64) -> Vec<Cell> {
        let seconds = |ns: i64| Cell::Nanoseconds(Nanos(ns.unsigned_abs()));
        vec![
            seconds(self.all.sum_ns),
            Cell::share_of(self.all.sum_ns, whole_ns),
            seconds(self.reads.sum_ns),
            Cell::Count(self.reads.count),
            Cell::Count(self.reads.bytes),
            seconds(self.writes.sum_ns),
            Cell::Count(self.writes.count),
            Cell::Count(self.writes.bytes),
            seconds(self.others.sum_ns),
            Cell::Count(self.others.count),
            Cell::Count(self.errors.count),
            Cell::Average(self.longest_ns as f64 / 1e6),
        ]
    }
}

pub(super) fn files(context: &ViewContext<'_>) -> Result<Table, Failure> {
    context.model.require(TracedEvents::Io)?;
    Ok(first_files(context, context.options.limit))
}

/// Makes the table of all files together and of the first ones.
pub(super) fn first_files(context: &ViewContext<'_>, limit: Option<usize>) -> Table {
    let model = context.model;
    let selection = Selection::new(model, &context.options.filter);
    let mut files: FxHashMap<FileId, FileCalls> = FxHashMap::default();
    let mut whole = FileCalls::default();
    for call in &model.io_calls {
        if selection.passes_event(&call.row) {
            let process = model.thread(call.row.thread).process;
            files.entry(call.file).or_default().add(call, process);
            whole.add(call, process);
        }
    }
    let mut found: Vec<_> = files.into_iter().collect();
    let name = |file: FileId| model.files[file.0 as usize].as_str();
    found.sort_by_key(|(file, calls)| (Reverse(calls.all.sum_ns), name(*file)));
    let mut rows = vec![whole.cells(whole.all.sum_ns)];
    rows[0].extend([Cell::Text("<Total>".to_owned()), Cell::Empty]);
    rows.extend(found.iter().map(|(file, calls)| {
        let mut cells = calls.cells(whole.all.sum_ns);
        let mut processes = calls.processes.iter();
        let process = match (processes.next(), calls.processes.len()) {
            (Some(only), 1) => Cell::Text(model.process(*only).name.clone()),
            (_, number) => Cell::Text(format!("({number} processes)")),
        };
        cells.extend([Cell::Text(name(*file).to_owned()), process]);
        cells
    }));
    let mut table = Table {
        view: View::Files.name(),
        title: "Files by the time of the calls on them; exact seconds of traced I/O".to_owned(),
        columns: vec![
            Column::number("io", "I/O s"),
            Column::number("%io", "%"),
            Column::number("ioreadtime", "read s"),
            Column::number("ioreadcnt", "reads"),
            Column::number("ioreadbytes", "bytes"),
            Column::number("iowritetime", "write s"),
            Column::number("iowritecnt", "writes"),
            Column::number("iowritebytes", "bytes"),
            Column::number("ioothertime", "other s"),
            Column::number("ioothercnt", "others"),
            Column::number("ioerrorcnt", "errors"),
            Column::number("longest_ms", "longest ms"),
            Column::text("file", "File"),
            Column::text("process", "Process"),
        ],
        rows,
        ..Table::default()
    };
    table.cut_after_total(limit);
    table
}
