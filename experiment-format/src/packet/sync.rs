//! The packet of a wait for a lock.
//!
//! It is in a file of its own, `synctrace`, and begins with the same fields as clock packets. One
//! packet is one wait, from its request to its end; gprofng's metrics are their time (`sync`) and
//! their number (`syncn`). What kind of wait it was is in a field of our own, `SKIND`.

use std::time::Duration;

use crate::Result;
use crate::ids::{Pid, StackUid, Tid};
use crate::log::ProfileDecl;
use crate::packet::spec::{FieldSpec, PacketSpec, field};
use crate::packet::{FieldType, PacketLayout, SYNC, SharedFields};
use crate::units::Nanos;

/// The file of these packets, and the name of their table.
pub(crate) const FILE: &str = "synctrace";
/// The size of the packet.
const BYTES: usize = 48;
/// `scope`: waits of native code, and none of Java monitors.
const NATIVE: u32 = 1;

/// The [`SyncEvent::kind`] of a wait whose kind is not known.
pub const UNKNOWN_KIND: u32 = 0xffff;

/// A wait for a lock: from its request to its end, with a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncEvent {
    /// The CPU on which it ended.
    pub cpu: u32,
    /// The time of the request, by the clock of [`crate::log::StartTime::tstamp_ns`].
    pub requested_ns: Nanos,
    /// The time of its end, by the same clock.
    pub ended_ns: Nanos,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: Tid,
    /// Its process.
    pub pid: Pid,
    /// The address of the lock in the process; 0 if it is not known.
    pub object: u64,
    /// The kind of wait: a command of `futex`, or the number of another system call;
    /// [`UNKNOWN_KIND`] if it is not known.
    pub kind: u32,
}

/// A wait that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncRecord {
    /// What all packets begin with.
    pub shared: SharedFields,
    /// The time of the request, by the same clock as its end and not after it.
    pub requested_ns: Nanos,
    /// The address of the lock; 0 if the packet has none, or it is not known.
    pub object: u64,
    /// As [`SyncEvent::kind`], if the packet has it: other recorders do not write it.
    pub kind: Option<u32>,
}

/// The shortest wait that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncThreshold {
    /// Waits of at least this time; zero: all waits.
    Given(Duration),
    /// Waits longer than the measured time of taking a free lock.
    Calibrated(Duration),
}

impl SyncThreshold {
    /// Returns the time of the shortest wait.
    pub fn duration(self) -> Duration {
        match self {
            SyncThreshold::Given(time) | SyncThreshold::Calibrated(time) => time,
        }
    }

    /// Returns the attribute `threshold`: microseconds, negative if they were calibrated.
    fn attribute(self) -> i64 {
        let micros = i64::try_from(self.duration().as_micros()).unwrap_or(i64::MAX);
        match self {
            SyncThreshold::Given(_) => micros,
            SyncThreshold::Calibrated(_) => -micros,
        }
    }
}

const SPEC: PacketSpec<1> = PacketSpec::new(
    SYNC,
    "Synchronization tracing data",
    [field("SKIND", "Kind of wait", FieldType::Int32, 28)],
);
const REQUEST_FIELD: FieldSpec = field("SRQST", "Synchronization start time", FieldType::Int64, 32);
const OBJECT_FIELD: FieldSpec = field(
    "SOBJ",
    "Synchronization object address",
    FieldType::Uint64,
    40,
);

impl SyncEvent {
    /// The declaration of the table of waits in the header.
    pub fn table(threshold: SyncThreshold) -> ProfileDecl {
        ProfileDecl::Other {
            name: FILE.to_owned(),
            attributes: vec![
                ("threshold".to_owned(), threshold.attribute().to_string()),
                ("scope".to_owned(), NATIVE.to_string()),
            ],
            packets: vec![SPEC.declaration(&[REQUEST_FIELD, OBJECT_FIELD])],
        }
    }

    /// Whether a table is the table of waits.
    pub fn is_table(profile: &ProfileDecl) -> bool {
        matches!(profile, ProfileDecl::Other { name, .. } if name == FILE)
    }

    /// Returns the packet as it is in `synctrace`.
    ///
    /// # Errors
    ///
    /// A time that is too large for the fields, which gprofng reads as signed.
    pub fn encode(&self) -> Result<[u8; BYTES]> {
        let ids = [self.cpu, self.tid.0, self.pid.0];
        let mut packet = SPEC.encode(self.ended_ns, self.stack, ids, [self.kind])?;
        // A request is not after the end, which fits.
        REQUEST_FIELD.put(&mut packet, self.requested_ns.min(self.ended_ns).0);
        OBJECT_FIELD.put(&mut packet, self.object);
        Ok(packet)
    }
}

impl PacketLayout {
    /// The wait of a packet; None without the thread or a time.
    pub(crate) fn waited(&self, packet: &[u8]) -> Option<SyncRecord> {
        let shared = self.shared(packet)?;
        let number = |field| self.number(packet, field);
        Some(SyncRecord {
            shared,
            requested_ns: Nanos(number(REQUEST_FIELD)?).min(shared.time_ns),
            object: number(OBJECT_FIELD).unwrap_or_default(),
            kind: number(SPEC.fields[0]).map(|kind| kind as u32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketDecl;
    use proptest::prelude::*;

    fn decoded(packet: &[u8]) -> Option<SyncRecord> {
        let table = SyncEvent::table(SyncThreshold::Given(Duration::ZERO));
        let declared: &PacketDecl = &table.packets()[0];
        PacketLayout::new(declared).waited(packet)
    }

    #[test]
    fn a_calibrated_threshold_is_negative() {
        let time = Duration::from_micros(7);
        assert_eq!(SyncThreshold::Calibrated(time).attribute(), -7);
        assert_eq!(SyncThreshold::Given(time).attribute(), 7);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            times in (0u64..1 << 62, 0u64..1 << 62),
            ids: [u32; 3],
            stack in 1u64..1 << 32,
            object: u64,
            kind in 0u32..500,
            cut in 4..BYTES,
        ) {
            let [cpu, tid, pid] = ids;
            let stack = StackUid::new(stack).unwrap();
            let (requested_ns, ended_ns) = (times.0, times.0 + times.1);
            let event = SyncEvent {
                cpu, requested_ns: Nanos(requested_ns), ended_ns: Nanos(ended_ns), stack, tid: Tid(tid), pid: Pid(pid), object, kind,
            };
            let packet = event.encode().unwrap();
            let record = SyncRecord {
                shared: SharedFields {
                    cpu,
                    time_ns: Nanos(ended_ns),
                    stack: Some(stack),
                    thread: tid.into(),
                    pid: Some(Pid(pid)),
                },
                requested_ns: Nanos(requested_ns),
                object,
                kind: Some(kind),
            };
            prop_assert_eq!(decoded(&packet), Some(record));
            let short = decoded(&packet[..cut]);
            prop_assert!(short.is_none_or(|short| cut >= 40 && short.object == 0));
            let early = SyncEvent { requested_ns: Nanos(ended_ns + 1), ..event }.encode().unwrap();
            prop_assert_eq!(decoded(&early).map(|early| early.requested_ns), Some(Nanos(ended_ns)));
        }
    }
}
