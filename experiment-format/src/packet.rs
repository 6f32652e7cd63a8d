//! Self-described packets: a declaration in `log.xml` says which bytes of a packet mean what.
//!
//! A reader takes each field from its declared place, so a writer is free in its layout. Ours is
//! stated once, in a table; the declaration and the encoder both follow from it, and the decoder
//! follows from whatever declaration a file has.

use crate::Result;
use crate::error::Error;
use crate::microstate::Microstate;
use crate::stacks::StackUid;
use crate::xml::Element;

/// Bytes of the header of every packet: `u16` total size, `u16` type.
pub const HEADER_BYTES: usize = 4;
/// Type of a packet that is skipped.
pub const EMPTY: u16 = 0;
/// Type of a clock packet.
pub const CLOCK: u16 = 8;
/// Type of a stack that packets refer to.
pub const FRAME: u16 = 11;
/// Type of a stack, or its root side, that frames refer to.
pub const UID: u16 = 17;
/// Type of a block's rest that is skipped.
pub const CLOSED: u16 = 65535;

/// How a field is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldType {
    /// 4 bytes, signed.
    Int32,
    /// 4 bytes, unsigned.
    Uint32,
    /// 8 bytes, signed.
    Int64,
    /// 8 bytes, unsigned.
    Uint64,
    /// From the offset to a NUL or the end of the packet.
    String,
    /// 8 bytes; gprofng accepts it and does not keep the value.
    Double,
    /// 8 bytes; gprofng accepts it and does not keep the value.
    Date,
}

/// One field of a declared packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDecl {
    /// Name of the property; case does not count. A name that gprofng does not know becomes a
    /// property of its own, usable in filters.
    pub name: String,
    /// What `-describe` prints for it; empty for nothing.
    pub uname: String,
    /// How it is stored.
    pub kind: FieldType,
    /// Where, in bytes from the beginning of the packet, the header included.
    pub offset: u32,
}

/// A declared packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketDecl {
    /// The type in the header of each packet.
    pub kind: u16,
    /// What `-describe` prints for it.
    pub uname: String,
    /// The fields.
    pub fields: Vec<FieldDecl>,
}

/// A clock packet: one thread, or one CPU, spent ticks in one state with one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTick {
    /// The CPU.
    pub cpu: u32,
    /// Nanoseconds of the clock of [`crate::log::Run::tstamp`].
    pub time: u64,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: u32,
    /// Its process: the property `KPID` in gprofng's filters.
    pub pid: u32,
    /// The state.
    pub state: Microstate,
    /// How many ticks; 2^31 − 1 at most.
    pub ticks: u32,
}

/// Bytes of our clock packet.
pub const CLOCK_BYTES: usize = 40;

/// The layout of our clock packet: name, description, type, offset. All are aligned; THRID before
/// gprofng's view may be 4 bytes wide, since thread ids are.
const CLOCK_LAYOUT: [(ClockField, &str, &str, FieldType, u32); 7] = [
    (ClockField::Cpu, "CPUID", "CPU id", FieldType::Uint32, 4),
    (
        ClockField::Time,
        "TSTAMP",
        "High resolution timestamp",
        FieldType::Int64,
        8,
    ),
    (ClockField::Stack, "FRINFO", "", FieldType::Int64, 16),
    (
        ClockField::Thread,
        "THRID",
        "Thread number",
        FieldType::Uint32,
        24,
    ),
    (
        ClockField::Process,
        "KPID",
        "Process id",
        FieldType::Uint32,
        28,
    ),
    (
        ClockField::State,
        "MSTATE",
        "Thread state",
        FieldType::Uint32,
        32,
    ),
    (ClockField::Ticks, "NTICK", "Duration", FieldType::Int32, 36),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockField {
    Cpu,
    Time,
    Stack,
    Thread,
    Process,
    State,
    Ticks,
}

impl ClockTick {
    /// The declaration of this packet, for [`crate::log::ProfileDecl::Clock`].
    pub fn declaration() -> PacketDecl {
        PacketDecl {
            kind: CLOCK,
            uname: "Clock profiling data".to_owned(),
            fields: CLOCK_LAYOUT
                .iter()
                .map(|(_, name, uname, kind, offset)| FieldDecl {
                    name: (*name).to_owned(),
                    uname: (*uname).to_owned(),
                    kind: *kind,
                    offset: *offset,
                })
                .collect(),
        }
    }

    /// The packet as it stands in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks or a later time than the fields, which gprofng reads as signed, can hold.
    pub fn encode(&self) -> Result<[u8; CLOCK_BYTES]> {
        if i32::try_from(self.ticks).is_err() {
            return Err(Error::unwritable(
                "profile",
                format!("{} ticks in one packet", self.ticks),
            ));
        }
        if i64::try_from(self.time).is_err() {
            return Err(Error::unwritable(
                "profile",
                format!("a time of {} ns", self.time),
            ));
        }
        let mut packet = [0; CLOCK_BYTES];
        packet[..HEADER_BYTES].copy_from_slice(&header(CLOCK_BYTES as u16, CLOCK));
        for (field, _, _, kind, offset) in CLOCK_LAYOUT {
            let value = match field {
                ClockField::Cpu => u64::from(self.cpu),
                ClockField::Time => self.time,
                ClockField::Stack => self.stack.get(),
                ClockField::Thread => u64::from(self.tid),
                ClockField::Process => u64::from(self.pid),
                ClockField::State => u64::from(self.state.number()),
                ClockField::Ticks => u64::from(self.ticks),
            };
            let (offset, width) = (offset as usize, kind.bytes());
            packet[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Ok(packet)
    }
}

/// The header of a packet.
pub(crate) fn header(size: u16, kind: u16) -> [u8; HEADER_BYTES] {
    let ([a, b], [c, d]) = (size.to_le_bytes(), kind.to_le_bytes());
    [a, b, c, d]
}

impl FieldType {
    /// All types.
    const ALL: [FieldType; 7] = [
        FieldType::Int32,
        FieldType::Uint32,
        FieldType::Int64,
        FieldType::Uint64,
        FieldType::String,
        FieldType::Double,
        FieldType::Date,
    ];

    /// The keyword in a declaration.
    pub const fn keyword(self) -> &'static str {
        match self {
            FieldType::Int32 => "INT32",
            FieldType::Uint32 => "UINT32",
            FieldType::Int64 => "INT64",
            FieldType::Uint64 => "UINT64",
            FieldType::String => "STRING",
            FieldType::Double => "DOUBLE",
            FieldType::Date => "DATE",
        }
    }

    /// The type of a keyword.
    pub fn from_keyword(keyword: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.keyword() == keyword)
    }

    /// How wide it is; 0 for a string, whose length is its own matter.
    pub const fn bytes(self) -> usize {
        match self {
            FieldType::Int32 | FieldType::Uint32 => 4,
            FieldType::Int64 | FieldType::Uint64 | FieldType::Double | FieldType::Date => 8,
            FieldType::String => 0,
        }
    }
}

impl PacketDecl {
    pub(crate) fn encode(&self, out: &mut String) {
        Element::begin(out, "profpckt")
            .number("kind", self.kind)
            .attribute("uname", &self.uname)
            .children(|out| {
                for field in &self.fields {
                    let element = Element::begin(out, "field").attribute("name", &field.name);
                    let element = match field.uname.as_str() {
                        "" => element,
                        uname => element.attribute("uname", uname),
                    };
                    element
                        .number("offset", field.offset)
                        .attribute("type", field.kind.keyword())
                        .end();
                }
            });
    }
}
