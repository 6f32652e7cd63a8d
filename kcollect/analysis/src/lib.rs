//! Reports, exports, flame graphs and the page of `kcollect view`, made from experiments.
//!
//! Data flow one way. [`sources`] finds experiments, [`load`] reads them into a [`model`];
//! [`filter`] selects ticks of it, [`aggregate`] adds them up, [`metric`] names what is added up.
//! Then each of [`report`] (tables), [`export`] (other profilers' formats), [`flame`] (flame
//! graphs) and [`view`] (the page) shows the result; they do not use each other's views.
//! [`waits_for`] follows waits to the threads that ended them. [`symbol`] finds names, source lines
//! and instructions in ELF files, and does not use models.
//!
//! It needs neither libbpf nor root.
//!
//! ```no_run
//! # use analysis::{aggregate, filter::{Filter, Selection}, model::Model};
//! # fn main() -> Result<(), host::exit::Failure> {
//! let model = Model::load(&["ktest.1.er".into()])?;
//! let selection = Selection::new(&model, &Filter::default());
//! // Ticks with their stacks.
//! for row in model.rows.iter().filter(|row| selection.passes(row)) {
//!     let thread = model.thread(row.thread);
//!     let leaf_first: Vec<&str> =
//!         model.stack_functions(row.stack).map(|function| &*function.name).collect();
//!     println!("{} {} {} µs {leaf_first:?}", row.time_ns, thread.tid, row.micros);
//! }
//! // Sums by function.
//! let totals = aggregate::totals(&model, &selection);
//! let functions = aggregate::functions(&model, &totals).functions;
//! for (function, sums) in model.functions.iter().zip(&functions.inclusive) {
//!     println!("{} {sums:?}", function.name);
//! }
//! # Ok(()) }
//! ```
//!
//! * **[`Model`](model::Model)**: vectors of experiments, processes, threads, CPUs, load objects,
//!   functions, frames and rows of ticks, and a trie of stacks. Ids (`ThreadId`, `StackId`, …) are
//!   positions in them, and `model.thread(id)` and so on look them up.
//! * **[`TickRow`](model::TickRow)**: the ticks of one thread in one state with one stack.
//!   `row.micros` is the exact time that they stand for, `row.slot()` its state's position in
//!   [`Sums`](model::Sums), an array of microseconds by state.
//! * **[`Stacks`](model::Stacks)**: `model.stack(id)` returns the frames, leaf first.
//!   `stacks.iter()` returns all stacks, callers before callees; `stacks.callees()` is the way
//!   down, for trees.
//! * **[`StackFrame`](model::StackFrame)**: a function and the offset in its load object's file,
//!   from which [`load::lines::add`] finds source lines and inlined functions. The mark of an
//!   unfinished stack is a frame too, with a function of a special load object.
//! * **[`Filter`](filter::Filter)** is what is asked for, [`Selection`](filter::Selection) the same
//!   for one model.
//! * **[`totals`](aggregate::totals)** sums by stack, thread, process, CPU and experiment,
//!   **[`functions`](aggregate::functions)** by function and load object, and
//!   **[`Relatives`](aggregate::Relatives)** by caller and callee of one function.
//! * **[`waits`](waits::waits)** sums waits by reason, place and waker.
//!   **[`Wakers`](wakers::Wakers)** finds the thread that ended a wait, and its names.
//! * **[`BaseMetric`](metric::BaseMetric)** is one of gprofng's metrics as a value of sums,
//!   [`Metrics`](metric::Metrics) a list as typed, [`offered`](metric::offered) those with data.
//! * **[`ExactTimes`](load::exact::ExactTimes)**: nanoseconds of each thread by state, read when a
//!   view needs them.
//! * `experiment.summary()` is `kcollect.json`.
//! * **[`Table`](report::table::Table)** is the result of a report's view, or a
//!   [`TablePage`](report::table::TablePage) of several.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod aggregate;
pub mod export;
pub mod filter;
pub mod flame;
pub mod list;
pub mod load;
pub mod metric;
pub mod model;
pub mod packing;
pub mod palette;
mod private_file;
pub mod report;
pub mod sources;
pub mod symbol;
pub mod view;
pub mod waits;
pub mod waits_for;
pub mod wakers;
