//! What crosses between the BPF programs and user space: the records that the programs send, the
//! statistics that they count, the unwind tables that they read, and the unwinder itself, natively.
//!
//! The C headers in `bpf/abi/c` define it. [`layout`] is generated from them, byte by byte.
//! [`Record`] is what other crates see: decoded and checked.
//!
//! This crate does not need libbpf. It does not depend on what a tick means to an experiment, nor
//! on where unwind rules come from.

pub mod layout;
mod record;
pub mod unwind;

#[cfg(test)]
mod tests;

pub use layout::{CodeFile, CounterStats, CpuStats, EncodedRule, FileTable, ProbeUse, UnwindRow};
pub use record::{
    BlockRecord, CapturedStack, CauseTimes, CgroupNumber, CpuCounts, DetailTimes, IoCallRecord,
    IoFileRecord, KernelCounts, KernelStack, LockWaitRecord, Mode, OffCpuDetail, OffCpuRecord,
    OverflowRecord, Record, RecordError, RecordHeader, ThreadName, ThreadRecord, TickRecord,
    UserReturnRecord,
};
