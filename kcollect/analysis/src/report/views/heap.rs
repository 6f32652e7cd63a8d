//! Functions by the memory that was allocated in them and in what they call (`-H` of a recording):
//! the bytes that were not freed, all bytes, and the number of allocations.

use host::exit::Failure;

use super::context::ViewContext;
use super::{TableOptions, View};
use crate::model::TracedEvents;
use crate::report::table::Table;

/// As typed to `-m`.
const METRICS: &str = "i+heapleakbytes:i+heapallocbytes:i+heapalloccnt:name";

pub(super) fn heap(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let model = context.model;
    model.require(TracedEvents::Allocated)?;
    let metrics = context.options.metrics.clone();
    let options = TableOptions {
        metrics: Some(metrics.unwrap_or_else(|| METRICS.to_owned())),
        ..context.options.clone()
    };
    let mut table = super::functions::functions(&ViewContext {
        model,
        options: &options,
        offered: context.offered.clone(),
    })?;
    table.view = View::Heap.name();
    table.notes.extend(model.memory_peaks.iter().map(|peak| {
        let name = &model.experiment(peak.experiment).name;
        let (bytes, seconds) = (peak.bytes, peak.time_ns.as_secs_f64());
        format!("{name}: {bytes} bytes at most, {seconds:.3} s after the beginning")
    }));
    Ok(table)
}
