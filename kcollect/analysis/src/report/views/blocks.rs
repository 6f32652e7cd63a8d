//! Allocations of memory by the size of the block (`-H` of a recording), with how long ago those
//! were made that were not freed by the end.
//!
//! Sizes are those that programs asked for. What is sampled stands for others of its size.

use std::collections::BTreeMap;

use experiment_format::packet::WEIGHT_OF_ONE;
use experiment_format::units::Nanos;
use host::exit::Failure;

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{AllocationRow, TracedEvents};
use crate::report::table::{Cell, Column, Table};

/// Ages from which on what is not freed has a column, in seconds.
const AGES_S: [u64; 3] = [1, 10, 60];

/// The sums of the blocks of one range of sizes.
#[derive(Debug, Default)]
struct SizedBlocks {
    bytes: u64,
    weight: u64,
    live_bytes: u64,
    live_weight: u64,
    /// The part of `live_bytes` that is at least so old, by [`AGES_S`].
    old_bytes: [u64; AGES_S.len()],
}

impl SizedBlocks {
    fn add(&mut self, block: &AllocationRow, age: Nanos) {
        let add = |sum: &mut u64, value| *sum = sum.saturating_add(value);
        add(&mut self.bytes, block.bytes);
        add(&mut self.weight, block.weight);
        if block.live_bytes == 0 {
            return;
        }
        add(&mut self.live_bytes, block.live_bytes);
        add(&mut self.live_weight, block.weight);
        for (old, seconds) in self.old_bytes.iter_mut().zip(AGES_S) {
            if age >= Nanos::from_secs(seconds) {
                add(old, block.live_bytes);
            }
        }
    }

    /// Returns the cells of its figures, given all bytes that were not freed.
    fn cells(&self, whole: u64) -> Vec<Cell> {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let blocks =
            |weight: u64| Cell::Count(weight.saturating_add(WEIGHT_OF_ONE / 2) / WEIGHT_OF_ONE);
        let mut cells = vec![
            Cell::Count(self.live_bytes),
            Cell::share_of(signed(self.live_bytes), signed(whole)),
            blocks(self.live_weight),
        ];
        cells.extend(self.old_bytes.map(Cell::Count));
        cells.extend([Cell::Count(self.bytes), blocks(self.weight)]);
        cells
    }
}

/// Returns the range of a size, of those whose bounds are powers of two.
fn range(bytes: u64) -> (u64, u64) {
    match bytes.checked_ilog2() {
        None => (0, 0),
        Some(bits) => (1 << bits, (1_u64 << bits) - 1 + (1 << bits)),
    }
}

pub(super) fn blocks(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let model = context.model;
    model.require(TracedEvents::Allocated)?;
    let selection = Selection::new(model, &context.options.filter);
    let mut sizes: BTreeMap<(u64, u64), SizedBlocks> = BTreeMap::new();
    let mut whole = SizedBlocks::default();
    for block in &model.allocations {
        if selection.passes_event(&block.row) {
            let end_ns = model.experiment(block.row.experiment).end_ns;
            let age = end_ns.saturating_sub(block.row.time_ns);
            sizes
                .entry(range(block.own_bytes))
                .or_default()
                .add(block, age);
            whole.add(block, age);
        }
    }
    let mut rows = vec![whole.cells(whole.live_bytes)];
    rows[0].push(Cell::Text("<Total>".to_owned()));
    rows.extend(sizes.iter().map(|((least, most), blocks)| {
        let mut cells = blocks.cells(whole.live_bytes);
        cells.push(Cell::Text(if least == most {
            least.to_string()
        } else {
            format!("{least} to {most}")
        }));
        cells
    }));
    let mut columns = vec![
        Column::number("heapleakbytes", "not freed"),
        Column::number("%heapleakbytes", "%"),
        Column::number("heapleakcnt", "blocks"),
    ];
    columns.extend(AGES_S.map(|seconds| {
        let key = format!("older_{seconds}s");
        Column::number(key, format!("for {seconds} s"))
    }));
    columns.extend([
        Column::number("heapallocbytes", "allocated"),
        Column::number("heapalloccnt", "blocks"),
        Column::text("size", "Bytes of a block"),
    ]);
    let mut table = Table {
        view: View::Blocks.name(),
        title: "Allocations by size; bytes".to_owned(),
        columns,
        rows,
        ..Table::default()
    };
    table.cut_after_total(context.options.limit);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_all_sizes() {
        let shown = [0, 1, 2, 3, 4, 100, 127, 128, u64::MAX].map(range);
        assert_eq!(
            shown[..6],
            [(0, 0), (1, 1), (2, 3), (2, 3), (4, 7), (64, 127)]
        );
        assert_eq!(shown[6..8], [(64, 127), (128, 255)]);
        assert_eq!(shown[8], (1 << 63, u64::MAX));
    }
}
