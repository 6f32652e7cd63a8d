//! The packet of a counter that has overflowed.
//!
//! It is in a file of its own, `hwcounters`, and begins with the same fields as clock packets. Its
//! value is the number of events that it stands for: the interval after which the counter
//! overflows. If bit 63 of the value is set, the packet does not count.

use crate::Result;
use crate::error::Error;
use crate::ids::{Pid, StackUid, Tid};
use crate::packet::spec::{COUNTER_SPEC, VALUE_FIELD};
use crate::packet::{PacketDecl, PacketLayout, SharedFields};
use crate::units::Nanos;

/// The file of these packets.
pub(crate) const FILE: &str = "hwcounters";
/// The bit of a value that does not count.
const ERRONEOUS: u64 = 1 << 63;
/// The size of the packet.
const BYTES: usize = 40;

/// An overflow of a counter on a CPU, in a thread, with a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterEvent {
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
    /// The counter: its [`crate::log::CounterDecl::tag`].
    pub tag: u32,
    /// The number of events that it stands for.
    pub value: u64,
}

/// A counter packet that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRecord {
    /// What all packets begin with.
    pub shared: SharedFields,
    /// The counter: its [`crate::log::CounterDecl::tag`].
    pub tag: u32,
    /// The number of events that it stands for; None if the packet is marked as erroneous.
    pub value: Option<u64>,
}

impl CounterEvent {
    /// Returns the declaration of this packet, for [`crate::log::ProfileDecl::Counters`].
    pub fn declaration() -> PacketDecl {
        COUNTER_SPEC.declaration(&[VALUE_FIELD])
    }

    /// Returns the packet as it is in `hwcounters`.
    ///
    /// # Errors
    ///
    /// A value, tag or time that is too large for the fields, which gprofng reads as signed.
    pub fn encode(&self) -> Result<[u8; BYTES]> {
        if self.value >= ERRONEOUS {
            return Err(Error::unwritable(
                FILE,
                format!("{} events in one packet", self.value),
            ));
        }
        let ids = [self.cpu, self.tid.0, self.pid.0];
        let mut packet = COUNTER_SPEC.encode(self.time_ns, self.stack, ids, [self.tag])?;
        VALUE_FIELD.put(&mut packet, self.value);
        Ok(packet)
    }
}

impl PacketLayout {
    /// The content of a counter packet; None without the thread, the time, the counter or its
    /// value.
    pub(crate) fn counted(&self, packet: &[u8]) -> Option<CounterRecord> {
        let [tag, value] = self.counted?.map(|position| self.integer(position, packet));
        let value = value?;
        Some(CounterRecord {
            shared: self.shared(packet)?,
            tag: tag? as u32,
            value: (value < ERRONEOUS).then_some(value),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(packet: &[u8]) -> Option<CounterRecord> {
        PacketLayout::new(&CounterEvent::declaration()).counted(packet)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            time_ns in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..1 << 32,
            tag in 0u32..64,
            value in 0u64..1 << 63,
            cut in 4..BYTES,
        ) {
            let [cpu, tid, pid] = ids;
            let stack = StackUid::new(stack).unwrap();
            let event = CounterEvent { cpu, time_ns: Nanos(time_ns), stack, tid: Tid(tid), pid: Pid(pid), tag, value };
            let packet = event.encode().unwrap();
            prop_assert_eq!(decoded(&packet), Some(CounterRecord {
                shared: SharedFields {
                    cpu,
                    time_ns: Nanos(time_ns),
                    stack: Some(stack),
                    thread: tid.into(),
                    pid: Some(Pid(pid)),
                },
                tag,
                value: Some(value),
            }));
            prop_assert_eq!(decoded(&packet[..cut]), None);
            let erroneous = CounterEvent { value: value | ERRONEOUS, ..event };
            prop_assert!(erroneous.encode().is_err());
            let mut packet = packet;
            packet[BYTES - 1] |= 0x80;
            prop_assert_eq!(decoded(&packet).map(|record| record.value), Some(None));
        }
    }
}
