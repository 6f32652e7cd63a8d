//! System calls that do I/O by name (`-i` of a recording): how long they took, how often they were
//! made and failed, and how many bytes they moved.
//!
//! An experiment of another recorder does not say which system call it was: then a row is what the
//! calls did, such as `(read)`.

use std::cmp::Reverse;

use experiment_format::packet::IoKind;
use host::exit::Failure;
use rustc_hash::FxHashMap;
use user_collector::io_calls::calls::is_transfer;

use super::{Context, View};
use crate::filter::Selection;
use crate::model::{IoCall, TracedEvents};
use crate::report::table::{Cell, Column, Table};

/// The calls of a name.
#[derive(Debug, Default)]
struct Calls {
    count: u64,
    errors: u64,
    nanos: i64,
    longest: i64,
    read: u64,
    written: u64,
}

impl Calls {
    fn add(&mut self, call: &IoCall) {
        match call.kind {
            IoKind::Read => self.read = self.read.saturating_add(call.bytes),
            IoKind::Write => self.written = self.written.saturating_add(call.bytes),
            _ => {}
        }
        // The other half of a call that counts as a write.
        if call.kind == IoKind::Read && call.name.is_some_and(is_transfer) {
            return;
        }
        self.count += 1;
        self.errors += u64::from(call.failed);
        self.nanos = self.nanos.saturating_add(call.nanos);
        self.longest = self.longest.max(call.nanos);
    }

    /// Returns the cells of its figures, given the time of all calls.
    fn cells(&self, whole: i64) -> Vec<Cell> {
        let share = match whole {
            0 => 0.0,
            whole => self.nanos as f64 / whole as f64,
        };
        let mean_us = match self.count {
            0 => 0.0,
            count => self.nanos as f64 / 1e3 / count as f64,
        };
        vec![
            Cell::Nanoseconds(self.nanos.unsigned_abs()),
            Cell::Share(share),
            Cell::Count(self.count),
            Cell::Count(self.errors),
            Cell::Average(mean_us),
            Cell::Average(self.longest as f64 / 1e6),
            Cell::Count(self.read),
            Cell::Count(self.written),
        ]
    }
}

pub(super) fn calls(context: &Context<'_>) -> Result<Table, Failure> {
    let model = context.model;
    model.require(TracedEvents::Io)?;
    let selection = Selection::new(model, &context.options.filter);
    let mut calls: FxHashMap<&'static str, Calls> = FxHashMap::default();
    let mut whole = Calls::default();
    for call in &model.io_calls {
        if selection.passes_event(&call.row) {
            calls.entry(name(call)).or_default().add(call);
            whole.add(call);
        }
    }
    let mut found: Vec<_> = calls.into_iter().collect();
    found.sort_by_key(|(name, calls)| (Reverse(calls.nanos), *name));
    let mut rows = vec![whole.cells(whole.nanos)];
    rows[0].push(Cell::Text("<Total>".to_owned()));
    rows.extend(found.iter().map(|(name, calls)| {
        let mut cells = calls.cells(whole.nanos);
        cells.push(Cell::Text((*name).to_owned()));
        cells
    }));
    let mut table = Table {
        view: View::Calls.name(),
        title: "System calls that do I/O; exact seconds".to_owned(),
        columns: vec![
            Column::number("io", "I/O s"),
            Column::number("%io", "%"),
            Column::number("calls", "calls"),
            Column::number("errors", "errors"),
            Column::number("mean_us", "mean us"),
            Column::number("longest_ms", "longest ms"),
            Column::number("ioreadbytes", "bytes read"),
            Column::number("iowritebytes", "bytes written"),
            Column::text("call", "Call"),
        ],
        rows,
        verbatim: false,
        notes: Vec::new(),
    };
    if let Some(limit) = context.options.limit {
        table.cut(limit.saturating_add(1));
    }
    Ok(table)
}

fn name(call: &IoCall) -> &'static str {
    call.name.unwrap_or(match call.kind {
        IoKind::Read => "(read)",
        IoKind::Write => "(write)",
        IoKind::Open => "(open)",
        IoKind::Close => "(close)",
        IoKind::Other => "(other)",
    })
}
