//! Processes as functions of time: who lived when, under which name, with what mapped where. Whom to follow. The join of what
//! was recorded of a thread in the kernel with its user side, and the unwind tables of the files that are executed.
//!
//! Fed with the perf side-band and a snapshot of `/proc`, in time order; asked about instants in the
//! same order. It reads nothing by itself, so its tests are drawings of time; and likewise [`unwind`] is given the bytes
//! of a file. What opens and reads files is [`modules`], and it alone.

pub mod entries;
pub mod follow;
pub mod maps;
pub mod modules;
pub mod process;
pub mod unwind;
