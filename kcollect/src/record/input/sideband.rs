//! The perf side-band: the kernel's records of processes and of kernel code, each with the time of
//! its event.
//!
//! There is one ring for each CPU. It is opened before the snapshot is taken, so that no event
//! between the two is missed. The kernel counts lost records, which are an event like the others.

use std::io;
use std::sync::Arc;

use byteorder::NativeEndian;
use counters::perf::cpu_events::open_sideband;
use counters::perf::ring::PerfRing;
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use linux_perf_event_reader::{
    CommOrExecRecord, ForkOrExitRecord, LostRecord, Mmap2FileId, Mmap2Record, RawData, RecordType,
};
use user_collector::space::{FileIdentity, MappedFile, Mapping};

/// Base-2 logarithm of the data pages of a ring: 512 KiB of 4 KiB pages, some 500 exec'd processes.
const RING_PAGES_LOG2: u32 = 7;

/// Bytes of a record's header: its type, flags and size.
const HEADER_BYTES: usize = 8;

/// A record of the side-band. Process numbers are in the initial pid namespace, if kcollect runs in
/// that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SidebandEvent {
    /// Process `parent` started process `pid`.
    Fork {
        /// The new process.
        pid: Pid,
        /// The process that forked.
        parent: Pid,
    },
    /// A thread exited.
    Exit {
        /// Its process.
        pid: Pid,
        /// Whether it is the process's leading thread. Others may continue.
        leader: bool,
    },
    /// A process's leading thread was named.
    Comm {
        /// The process.
        pid: Pid,
        /// The new name, bytes.
        name: Box<[u8]>,
        /// Whether exec set the name, not `prctl`.
        exec: bool,
    },
    /// A process mapped a file or memory as executable, or made an existing mapping executable.
    Map {
        /// The process.
        pid: Pid,
        /// The address range and the file.
        mapping: Mapping,
    },
    /// Kernel code was loaded or unloaded: a BPF program or a trampoline.
    KernelCode {
        /// First address.
        address: u64,
        /// Size in bytes.
        size: u32,
        /// Its name.
        name: Box<[u8]>,
        /// Whether it was unloaded.
        gone: bool,
    },
    /// Records are missing here, since the ring was full.
    Lost {
        /// Number of lost records.
        records: u64,
    },
    /// A record that is not used, such as a thread's start or name.
    Other,
}

/// Opens the side-band of a CPU, which has the events from this instant on. `page` is the machine's
/// page size in bytes. The ring's descriptor becomes readable when the ring is a quarter full.
///
/// # Errors
/// As `perf_event_open(2)` and `mmap(2)`.
pub(crate) fn listen(cpu: u32, page: usize) -> io::Result<PerfRing> {
    let size = page << RING_PAGES_LOG2;
    let event = open_sideband(cpu, (size / 4) as u32)?;
    PerfRing::new(event, page, RING_PAGES_LOG2)
}

/// Splits bytes of rings into records and calls `each` with every record and its time. A record
/// that is cut short or malformed counts as a lost one.
pub fn records(mut bytes: &[u8], mut each: impl FnMut(Nanos, SidebandEvent)) {
    let mut last = Nanos::ZERO;
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
        if size < HEADER_BYTES || size > bytes.len() {
            return;
        }
        bytes = &bytes[size..];
    }
}

/// Returns the time and event of a record: a header, a body, and the time in the last eight bytes.
fn decode(record: &[u8]) -> Option<(Nanos, SidebandEvent)> {
    let (head, rest) = record.split_first_chunk::<HEADER_BYTES>()?;
    let (body, time) = rest.split_last_chunk::<8>()?;
    let kind = RecordType(u32::from_ne_bytes([head[0], head[1], head[2], head[3]]));
    let misc = u16::from_ne_bytes([head[4], head[5]]);
    let event = match kind {
        RecordType::FORK => fork(body)?,
        RecordType::EXIT => exit(body)?,
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
    Some((Nanos(u64::from_ne_bytes(*time)), event))
}

fn fork(body: &[u8]) -> Option<SidebandEvent> {
    let record = ForkOrExitRecord::parse::<NativeEndian>(RawData::Single(body)).ok()?;
    if record.pid != record.tid {
        return Some(SidebandEvent::Other);
    }
    Some(SidebandEvent::Fork {
        pid: number(record.pid)?,
        parent: number(record.ppid).unwrap_or_default(),
    })
}

fn exit(body: &[u8]) -> Option<SidebandEvent> {
    let record = ForkOrExitRecord::parse::<NativeEndian>(RawData::Single(body)).ok()?;
    Some(SidebandEvent::Exit {
        pid: number(record.pid)?,
        leader: record.pid == record.tid,
    })
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
    /// Offset of the build id's length in the body. It is checked here: the crate panics on a
    /// length above the maximum, but such a record should count as lost.
    const BUILD_ID_LENGTH_OFFSET: usize = 32;
    const MAX_BUILD_ID_BYTES: u8 = 20;
    const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
    if misc & MISC_MMAP_BUILD_ID != 0 && *body.get(BUILD_ID_LENGTH_OFFSET)? > MAX_BUILD_ID_BYTES {
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

/// Returns the time and event of a ksymbol record,
/// `struct { u64 addr; u32 len; u16 ksym_type; u16 flags; char name[]; }`. Flag 1 is "unregister".
/// The name is padded to eight bytes, and the time follows it.
///
/// The time may not be in the last eight bytes: if several side-bands are open on one CPU, the
/// kernel (`perf_event_ksymbol_output`) increases the record's size from one to the next, so that
/// later ones have zeros after the time.
fn kernel_code(rest: &[u8]) -> Option<(Nanos, SidebandEvent)> {
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
    Some((Nanos(u64::from_ne_bytes(*time)), event))
}

fn number(pid: i32) -> Option<Pid> {
    u32::try_from(pid).ok().map(Pid)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8], time_ns: Nanos) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((HEADER_BYTES + body.len() + 8) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes.extend(time_ns.0.to_ne_bytes());
        bytes
    }

    fn halves(halves: &[u32]) -> Vec<u8> {
        halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
    }

    fn all(bytes: &[u8]) -> Vec<(Nanos, SidebandEvent)> {
        let mut events = Vec::new();
        records(bytes, |time, event| events.push((time, event)));
        events
    }

    #[test]
    fn a_process_is_reported_from_fork_to_exit() {
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
            record(7, 0, &fork, Nanos(10)),
            record(3, 1 << 13, &comm, Nanos(11)),
            record(10, 1 << 14, &map, Nanos(12)),
            record(4, 0, &fork, Nanos(13)),
        ]
        .concat();
        assert_eq!(
            all(&bytes),
            [
                (
                    Nanos(10),
                    SidebandEvent::Fork {
                        pid: Pid(9),
                        parent: Pid(7)
                    }
                ),
                (
                    Nanos(11),
                    SidebandEvent::Comm {
                        pid: Pid(9),
                        name: (*b"true").into(),
                        exec: true
                    }
                ),
                (
                    Nanos(12),
                    SidebandEvent::Map {
                        pid: Pid(9),
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
                (
                    Nanos(13),
                    SidebandEvent::Exit {
                        pid: Pid(9),
                        leader: true
                    }
                ),
            ]
        );
    }

    #[test]
    fn threads_are_not_processes() {
        let fork = [halves(&[9, 9, 10, 9]), 5_u64.to_ne_bytes().to_vec()].concat();
        assert_eq!(
            all(&record(7, 0, &fork, Nanos(10))),
            [(Nanos(10), SidebandEvent::Other)]
        );
    }

    #[test]
    fn kernel_code_is_loaded_and_unloaded() {
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
        assert_eq!(
            all(&record(17, 0, &body(0), Nanos(1))),
            [(Nanos(1), event(false))]
        );
        assert_eq!(
            all(&record(17, 0, &body(1), Nanos(2))),
            [(Nanos(2), event(true))]
        );

        // The record of the second side-band on a CPU.
        let time = 3_u64.to_ne_bytes().to_vec();
        assert_eq!(
            all(&record(17, 0, &[body(0), time].concat(), Nanos::ZERO)),
            [(Nanos(3), event(false))]
        );
    }

    #[test]
    fn losses_are_events() {
        let lost = [1_u64.to_ne_bytes(), 17_u64.to_ne_bytes()].concat();
        assert_eq!(
            all(&record(2, 0, &lost, Nanos(3))),
            [(Nanos(3), SidebandEvent::Lost { records: 17 })]
        );
    }

    #[test]
    fn a_build_id_longer_than_the_kernel_can_write_is_refused() {
        let mut body = vec![0; 80];
        body[32] = 21;
        assert_eq!(
            all(&record(10, 1 << 14, &body, Nanos(3))),
            [(Nanos::ZERO, SidebandEvent::Lost { records: 1 })]
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
            prop_assert_eq!(all(&record(kind, misc, &body, Nanos(1))).len(), 1);
        }
    }
}
