//! The machine on which kcollect runs, and the process that kcollect is: the root of `/proc` and
//! `/sys`, CPUs and clock, signals, the load, output, exit codes, suggestions for unknown names.
//!
//! All packages above share it. It depends on nothing of BPF and counters, and of experiments only
//! on ids and on how their text is made safe to print.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod exit;
pub mod load;
pub mod machine;
pub mod memory;
pub mod output;
mod root;
pub mod service;
pub mod signals;
pub mod suggest;
pub mod table;
#[cfg(any(test, feature = "tree"))]
pub mod tree;
pub mod written;

pub use root::Root;
