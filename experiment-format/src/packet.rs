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

/// The layout of our clock packet: name, description, type, offset. All fields are aligned; thread
/// ids need 4 bytes, so THRID has no more, which gprofng takes.
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

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Of an integer field; signed ones are extended.
    Integer(u64),
    /// Of a string field, without its NUL.
    Text(&'a [u8]),
}

/// A clock packet as it was read, whoever wrote it and in whatever layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockRecord {
    /// The CPU; 0 if the file does not say.
    pub cpu: u32,
    /// Nanoseconds of the clock of [`crate::log::Run::tstamp`].
    pub time: u64,
    /// The stack, if there is one.
    pub stack: Option<StackUid>,
    /// The thread: a thread id, or what `pthread_self` returned.
    pub thread: u64,
    /// The process, if the file says it.
    pub pid: Option<u32>,
    /// The number of the state: see [`Microstate::from_number`].
    pub state: u32,
    /// How many ticks.
    pub ticks: i32,
}

/// Where the fields of a declared packet are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PacketLayout {
    fields: Vec<FieldDecl>,
    /// Positions in `fields` of those of [`CLOCK_LAYOUT`], in its order.
    clock: [Option<usize>; CLOCK_LAYOUT.len()],
}

impl PacketLayout {
    pub(crate) fn new(decl: &PacketDecl) -> Self {
        let position = |name: &str| {
            decl.fields
                .iter()
                .rposition(|field| field.name.eq_ignore_ascii_case(name))
        };
        PacketLayout {
            fields: decl.fields.clone(),
            clock: CLOCK_LAYOUT.map(|(_, name, ..)| position(name)),
        }
    }

    /// The value of the field `name` of a packet, none if it is not declared or lies beyond the
    /// packet's end.
    pub(crate) fn value<'a>(&self, packet: &'a [u8], name: &str) -> Option<Value<'a>> {
        let mut fields = self.fields.iter().rev();
        fields
            .find(|field| field.name.eq_ignore_ascii_case(name))?
            .value(packet)
    }

    /// The clock tick that a packet is, none if it lacks the thread, the time or the ticks.
    pub(crate) fn clock(&self, packet: &[u8]) -> Option<ClockRecord> {
        let get = |field: ClockField| {
            let position = CLOCK_LAYOUT.iter().position(|(of, ..)| *of == field)?;
            match self.fields[self.clock[position]?].value(packet)? {
                Value::Integer(value) => Some(value),
                Value::Text(_) => None,
            }
        };
        Some(ClockRecord {
            cpu: get(ClockField::Cpu).unwrap_or_default() as u32,
            time: get(ClockField::Time)?,
            stack: get(ClockField::Stack).and_then(StackUid::new),
            thread: get(ClockField::Thread)?,
            pid: get(ClockField::Process).map(|pid| pid as u32),
            state: get(ClockField::State).unwrap_or_default() as u32,
            ticks: get(ClockField::Ticks)? as i32,
        })
    }
}

impl FieldDecl {
    fn value<'a>(&self, packet: &'a [u8]) -> Option<Value<'a>> {
        let bytes = packet.get(self.offset as usize..)?;
        Some(match self.kind {
            FieldType::Int32 => {
                let value = i32::from_le_bytes(*bytes.first_chunk()?);
                Value::Integer(i64::from(value) as u64)
            }
            FieldType::Uint32 => Value::Integer(u32::from_le_bytes(*bytes.first_chunk()?).into()),
            FieldType::Int64 | FieldType::Uint64 => {
                Value::Integer(u64::from_le_bytes(*bytes.first_chunk()?))
            }
            FieldType::String => {
                let end = bytes.iter().position(|byte| *byte == 0);
                Value::Text(&bytes[..end.unwrap_or(bytes.len())])
            }
            // Their values are not kept by gprofng, nor does anybody write them.
            FieldType::Double | FieldType::Date => return None,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tick(state: u32, ticks: u32, time: u64, ids: [u32; 3], stack: u64) -> ClockTick {
        let [cpu, tid, pid] = ids;
        let state = Microstate::from_number(state).unwrap();
        let stack = StackUid::new(stack).unwrap();
        ClockTick {
            cpu,
            time,
            stack,
            tid,
            pid,
            state,
            ticks,
        }
    }

    #[test]
    fn fields_do_not_overlap_and_are_aligned() {
        let mut end = HEADER_BYTES;
        for (_, name, _, kind, offset) in CLOCK_LAYOUT {
            assert_eq!(offset as usize, end, "{name}");
            assert!(end.is_multiple_of(kind.bytes()), "{name}");
            end += kind.bytes();
        }
        assert_eq!(end, CLOCK_BYTES);
    }

    #[test]
    fn what_gprofng_reads_as_negative_is_refused() {
        assert!(tick(0, 1 << 31, 0, [0; 3], 1).encode().is_err());
        assert!(tick(0, 1, 1 << 63, [0; 3], 1).encode().is_err());
    }

    #[test]
    fn names_of_fields_do_not_depend_on_case_and_cut_packets_have_none() {
        let layout = PacketLayout::new(&ClockTick::declaration());
        let packet = tick(11, 5, 6, [1, 2, 3], 9).encode().unwrap();
        assert_eq!(layout.value(&packet, "kpid"), Some(Value::Integer(3)));
        assert_eq!(layout.value(&packet, "nothing"), None);
        assert_eq!(layout.value(&packet[..30], "KPID"), None);
        assert_eq!(layout.clock(&packet[..39]), None);
    }

    #[test]
    fn text_ends_at_a_nul_or_with_the_packet() {
        let field = FieldDecl {
            name: "IOFNAME".into(),
            uname: String::new(),
            kind: FieldType::String,
            offset: 4,
        };
        assert_eq!(field.value(b"....ab\0c"), Some(Value::Text(b"ab")));
        assert_eq!(field.value(b"....ab"), Some(Value::Text(b"ab")));
        assert_eq!(field.value(b"..."), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            state in 0u32..12,
            ticks in 0u32..1 << 31,
            time in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..,
        ) {
            let tick = tick(state, ticks, time, ids, stack);
            let layout = PacketLayout::new(&ClockTick::declaration());
            let record = layout.clock(&tick.encode().unwrap()).unwrap();
            let expected = ClockRecord {
                cpu: tick.cpu,
                time,
                stack: Some(tick.stack),
                thread: tick.tid.into(),
                pid: Some(tick.pid),
                state,
                ticks: ticks as i32,
            };
            prop_assert_eq!(record, expected);
        }

        #[test]
        fn any_declaration_meets_any_packet(
            fields in prop::collection::vec((0usize..7, any::<u32>(), 0usize..7), 0..9),
            packet in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let fields = fields.into_iter().map(|(name, offset, kind)| FieldDecl {
                name: CLOCK_LAYOUT[name].1.to_owned(),
                uname: String::new(),
                kind: FieldType::ALL[kind],
                offset: offset % 80,
            });
            let decl = PacketDecl { kind: 8, uname: String::new(), fields: fields.collect() };
            let layout = PacketLayout::new(&decl);
            let _ = layout.clock(&packet);
            for (_, name, ..) in CLOCK_LAYOUT {
                let _ = layout.value(&packet, name);
            }
        }
    }
}
