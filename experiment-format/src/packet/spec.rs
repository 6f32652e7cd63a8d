//! The layouts of packets, as tables of fields: what such a table is, and the tables by which the
//! decoder looks up fields in advance.

use crate::Result;
use crate::error::Error;
use crate::ids::StackUid;
use crate::packet::{CLOCK, COUNTER, FieldDecl, FieldType, HEADER_BYTES, PacketDecl, header};
use crate::units::Nanos;

/// A field: its names, its type and its offset.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldSpec {
    pub(super) name: &'static str,
    uname: &'static str,
    pub(super) kind: FieldType,
    pub(super) offset: u32,
}

/// A packet: its fields beyond the [`SHARED_FIELDS`] of all packets.
#[derive(Debug)]
pub(super) struct PacketSpec<const FIELDS: usize> {
    kind: u16,
    uname: &'static str,
    pub(super) fields: [FieldSpec; FIELDS],
}

/// The fields that all packets begin with. The number of a stack has 4 bytes, which gprofng
/// accepts: there are as many only after 100 GB of stacks.
pub(super) const SHARED_FIELDS: [FieldSpec; 5] = [
    field("CPUID", "CPU id", FieldType::Uint32, 4),
    field("TSTAMP", "High resolution timestamp", FieldType::Int64, 8),
    field("FRINFO", "", FieldType::Uint32, 16),
    field("THRID", "Thread number", FieldType::Uint32, 20),
    field("KPID", "Process id", FieldType::Uint32, 24),
];

/// The layout of a clock packet.
pub(super) const CLOCK_SPEC: PacketSpec<5> = PacketSpec::new(
    CLOCK,
    "Clock profiling data",
    [
        field("MSTATE", "Thread state", FieldType::Uint32, 28),
        field("NTICK", "Duration", FieldType::Int32, 32),
        field("KDETAIL", "Detail", FieldType::Uint32, 36),
        field("KCAUSE", "Cause", FieldType::Uint32, 40),
        field("KWAKER", "Waker", FieldType::Uint32, 44),
    ],
);

/// The layout of a counter packet, without its value.
pub(super) const COUNTER_SPEC: PacketSpec<1> = PacketSpec::new(
    COUNTER,
    "Hardware counter profiling data",
    [field(
        "HWCTAG",
        "Hardware counter index",
        FieldType::Int32,
        28,
    )],
);

/// The field of a counter packet that has the value.
pub(super) const VALUE_FIELD: FieldSpec =
    field("HWCINT", "Hardware counter interval", FieldType::Int64, 32);

/// Returns a field.
pub(super) const fn field(
    name: &'static str,
    uname: &'static str,
    kind: FieldType,
    offset: u32,
) -> FieldSpec {
    FieldSpec {
        name,
        uname,
        kind,
        offset,
    }
}

impl FieldSpec {
    pub(super) fn declaration(&self) -> FieldDecl {
        FieldDecl {
            name: self.name.to_owned(),
            uname: self.uname.to_owned(),
            kind: self.kind,
            offset: self.offset,
        }
    }

    /// Writes a value into a packet.
    pub(super) fn put(&self, packet: &mut [u8], value: u64) {
        let (offset, width) = (self.offset as usize, self.kind.bytes());
        packet[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

impl<const FIELDS: usize> PacketSpec<FIELDS> {
    pub(super) const fn new(kind: u16, uname: &'static str, fields: [FieldSpec; FIELDS]) -> Self {
        PacketSpec {
            kind,
            uname,
            fields,
        }
    }

    /// Returns the declaration of the packet, with more fields of any size at its end.
    pub(super) fn declaration(&self, more: &[FieldSpec]) -> PacketDecl {
        let fields = SHARED_FIELDS.iter().chain(&self.fields).chain(more);
        PacketDecl {
            kind: self.kind,
            uname: self.uname.to_owned(),
            fields: fields.map(FieldSpec::declaration).collect(),
        }
    }

    /// Returns the packet whose further fields have the values `own`, in order.
    pub(super) fn encode<const BYTES: usize>(
        &self,
        time_ns: Nanos,
        stack: StackUid,
        [cpu, tid, pid]: [u32; 3],
        own: [u32; FIELDS],
    ) -> Result<[u8; BYTES]> {
        let refused = |what| Err(Error::unwritable("profile", what));
        if let Some(ticks) = own.iter().find(|value| i32::try_from(**value).is_err()) {
            return refused(format!("{ticks} ticks in one packet"));
        }
        if i64::try_from(time_ns.0).is_err() {
            return refused(format!("a time of {time_ns} ns"));
        }
        if u32::try_from(stack.get()).is_err() {
            return refused(format!("stack {}", stack.get()));
        }
        let mut packet = [0; BYTES];
        packet[..HEADER_BYTES].copy_from_slice(&header(BYTES as u16, self.kind));
        let shared = [cpu.into(), time_ns.0, stack.get(), tid.into(), pid.into()];
        let values = shared.into_iter().chain(own.map(u64::from));
        for (field, value) in SHARED_FIELDS.iter().chain(&self.fields).zip(values) {
            field.put(&mut packet, value);
        }
        Ok(packet)
    }
}
