//! Being told that a counter has overflowed.
//!
//! A preset near 2^64 is counted down: after 2^64 less the preset the counter is at its end. It
//! stops there, as a counter of libcpc with overflow notification does, until it is started again.
//! The news is a record in a ring of one page, and the ring's descriptor becomes readable: no
//! signal, which would have to be shared with the rest of the program.
//!
//! The counter is stopped by an interrupt that follows the overflow. What its thread still counts
//! until then is in the count: for a page fault nothing, for an event of the hardware a few.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use host::machine::page_size;
use perf_event_open_sys::bindings as sys;

use crate::perf::counter::Counter;
use crate::perf::ring::PerfRing;

/// A counter reached 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// The instruction at which the thread was when it was interrupted, in user mode or in the
    /// kernel.
    pub ip: u64,
    /// The thread's process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
}

/// The ring of a counter that tells its overflows.
#[derive(Debug)]
pub(crate) struct Alarm {
    ring: PerfRing,
}

impl Alarm {
    pub(crate) fn of(counter: &Counter) -> io::Result<Alarm> {
        let ring = PerfRing::new(counter.again()?, page_size(), 0)?;
        Ok(Alarm { ring })
    }

    /// The overflows since the last call.
    pub(crate) fn take(&self) -> Vec<Overflow> {
        let mut bytes = Vec::new();
        self.ring.take(&mut bytes);
        records(&bytes).filter_map(overflow).collect()
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// The records of a ring's bytes, header included. A length that cannot be is the end.
pub(crate) fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let size = usize::from(u16::from_ne_bytes([*bytes.get(6)?, *bytes.get(7)?]));
        let record = bytes.get(..size).filter(|record| record.len() >= 8)?;
        bytes = &bytes[size..];
        Some(record)
    })
}

/// A word of a record, at a byte of it.
pub(crate) fn word(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

/// Half a word of a record, at a byte of it.
pub(crate) fn half(record: &[u8], at: usize) -> Option<u32> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// `{ u64 ip; u32 pid, tid; u64 time; }` behind the header of a sample.
fn overflow(record: &[u8]) -> Option<Overflow> {
    (half(record, 0)? == sys::PERF_RECORD_SAMPLE).then_some(())?;
    Some(Overflow {
        ip: word(record, 8)?,
        pid: half(record, 16)?,
        tid: half(record, 20)?,
        time_ns: word(record, 24)?,
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
        let found: Vec<_> = records(&bytes).filter_map(overflow).collect();
        let told = Overflow {
            ip: 0x1234,
            pid: 7,
            tid: 8,
            time_ns: 99,
        };
        assert_eq!(found, [told]);
    }

    #[test]
    fn bytes_that_are_no_records_end() {
        assert_eq!(records(&[0; 64]).count(), 0);
        assert_eq!(records(&[9; 5]).count(), 0);
        assert_eq!(records(&[0xff; 64]).count(), 0);
    }
}
