//! The packet of memory that was allocated or freed.
//!
//! It is in a file of its own, `heaptrace`, and begins with the same fields as clock packets. One
//! packet is one allocation or one release: of a block, as `malloc` makes it, or of a range of
//! pages. A reader replays them in the order of time. What is not freed when the experiment ends is
//! live then; gprofng calls it a leak.

use crate::Result;
use crate::ids::{Pid, StackUid, Tid};
use crate::log::ProfileDecl;
use crate::packet::spec::{FieldSpec, PacketSpec, field};
use crate::packet::{FieldType, HEAP, PacketLayout, SharedFields};
use crate::units::Nanos;

/// The file of these packets, and the name of their table.
pub(crate) const FILE: &str = "heaptrace";
/// The size of the packet.
const BYTES: usize = 72;
/// The weight of an allocation that stands for itself.
pub const WEIGHT_OF_ONE: u64 = 1000;

/// A kind of change of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeapKind {
    /// A block was allocated.
    Allocated,
    /// A block was freed.
    Freed,
    /// A block was allocated in the place of another one.
    Reallocated,
    /// A range of pages was mapped.
    Mapped,
    /// A range of pages was unmapped: a part of what was mapped, all of it, or several.
    Unmapped,
}

impl HeapKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [HeapKind; 5] = [
        HeapKind::Allocated,
        HeapKind::Freed,
        HeapKind::Reallocated,
        HeapKind::Mapped,
        HeapKind::Unmapped,
    ];
}

/// A change of memory, with a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapEvent {
    /// The CPU.
    pub cpu: u32,
    /// The time, by the clock of [`crate::log::StartTime::tstamp_ns`].
    pub time_ns: Nanos,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub pid: Pid,
    /// The kind of change.
    pub kind: HeapKind,
    /// The size of the memory; 0 for a block that was freed. For a sampled block, the size of all
    /// blocks that it stands for.
    pub bytes: u64,
    /// The address of the memory.
    pub address: u64,
    /// The size of this block itself.
    pub own_bytes: u64,
    /// The number of allocations that it stands for, times [`WEIGHT_OF_ONE`].
    pub weight: u64,
}

/// A change of memory that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapRecord {
    /// What all packets begin with.
    pub shared: SharedFields,
    /// The kind of change.
    pub kind: HeapKind,
    /// The size of the memory.
    pub bytes: u64,
    /// The address of the memory; 0 if the call failed.
    pub address: u64,
    /// The address of the block that this one replaced; 0 if it replaced no block.
    pub old_address: u64,
    /// The size of this block itself.
    pub own_bytes: u64,
    /// The number of allocations that it stands for, times [`WEIGHT_OF_ONE`].
    pub weight: u64,
}

const SPEC: PacketSpec<0> = PacketSpec::new(HEAP, "Heap tracing data", []);
const KIND: FieldSpec = field("HTYPE", "Heap event type", FieldType::Int32, 28);
const SIZE: FieldSpec = field("HSIZE", "Bytes", FieldType::Uint64, 32);
const ADDRESS: FieldSpec = field("HVADDR", "Address", FieldType::Uint64, 40);
const OLD_ADDRESS: FieldSpec = field("HOVADDR", "Old address", FieldType::Uint64, 48);
const OWN_SIZE: FieldSpec = field("HREQ", "Bytes of this block", FieldType::Uint64, 56);
const WEIGHT: FieldSpec = field("HWGT", "Thousandths of allocations", FieldType::Uint64, 64);

impl HeapEvent {
    /// The declaration of the table in the header.
    pub fn table() -> ProfileDecl {
        let fields = [KIND, SIZE, ADDRESS, OLD_ADDRESS, OWN_SIZE, WEIGHT];
        ProfileDecl::Other {
            name: FILE.to_owned(),
            attributes: Vec::new(),
            packets: vec![SPEC.declaration(&fields)],
        }
    }

    /// Whether a table is the memory table.
    pub fn is_table(profile: &ProfileDecl) -> bool {
        matches!(profile, ProfileDecl::Other { name, .. } if name == FILE)
    }

    /// Returns the packet as it is in `heaptrace`.
    ///
    /// # Errors
    ///
    /// A time that is too large for its field, which gprofng reads as signed.
    pub fn encode(&self) -> Result<[u8; BYTES]> {
        let ids = [self.cpu, self.tid.0, self.pid.0];
        let mut packet = SPEC.encode(self.time_ns, self.stack, ids, [])?;
        KIND.put(&mut packet, self.kind as u64);
        SIZE.put(&mut packet, self.bytes);
        ADDRESS.put(&mut packet, self.address);
        OWN_SIZE.put(&mut packet, self.own_bytes);
        WEIGHT.put(&mut packet, self.weight);
        Ok(packet)
    }
}

impl PacketLayout {
    /// The content of a memory packet; None without the thread, the time or the address.
    pub(crate) fn allocated(&self, packet: &[u8]) -> Option<HeapRecord> {
        let number = |field| self.number(packet, field);
        let kind = usize::try_from(number(KIND).unwrap_or_default()).ok()?;
        let bytes = number(SIZE).unwrap_or_default();
        Some(HeapRecord {
            shared: self.shared(packet)?,
            kind: *HeapKind::ALL.get(kind)?,
            bytes,
            address: number(ADDRESS)?,
            old_address: number(OLD_ADDRESS).unwrap_or_default(),
            own_bytes: number(OWN_SIZE).unwrap_or(bytes),
            weight: number(WEIGHT).unwrap_or(WEIGHT_OF_ONE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(packet: &[u8]) -> Option<HeapRecord> {
        let table = HeapEvent::table();
        PacketLayout::new(&table.packets()[0]).allocated(packet)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            time_ns in 0u64..1 << 62,
            ids in any::<[u32; 3]>(),
            stack in 1u64..1 << 32,
            kind in 0usize..5,
            (bytes, address, own_bytes, weight) in any::<(u64, u64, u64, u64)>(),
            cut in 4..BYTES,
        ) {
            let [cpu, tid, pid] = ids;
            let event = HeapEvent {
                cpu,
                time_ns: Nanos(time_ns),
                stack: StackUid::new(stack).unwrap(),
                tid: Tid(tid),
                pid: Pid(pid),
                kind: HeapKind::ALL[kind],
                bytes,
                address,
                own_bytes,
                weight,
            };
            let packet = event.encode().unwrap();
            let record = HeapRecord {
                shared: SharedFields {
                    cpu,
                    time_ns: Nanos(time_ns),
                    stack: Some(event.stack),
                    thread: tid.into(),
                    pid: Some(Pid(pid)),
                },
                kind: event.kind,
                bytes,
                address,
                old_address: 0,
                own_bytes,
                weight,
            };
            prop_assert_eq!(decoded(&packet), Some(record));
            decoded(&packet[..cut]);
        }
    }
}
