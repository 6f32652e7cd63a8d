//! Processes as functions of time, who lived when, under which name, with what mapped where; whom to follow; and the join of what was recorded of a thread in the
//! kernel with its user side.
//!
//! Fed with the perf side-band and a snapshot of `/proc`, in time order; asked about instants in the
//! same order. It reads nothing by itself, so its tests are drawings of time.

pub mod entries;
pub mod follow;
pub mod maps;
pub mod process;
