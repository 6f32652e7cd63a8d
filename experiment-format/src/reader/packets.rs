//! The packets of a data file, read one after the other.

use std::collections::HashMap;

use crate::Result;
use crate::packet::walk::PacketWalk;
use crate::packet::{
    ClockRecord, CounterRecord, HeapRecord, IoRecord, PacketLayout, SyncRecord, Value,
};

/// A reader of the packets of a data file.
#[derive(Debug)]
pub struct Packets {
    walk: Option<PacketWalk>,
    layouts: HashMap<u16, PacketLayout>,
}

impl Packets {
    pub(super) fn new(walk: Option<PacketWalk>, layouts: HashMap<u16, PacketLayout>) -> Self {
        Packets { walk, layouts }
    }

    /// Returns the next packet that is declared, none at the end.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>> {
        let Some(walk) = &mut self.walk else {
            return Ok(None);
        };
        while let Some(kind) = walk.peek_kind()? {
            if let Some(layout) = self.layouts.get(&kind) {
                let packet = walk.next()?;
                return Ok(packet.map(|packet| Packet {
                    kind,
                    offset: packet.offset,
                    bytes: packet.bytes,
                    layout,
                }));
            }
            walk.next()?;
        }
        Ok(None)
    }

    /// Returns the number of damaged packets passed so far.
    pub fn invalid(&self) -> u64 {
        self.walk.as_ref().map_or(0, PacketWalk::invalid)
    }
}

/// A packet, with its declaration.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Its type.
    pub kind: u16,
    /// Its offset in the file.
    pub offset: u64,
    /// All of it, header included.
    pub bytes: &'a [u8],
    layout: &'a PacketLayout,
}

impl<'a> Packet<'a> {
    /// Returns the value of a field; case is ignored. None if it is not declared or lies beyond the
    /// packet's end.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        self.layout.value(self.bytes, name)
    }

    /// Its clock ticks; None without the thread, the time or the ticks.
    pub fn ticks(&self) -> Option<ClockRecord> {
        self.layout.ticks(self.bytes)
    }

    /// Its overflow of a counter; None if it is another packet, or without the thread, the time,
    /// the counter or its value.
    pub fn counted(&self) -> Option<CounterRecord> {
        self.layout.counted(self.bytes)
    }

    /// Its wait for a lock; None without the thread or a time.
    pub fn waited(&self) -> Option<SyncRecord> {
        self.layout.waited(self.bytes)
    }

    /// Its call that does I/O; None without the thread, the time or the type.
    pub fn called(&self) -> Option<IoRecord> {
        self.layout.called(self.bytes)
    }

    /// Its change of memory; None without the thread, the time or the address.
    pub fn allocated(&self) -> Option<HeapRecord> {
        self.layout.allocated(self.bytes)
    }
}

/// An iterator over the clock ticks of an experiment.
#[derive(Debug)]
pub struct ClockRecords {
    packets: Packets,
}

impl ClockRecords {
    pub(super) fn new(packets: Packets) -> Self {
        ClockRecords { packets }
    }
}

impl Iterator for ClockRecords {
    type Item = Result<ClockRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.packets.next_packet() {
                Ok(Some(packet)) => {
                    if let Some(tick) = packet.ticks() {
                        return Some(Ok(tick));
                    }
                }
                Ok(None) => return None,
                Err(error) => {
                    // After an error, the iteration ends.
                    self.packets.walk = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
