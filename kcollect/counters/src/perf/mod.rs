//! Events, opened with `perf_event_open(2)`: counters, sets of them, and their rings.

pub mod bound_set;
pub mod counter;
pub mod cpu_events;
pub mod exit_counts;
pub mod order;
pub mod overflow;
pub mod probe;
pub mod reading;
pub mod records;
pub mod refusal;
pub mod retry;
pub mod ring;
pub mod set;
