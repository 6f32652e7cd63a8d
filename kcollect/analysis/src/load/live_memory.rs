//! Finds which of the allocated memory is live when an experiment ends, by the rules of gprofng's
//! reader.
//!
//! Blocks and ranges of pages are apart. A second block at a live address is not entered. A release
//! of pages may free a part of a range, or parts of several; a range that is mapped over others
//! frees what it covers. What was allocated before the first packet is not known.

use std::collections::{BTreeMap, HashMap};

use experiment_format::packet::{HeapKind, HeapRecord};
use experiment_format::units::Nanos;

/// The memory of a process while packets are replayed.
#[derive(Debug, Default)]
pub(super) struct LiveMemory {
    /// The live bytes of each packet. None: the packet allocates nothing.
    pub live: Vec<Option<u64>>,
    /// The time at which most bytes were live, and their number.
    pub peak: Option<(Nanos, u64)>,
    /// The bytes that are live after the packets so far.
    live_bytes: u64,
    /// The packet that allocated the block at an address.
    blocks: HashMap<u64, usize>,
    /// The mapped ranges by their first address, each with its end and its packet.
    ranges: BTreeMap<u64, (u64, usize)>,
}

impl LiveMemory {
    /// Replays packets, which are in the order of time.
    pub(super) fn of(records: &[HeapRecord]) -> LiveMemory {
        let mut memory = LiveMemory::default();
        for (packet, record) in records.iter().enumerate() {
            memory.live.push(None);
            memory.apply(packet, record);
            if memory.peak.is_none_or(|(_, most)| memory.live_bytes > most) {
                memory.peak = Some((record.shared.time_ns, memory.live_bytes));
            }
        }
        memory
    }

    fn apply(&mut self, packet: usize, record: &HeapRecord) {
        let end = record.address.saturating_add(record.bytes);
        match record.kind {
            HeapKind::Freed => self.free(record.address),
            HeapKind::Unmapped => self.unmap(record.address, end),
            // It failed.
            _ if record.address == 0 => {}
            HeapKind::Allocated => self.allocate(packet, record),
            HeapKind::Reallocated => {
                self.free(record.old_address);
                self.allocate(packet, record);
            }
            HeapKind::Mapped => {
                self.unmap(record.address, end);
                self.ranges.insert(record.address, (end, packet));
                self.add(packet, end - record.address);
            }
        }
    }

    fn add(&mut self, packet: usize, bytes: u64) {
        self.live[packet] = Some(bytes);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
    }

    fn take(&mut self, packet: usize, bytes: u64) {
        if let Some(live) = &mut self.live[packet] {
            *live = live.saturating_sub(bytes);
        }
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
    }

    fn allocate(&mut self, packet: usize, record: &HeapRecord) {
        self.blocks.entry(record.address).or_insert(packet);
        self.add(packet, record.bytes);
    }

    fn free(&mut self, address: u64) {
        if let Some(packet) = self.blocks.remove(&address) {
            let bytes = self.live[packet].unwrap_or_default();
            self.take(packet, bytes);
        }
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let mut covered = Vec::new();
        for (from, (to, packet)) in self.ranges.range(..end).rev() {
            if *to <= start {
                break;
            }
            covered.push((*from, *to, *packet));
        }
        for (from, to, packet) in covered {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, (start, packet));
            }
            if to > end {
                self.ranges.insert(end, (to, packet));
            }
            self.take(packet, to.min(end) - from.max(start));
        }
    }
}

#[cfg(test)]
mod tests {
    use experiment_format::packet::{SharedFields, WEIGHT_OF_ONE};

    use super::*;

    fn record(kind: HeapKind, address: u64, bytes: u64, time_ns: Nanos) -> HeapRecord {
        HeapRecord {
            shared: SharedFields {
                cpu: 0,
                time_ns,
                stack: None,
                thread: 1,
                pid: None,
            },
            kind,
            bytes,
            address,
            old_address: 0,
            own_bytes: bytes,
            weight: WEIGHT_OF_ONE,
        }
    }

    fn live(events: &[(HeapKind, u64, u64)]) -> (Vec<Option<u64>>, Option<(Nanos, u64)>) {
        let records: Vec<_> = (0..)
            .zip(events)
            .map(|(time, (kind, address, bytes))| record(*kind, *address, *bytes, Nanos(time)))
            .collect();
        let memory = LiveMemory::of(&records);
        (memory.live, memory.peak)
    }

    use HeapKind::{Allocated, Freed, Mapped, Unmapped};

    #[test]
    fn a_part_of_a_range_is_freed() {
        let (live, peak) = live(&[
            (Mapped, 1000, 500),
            (Mapped, 2000, 500),
            (Unmapped, 1400, 700),
            (Unmapped, 5000, 1),
        ]);
        assert_eq!(live, [Some(400), Some(400), None, None]);
        assert_eq!(peak, Some((Nanos(1), 1000)));
    }

    #[test]
    fn a_range_in_the_middle_splits_another() {
        let (first, _) = live(&[
            (Mapped, 1000, 500),
            (Unmapped, 1100, 100),
            (Mapped, 1150, 20),
        ]);
        assert_eq!(first, [Some(400), None, Some(20)]);
        let (over, _) = live(&[(Mapped, 1000, 500), (Mapped, 900, 1000)]);
        assert_eq!(over, [Some(0), Some(1000)]);
    }

    #[test]
    fn blocks_are_freed_by_their_address() {
        let (live, peak) = live(&[
            (Allocated, 10, 7),
            (Allocated, 20, 9),
            (Freed, 10, 0),
            (Freed, 77, 0),
            (Allocated, 10, 3),
            (Allocated, 0, 100),
        ]);
        assert_eq!(live, [Some(0), Some(9), None, None, Some(3), None]);
        assert_eq!(peak, Some((Nanos(1), 16)));
    }
}
