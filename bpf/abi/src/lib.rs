//! What crosses between the BPF programs and user space: the records that the programs send, the
//! statistics that they count, the unwind tables that they read, and the unwinder itself, natively.
//!
//! The C side is in `bpf/abi/c`. [`layout`] mirrors it byte by byte, and a test compares every
//! size, offset and number. [`Record`] is what other crates see: decoded and checked.
//!
//! This crate needs neither clang nor libbpf. It refuses to know what a tick means to an
//! experiment, and where unwind rules come from.

pub mod layout;
mod record;
pub mod unwind;

#[cfg(test)]
mod tests;

pub use layout::{CodeFile, CounterStats, CpuStats, EncodedRule, FileTable, UnwindRow};
pub use record::{
    CapturedStack, Detail, DetailTimes, IoCall, KernelCounts, KernelStack, LockWait, Mode, OffCpu,
    Overflow, Record, RecordError, RecordHeader, ThreadName, ThreadRecord, Tick, UserReturn,
};
