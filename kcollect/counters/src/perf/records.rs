//! What the kernel tells of threads that are followed: births, execs, ends, and what each has
//! counted when it ends.
//!
//! The records are those of `perf_event_open(2)`. Each ends in `{ u32 pid, tid; u64 time; }`, as
//! [`told`](crate::perf::counter) asks for.

use byteorder::NativeEndian;
use linux_perf_event_reader::{
    CommOrExecRecord, ForkOrExitRecord, LostRecord, RawData, RecordType,
};
use perf_event_open_sys::bindings as sys;

use crate::perf::overflow::{half, word};
use crate::perf::reading::Value;

/// Process and thread ids are those of the pid namespace that kcollect lives in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A thread was made.
    Fork {
        /// Its process: its own id, of the first thread of a new process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The process that it comes from.
        parent_pid: u32,
        /// The thread that it comes from.
        parent_tid: u32,
    },
    /// A thread ends. What it has counted follows.
    Exit {
        /// Its process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// A process began another program. Its only thread has the process's id from now on.
    Exec {
        /// The process.
        pid: u32,
        /// The program's name, up to 15 bytes.
        name: Box<[u8]>,
    },
    /// The last word of one of a thread's counters.
    Read {
        /// The thread's process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The counter from which it was inherited, as
        /// [`Counter::id`](crate::perf::counter::Counter::id).
        id: u64,
        /// What the thread counted in its life, or since it was followed.
        value: Value,
    },
    /// So many records found no room.
    Lost {
        /// How many.
        records: u64,
    },
}

const HEADER: usize = 8;
const TRAILER: usize = 16;

/// A record with its time, CLOCK_MONOTONIC nanoseconds. None of one that says nothing here.
pub(crate) fn decode(record: &[u8]) -> Option<(u64, Record)> {
    let kind = RecordType(half(record, 0)?);
    let body = record.get(HEADER..record.len().checked_sub(TRAILER)?)?;
    let time = word(record, record.len() - 8)?;
    let raw = RawData::Single(body);
    let decoded = match kind {
        RecordType::FORK => {
            let fork = ForkOrExitRecord::parse::<NativeEndian>(raw).ok()?;
            Record::Fork {
                pid: id(fork.pid)?,
                tid: id(fork.tid)?,
                parent_pid: id(fork.ppid)?,
                parent_tid: id(fork.ptid)?,
            }
        }
        RecordType::EXIT => {
            let exit = ForkOrExitRecord::parse::<NativeEndian>(raw).ok()?;
            Record::Exit {
                pid: id(exit.pid)?,
                tid: id(exit.tid)?,
            }
        }
        RecordType::COMM => {
            let misc = (half(record, 4)? & 0xffff) as u16;
            let comm = CommOrExecRecord::parse::<NativeEndian>(raw, misc).ok()?;
            // A thread that names itself is not news.
            comm.is_execve.then_some(())?;
            Record::Exec {
                pid: id(comm.pid)?,
                name: comm.name.as_slice().into(),
            }
        }
        // The same thread stands at its end: if not, it is two records, written over each other.
        RecordType(sys::PERF_RECORD_READ) if word(body, 0)? != word(record, record.len() - 16)? => {
            return None;
        }
        RecordType(sys::PERF_RECORD_READ) => Record::Read {
            pid: half(body, 0)?,
            tid: half(body, 4)?,
            value: Value {
                count: word(body, 8)?,
                enabled_ns: word(body, 16)?,
                running_ns: word(body, 24)?,
            },
            id: word(body, 32)?,
        },
        RecordType::LOST => Record::Lost {
            records: LostRecord::parse::<NativeEndian>(raw).ok()?.count,
        },
        _ => return None,
    };
    Some((time, decoded))
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
        bytes.extend(((HEADER + body.len() + TRAILER) as u16).to_ne_bytes());
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
    fn a_life_is_told_whole() {
        let fork = record(7, 0, &words(&[pair(9, 7), pair(9, 8), 41]));
        let told = Record::Fork {
            pid: 9,
            tid: 9,
            parent_pid: 7,
            parent_tid: 8,
        };
        assert_eq!(decode(&fork), Some((42, told)));
        let mut name = words(&[pair(9, 9)]);
        name.extend(b"true\0\0\0\0");
        let exec = Record::Exec {
            pid: 9,
            name: (*b"true").into(),
        };
        assert_eq!(decode(&record(3, 1 << 13, &name)), Some((42, exec)));
        assert_eq!(decode(&record(3, 0, &name)), None);
        let exit = record(4, 0, &words(&[pair(9, 7), pair(9, 8), 41]));
        assert_eq!(decode(&exit), Some((42, Record::Exit { pid: 9, tid: 9 })));
        let read = record(8, 0, &words(&[pair(9, 10), 1 << 40, 6, 5, 3]));
        let told = Record::Read {
            pid: 9,
            tid: 10,
            id: 3,
            value: Value {
                count: 1 << 40,
                enabled_ns: 6,
                running_ns: 5,
            },
        };
        assert_eq!(decode(&read), Some((42, told)));
        let mut garbled = record(8, 0, &words(&[pair(9, 10), 1 << 40, 6, 5, 3]));
        let trailer = garbled.len() - 12;
        garbled[trailer] = 11;
        assert_eq!(decode(&garbled), None);
        let lost = record(2, 0, &words(&[1, 5]));
        assert_eq!(decode(&lost), Some((42, Record::Lost { records: 5 })));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0_u32..20) {
            let _ = decode(&bytes);
            let _ = decode(&record(kind, 0, &bytes));
        }
    }
}
