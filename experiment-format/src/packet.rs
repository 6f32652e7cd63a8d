//! Self-described packets: a declaration in `log.xml` says which bytes of a packet mean what.
//!
//! A reader takes each field from its declared place, so a writer is free in its layout. Those of
//! the packets that we write, [`ClockTick`], [`TickArray`] and [`CounterEvent`], are stated once,
//! in a table; the declaration and the encoder both follow from it. The decoder follows from
//! whatever declaration a file has, and gives [`ClockRecord`]s for the first two, a
//! [`CounterRecord`] for the third.

pub(crate) mod counter;
mod tick;

use std::array;
use std::iter::Flatten;

use crate::microstate::{Microstate, NumStates};
use crate::stacks::StackUid;
use crate::xml::Element;

use counter::{COUNTED, VALUE};
pub use counter::{CounterEvent, CounterRecord};
use tick::{ARRAY, DETAIL, ONE, SHARED};
pub use tick::{ClockTick, Detail, TickArray};

/// Bytes of the header of every packet: `u16` total size, `u16` type.
pub const HEADER_BYTES: usize = 4;
/// Type of a packet that is skipped.
pub const EMPTY: u16 = 0;
/// Type of a tick array: gprofng takes no state from such a packet, but a count for each.
pub const TICK_ARRAY: u16 = 1;
/// Type of a packet of a counter.
pub const COUNTER: u16 = 3;
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

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Of an integer field; signed ones are extended.
    Integer(u64),
    /// Of a string field, without its NUL.
    Text(&'a [u8]),
}

/// The ticks of one state in a packet as it was read, whoever wrote it and in whatever layout.
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
    /// What more is known of them, see [`Detail::from_number`]; 0, which is nothing, if the file
    /// does not say.
    pub detail: u32,
}

/// The clock records of one packet, in the order of their states.
#[derive(Debug, Clone)]
pub struct PacketTicks {
    /// What they have in common.
    shared: ClockRecord,
    states: Flatten<array::IntoIter<Option<(u32, i32)>, { Microstate::PER_THREAD }>>,
}

impl Iterator for PacketTicks {
    type Item = ClockRecord;

    fn next(&mut self) -> Option<ClockRecord> {
        let (state, ticks) = self.states.next()?;
        Some(ClockRecord {
            state,
            ticks,
            ..self.shared
        })
    }
}

/// Where the fields of a declared packet are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PacketLayout {
    fields: Vec<FieldDecl>,
    /// Positions in `fields` of those of [`SHARED`], in its order.
    shared: [Option<usize>; SHARED.len()],
    ticks: TickFields,
    detail: Option<usize>,
    /// Of a counter packet: positions of the counter and its value.
    counted: Option<[Option<usize>; 2]>,
}

/// Positions of the fields that say how many ticks there are, and of which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TickFields {
    One([Option<usize>; ONE.fields.len()]),
    Array([Option<usize>; ARRAY.fields.len()]),
}

impl PacketLayout {
    /// The layout that `decl` declares, in a file whose clock table has these `states`: counts of
    /// further states do not exist for gprofng, although they are declared.
    pub(crate) fn new(decl: &PacketDecl, states: NumStates) -> Self {
        let position = |name: &str| {
            decl.fields
                .iter()
                .rposition(|field| field.name.eq_ignore_ascii_case(name))
        };
        let ticks = if decl.kind == TICK_ARRAY {
            let mut counts = ARRAY.fields.map(|field| position(field.name));
            let offered = usize::try_from(states.number()).unwrap_or_default();
            counts
                .iter_mut()
                .skip(offered)
                .for_each(|count| *count = None);
            TickFields::Array(counts)
        } else {
            TickFields::One(ONE.fields.map(|field| position(field.name)))
        };
        PacketLayout {
            fields: decl.fields.clone(),
            shared: SHARED.map(|field| position(field.name)),
            ticks,
            detail: position(DETAIL.name),
            counted: (decl.kind == COUNTER)
                .then(|| [COUNTED.fields[0].name, VALUE.name].map(position)),
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

    fn integer(&self, position: Option<usize>, packet: &[u8]) -> Option<u64> {
        match self.fields[position?].value(packet)? {
            Value::Integer(value) => Some(value),
            Value::Text(_) => None,
        }
    }

    /// The values of the fields that all packets begin with, by [`SHARED`].
    fn shared_values(&self, packet: &[u8]) -> [Option<u64>; SHARED.len()] {
        self.shared.map(|position| self.integer(position, packet))
    }

    /// The ticks of a packet, none if it lacks the thread, the time or the ticks.
    pub(crate) fn ticks(&self, packet: &[u8]) -> Option<PacketTicks> {
        let get = |position| self.integer(position, packet);
        let [cpu, time, stack, thread, process] = self.shared_values(packet);
        let mut states = [None; Microstate::PER_THREAD];
        match self.ticks {
            TickFields::One(fields) => {
                let [state, ticks] = fields.map(get);
                states[0] = Some((state.unwrap_or_default() as u32, ticks? as i32));
            }
            TickFields::Array(counts) => {
                for (state, count) in (0..).zip(counts) {
                    let ticks = get(count).unwrap_or_default() as i32;
                    states[state] = (ticks != 0).then_some((state as u32, ticks));
                }
            }
        }
        Some(PacketTicks {
            shared: ClockRecord {
                cpu: cpu.unwrap_or_default() as u32,
                time: time?,
                stack: stack.and_then(StackUid::new),
                thread: thread?,
                pid: process.map(|pid| pid as u32),
                state: 0,
                ticks: 0,
                detail: get(self.detail).unwrap_or_default() as u32,
            },
            states: states.into_iter().flatten(),
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

    #[test]
    fn names_of_fields_do_not_depend_on_case_and_cut_packets_have_none() {
        let decl = ClockTick::declaration();
        let layout = PacketLayout::new(&decl, NumStates::Kernel);
        let tick = ClockTick {
            cpu: 1,
            time: 6,
            stack: StackUid::new(9).unwrap(),
            tid: 2,
            pid: 3,
            state: Microstate::KernelCpu,
            ticks: 5,
        };
        let packet = tick.encode().unwrap();
        assert_eq!(layout.value(&packet, "kpid"), Some(Value::Integer(3)));
        assert_eq!(layout.value(&packet, "nothing"), None);
        assert_eq!(layout.value(&packet[..30], "KPID"), None);
        assert!(layout.ticks(&packet[..39]).is_none());
    }

    /// A tick array of another collector: thread, time and two counts, at places of its own.
    fn foreign() -> (PacketDecl, Vec<u8>) {
        let field = |name: &str, kind, offset| FieldDecl {
            name: name.into(),
            uname: String::new(),
            kind,
            offset,
        };
        let fields = vec![
            field("wcpu", FieldType::Int32, 4),
            field("THRID", FieldType::Uint64, 8),
            field("TSTAMP", FieldType::Int64, 16),
            field("TFLT", FieldType::Uint32, 24),
            field("MSTATE", FieldType::Uint32, 28),
        ];
        let words = [32 | 1 << 16, 7u32, 12, 0, 99, 0, 5, 3];
        let packet = words.iter().flat_map(|word| word.to_le_bytes());
        let decl = PacketDecl {
            kind: TICK_ARRAY,
            uname: String::new(),
            fields,
        };
        (decl, packet.collect())
    }

    #[test]
    fn of_a_foreign_tick_array_the_declared_states_count() {
        let (decl, packet) = foreign();
        let layout = PacketLayout::new(&decl, NumStates::Solaris);
        let found: Vec<_> = layout.ticks(&packet).unwrap().collect();
        let record = |state, ticks| ClockRecord {
            cpu: 0,
            time: 99,
            stack: None,
            thread: 12,
            pid: None,
            state,
            ticks,
            detail: 0,
        };
        assert_eq!(found, [record(3, 5), record(8, 7)]);
    }

    #[test]
    fn states_that_the_table_does_not_have_do_not_count() {
        let (decl, packet) = foreign();
        for (states, count) in [(4, 1), (3, 0), (8, 1), (9, 2), (100, 2), (-1, 0)] {
            let layout = PacketLayout::new(&decl, NumStates::from_number(states));
            assert_eq!(layout.ticks(&packet).unwrap().count(), count, "{states}");
        }
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
        fn any_declaration_meets_any_packet(
            fields in prop::collection::vec((0usize..18, any::<u32>(), 0usize..7), 0..20),
            packet in prop::collection::vec(any::<u8>(), 0..80),
            kind in prop::sample::select(vec![CLOCK, TICK_ARRAY]),
            states in -1i32..12,
        ) {
            let names: Vec<_> = [&SHARED[..], &ONE.fields, &ARRAY.fields, &[DETAIL]]
                .concat().iter().map(|field| field.name).collect();
            let fields = fields.into_iter().map(|(name, offset, kind)| FieldDecl {
                name: names[name].to_owned(),
                uname: String::new(),
                kind: FieldType::ALL[kind],
                offset: offset % 80,
            });
            let decl = PacketDecl { kind, uname: String::new(), fields: fields.collect() };
            let layout = PacketLayout::new(&decl, NumStates::from_number(states));
            let found: Vec<_> = layout.ticks(&packet).into_iter().flatten().collect();
            prop_assert!(found.is_sorted_by_key(|record| record.state));
            for name in names {
                let _ = layout.value(&packet, name);
            }
        }
    }
}
