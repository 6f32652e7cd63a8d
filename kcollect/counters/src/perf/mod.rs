//! What we ask of `perf_event_open(2)`: a clock and a side-band for each CPU.

pub mod event;
pub mod order;
pub mod ring;
