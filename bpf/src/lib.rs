//! The BPF programs, and the only code that loads them, drains their rings and fills their tables.
//!
//! The C is in `bpf/c`: one `.bpf.c` for each subject over pure headers, linked into one object.
//! What crosses to user space is defined in [`bpf_abi`]. [`Programs`] owns the loaded programs; its
//! parts are the [`Clocks`], the [`UnwindTables`] and the [`OverflowCounters`]. The only type of
//! libbpf in this crate's interface is its error.
//!
//! It does not depend on what a tick means to an experiment, which process has which name, or which
//! function an address is in: that is `kcollect`'s.

mod abilities;
mod allocations;
mod capture;
mod causes;
mod clocks;
mod counters;
mod cpu_stats;
mod error;
mod io_uring;
mod kernel_types;
mod load;
mod recording;
mod ring_buffer;
mod rings;
mod sabotage;
mod skeleton;
mod skipped;
mod steal;
mod tables;
#[cfg(test)]
mod tests;
mod verifier;

pub use abilities::Ability;
pub use allocations::{
    AllocationSampling, AllocatorProbe, AttachedProbes, ProbedProcess, ReturnProbes, UsdtProbe,
};
pub use capture::{CodeLookup, UserStackCapture};
pub use clocks::Clocks;
pub use counters::{OverflowCounters, OverflowCounts};
pub use error::Error;
pub use kernel_types::KernelTypes;
pub use load::{KernelFunctions, Programs, Settings};
pub use rings::Rings;
pub use sabotage::Sabotage;
pub use tables::{PageRows, PlacedTable, TableId, TableUse, UnwindTables};
pub use verifier::Refusal;
