//! System calls that do I/O by name (`-i` of a recording), with their time, their number, the
//! number that failed, and the bytes that they moved.
//!
//! An experiment of another recorder does not have the system call: then a row is what the calls
//! did, such as `(read)`.

use std::cmp::Reverse;

use experiment_format::calls::is_transfer;
use experiment_format::packet::IoKind;
use experiment_format::units::Nanos;
use host::exit::Failure;
use rustc_hash::FxHashMap;

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{IoCallRow, TracedEvents};
use crate::report::table::{Cell, Column, Table};

/// The sums of the calls of one name.
#[derive(Debug, Default)]
struct NamedCalls {
    count: u64,
    errors: u64,
    sum_ns: i64,
    longest_ns: i64,
    bytes_read: u64,
    bytes_written: u64,
}

impl NamedCalls {
    fn add(&mut self, call: &IoCallRow) {
        match call.kind {
            IoKind::Read => self.bytes_read = self.bytes_read.saturating_add(call.bytes),
            IoKind::Write => self.bytes_written = self.bytes_written.saturating_add(call.bytes),
            _ => {}
        }
        // The other half of a call that counts as a write.
        if call.kind == IoKind::Read && call.name.is_some_and(is_transfer) {
            return;
        }
        self.count += 1;
        self.errors += u64::from(call.failed);
        self.sum_ns = self.sum_ns.saturating_add(call.duration_ns);
        self.longest_ns = self.longest_ns.max(call.duration_ns);
    }

    /// Returns the cells of its figures, given the time of all calls.
    fn cells(&self, whole_ns: i64) -> Vec<Cell> {
        let mean_us = match self.count {
            0 => 0.0,
            count => self.sum_ns as f64 / 1e3 / count as f64,
        };
        vec![
            Cell::Nanoseconds(Nanos(self.sum_ns.unsigned_abs())),
            Cell::share_of(self.sum_ns, whole_ns),
            Cell::Count(self.count),
            Cell::Count(self.errors),
            Cell::Average(mean_us),
            Cell::Average(self.longest_ns as f64 / 1e6),
            Cell::Count(self.bytes_read),
            Cell::Count(self.bytes_written),
        ]
    }
}

pub(super) fn calls(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let model = context.model;
    model.require(TracedEvents::Io)?;
    let selection = Selection::new(model, &context.options.filter);
    let mut calls: FxHashMap<&'static str, NamedCalls> = FxHashMap::default();
    let mut whole = NamedCalls::default();
    for call in &model.io_calls {
        if selection.passes_event(&call.row) {
            calls.entry(name(call)).or_default().add(call);
            whole.add(call);
        }
    }
    let mut found: Vec<_> = calls.into_iter().collect();
    found.sort_by_key(|(name, calls)| (Reverse(calls.sum_ns), *name));
    let mut rows = vec![whole.cells(whole.sum_ns)];
    rows[0].push(Cell::Text("<Total>".to_owned()));
    rows.extend(found.iter().map(|(name, calls)| {
        let mut cells = calls.cells(whole.sum_ns);
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
        ..Table::default()
    };
    table.cut_after_total(context.options.limit);
    Ok(table)
}

fn name(call: &IoCallRow) -> &'static str {
    call.name.unwrap_or(match call.kind {
        IoKind::Read => "(read)",
        IoKind::Write => "(write)",
        IoKind::Open => "(open)",
        IoKind::Close => "(close)",
        IoKind::Other => "(other)",
    })
}
