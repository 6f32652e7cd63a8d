//! The packet of a system call that reads, writes, opens, closes or does something else to a file.
//!
//! It is in a file of its own, `iotrace`, and begins with the same fields as clock packets. One
//! packet is one call. A reader learns the names of files from the packets that open them, in the
//! order of time, descriptor by descriptor; so a descriptor that was open before the first packet
//! is named by a packet of its own, which stands for no call and takes no time. The number of the
//! system call is in a field of our own, `IOCALL`.

use std::sync::Arc;

use crate::Result;
use crate::ids::{Pid, StackUid, Tid};
use crate::log::ProfileDecl;
use crate::packet::spec::{FieldSpec, PacketSpec, field};
use crate::packet::{FieldType, IO, PacketLayout, SharedFields, Value};
use crate::units::Nanos;

/// The file of these packets, and the name of their table.
pub(crate) const FILE: &str = "iotrace";
/// The size of a packet without a name.
const BYTES: usize = 64;
/// Added to the type of a call that failed.
const FAILED: i32 = 5;
/// The longest name that is written; Linux has no longer paths.
const MAX_NAME: usize = 4096;
/// The `IOCALL` of a packet that stands for no call.
const NO_CALL: i32 = -1;
/// The number of a file system that the format has no number for.
const OTHER_FILE_SYSTEM: u64 = 24;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoKind {
    /// It reads or receives.
    Read,
    /// It writes or sends.
    Write,
    /// It makes a descriptor.
    Open,
    /// It closes a descriptor.
    Close,
    /// Something else.
    Other,
}

impl IoKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [IoKind; 5] = [
        IoKind::Read,
        IoKind::Write,
        IoKind::Open,
        IoKind::Close,
        IoKind::Other,
    ];
}

/// An operation of a call, from its request to its end, or the name of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoOperation {
    /// The time of the request, by the clock of [`crate::log::StartTime::tstamp_ns`]; 0 if
    /// it is not known.
    pub requested_ns: Nanos,
    /// The time of its end, by the same clock.
    pub ended_ns: Nanos,
    /// Its kind.
    pub kind: IoKind,
    /// Whether it failed.
    pub failed: bool,
    /// The descriptor; −1: none.
    pub descriptor: i32,
    /// The number of bytes that it moved.
    pub bytes: u64,
    /// The descriptor that was duplicated, if it made a duplicate.
    pub duplicated: Option<i32>,
    /// The number of the system call; None if this is no call, and only names a descriptor.
    pub call: Option<u32>,
    /// The name of the descriptor that it opens.
    pub name: Option<Arc<[u8]>>,
}

/// An operation of a thread, with a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoEvent {
    /// The CPU on which it ended.
    pub cpu: u32,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub pid: Pid,
    /// The operation.
    pub operation: IoOperation,
}

/// A call that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoRecord {
    /// What all packets begin with.
    pub shared: SharedFields,
    /// The time of the request, by the same clock as its end and not after it; the end if it is
    /// not known.
    pub requested_ns: Nanos,
    /// Its kind.
    pub kind: IoKind,
    /// Whether it failed.
    pub failed: bool,
    /// The descriptor; −1: none.
    pub descriptor: i32,
    /// The number of bytes that it moved; 0 if it failed.
    pub bytes: u64,
    /// The descriptor that was duplicated, if it made a duplicate.
    pub duplicated: Option<i32>,
    /// The number of the system call, if the packet has it.
    pub call: Option<u32>,
    /// Whether the packet stands for no call, and only names a descriptor.
    pub names_only: bool,
    /// The name of the descriptor that it opens, if the packet has it.
    pub name: Option<Box<[u8]>>,
}

const SPEC: PacketSpec<0> = PacketSpec::new(IO, "I/O tracing data", []);
const KIND: FieldSpec = field("IOTYPE", "I/O type", FieldType::Int32, 28);
const DESCRIPTOR: FieldSpec = field("IOFD", "File descriptor", FieldType::Int32, 32);
const MOVED: FieldSpec = field("IONBYTE", "Number of bytes", FieldType::Int64, 40);
const REQUEST: FieldSpec = field("IORQST", "I/O start time", FieldType::Int64, 48);
const DUPLICATED: FieldSpec = field("IOOFD", "Original file descriptor", FieldType::Int32, 36);
const FILE_SYSTEM: FieldSpec = field("IOFSTYPE", "File system type", FieldType::Int32, 56);
const CALL: FieldSpec = field("IOCALL", "System call", FieldType::Int32, 60);
const NAME: FieldSpec = field("IOFNAME", "File name", FieldType::String, BYTES as u32);
const FIELDS: [FieldSpec; 8] = [
    KIND,
    DESCRIPTOR,
    MOVED,
    REQUEST,
    DUPLICATED,
    FILE_SYSTEM,
    CALL,
    NAME,
];

impl IoEvent {
    /// The declaration of the table of calls in the header.
    pub fn table() -> ProfileDecl {
        ProfileDecl::Other {
            name: FILE.to_owned(),
            attributes: Vec::new(),
            packets: vec![SPEC.declaration(&FIELDS)],
        }
    }

    /// Whether a table is the table of calls.
    pub fn is_table(profile: &ProfileDecl) -> bool {
        matches!(profile, ProfileDecl::Other { name, .. } if name == FILE)
    }

    /// Returns the packet as it is in `iotrace`. A name is cut at a NUL, and after 4096 bytes.
    ///
    /// # Errors
    ///
    /// A time that is too large for the fields, which gprofng reads as signed.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let ids = [self.cpu, self.tid.0, self.pid.0];
        let operation = &self.operation;
        let packet: [u8; BYTES] = SPEC.encode(operation.ended_ns, self.stack, ids, [])?;
        let mut packet = packet.to_vec();
        let kind = operation.kind as i32 + if operation.failed { FAILED } else { 0 };
        let signed = |value: i64| value.cast_unsigned();
        let call = operation.call.map_or(NO_CALL, u32::cast_signed);
        // A request is not after the end, which fits.
        REQUEST.put(
            &mut packet,
            operation.requested_ns.min(operation.ended_ns).0,
        );
        KIND.put(&mut packet, signed(kind.into()));
        DESCRIPTOR.put(&mut packet, signed(operation.descriptor.into()));
        MOVED.put(&mut packet, operation.bytes.min(i64::MAX.cast_unsigned()));
        let duplicated = operation.duplicated.unwrap_or_default();
        DUPLICATED.put(&mut packet, signed(duplicated.into()));
        FILE_SYSTEM.put(&mut packet, OTHER_FILE_SYSTEM);
        CALL.put(&mut packet, signed(call.into()));
        if let Some(name) = &operation.name {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            packet.extend(&name[..name.len().min(MAX_NAME)]);
            packet.push(0);
            packet.resize(packet.len().next_multiple_of(8), 0);
            let size = u16::try_from(packet.len()).unwrap_or(u16::MAX);
            packet[..2].copy_from_slice(&size.to_le_bytes());
        }
        Ok(packet)
    }
}

impl PacketLayout {
    /// The call of a packet; None without the thread, the time or the type.
    pub(crate) fn called(&self, packet: &[u8]) -> Option<IoRecord> {
        let shared = self.shared(packet)?;
        let number = |field| self.number(packet, field);
        let requested_ns = number(REQUEST)
            .filter(|requested_ns| *requested_ns > 0)
            .map(Nanos);
        let kind = i32::try_from(number(KIND)?.cast_signed()).ok()?;
        let failed = kind >= FAILED;
        let kind = usize::try_from(if failed { kind - FAILED } else { kind }).ok()?;
        let moved = number(MOVED).unwrap_or_default().cast_signed();
        let call = number(CALL).map(|call| call as i32);
        let name = match self.value(packet, NAME.name) {
            Some(Value::Text(name)) if !name.is_empty() => Some(Box::from(name)),
            _ => None,
        };
        Some(IoRecord {
            shared,
            requested_ns: requested_ns.map_or(shared.time_ns, |ns| ns.min(shared.time_ns)),
            kind: *IoKind::ALL.get(kind)?,
            failed,
            descriptor: number(DESCRIPTOR).map_or(-1, |descriptor| descriptor as i32),
            bytes: if failed {
                0
            } else {
                moved.max(0).cast_unsigned()
            },
            duplicated: number(DUPLICATED)
                .map(|descriptor| descriptor as i32)
                .filter(|descriptor| *descriptor > 0),
            call: call.and_then(|call| u32::try_from(call).ok()),
            names_only: call == Some(NO_CALL),
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(packet: &[u8]) -> Option<IoRecord> {
        let table = IoEvent::table();
        PacketLayout::new(&table.packets()[0]).called(packet)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            times in (1u64..1 << 62, 0u64..1 << 62),
            ids in any::<[u32; 3]>(),
            stack in 1u64..1 << 32,
            (kind, failed) in (0u8..5, any::<bool>()),
            descriptor in -1i32..,
            bytes in 0u64..1 << 63,
            duplicated in proptest::option::of(1i32..),
            call in proptest::option::of(0u32..500),
            name in proptest::option::of("[^\0]{1,40}"),
            cut in 4..BYTES,
        ) {
            let [cpu, tid, pid] = ids;
            let (requested_ns, ended_ns) = (times.0, times.0 + times.1);
            let operation = IoOperation {
                requested_ns: Nanos(requested_ns),
                ended_ns: Nanos(ended_ns),
                kind: IoKind::ALL[usize::from(kind)],
                failed,
                descriptor,
                bytes,
                duplicated,
                call,
                name: name.map(|name| name.into_bytes().into()),
            };
            let event = IoEvent {
                cpu,
                stack: StackUid::new(stack).unwrap(),
                tid: Tid(tid),
                pid: Pid(pid),
                operation: operation.clone(),
            };
            let packet = event.encode().unwrap();
            prop_assert_eq!(packet.len() % 8, 0);
            prop_assert_eq!(usize::from(u16::from_le_bytes([packet[0], packet[1]])), packet.len());
            let record = IoRecord {
                shared: SharedFields {
                    cpu,
                    time_ns: Nanos(ended_ns),
                    stack: Some(event.stack),
                    thread: tid.into(),
                    pid: Some(Pid(pid)),
                },
                requested_ns: Nanos(requested_ns),
                kind: operation.kind,
                failed,
                descriptor,
                bytes: if failed { 0 } else { bytes },
                duplicated,
                call,
                names_only: call.is_none(),
                name: operation.name.as_deref().map(Box::from),
            };
            prop_assert_eq!(decoded(&packet), Some(record));
            // No part of a packet makes the decoder fail.
            decoded(&packet[..cut]);
            let operation = IoOperation { requested_ns: Nanos(ended_ns + 1), ..operation };
            let early = IoEvent { operation, ..event }.encode().unwrap();
            prop_assert_eq!(decoded(&early).map(|early| early.requested_ns), Some(Nanos(ended_ns)));
        }
    }

    #[test]
    fn a_name_is_cut_at_a_nul_and_when_it_is_too_long() {
        let mut event = IoEvent {
            cpu: 0,
            stack: StackUid::new(1).unwrap(),
            tid: Tid(1),
            pid: Pid(1),
            operation: IoOperation {
                requested_ns: Nanos::ZERO,
                ended_ns: Nanos(7),
                kind: IoKind::Open,
                failed: false,
                descriptor: 3,
                bytes: 0,
                duplicated: None,
                call: None,
                name: Some(b"/tmp/a\0b".as_slice().into()),
            },
        };
        let record = decoded(&event.encode().unwrap()).unwrap();
        assert_eq!(record.name.as_deref(), Some(&b"/tmp/a"[..]));
        assert_eq!(record.requested_ns, Nanos(7));
        event.operation.name = Some(vec![b'x'; 70_000].into());
        let record = decoded(&event.encode().unwrap()).unwrap();
        assert_eq!(record.name.unwrap().len(), MAX_NAME);
    }
}
