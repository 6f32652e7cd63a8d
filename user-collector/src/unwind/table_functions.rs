//! The functions of a file while its table is made.

use std::ops::Range;

use super::rule::UnwindRules;
use super::sections::UnwindError;
use super::summary::TableSummary;
use super::table::UnwindTable;
use super::{MAX_PADDING_BYTES, MAX_ROWS};

/// The functions of a file as they are read: in any order, maybe overlapping.
#[derive(Debug, Default)]
pub(super) struct TableFunctions {
    functions: Vec<TableFunction>,
    rows: Vec<(u32, u16)>,
    /// Number of functions that came first, by rising start.
    sorted: usize,
}

#[derive(Debug)]
struct TableFunction {
    pcs: Range<u64>,
    first_row: usize,
}

impl TableFunctions {
    /// Begins a function, to which the rows that follow belong.
    pub(super) fn begin(&mut self, pcs: Range<u64>) {
        self.functions.push(TableFunction {
            pcs,
            first_row: self.rows.len(),
        });
    }

    /// Sets the rule from `pc` on. Calls for one function come by rising pc.
    pub(super) fn row(&mut self, pc: u64, rule: u16) -> Result<(), UnwindError> {
        let Some(function) = self.functions.last() else {
            return Ok(());
        };
        if pc >= function.pcs.end {
            return Ok(());
        }
        // All pages together have less than 2^32 bytes of text, and so has a function.
        let offset = u32::try_from(pc.saturating_sub(function.pcs.start))
            .map_err(|_| UnwindError::TooManyPages)?;
        match self.rows[function.first_row..].last() {
            Some(&(last, same)) if last >= offset || same == rule => {}
            _ if self.rows.len() >= MAX_ROWS => return Err(UnwindError::TooManyRows),
            _ => self.rows.push((offset, rule)),
        }
        Ok(())
    }

    /// Sets the rule from `pc` on, and drops later rows of the function.
    pub(super) fn end(&mut self, pc: u64, rule: u16) -> Result<(), UnwindError> {
        if let Some(function) = self.functions.last() {
            let offset = pc.saturating_sub(function.pcs.start);
            let own = &self.rows[function.first_row..];
            let before = own.partition_point(|(at, _)| u64::from(*at) < offset);
            self.rows.truncate(function.first_row + before);
        }
        self.row(pc, rule)
    }

    /// Adds code that ends the stack, in place of what is known of it. If a function begins there,
    /// all of it does.
    pub(super) fn outermost(&mut self, pcs: Range<u64>) -> Result<(), UnwindError> {
        let start = pcs.start;
        let covers = |function: &TableFunction| function.pcs.contains(&start);
        let mut end = pcs.end;
        if let Some(index) = self.functions.iter().rposition(covers) {
            let function = &self.functions[index];
            let after = self.functions.get(index + 1);
            let rows = &self.rows
                [function.first_row..after.map_or(self.rows.len(), |next| next.first_row)];
            let offset = start - function.pcs.start;
            let known = rows.partition_point(|(at, _)| u64::from(*at) <= offset);
            if known > 0 && rows[known - 1].1 == UnwindRules::STOP {
                return Ok(());
            }
            if offset == 0 {
                end = end.max(function.pcs.end);
            }
        }
        self.begin(start..end);
        self.row(start, UnwindRules::STOP)
    }

    /// Notes that the functions so far are sorted by start. Later ones may not be.
    pub(super) fn all_sorted(&mut self) {
        self.sorted = self.functions.len();
    }

    /// Returns whether `pc` is in one of the sorted functions.
    pub(super) fn cover(&self, pc: u64) -> bool {
        let sorted = &self.functions[..self.sorted];
        let before = sorted.partition_point(|function| function.pcs.start <= pc);
        sorted[..before]
            .last()
            .is_some_and(|function| pc < function.pcs.end)
    }

    /// Returns the table. Of two functions that overlap, the one that begins later is valid from
    /// its start on, as in `.eh_frame_hdr`, which programs search when they unwind themselves.
    pub(super) fn table(mut self, summary: &mut TableSummary) -> Result<UnwindTable, UnwindError> {
        let first_rows: Vec<usize> = self
            .functions
            .iter()
            .map(|function| function.first_row)
            .collect();
        let mut order: Vec<usize> = (0..self.functions.len()).collect();
        order.sort_by_key(|&index| self.functions[index].pcs.start);
        for pair in order.windows(2) {
            let next = self.functions[pair[1]].pcs.start;
            let end = &mut self.functions[pair[0]].pcs.end;
            if next < *end {
                summary.overlapped += 1;
                *end = next;
            }
        }
        let mut table = UnwindTable::default();
        let mut last = (0, UnwindRules::ABSENT);
        let mut covered: Option<u64> = None;
        for index in order {
            let TableFunction { pcs, first_row } = &self.functions[index];
            if pcs.is_empty() {
                continue;
            }
            if let Some(end) = covered
                && pcs.start - end > MAX_PADDING_BYTES
            {
                table.push(end, UnwindRules::ABSENT, &mut last)?;
            }
            let after = first_rows
                .get(index + 1)
                .copied()
                .unwrap_or(self.rows.len());
            for &(offset, rule) in &self.rows[*first_row..after] {
                let pc = pcs.start + u64::from(offset);
                if pc < pcs.end {
                    table.push(pc, rule, &mut last)?;
                }
            }
            covered = Some(pcs.end);
        }
        if let Some(end) = covered {
            table.push(end, UnwindRules::ABSENT, &mut last)?;
        }
        table.shrink_to_fit();
        Ok(table)
    }
}
