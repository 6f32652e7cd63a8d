//! Processes as functions of time: who lived when, under which name.
//!
//! Fed with the perf side-band and a snapshot of `/proc`, in time order; asked about instants in the
//! same order. It reads nothing by itself, so its tests are drawings of time.

pub mod process;
