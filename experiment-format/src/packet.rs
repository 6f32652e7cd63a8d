//! Self-described packets: a declaration in `log.xml` says which bytes of a packet mean what.
//!
//! A reader takes each field from its declared offset, so a writer is free to choose the layout.
//! The layouts of the packets that this crate writes, [`ClockTick`], [`CounterEvent`],
//! [`SyncEvent`], [`IoEvent`] and [`HeapEvent`], are stated once, in tables (`spec`); declaration
//! and encoder follow from them. The decoder here follows the declaration of the file. It returns a
//! [`ClockRecord`], a [`CounterRecord`], a [`SyncRecord`], an [`IoRecord`] or a [`HeapRecord`].
//! `walk` finds the packets of a file.

pub(crate) mod counter;
pub(crate) mod heap;
pub(crate) mod io_call;
pub(crate) mod spec;
pub(crate) mod sync;
pub(crate) mod tick;
pub(crate) mod walk;

use crate::ids::{Pid, StackUid};
use crate::units::Nanos;
use crate::xml::write::Element;

pub use counter::{CounterEvent, CounterRecord};
pub use heap::{HeapEvent, HeapKind, HeapRecord, WEIGHT_OF_ONE};
pub use io_call::{IoEvent, IoKind, IoOperation, IoRecord};
use spec::{CLOCK_SPEC, COUNTER_SPEC, FieldSpec, SHARED_FIELDS, VALUE_FIELD};
pub use sync::{SyncEvent, SyncRecord, SyncThreshold, UNKNOWN_KIND};
pub use tick::{ClockTick, Detail};

/// The size of the header of every packet: `u16` total size, `u16` type.
pub const HEADER_BYTES: usize = 4;
/// The type of a packet that is skipped.
pub const EMPTY: u16 = 0;
/// The type of a packet of a wait for a lock.
pub const SYNC: u16 = 2;
/// The type of a packet of a counter.
pub const COUNTER: u16 = 3;
/// The type of a packet of memory that was allocated or freed.
pub const HEAP: u16 = 5;
/// The type of a clock packet.
pub const CLOCK: u16 = 8;
/// The type of a stack that packets refer to.
pub const FRAME: u16 = 11;
/// The type of a packet of a call that does I/O.
pub const IO: u16 = 19;
/// The type of the callers of a stack, which FRAME packets refer to.
pub const UID: u16 = 17;
/// The type of the unused rest of a block, which is skipped.
pub const CLOSED: u16 = 65535;

/// The way a field is stored.
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
    /// Bytes from the offset to a NUL or the end of the packet.
    String,
    /// 8 bytes; gprofng accepts it and does not keep the value.
    Double,
    /// 8 bytes; gprofng accepts it and does not keep the value.
    Date,
}

/// The declaration of a field of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDecl {
    /// The name of the property; case is ignored. A name that is unknown to gprofng becomes a new
    /// property, usable in filters.
    pub name: String,
    /// The text that `-describe` prints for it, empty for none.
    pub uname: String,
    /// The way it is stored.
    pub kind: FieldType,
    /// Bytes from the beginning of the packet, the header included.
    pub offset: u32,
}

/// The declaration of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketDecl {
    /// The type in the header of each packet.
    pub kind: u16,
    /// The text that `-describe` prints for it.
    pub uname: String,
    /// The fields.
    pub fields: Vec<FieldDecl>,
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value of an integer field; a signed one is sign-extended.
    Integer(u64),
    /// The bytes of a string field, without its NUL.
    Text(&'a [u8]),
}

/// Where and when something happened: what all packets begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedFields {
    /// The CPU; 0 if the packet has none.
    pub cpu: u32,
    /// The time, by the clock of [`crate::log::StartTime::tstamp_ns`]. Of a wait or a call: its
    /// end.
    pub time_ns: Nanos,
    /// The stack, if there is one.
    pub stack: Option<StackUid>,
    /// The thread: a thread id, or what `pthread_self` returned.
    pub thread: u64,
    /// The process, if the packet has one.
    pub pid: Option<Pid>,
}

/// A clock packet that was read, in any layout, of any collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockRecord {
    /// What all packets begin with.
    pub shared: SharedFields,
    /// The number of the state: see [`Microstate`](crate::microstate::Microstate).
    pub state: u32,
    /// The number of ticks.
    pub ticks: i32,
    /// The number of their [`Detail`]; 0 if the packet has no detail.
    pub detail: u32,
    /// The number of the [`Cause`](crate::cause::Cause) of a blocked state; 0 if the packet has
    /// none.
    pub cause: u32,
    /// The thread that ended it; 0 if none did, or the packet has none.
    pub waker: u32,
}

/// The layout of a declared packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PacketLayout {
    fields: Vec<FieldDecl>,
    /// The positions in `fields` of the fields of [`SHARED_FIELDS`], in its order.
    shared: [Option<usize>; SHARED_FIELDS.len()],
    /// The positions of the fields of [`CLOCK_SPEC`], in its order.
    clock: [Option<usize>; 5],
    /// The positions of the counter and of its value, in a counter packet.
    counted: Option<[Option<usize>; 2]>,
}

impl PacketLayout {
    /// Returns the layout that `decl` declares.
    pub(crate) fn new(decl: &PacketDecl) -> Self {
        let position = |name: &str| {
            decl.fields
                .iter()
                .rposition(|field| field.name.eq_ignore_ascii_case(name))
        };
        PacketLayout {
            fields: decl.fields.clone(),
            shared: SHARED_FIELDS.map(|field| position(field.name)),
            clock: CLOCK_SPEC.fields.map(|field| position(field.name)),
            counted: (decl.kind == COUNTER)
                .then(|| [COUNTER_SPEC.fields[0].name, VALUE_FIELD.name].map(position)),
        }
    }

    /// Returns the value of the field `name` of a packet; None if it is not declared or lies beyond
    /// the packet's end.
    pub(crate) fn value<'a>(&self, packet: &'a [u8], name: &str) -> Option<Value<'a>> {
        let mut fields = self.fields.iter().rev();
        fields
            .find(|field| field.name.eq_ignore_ascii_case(name))?
            .value(packet)
    }

    /// Returns the value of an integer field.
    fn integer(&self, position: Option<usize>, packet: &[u8]) -> Option<u64> {
        match self.fields[position?].value(packet)? {
            Value::Integer(value) => Some(value),
            Value::Text(_) => None,
        }
    }

    /// Returns the value of an integer field by its name.
    fn number(&self, packet: &[u8], field: FieldSpec) -> Option<u64> {
        match self.value(packet, field.name)? {
            Value::Integer(value) => Some(value),
            Value::Text(_) => None,
        }
    }

    /// Returns what all packets begin with; None without the thread or the time.
    fn shared(&self, packet: &[u8]) -> Option<SharedFields> {
        let [cpu, time_ns, stack, thread, process] =
            self.shared.map(|position| self.integer(position, packet));
        Some(SharedFields {
            cpu: cpu.unwrap_or_default() as u32,
            time_ns: Nanos(time_ns?),
            stack: stack.and_then(StackUid::new),
            thread: thread?,
            pid: process.map(|pid| Pid(pid as u32)),
        })
    }

    /// The ticks of a packet; None without the thread, the time or the ticks.
    pub(crate) fn ticks(&self, packet: &[u8]) -> Option<ClockRecord> {
        let [state, ticks, detail, cause, waker] =
            self.clock.map(|position| self.integer(position, packet));
        Some(ClockRecord {
            shared: self.shared(packet)?,
            state: state.unwrap_or_default() as u32,
            ticks: ticks? as i32,
            detail: detail.unwrap_or_default() as u32,
            cause: cause.unwrap_or_default() as u32,
            waker: waker.unwrap_or_default() as u32,
        })
    }
}

impl FieldDecl {
    /// Returns the value of the field in a packet.
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
            // gprofng does not keep their values, and no collector writes them.
            FieldType::Double | FieldType::Date => return None,
        })
    }
}

/// Returns the header of a packet.
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

    /// Returns the keyword in a declaration.
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

    /// Returns the type of a keyword.
    pub fn from_keyword(keyword: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.keyword() == keyword)
    }

    /// Returns the size of the value; 0 for a string, whose size varies.
    pub const fn bytes(self) -> usize {
        match self {
            FieldType::Int32 | FieldType::Uint32 => 4,
            FieldType::Int64 | FieldType::Uint64 | FieldType::Double | FieldType::Date => 8,
            FieldType::String => 0,
        }
    }
}

impl PacketDecl {
    /// Writes the declaration.
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
    use crate::cause::Cause;
    use crate::ids::Tid;
    use crate::microstate::Microstate;
    use crate::units::Ticks;
    use proptest::prelude::*;

    #[test]
    fn names_of_fields_do_not_depend_on_case_and_cut_packets_have_none() {
        let decl = ClockTick::declaration();
        let layout = PacketLayout::new(&decl);
        let tick = ClockTick {
            cpu: 1,
            time_ns: Nanos(6),
            stack: StackUid::new(9).unwrap(),
            tid: Tid(2),
            pid: Pid(3),
            state: Microstate::KernelCpu,
            ticks: Ticks(5),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        let packet = tick.encode().unwrap();
        assert_eq!(layout.value(&packet, "kpid"), Some(Value::Integer(3)));
        assert_eq!(layout.value(&packet, "nothing"), None);
        assert_eq!(layout.value(&packet[..26], "KPID"), None);
        assert!(layout.ticks(&packet[..35]).is_none());
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
            fields in prop::collection::vec((0usize..8, any::<u32>(), 0usize..7), 0..20),
            packet in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let specs = SHARED_FIELDS.iter().chain(&CLOCK_SPEC.fields).map(|field| field.name);
            let names: Vec<_> = specs.collect();
            let fields = fields.into_iter().map(|(name, offset, kind)| FieldDecl {
                name: names[name].to_owned(),
                uname: String::new(),
                kind: FieldType::ALL[kind],
                offset: offset % 80,
            });
            let decl = PacketDecl { kind: CLOCK, uname: String::new(), fields: fields.collect() };
            let layout = PacketLayout::new(&decl);
            let _ = layout.ticks(&packet);
            for name in names {
                let _ = layout.value(&packet, name);
            }
        }
    }
}
