//! The kernel's records of tasks, which are its threads: fork, exec, exit, and the counts at exit.
//!
//! `perf_event_open(2)` describes the records. Each ends in `{ u32 pid, tid; u64 time; }`, which
//! [`counter`](crate::perf::counter) selects.

use byteorder::NativeEndian;
use linux_perf_event_reader::{
    CommOrExecRecord, ForkOrExitRecord, LostRecord, RawData, RecordType,
};
use perf_event_open_sys::bindings as sys;
use types::ids::{Pid, Tid};
use types::units::Nanos;

use crate::perf::reading::CounterValue;

/// A record of a followed thread. Process and thread ids are in kcollect's pid namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskRecord {
    /// A thread was created.
    Fork {
        /// Its process. The first thread of a process has the number of the process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The process of the thread that created it.
        parent_pid: Pid,
        /// The thread that created it.
        parent_tid: Tid,
    },
    /// A thread exits. Its counts follow.
    Exit {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// A process executed another program. Its only thread has the number of the process from now
    /// on.
    Exec {
        /// The process.
        pid: Pid,
        /// The name of the program, up to 15 bytes.
        name: Box<[u8]>,
    },
    /// The count of one of a thread's counters when it exited.
    ExitCount {
        /// The thread's process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The number of the counter from which it was inherited:
        /// [`OpenCounter::id`](crate::perf::counter::OpenCounter::id).
        id: u64,
        /// What the thread counted since it was followed.
        value: CounterValue,
    },
    /// Records that were lost because the ring was full.
    Lost {
        /// The number of records.
        records: u64,
    },
}

/// The size of a record's header.
const HEADER_BYTES: usize = 8;
/// The size of a record's `{ u32 pid, tid; u64 time; }`.
const TRAILER_BYTES: usize = 16;

/// Returns the records in bytes of a ring, headers included. The last one is before an impossible
/// length.
pub(crate) fn split_records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let size = usize::from(u16::from_ne_bytes([*bytes.get(6)?, *bytes.get(7)?]));
        let record = bytes
            .get(..size)
            .filter(|record| record.len() >= HEADER_BYTES)?;
        bytes = &bytes[size..];
        Some(record)
    })
}

/// Returns the u64 at a byte offset of a record.
pub(crate) fn u64_at(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

/// Returns the u32 at a byte offset of a record.
pub(crate) fn u32_at(record: &[u8], at: usize) -> Option<u32> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// Decodes a record. Returns its time, CLOCK_MONOTONIC, and the record. None: another
/// kind of record, or a damaged one.
pub(crate) fn decode(record: &[u8]) -> Option<(Nanos, TaskRecord)> {
    let kind = RecordType(u32_at(record, 0)?);
    let body = record.get(HEADER_BYTES..record.len().checked_sub(TRAILER_BYTES)?)?;
    let time_ns = Nanos(u64_at(record, record.len() - 8)?);
    let raw = RawData::Single(body);
    let decoded = match kind {
        RecordType::FORK => {
            let fork = ForkOrExitRecord::parse::<NativeEndian>(raw).ok()?;
            TaskRecord::Fork {
                pid: Pid(id(fork.pid)?),
                tid: Tid(id(fork.tid)?),
                parent_pid: Pid(id(fork.ppid)?),
                parent_tid: Tid(id(fork.ptid)?),
            }
        }
        RecordType::EXIT => {
            let exit = ForkOrExitRecord::parse::<NativeEndian>(raw).ok()?;
            TaskRecord::Exit {
                pid: Pid(id(exit.pid)?),
                tid: Tid(id(exit.tid)?),
            }
        }
        RecordType::COMM => {
            let misc = (u32_at(record, 4)? & 0xffff) as u16;
            let comm = CommOrExecRecord::parse::<NativeEndian>(raw, misc).ok()?;
            // Threads also rename themselves.
            comm.is_execve.then_some(())?;
            TaskRecord::Exec {
                pid: Pid(id(comm.pid)?),
                name: comm.name.as_slice().into(),
            }
        }
        // The trailer has the same thread, or two records were written over each other.
        RecordType(sys::PERF_RECORD_READ)
            if u64_at(body, 0)? != u64_at(record, record.len() - 16)? =>
        {
            return None;
        }
        RecordType(sys::PERF_RECORD_READ) => TaskRecord::ExitCount {
            pid: Pid(u32_at(body, 0)?),
            tid: Tid(u32_at(body, 4)?),
            value: CounterValue {
                count: u64_at(body, 8)?,
                enabled_ns: Nanos(u64_at(body, 16)?),
                running_ns: Nanos(u64_at(body, 24)?),
            },
            id: u64_at(body, 32)?,
        },
        RecordType::LOST => TaskRecord::Lost {
            records: LostRecord::parse::<NativeEndian>(raw).ok()?.count,
        },
        _ => return None,
    };
    Some((time_ns, decoded))
}

fn id(number: i32) -> Option<u32> {
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((HEADER_BYTES + body.len() + TRAILER_BYTES) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes.extend(body.first_chunk::<8>().unwrap_or(&[0; 8]));
        bytes.extend(42_u64.to_ne_bytes());
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn pair(low: u64, high: u64) -> u64 {
        low | high << 32
    }

    #[test]
    fn records_of_a_thread_are_decoded() {
        let fork = record(7, 0, &words(&[pair(9, 7), pair(9, 8), 41]));
        let expected = TaskRecord::Fork {
            pid: Pid(9),
            tid: Tid(9),
            parent_pid: Pid(7),
            parent_tid: Tid(8),
        };
        assert_eq!(decode(&fork), Some((Nanos(42), expected)));
        let mut name = words(&[pair(9, 9)]);
        name.extend(b"true\0\0\0\0");
        let exec = TaskRecord::Exec {
            pid: Pid(9),
            name: (*b"true").into(),
        };
        assert_eq!(decode(&record(3, 1 << 13, &name)), Some((Nanos(42), exec)));
        assert_eq!(decode(&record(3, 0, &name)), None);
        let exit = record(4, 0, &words(&[pair(9, 7), pair(9, 8), 41]));
        assert_eq!(
            decode(&exit),
            Some((
                Nanos(42),
                TaskRecord::Exit {
                    pid: Pid(9),
                    tid: Tid(9)
                }
            ))
        );
        let read = record(8, 0, &words(&[pair(9, 10), 1 << 40, 6, 5, 3]));
        let expected = TaskRecord::ExitCount {
            pid: Pid(9),
            tid: Tid(10),
            id: 3,
            value: CounterValue {
                count: 1 << 40,
                enabled_ns: Nanos(6),
                running_ns: Nanos(5),
            },
        };
        assert_eq!(decode(&read), Some((Nanos(42), expected)));
        let mut garbled = record(8, 0, &words(&[pair(9, 10), 1 << 40, 6, 5, 3]));
        let trailer = garbled.len() - 12;
        garbled[trailer] = 11;
        assert_eq!(decode(&garbled), None);
        let lost = record(2, 0, &words(&[1, 5]));
        assert_eq!(
            decode(&lost),
            Some((Nanos(42), TaskRecord::Lost { records: 5 }))
        );
    }

    #[test]
    fn splitting_ends_at_bytes_that_are_no_records() {
        assert_eq!(split_records(&[0; 64]).count(), 0);
        assert_eq!(split_records(&[9; 5]).count(), 0);
        assert_eq!(split_records(&[0xff; 64]).count(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0_u32..20) {
            let _ = decode(&bytes);
            let _ = decode(&record(kind, 0, &bytes));
        }
    }
}
