//! The rings of exit counts, into which several CPUs write although a ring is made for one.
//!
//! A ring of perf has no locks. Its CPU may interrupt itself, which the kernel allows for. But the
//! exit counts of a thread (`PERF_RECORD_READ`) are written by the CPU on which it exits, into the
//! rings of all CPUs on which it had counters. When two CPUs do so at the same time, two things
//! happen:
//!
//! * The kernel's count of writers is wrong from then on. It continues to write records, but never
//!   advances the head again. So records are read here before and after the head. A record is
//!   complete when its last word, the time, is later than the previous record's, and not too
//!   recent.
//! * Two records are written to the same place, and one or both are lost. The remains are
//!   inconsistent: the thread at the beginning with the thread at the end, the offset with the end
//!   of the previous record, the times with the thread's other records. They are skipped, and
//!   [`crate::track::lifetimes`] counts them as missing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use host::machine::page_size;
use perf_event_open_sys::bindings as sys;
use types::units::Nanos;

use crate::perf::counter::OpenCounter;
use crate::perf::records::{TaskRecord, decode};
use crate::perf::ring::PerfRing;

/// The pages of a ring, as a power of two: 800 records. With four counters the rings of a CPU have
/// less than the 516 KiB that an unprivileged user may lock; with more counters, or less memory,
/// rings are smaller.
const RING_PAGES_LOG2: u32 = 4;

/// `{ header; u32 pid, tid; u64 value, time_enabled, time_running, id; u32 pid, tid; u64 time; }`
const READ_RECORD_BYTES: usize = 64;
/// `{ header; u64 id, lost; u32 pid, tid; u64 time; }`
const LOST_RECORD_BYTES: usize = 40;

/// How far after the head the next record is searched for.
const SEARCH_BYTES: u64 = 1024;

/// How much older a record can be than the one before it, since two CPUs write at the same time.
/// What is older is left over from the ring's previous turn, hundreds of exits ago.
const MAX_DISORDER_NS: Nanos = Nanos::from_millis(1);

/// The age at which a record is completely written.
const WRITE_TIME_NS: Nanos = Nanos::from_millis(2);

/// The ring with the exit counts of one event on one CPU.
#[derive(Debug)]
pub(crate) struct ExitCountRing {
    ring: PerfRing,
    /// Where the next record begins in the ring's stream.
    offset: u64,
    /// The latest time of a record.
    last_ns: Nanos,
}

impl ExitCountRing {
    pub(crate) fn new(counter: &OpenCounter) -> io::Result<ExitCountRing> {
        let mut order = RING_PAGES_LOG2;
        let ring = loop {
            match PerfRing::new(counter.try_clone_fd()?, page_size(), order) {
                Err(_) if order > 0 => order -= 1,
                ring => break ring?,
            }
        };
        Ok(ExitCountRing {
            ring,
            offset: 0,
            last_ns: Nanos::ZERO,
        })
    }

    /// Calls `each` with every record that was complete at this time, and with the record's time.
    pub(crate) fn take(&mut self, now_ns: Nanos, mut each: impl FnMut(Nanos, TaskRecord)) {
        let until_ns = now_ns.saturating_sub(WRITE_TIME_NS);
        loop {
            let mut bytes = [0; READ_RECORD_BYTES];
            self.ring.peek(self.offset, &mut bytes);
            if let Some((size, time_ns, record)) = decode_complete(&bytes, self.last_ns, until_ns) {
                self.offset += size as u64;
                self.last_ns = self.last_ns.max(time_ns);
                each(time_ns, record);
                continue;
            }
            match self.find_next(until_ns) {
                Some(offset) => self.offset = offset,
                None => break,
            }
        }
        self.ring.free(self.offset);
    }

    /// Skips bytes that are not a record, and finds the next one.
    fn find_next(&self, until_ns: Nanos) -> Option<u64> {
        let written = self.ring.head().clamp(
            self.offset,
            self.offset + (page_size() << RING_PAGES_LOG2) as u64,
        );
        let end = written.max(self.offset + SEARCH_BYTES);
        let is_record = |offset: &u64| {
            let mut bytes = [0; READ_RECORD_BYTES];
            self.ring.peek(*offset, &mut bytes[..8]);
            record_bytes(&bytes).is_some() && {
                self.ring.peek(*offset, &mut bytes);
                decode_complete(&bytes, self.last_ns, until_ns).is_some()
            }
        };
        (self.offset + 8..=end).step_by(8).find(is_record)
    }
}

impl AsFd for ExitCountRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Decodes the record at the beginning of these bytes. Returns its size, its time and the record.
/// None: no record, or one that is not complete.
fn decode_complete(
    bytes: &[u8; READ_RECORD_BYTES],
    last_ns: Nanos,
    until_ns: Nanos,
) -> Option<(usize, Nanos, TaskRecord)> {
    let size = record_bytes(bytes)?;
    let (time_ns, record) = decode(&bytes[..size])?;
    (last_ns.saturating_sub(MAX_DISORDER_NS)..until_ns)
        .contains(&time_ns)
        .then_some((size, time_ns, record))
}

/// Returns the size in a record's header. None: not a header of one of the two kinds.
fn record_bytes(bytes: &[u8; READ_RECORD_BYTES]) -> Option<usize> {
    let kind = u32::from_ne_bytes(*bytes.first_chunk()?);
    match (kind, usize::from(u16::from_ne_bytes([bytes[6], bytes[7]]))) {
        (sys::PERF_RECORD_READ, READ_RECORD_BYTES) => Some(READ_RECORD_BYTES),
        (sys::PERF_RECORD_LOST, LOST_RECORD_BYTES) => Some(LOST_RECORD_BYTES),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tid: u32, end: u32, time_ns: Nanos) -> [u8; READ_RECORD_BYTES] {
        let mut bytes = [0; READ_RECORD_BYTES];
        bytes[0] = 8;
        bytes[6] = READ_RECORD_BYTES as u8;
        for (at, half) in [(8, 7), (12, tid), (16, 42), (48, 7), (52, end)] {
            bytes[at..at + 4].copy_from_slice(&half.to_ne_bytes());
        }
        bytes[56..].copy_from_slice(&time_ns.0.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_record_is_complete_when_it_is_new_but_not_too_recent() {
        const MS: u64 = 1_000_000;
        let is_complete = |time_ns| {
            decode_complete(&read(9, 9, time_ns), Nanos(100 * MS), Nanos(200 * MS)).is_some()
        };
        assert!(is_complete(Nanos(150 * MS)));
        // Two CPUs at once.
        assert!(is_complete(Nanos(99 * MS + 1)));
        // From the ring's previous turn, or not completely written.
        assert!(!is_complete(Nanos(90 * MS)));
        assert!(!is_complete(Nanos::ZERO));
        // A moment ago.
        assert!(!is_complete(Nanos(200 * MS)));
        assert!(
            decode_complete(&read(9, 8, Nanos(150 * MS)), Nanos::ZERO, Nanos(200 * MS)).is_none()
        );
        assert!(decode_complete(&[0; READ_RECORD_BYTES], Nanos::ZERO, Nanos::MAX).is_none());
    }
}
