//! The programs that run in the kernel, and the only code that loads them, drains their rings and
//! reads their counters.
//!
//! The C is in `bpf/c`. What crosses to user space is defined in `c/wire.h` and mirrored in
//! [`wire`]. Nothing of libbpf shows through this crate: who uses it sees ticks, books and errors.
//!
//! It refuses to know what a tick means to an experiment, which process has which name, or how an
//! address is called: that is `kcollect`'s.

#[cfg(test)]
mod account;
mod books;
mod counters;
mod error;
#[cfg(test)]
mod grid;
mod load;
mod rings;
mod skeleton;
mod tables;
pub mod unwind;
mod verifier;
pub mod wire;

pub use books::CpuBooks;
pub use counters::{Counted, MOST_COUNTERS};
pub use error::Error;
pub use load::{Emission, Settings, TickCollector};
pub use rings::Rings;
pub use tables::{Code, Mapped, PageRows, PlacedTable, RULE_SIZE, TableId, TableUse};
pub use wire::{
    Absence, Counts, Detail, Details, Entry, Head, Mode, Overflow, Record, Stack, ThreadName,
    ThreadTimes, Tick, UserSide,
};
