//! The overflows at which the counters of a set stop.
//!
//! A counter with a preset near 2^64 counts up to 2^64 and stops there, as a counter of libcpc with
//! overflow notification does, until it is started again. The kernel then writes a record into a
//! ring of one page, and the ring's descriptor becomes readable. A signal would have to be shared
//! with the rest of the program.
//!
//! The counter is stopped by an interrupt that follows the overflow. Its count includes what the
//! thread does until then: nothing for a page fault, a few events for an event of the hardware.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use host::machine::page_size;
use perf_event_open_sys::bindings as sys;
use types::ids::{Pid, Tid};
use types::units::Nanos;

use crate::perf::counter::OpenCounter;
use crate::perf::records::{split_records, u32_at, u64_at};
use crate::perf::ring::PerfRing;

/// The moment at which a counter reached 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowRecord {
    /// The instruction at which the thread was interrupted, in user mode or in the kernel.
    pub ip: u64,
    /// The thread's process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: Nanos,
}

/// The ring with the overflows of one counter.
#[derive(Debug)]
pub(crate) struct OverflowRing {
    ring: PerfRing,
}

impl OverflowRing {
    pub(crate) fn new(counter: &OpenCounter) -> io::Result<OverflowRing> {
        let ring = PerfRing::new(counter.try_clone_fd()?, page_size(), 0)?;
        Ok(OverflowRing { ring })
    }

    /// Returns the overflows since the last call.
    pub(crate) fn take(&self) -> Vec<OverflowRecord> {
        let mut bytes = Vec::new();
        self.ring.take(&mut bytes);
        split_records(&bytes).filter_map(parse).collect()
    }
}

impl AsFd for OverflowRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Parses `{ u64 ip; u32 pid, tid; u64 time; }` after the header of a sample. None: another
/// record.
fn parse(record: &[u8]) -> Option<OverflowRecord> {
    (u32_at(record, 0)? == sys::PERF_RECORD_SAMPLE).then_some(())?;
    Some(OverflowRecord {
        ip: u64_at(record, 8)?,
        pid: Pid(u32_at(record, 16)?),
        tid: Tid(u32_at(record, 20)?),
        time_ns: Nanos(u64_at(record, 24)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_an_overflow_and_nothing_else_is() {
        let mut bytes = Vec::new();
        for kind in [sys::PERF_RECORD_SAMPLE, sys::PERF_RECORD_LOST] {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0, 0, 32, 0]);
            bytes.extend(0x1234_u64.to_ne_bytes());
            bytes.extend([7, 0, 0, 0, 8, 0, 0, 0]);
            bytes.extend(99_u64.to_ne_bytes());
        }
        let found: Vec<_> = split_records(&bytes).filter_map(parse).collect();
        let overflow = OverflowRecord {
            ip: 0x1234,
            pid: Pid(7),
            tid: Tid(8),
            time_ns: Nanos(99),
        };
        assert_eq!(found, [overflow]);
    }
}
