//! The machine that kcollect runs on, and how kcollect talks to its user: the root of `/proc` and
//! `/sys`, CPUs and clock, signals, the load, output and exit codes.
//!
//! Every package above shares it; it knows nothing of experiments, BPF or counters.

pub mod exit;
pub mod load;
pub mod machine;
pub mod output;
mod root;
pub mod signals;
pub mod table;
#[cfg(any(test, feature = "tree"))]
pub mod tree;

pub use root::Root;
