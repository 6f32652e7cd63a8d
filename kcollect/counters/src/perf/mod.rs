//! Events, opened with `perf_event_open(2)`: counters, sets of counters, and the records they
//! write.
//!
//! * [`counter`] is one open event, and the only use of the system call. [`scope`] is its thread or
//!   CPU, [`refusal`] is why the kernel did not open it, and [`retry`] waits for a counter in use.
//! * [`set`] opens several events together; a [`bound_set`] of them counts. [`reading`] is what was
//!   read from it, with the arithmetic of counts. [`overflow`] has the overflows of a set's
//!   counters.
//! * [`records`] are the kernel's records of tasks. [`exit_counts`] reads records of the counts
//!   that a thread had when it exited. [`ring`] is the ring that records come from, and [`order`]
//!   sorts the records of many rings.
//! * [`cpu_events`] are the events that a recording opens on each CPU.
//! * [`probe`] finds out which events can be opened.

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
pub mod scope;
pub mod set;
