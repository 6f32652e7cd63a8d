//! The witnesses that kcollect is compared with: other tools that watch the same load or read the
//! same experiment, the kernel's tables, and the statistics of two samples.

pub mod audit;
pub mod browser;
pub mod call_tree;
pub mod kallsyms;
pub mod paired;
pub mod perf;
pub mod perf_losses;
pub mod statistics;
pub mod usage;
