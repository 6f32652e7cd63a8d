//! What the checks of kcollect are made of.
//!
//! A profiler is right when it agrees with things that know better. Five of them are used here:
//!
//! * **workloads** ([`truth`]), programs that do one thing for a stated time and then say what they
//!   did, by the kernel's own account of them, and where they spent their time ([`ledger`], which
//!   [`states`] holds against kcollect's account, as [`threads`] and [`counts`] do for samples and
//!   counts);
//! * **programs that are hard to follow** ([`quarry`], [`broken_elf`]), and what was recorded of
//!   them ([`followed`]);
//! * **stock tools** ([`gprofng`], [`perf`]), which read kcollect's experiment or watch the same
//!   load;
//! * **the kernel's tables** ([`kallsyms`], [`machine`], [`loaded`]), and the experiment's files by
//!   the letter of their format ([`experiment`]);
//! * **a browser** ([`browser`]), which opens the pages that kcollect makes.
//!
//! Ticks are a sample, so nothing is compared by eye or by a round percentage: [`statistics`] says
//! how far a correct profiler may be off, and every failure message carries the numbers of that
//! judgement.
//!
//! Reports are held against gprofng on recordings, and on experiments that nobody recorded
//! ([`made`]); exports against reports, and against the programs that read them ([`exported`]).
//!
//! What kcollect costs is the benchmark in `bench/cost/`, which needs [`paired`] and
//! [`perf_losses`] besides.
//!
//! The checks themselves are the files in `checks/`. Those whose names begin with `root_` profile
//! the whole machine and need root; `make test` runs them so. They take the machine for themselves
//! ([`machine::Exclusive`]): two loads pinned to one CPU would each be the other's noise.

pub mod audit;
pub mod books;
pub mod broken_elf;
pub mod browser;
pub mod call_tree;
pub mod cgroup;
pub mod cold_file;
pub mod command;
pub mod compat32;
pub mod counted;
pub mod counts;
pub mod disturbance;
pub mod experiment;
pub mod exported;
pub mod followed;
pub mod kallsyms;
pub mod kcollect;
pub mod ledger;
pub mod limited;
pub mod loaded;
pub mod loads;
pub mod loop_disk;
pub mod machine;
pub mod made;
pub mod opened;
pub mod paired;
pub mod perf;
pub mod perf_losses;
pub mod quarry;
pub mod random;
pub mod states;
pub mod statistics;
pub mod threads;
pub mod traced;
pub mod tracefs;
pub mod truth;
pub mod usage;

pub use gprofng;
