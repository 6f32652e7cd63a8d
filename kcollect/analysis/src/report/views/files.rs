//! Files by the traced system calls that do I/O (`-i` of a recording): how long they took, how
//! often they were made, and how many bytes they moved.
//!
//! A file is a name: what a descriptor was called when it was opened, in whatever process. A call
//! that failed counts as an error, whatever it was to do.

use std::cmp::Reverse;

use experiment_format::packet::IoKind;
use host::exit::Failure;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Context, View};
use crate::filter::Selection;
use crate::model::{FileId, IoCall, ProcessId, TracedEvents};
use crate::report::table::{Cell, Column, Table};

/// Calls of one kind.
#[derive(Debug, Default)]
struct Calls {
    count: u64,
    nanos: i64,
    bytes: u64,
}

impl Calls {
    fn add(&mut self, call: &IoCall) {
        self.count += 1;
        self.nanos = self.nanos.saturating_add(call.nanos);
        self.bytes = self.bytes.saturating_add(call.bytes);
    }
}

/// The calls on a file.
#[derive(Debug, Default)]
struct FileCalls {
    all: Calls,
    reads: Calls,
    writes: Calls,
    others: Calls,
    errors: Calls,
    longest: i64,
    processes: FxHashSet<ProcessId>,
}

impl FileCalls {
    fn add(&mut self, call: &IoCall, process: ProcessId) {
        self.all.add(call);
        self.longest = self.longest.max(call.nanos);
        self.processes.insert(process);
        let kind = match call.kind {
            _ if call.failed => &mut self.errors,
            IoKind::Read => &mut self.reads,
            IoKind::Write => &mut self.writes,
            IoKind::Open | IoKind::Close | IoKind::Other => &mut self.others,
        };
        kind.add(call);
    }

    /// Returns the cells of its figures, given the time of all calls.
    fn cells(&self, whole: i64) -> Vec<Cell> {
        let seconds = |nanos: i64| Cell::Nanoseconds(nanos.unsigned_abs());
        let share = match whole {
            0 => 0.0,
            whole => self.all.nanos as f64 / whole as f64,
        };
        vec![
            seconds(self.all.nanos),
            Cell::Share(share),
            seconds(self.reads.nanos),
            Cell::Count(self.reads.count),
            Cell::Count(self.reads.bytes),
            seconds(self.writes.nanos),
            Cell::Count(self.writes.count),
            Cell::Count(self.writes.bytes),
            seconds(self.others.nanos),
            Cell::Count(self.others.count),
            Cell::Count(self.errors.count),
            Cell::Average(self.longest as f64 / 1e6),
        ]
    }
}

pub(super) fn files(context: &Context<'_>) -> Result<Table, Failure> {
    context.model.require(TracedEvents::Io)?;
    Ok(first_files(context, context.options.limit))
}

/// Makes the table of all files together and of the first ones.
pub(super) fn first_files(context: &Context<'_>, limit: Option<usize>) -> Table {
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
    found.sort_by_key(|(file, calls)| (Reverse(calls.all.nanos), name(*file)));
    let mut rows = vec![whole.cells(whole.all.nanos)];
    rows[0].extend([Cell::Text("<Total>".to_owned()), Cell::Empty]);
    rows.extend(found.iter().map(|(file, calls)| {
        let mut cells = calls.cells(whole.all.nanos);
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
        verbatim: false,
        notes: Vec::new(),
    };
    if let Some(limit) = limit {
        table.cut(limit.saturating_add(1));
    }
    table
}
