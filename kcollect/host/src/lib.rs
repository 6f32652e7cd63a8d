//! The machine on which kcollect runs, and the process that kcollect is: the root of `/proc` and
//! `/sys`, CPUs and clock, signals, the load, output, exit codes.
//!
//! All packages above share it. Of experiments it knows how their text is made safe to print, and
//! nothing else; of BPF and counters nothing.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod exit;
pub mod load;
pub mod machine;
pub mod memory;
pub mod output;
mod root;
pub mod service;
pub mod signals;
pub mod table;
#[cfg(any(test, feature = "tree"))]
pub mod tree;
pub mod written;

pub use root::Root;
