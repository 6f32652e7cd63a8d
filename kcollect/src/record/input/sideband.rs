//! The perf side-band: what happened to processes and to kernel code, told by the kernel itself as
//! it happens, with the time of each event.
//!
//! One ring for each CPU. It is opened before anything else is looked at, so that nothing falls
//! between the snapshot of what exists and the events. A lost record is counted by the kernel and
//! reported here as an event like the others.

use std::io;
use std::sync::Arc;

use byteorder::NativeEndian;
use counters::perf::event::open_sideband;
use counters::perf::ring::PerfRing;
use linux_perf_event_reader::{
    CommOrExecRecord, ForkOrExitRecord, LostRecord, Mmap2FileId, Mmap2Record, RawData, RecordType,
};
use user_collector::space::{FileIdentity, MappedFile, Mapping};

/// Data pages of a ring, as a power of two: 512 KiB of 4 KiB pages, some 500 exec'd processes.
const ORDER: u32 = 7;

const HEADER: usize = 8;

/// One record of the side-band. Process numbers are those of the initial pid namespace, as long as
/// kcollect itself lives there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SidebandEvent {
    /// `parent` made process `pid`.
    Fork {
        /// The new process.
        pid: u32,
        /// The one that forked.
        parent: u32,
    },
    /// A process's leading thread exited.
    Exit {
        /// The process.
        pid: u32,
    },
    /// A process's leading thread was named.
    Comm {
        /// The process.
        pid: u32,
        /// The new name, bytes.
        name: Box<[u8]>,
        /// By exec, not by `prctl`.
        exec: bool,
    },
    /// A process mapped something for execution, or made what it had mapped executable.
    Map {
        /// The process.
        pid: u32,
        /// Where, and what.
        mapping: Mapping,
    },
    /// Kernel code came or went: a BPF program, a trampoline.
    KernelCode {
        /// First address.
        address: u64,
        /// Bytes.
        size: u32,
        /// Its name.
        name: Box<[u8]>,
        /// It went.
        gone: bool,
    },
    /// The ring was full: so many records are missing here.
    Lost {
        /// How many.
        records: u64,
    },
    /// A record that says nothing we use: a thread's start, end or name.
    Other,
}

/// Begins listening on a CPU, from this instant. `page` is the machine's page size in bytes. The
/// ring's descriptor becomes readable when it is a quarter full.
///
/// # Errors
/// What `perf_event_open(2)` or `mmap(2)` says.
pub(crate) fn listen(cpu: u32, page: usize) -> io::Result<PerfRing> {
    let size = page << ORDER;
    let event = open_sideband(cpu, (size / 4) as u32)?;
    PerfRing::new(event, page, ORDER)
}

/// Splits bytes of rings into records, each with its time. What is left of a record cut short
/// counts as a lost one.
pub fn records(mut bytes: &[u8], mut each: impl FnMut(u64, SidebandEvent)) {
    let mut last = 0;
    while !bytes.is_empty() {
        let size = bytes.get(6..8).map_or(0, |size| {
            usize::from(u16::from_ne_bytes([size[0], size[1]]))
        });
        let decoded = bytes.get(..size).and_then(decode);
        match decoded {
            Some((time, event)) => {
                last = time;
                each(time, event);
            }
            None => each(last, SidebandEvent::Lost { records: 1 }),
        }
        if size < HEADER || size > bytes.len() {
            return;
        }
        bytes = &bytes[size..];
    }
}

/// One record: header, body, and the time of the event in the last eight bytes.
fn decode(record: &[u8]) -> Option<(u64, SidebandEvent)> {
    let (head, rest) = record.split_first_chunk::<HEADER>()?;
    let (body, time) = rest.split_last_chunk::<8>()?;
    let kind = RecordType(u32::from_ne_bytes([head[0], head[1], head[2], head[3]]));
    let misc = u16::from_ne_bytes([head[4], head[5]]);
    let event = match kind {
        RecordType::FORK => fork_or_exit(body, |pid, parent| SidebandEvent::Fork { pid, parent })?,
        RecordType::EXIT => fork_or_exit(body, |pid, _| SidebandEvent::Exit { pid })?,
        RecordType::COMM => comm(body, misc)?,
        RecordType::MMAP2 => map(body, misc)?,
        RecordType::KSYMBOL => return kernel_code(rest),
        RecordType::LOST => SidebandEvent::Lost {
            records: LostRecord::parse::<NativeEndian>(RawData::Single(body))
                .ok()?
                .count,
        },
        _ => SidebandEvent::Other,
    };
    Some((u64::from_ne_bytes(*time), event))
}

fn fork_or_exit(
    body: &[u8],
    event: impl FnOnce(u32, u32) -> SidebandEvent,
) -> Option<SidebandEvent> {
    let record = ForkOrExitRecord::parse::<NativeEndian>(RawData::Single(body)).ok()?;
    if record.pid != record.tid {
        return Some(SidebandEvent::Other);
    }
    Some(event(
        number(record.pid)?,
        u32::try_from(record.ppid).unwrap_or(0),
    ))
}

fn comm(body: &[u8], misc: u16) -> Option<SidebandEvent> {
    let record = CommOrExecRecord::parse::<NativeEndian>(RawData::Single(body), misc).ok()?;
    if record.pid != record.tid {
        return Some(SidebandEvent::Other);
    }
    Some(SidebandEvent::Comm {
        pid: number(record.pid)?,
        name: record.name.as_slice().into(),
        exec: record.is_execve,
    })
}

fn map(body: &[u8], misc: u16) -> Option<SidebandEvent> {
    /// Where the length of the build id stands; the crate takes a longer one than 20 for a mistake
    /// in the program, we for one in the record.
    const BUILD_ID_LENGTH: usize = 32;
    const LONGEST_BUILD_ID: u8 = 20;
    const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
    if misc & MISC_MMAP_BUILD_ID != 0 && *body.get(BUILD_ID_LENGTH)? > LONGEST_BUILD_ID {
        return None;
    }
    let record = Mmap2Record::parse::<NativeEndian>(RawData::Single(body), misc).ok()?;
    let (build_id, identity) = match record.file_id {
        Mmap2FileId::BuildId(id) => (id.into(), FileIdentity::default()),
        Mmap2FileId::InodeAndVersion(file) => {
            let identity = FileIdentity {
                device: libc::makedev(file.major, file.minor),
                inode: file.inode,
                generation: file.inode_generation,
            };
            (Box::default(), identity)
        }
    };
    Some(SidebandEvent::Map {
        pid: number(record.pid)?,
        mapping: Mapping {
            start: record.address,
            end: record.address.saturating_add(record.length),
            offset: record.page_offset,
            file: Arc::new(MappedFile {
                path: record.path.as_slice().into(),
                build_id,
                identity,
            }),
        },
    })
}

/// `struct { u64 addr; u32 len; u16 ksym_type; u16 flags; char name[]; }`, of which flag 1 is
/// "unregister", the name padded to eight bytes, and then the time.
///
/// The time is not in the last eight bytes: where several side-bands listen on one CPU, the kernel
/// (`perf_event_ksymbol_output`) lets the record's size grow from one listener to the next, so
/// later ones get zeros behind it.
fn kernel_code(rest: &[u8]) -> Option<(u64, SidebandEvent)> {
    let (address, rest) = rest.split_first_chunk::<8>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<2>()?;
    let (flags, rest) = rest.split_first_chunk::<2>()?;
    let length = rest.iter().position(|byte| *byte == 0)?;
    let time = rest
        .get((length + 1).next_multiple_of(8)..)?
        .first_chunk()?;
    let event = SidebandEvent::KernelCode {
        address: u64::from_ne_bytes(*address),
        size: u32::from_ne_bytes(*size),
        name: rest[..length].into(),
        gone: u16::from_ne_bytes(*flags) & 1 != 0,
    };
    Some((u64::from_ne_bytes(*time), event))
}

fn number(pid: i32) -> Option<u32> {
    u32::try_from(pid).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((HEADER + body.len() + 8) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes.extend(time.to_ne_bytes());
        bytes
    }

    fn halves(halves: &[u32]) -> Vec<u8> {
        halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
    }

    fn all(bytes: &[u8]) -> Vec<(u64, SidebandEvent)> {
        let mut events = Vec::new();
        records(bytes, |time, event| events.push((time, event)));
        events
    }

    #[test]
    fn a_short_life_is_told_whole() {
        let fork = [halves(&[9, 7, 9, 7]), 5_u64.to_ne_bytes().to_vec()].concat();
        let comm = [halves(&[9, 9]), b"true\0\0\0\0".to_vec()].concat();
        let map = [
            halves(&[9, 9]),
            [0x5555_0000_u64, 0x1000, 0]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect(),
            vec![20, 0, 0, 0],
            vec![0xab; 20],
            halves(&[5, 2]),
            b"/bin/true\0\0\0\0\0\0\0".to_vec(),
        ]
        .concat();
        let bytes = [
            record(7, 0, &fork, 10),
            record(3, 1 << 13, &comm, 11),
            record(10, 1 << 14, &map, 12),
            record(4, 0, &fork, 13),
        ]
        .concat();
        assert_eq!(
            all(&bytes),
            [
                (10, SidebandEvent::Fork { pid: 9, parent: 7 }),
                (
                    11,
                    SidebandEvent::Comm {
                        pid: 9,
                        name: (*b"true").into(),
                        exec: true
                    }
                ),
                (
                    12,
                    SidebandEvent::Map {
                        pid: 9,
                        mapping: Mapping {
                            start: 0x5555_0000,
                            end: 0x5555_1000,
                            offset: 0,
                            file: Arc::new(MappedFile {
                                path: (*b"/bin/true").into(),
                                build_id: [0xab; 20].into(),
                                identity: FileIdentity::default(),
                            }),
                        }
                    }
                ),
                (13, SidebandEvent::Exit { pid: 9 }),
            ]
        );
    }

    #[test]
    fn threads_are_not_processes() {
        let fork = [halves(&[9, 9, 10, 9]), 5_u64.to_ne_bytes().to_vec()].concat();
        assert_eq!(all(&record(7, 0, &fork, 10)), [(10, SidebandEvent::Other)]);
    }

    #[test]
    fn kernel_code_comes_and_goes() {
        let body = |flags: u16| {
            [
                0xffff_ffff_c000_0000_u64.to_ne_bytes().to_vec(),
                256_u32.to_ne_bytes().to_vec(),
                1_u16.to_ne_bytes().to_vec(),
                flags.to_ne_bytes().to_vec(),
                b"bpf_prog_1_tick\0".to_vec(),
            ]
            .concat()
        };
        let event = |gone| SidebandEvent::KernelCode {
            address: 0xffff_ffff_c000_0000,
            size: 256,
            name: (*b"bpf_prog_1_tick").into(),
            gone,
        };
        assert_eq!(all(&record(17, 0, &body(0), 1)), [(1, event(false))]);
        assert_eq!(all(&record(17, 0, &body(1), 2)), [(2, event(true))]);

        // As the second listener on a CPU gets it.
        let time = 3_u64.to_ne_bytes().to_vec();
        assert_eq!(
            all(&record(17, 0, &[body(0), time].concat(), 0)),
            [(3, event(false))]
        );
    }

    #[test]
    fn losses_are_events() {
        let lost = [1_u64.to_ne_bytes(), 17_u64.to_ne_bytes()].concat();
        assert_eq!(
            all(&record(2, 0, &lost, 3)),
            [(3, SidebandEvent::Lost { records: 17 })]
        );
    }

    #[test]
    fn a_build_id_longer_than_the_kernel_can_write_is_refused() {
        let mut body = vec![0; 80];
        body[32] = 21;
        assert_eq!(
            all(&record(10, 1 << 14, &body, 3)),
            [(0, SidebandEvent::Lost { records: 1 })]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            all(&bytes);
        }

        #[test]
        fn any_body_is_decoded_or_counted(
            kind in 0_u32..24, misc: u16, body in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            prop_assert_eq!(all(&record(kind, misc, &body, 1)).len(), 1);
        }
    }
}
