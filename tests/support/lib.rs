//! What the checks of kcollect are made of.
//!
//! A profiler is right when it agrees with independent witnesses. Ticks are a sample, so nothing is
//! compared by eye or by a round percentage: [`oracle::statistics`] has how far a correct profiler
//! may be off, and every failure message carries the numbers of that judgement.
//!
//! * [`mod@workload`]: programs that do one thing for a stated time and then print what they did,
//!   by the kernel's own account of them; and programs that are hard to follow.
//! * [`oracle`]: what kcollect is compared with: perf, gprofng's output, the kernel's tables, a
//!   browser, and statistics.
//! * [`experiment`]: what kcollect recorded, read by the letter of the format; and experiments that
//!   are written for a check.
//! * [`machine`]: what a check needs of the machine and puts back: control groups, disks that fail,
//!   settings, and the machine for itself ([`machine::Exclusive`]).
//! * [`kcollect`] and [`command`] run programs, each with a time limit.
//!
//! The checks are the files in `checks/`, by subject. Those whose names begin with `root_` profile
//! the whole machine and need root. What kcollect costs is the benchmark in `bench/cost/`.

pub mod command;
pub mod experiment;
pub mod kcollect;
pub mod machine;
pub mod oracle;
pub mod random;
pub mod workload;

pub use gprofng;
