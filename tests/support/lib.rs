//! The library of kcollect's checks.
//!
//! A profiler is right when it agrees with independent witnesses. Ticks are a sample, so nothing is
//! compared by a round percentage: [`oracle::statistics`] computes how far a correct profiler may
//! be off, and every failure message has the numbers of that judgement.
//!
//! * [`mod@workload`]: programs that do one thing for a given time and then print what they did, by
//!   the kernel's own account of them; and programs that are hard to follow.
//! * [`oracle`]: the witnesses that kcollect is compared with: perf, gprofng's output, the kernel's
//!   tables, a browser, and statistics.
//! * [`experiment`]: readers of experiments, by the letter of the format; and experiments that are
//!   written for a check.
//! * [`machine`]: changes of the machine that are undone: control groups, disks that fail,
//!   settings; and the locks of the machine ([`machine::Exclusive`]).
//! * [`strace`] and [`gdb`] compare what those tools say of programs.
//! * [`kcollect`] and [`command`] run programs, each with a time limit.
//!
//! The checks are the files in `checks/`, by subject. Those whose names begin with `root_` profile
//! the whole machine and need root. Each takes the machine first: [`machine::Shared`] if it judges
//! what is recorded, printed and left over; [`machine::Exclusive`] if it changes what all
//! programs share; [`machine::disturbance::judge_times`] if it judges times or ticks. A recording
//! without any of them is an error. A check that follows processes by name (`-F =proctorture`) is
//! never shared. What kcollect costs is the benchmark in `bench/cost/`.

pub mod command;
pub mod experiment;
pub mod gdb;
pub mod kcollect;
pub mod machine;
pub mod oracle;
pub mod random;
pub mod strace;
pub mod workload;

pub use gprofng;
