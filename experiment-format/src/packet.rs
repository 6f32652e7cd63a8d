//! Self-described packets: a declaration in `log.xml` says which bytes of a packet mean what.

use crate::microstate::Microstate;
use crate::stacks::StackUid;

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

impl ClockTick {
    /// The declaration of this packet, for [`crate::log::ProfileDecl::Clock`].
    pub fn declaration() -> PacketDecl {
        todo!()
    }
}
