//! Counters of the hardware and of the kernel: their names, how they are opened, and the two
//! commands that print them.
//!
//! Each layer uses only those above it in this table:
//!
//! | module | from | to |
//! |---|---|---|
//! | [`names`] | the text of `-h` and `-c` | events that this machine has |
//! | [`perf`] | events | open counters, sets of them, and the records that they write |
//! | [`rows`] | counts | lines of text or JSON |
//! | [`track`] | a process or a command | rows by thread: `kcollect track` |
//! | [`stat`](mod@stat) | the CPUs | rows by CPU: `kcollect stat` |
//!
//! A program that counts begins with [`names::parse_events`], adds the events to a
//! [`perf::set::CounterSet`], binds it to a [thread, process or CPU](perf::set::CounterTarget), and
//! reads the [`perf::bound_set::BoundSet`]. [`listing`] is what `kcollect -h` prints. A recording
//! uses [`names`] for its counters, and [`perf`] for its clocks, side-band and overflows.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod names;
pub mod perf;
pub mod rows;
mod run;
pub mod stat;
pub mod track;

use host::Root;

/// Returns what this machine can count, as `kcollect -h` prints it.
#[must_use]
pub fn listing(root: &Root) -> names::list::Listing {
    names::list::list_counters(root, perf::probe::exists, perf::probe::at_once)
}
