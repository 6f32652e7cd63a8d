//! Rings into which several CPUs write, though they were made for one: where last words come from.
//!
//! A ring of perf has no locks. Its one CPU may interrupt itself, and the kernel's bookkeeping
//! allows for that; but a thread's last words (`PERF_RECORD_READ`) are written by the CPU on which
//! it ends, into the rings of all CPUs on which it had counters. When two CPUs do so at the same
//! time, two things happen:
//!
//! * the count of writers is wrong from then on, and the kernel never again says that anything was
//!   written. It goes on writing, though. So records are taken here as they lie there, whether the
//!   ring's head has passed them or not: they are whole when their last word, the time, is that of
//!   a moment after the record before, and long enough ago;
//! * two records are written into one place, and one is lost, or both are. What is left does not
//!   fit together: the thread at its beginning and at its end, its place behind the record before,
//!   what it says of its thread beside what the other records say. It is left out, and
//!   [`crate::track::lifetimes`] misses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use host::machine::page_size;
use perf_event_open_sys::bindings as sys;

use crate::perf::counter::Counter;
use crate::perf::records::{Record, decode};
use crate::perf::ring::PerfRing;

/// Pages of a ring, as a power of two: 800 records. With four counters all rings of a CPU have less
/// than 516 KiB, which is what an unprivileged user may lock; with more counters, or less memory,
/// they are smaller.
const ORDER: u32 = 4;

/// `{ header; u32 pid, tid; u64 value, time_enabled, time_running, id; u32 pid, tid; u64 time; }`
const READ: usize = 64;
/// `{ header; u64 id, lost; u32 pid, tid; u64 time; }`
const LOST: usize = 40;

/// How far it is looked for the next record where the kernel does not say how far it has written,
/// bytes.
const FAR: u64 = 1024;

/// Records come in the order of their times, but for those of two CPUs at once, nanoseconds.
/// Whatever is older is of the time before the ring was full, and hundreds of threads ended since.
const JITTER: u64 = 1_000_000;

/// After this long a record that was begun is whole, nanoseconds.
const WRITTEN: u64 = 2_000_000;

/// The ring of a counter.
#[derive(Debug)]
pub(crate) struct LastWords {
    ring: PerfRing,
    at: u64,
    last: u64,
}

impl LastWords {
    pub(crate) fn of(counter: &Counter) -> io::Result<LastWords> {
        let mut order = ORDER;
        let ring = loop {
            match PerfRing::new(counter.again()?, page_size(), order) {
                Err(_) if order > 0 => order -= 1,
                ring => break ring?,
            }
        };
        Ok(LastWords {
            ring,
            at: 0,
            last: 0,
        })
    }

    /// Takes what was written before this time.
    pub(crate) fn take(&mut self, now: u64, mut each: impl FnMut(u64, Record)) {
        let until = now.saturating_sub(WRITTEN);
        loop {
            let mut bytes = [0; READ];
            self.ring.peek(self.at, &mut bytes);
            if let Some((size, time, record)) = whole(&bytes, self.last, until) {
                self.at += size as u64;
                self.last = self.last.max(time);
                each(time, record);
                continue;
            }
            match self.next(until) {
                Some(at) => self.at = at,
                None => break,
            }
        }
        self.ring.free(self.at);
    }

    /// Where the next record begins, behind something that is none.
    fn next(&self, until: u64) -> Option<u64> {
        let known = self
            .ring
            .head()
            .clamp(self.at, self.at + (page_size() << ORDER) as u64);
        let end = known.max(self.at + FAR);
        let is = |at: &u64| {
            let mut bytes = [0; READ];
            self.ring.peek(*at, &mut bytes[..8]);
            kind_and_size(&bytes).is_some() && {
                self.ring.peek(*at, &mut bytes);
                whole(&bytes, self.last, until).is_some()
            }
        };
        (self.at + 8..=end).step_by(8).find(is)
    }
}

impl AsFd for LastWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// The record at the beginning of these bytes with its size and time, if there is one.
fn whole(bytes: &[u8; READ], last: u64, until: u64) -> Option<(usize, u64, Record)> {
    let size = kind_and_size(bytes)?;
    let (time, record) = decode(&bytes[..size])?;
    (last.saturating_sub(JITTER)..until)
        .contains(&time)
        .then_some((size, time, record))
}

/// The size that a record's header says, if it is of one of the two kinds.
fn kind_and_size(bytes: &[u8; READ]) -> Option<usize> {
    let kind = u32::from_ne_bytes(*bytes.first_chunk()?);
    match (kind, usize::from(u16::from_ne_bytes([bytes[6], bytes[7]]))) {
        (sys::PERF_RECORD_READ, READ) => Some(READ),
        (sys::PERF_RECORD_LOST, LOST) => Some(LOST),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tid: u32, end: u32, time: u64) -> [u8; READ] {
        let mut bytes = [0; READ];
        bytes[0] = 8;
        bytes[6] = READ as u8;
        for (at, half) in [(8, 7), (12, tid), (16, 42), (48, 7), (52, end)] {
            bytes[at..at + 4].copy_from_slice(&half.to_ne_bytes());
        }
        bytes[56..].copy_from_slice(&time.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_record_is_whole_when_it_is_new_and_not_too_new() {
        const MS: u64 = 1_000_000;
        let is = |time| whole(&read(9, 9, time), 100 * MS, 200 * MS).is_some();
        assert!(is(150 * MS));
        // Two CPUs at once.
        assert!(is(99 * MS + 1));
        // From the round before, or not written to its end.
        assert!(!is(90 * MS));
        assert!(!is(0));
        // A moment ago.
        assert!(!is(200 * MS));
        assert!(whole(&read(9, 8, 150 * MS), 0, 200 * MS).is_none());
        assert!(whole(&[0; READ], 0, u64::MAX).is_none());
    }
}
