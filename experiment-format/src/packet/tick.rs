//! The two packets that we write.
//!
//! Both begin with the same fields: who, where, when, with which stack. A [`ClockTick`] goes on
//! with one state and its ticks, a [`TickArray`] with the ticks of each of the ten. All fields are
//! aligned; thread ids need 4 bytes, so THRID has no more, which gprofng takes. A tick array ends
//! with what is known beyond the states, a [`Detail`].
//!
//! gprofng 2.40 takes both from one file and shows all their metrics at once, if the clock tables
//! of the header stand in the right order: that of the ticks of CPUs first, that of the tick arrays
//! last. The other way round it offers the same metrics, takes the states 0 to 2 from the arrays,
//! and says nothing of the rest. A header with that order is refused, as is one whose tables
//! have ticks of different length, since the last one's is used for all.

use crate::Result;
use crate::error::Error;
use crate::microstate::Microstate;
use crate::packet::{CLOCK, FieldDecl, FieldType, HEADER_BYTES, PacketDecl, TICK_ARRAY, header};
use crate::stacks::StackUid;

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

/// A tick array: what one thread spent in each of the ten states with one stack.
///
/// gprofng knows this form by the packet's type, which is why it is the one that Solaris used. It
/// takes as many states from it as the *last* clock table of the header has, so that table has to
/// be one of [`NumStates::Solaris`](crate::microstate::NumStates::Solaris); a table of ticks of
/// CPUs ([`NumStates::Kernel`](crate::microstate::NumStates::Kernel)) stands ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickArray {
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
    /// How many ticks, by [`Microstate::number`]; 2^31 − 1 at most in each.
    pub ticks: [u32; Microstate::PER_THREAD],
    /// What more is known of the ticks, the [`Detail::number`] of all of them: a thread that slept
    /// for a disk and then waited for a CPU has two arrays. The property `KDETAIL` in gprofng's
    /// filters.
    pub detail: u32,
}

/// Why a thread was in its state, where the state alone leaves that open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Detail {
    /// Nothing more is known.
    #[default]
    None = 0,
    /// Blocked for block I/O.
    BlockIo = 1,
    /// Waiting for a CPU after a wake-up.
    Woken = 2,
    /// Waiting for a CPU that was taken away or given up.
    Preempted = 3,
    /// Waiting because a cgroup's quota was used up.
    Throttled = 4,
}

impl Detail {
    /// All details, in the order of their numbers.
    pub const ALL: [Detail; 5] = [
        Detail::None,
        Detail::BlockIo,
        Detail::Woken,
        Detail::Preempted,
        Detail::Throttled,
    ];

    /// The number in the file.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The detail of a number, if it is one that has a name.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Bytes of a clock packet.
const CLOCK_BYTES: usize = 40;
/// Bytes of a tick array, the last 4 of them unused.
const ARRAY_BYTES: usize = 80;

/// A field of ours: where it is and what it is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    uname: &'static str,
    kind: FieldType,
    offset: u32,
}

/// What a packet of ours has beyond the fields that all have.
#[derive(Debug)]
pub(super) struct Form<const FIELDS: usize> {
    kind: u16,
    uname: &'static str,
    pub(super) fields: [Field; FIELDS],
}

/// The fields that both packets begin with.
pub(super) const SHARED: [Field; 5] = [
    field("CPUID", "CPU id", FieldType::Uint32, 4),
    field("TSTAMP", "High resolution timestamp", FieldType::Int64, 8),
    field("FRINFO", "", FieldType::Int64, 16),
    field("THRID", "Thread number", FieldType::Uint32, 24),
    field("KPID", "Process id", FieldType::Uint32, 28),
];

/// A clock packet.
pub(super) const ONE: Form<2> = Form {
    kind: CLOCK,
    uname: "Clock profiling data",
    fields: [
        field("MSTATE", "Thread state", FieldType::Uint32, 32),
        field("NTICK", "Duration", FieldType::Int32, 36),
    ],
};

/// A tick array. MSTATE and NTICK are not declared: gprofng makes them from the counts, field by
/// field in the order of the declaration, and a declared one that follows would replace them.
pub(super) const ARRAY: Form<{ Microstate::PER_THREAD }> = Form {
    kind: TICK_ARRAY,
    uname: "Microstate profiling data",
    fields: [
        count("UCPU", Microstate::User),
        count("SCPU", Microstate::System),
        count("TRAP", Microstate::Trap),
        count("TFLT", Microstate::TextFault),
        count("DFLT", Microstate::DataFault),
        count("KFLT", Microstate::KernelFault),
        count("ULCK", Microstate::UserLock),
        count("TSLP", Microstate::Sleep),
        count("WCPU", Microstate::WaitCpu),
        count("TSTP", Microstate::Stopped),
    ],
};

/// What a tick array has behind its counts. gprofng gives it to the record of each state, and the
/// value 0 to records of packets that do not have it.
pub(super) const DETAIL: Field = field("KDETAIL", "Detail", FieldType::Uint32, 72);

pub(super) const fn field(
    name: &'static str,
    uname: &'static str,
    kind: FieldType,
    offset: u32,
) -> Field {
    Field {
        name,
        uname,
        kind,
        offset,
    }
}

const fn count(name: &'static str, state: Microstate) -> Field {
    field(
        name,
        state.label(),
        FieldType::Int32,
        32 + 4 * state.number(),
    )
}

impl ClockTick {
    /// The declaration of this packet, for [`crate::log::ProfileDecl::Clock`].
    pub fn declaration() -> PacketDecl {
        ONE.declaration()
    }

    /// The packet as it stands in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks or a later time than the fields, which gprofng reads as signed, can hold.
    pub fn encode(&self) -> Result<[u8; CLOCK_BYTES]> {
        let own = [self.state.number(), self.ticks];
        ONE.encode(self.time, self.stack, [self.cpu, self.tid, self.pid], own)
    }
}

impl TickArray {
    /// The declaration of this packet, for the last [`crate::log::ProfileDecl::Clock`] of a header.
    pub fn declaration() -> PacketDecl {
        let mut declaration = ARRAY.declaration();
        declaration.fields.push(DETAIL.declaration());
        declaration
    }

    /// Whether it has no ticks: it then says nothing, and writers leave it out.
    pub fn is_empty(&self) -> bool {
        self.ticks == [0; Microstate::PER_THREAD]
    }

    /// The packet as it stands in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks of a state or a later time than the fields, which gprofng reads as signed, can
    /// hold.
    pub fn encode(&self) -> Result<[u8; ARRAY_BYTES]> {
        let ids = [self.cpu, self.tid, self.pid];
        let mut packet = ARRAY.encode(self.time, self.stack, ids, self.ticks)?;
        DETAIL.put(&mut packet, self.detail.into());
        Ok(packet)
    }
}

impl Field {
    pub(super) fn declaration(&self) -> FieldDecl {
        FieldDecl {
            name: self.name.to_owned(),
            uname: self.uname.to_owned(),
            kind: self.kind,
            offset: self.offset,
        }
    }

    /// Writes the value into its place.
    pub(super) fn put(&self, packet: &mut [u8], value: u64) {
        let (offset, width) = (self.offset as usize, self.kind.bytes());
        packet[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

impl<const FIELDS: usize> Form<FIELDS> {
    pub(super) const fn new(kind: u16, uname: &'static str, fields: [Field; FIELDS]) -> Self {
        Form {
            kind,
            uname,
            fields,
        }
    }

    pub(super) fn declaration(&self) -> PacketDecl {
        let fields = SHARED.iter().chain(&self.fields);
        PacketDecl {
            kind: self.kind,
            uname: self.uname.to_owned(),
            fields: fields.map(Field::declaration).collect(),
        }
    }

    /// The packet whose own fields have the values `own`, in order.
    pub(super) fn encode<const BYTES: usize>(
        &self,
        time: u64,
        stack: StackUid,
        [cpu, tid, pid]: [u32; 3],
        own: [u32; FIELDS],
    ) -> Result<[u8; BYTES]> {
        let refused = |what| Err(Error::unwritable("profile", what));
        if let Some(ticks) = own.iter().find(|value| i32::try_from(**value).is_err()) {
            return refused(format!("{ticks} ticks in one packet"));
        }
        if i64::try_from(time).is_err() {
            return refused(format!("a time of {time} ns"));
        }
        let mut packet = [0; BYTES];
        packet[..HEADER_BYTES].copy_from_slice(&header(BYTES as u16, self.kind));
        let shared = [cpu.into(), time, stack.get(), tid.into(), pid.into()];
        let values = shared.into_iter().chain(own.map(u64::from));
        for (field, value) in SHARED.iter().chain(&self.fields).zip(values) {
            field.put(&mut packet, value);
        }
        Ok(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microstate::NumStates;
    use crate::packet::{ClockRecord, PacketLayout};
    use proptest::prelude::*;

    fn tick(state: u32, ticks: u32, time: u64, [cpu, tid, pid]: [u32; 3], stack: u64) -> ClockTick {
        ClockTick {
            cpu,
            time,
            stack: StackUid::new(stack).unwrap(),
            tid,
            pid,
            state: Microstate::from_number(state).unwrap(),
            ticks,
        }
    }

    fn array(ticks: [u32; 10], time: u64, [cpu, tid, pid]: [u32; 3], stack: u64) -> TickArray {
        TickArray {
            cpu,
            time,
            stack: StackUid::new(stack).unwrap(),
            tid,
            pid,
            ticks,
            detail: 0,
        }
    }

    fn decoded(decl: &PacketDecl, packet: &[u8]) -> Option<Vec<ClockRecord>> {
        let layout = PacketLayout::new(decl, NumStates::Solaris);
        Some(layout.ticks(packet)?.collect())
    }

    #[test]
    fn fields_do_not_overlap_and_are_aligned() {
        let ends = |own: &[Field]| {
            SHARED.iter().chain(own).fold(HEADER_BYTES, |end, field| {
                assert_eq!(field.offset as usize, end, "{}", field.name);
                assert!(end.is_multiple_of(field.kind.bytes()), "{}", field.name);
                end + field.kind.bytes()
            })
        };
        assert_eq!(ends(&ONE.fields), CLOCK_BYTES);
        let whole = [&ARRAY.fields[..], &[DETAIL]].concat();
        assert_eq!(ends(&whole).next_multiple_of(8), ARRAY_BYTES);
        assert!(CLOCK_BYTES.is_multiple_of(8) && ARRAY_BYTES.is_multiple_of(8));
    }

    #[test]
    fn numbers_of_details_are_positions() {
        for (position, detail) in Detail::ALL.into_iter().enumerate() {
            assert_eq!(detail.number() as usize, position);
            assert_eq!(Detail::from_number(detail.number()), Some(detail));
        }
        assert_eq!(Detail::from_number(5), None);
        assert_eq!(
            Detail::from_number(Detail::default().number()),
            Some(Detail::None)
        );
    }

    /// What was written before there were details.
    #[test]
    fn a_tick_array_without_a_detail_is_read() {
        let mut array = array([1; 10], 7, [0; 3], 1);
        array.detail = Detail::Woken.number();
        let packet = array.encode().unwrap();
        let mut decl = TickArray::declaration();
        let details = |decl: &PacketDecl, packet: &[u8]| -> Vec<_> {
            let found = decoded(decl, packet).unwrap().into_iter();
            found.map(|record| record.detail).collect()
        };
        assert_eq!(details(&decl, &packet), [2; 10]);
        assert_eq!(details(&decl, &packet[..72]), [0; 10]);
        decl.fields.retain(|field| field.name != "KDETAIL");
        assert_eq!(details(&decl, &packet[..72]), [0; 10]);
    }

    #[test]
    fn what_gprofng_reads_as_negative_is_refused() {
        assert!(tick(0, 1 << 31, 0, [0; 3], 1).encode().is_err());
        assert!(tick(0, 1, 1 << 63, [0; 3], 1).encode().is_err());
        let mut ticks = [0; 10];
        ticks[9] = i32::MAX as u32;
        assert!(array(ticks, 0, [0; 3], 1).encode().is_ok());
        assert!(array(ticks, 1 << 63, [0; 3], 1).encode().is_err());
        ticks[9] += 1;
        assert!(array(ticks, 0, [0; 3], 1).encode().is_err());
    }

    proptest! {
        #[test]
        fn a_clock_packet_is_one_record(
            state in 0u32..12,
            ticks in 0u32..1 << 31,
            time in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..,
        ) {
            let tick = tick(state, ticks, time, ids, stack);
            let expected = ClockRecord {
                cpu: tick.cpu,
                time,
                stack: Some(tick.stack),
                thread: tick.tid.into(),
                pid: Some(tick.pid),
                state,
                ticks: ticks as i32,
                detail: 0,
            };
            let packet = tick.encode().unwrap();
            prop_assert_eq!(decoded(&ClockTick::declaration(), &packet), Some(vec![expected]));
        }

        #[test]
        fn a_tick_array_is_a_record_for_each_state_with_ticks(
            ticks in prop::array::uniform10(prop_oneof![Just(0u32), 0u32..1 << 31]),
            time in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..,
            detail: u32,
            cut in 4..ARRAY_BYTES,
        ) {
            let array = TickArray { detail, ..array(ticks, time, ids, stack) };
            let records = (0..).zip(ticks).filter(|(_, ticks)| *ticks > 0);
            let expected: Vec<_> = records.map(|(state, ticks)| ClockRecord {
                cpu: array.cpu,
                time,
                stack: Some(array.stack),
                thread: array.tid.into(),
                pid: Some(array.pid),
                state,
                ticks: ticks as i32,
                detail,
            }).collect();
            let (decl, packet) = (TickArray::declaration(), array.encode().unwrap());
            prop_assert_eq!(decoded(&decl, &packet), Some(expected.clone()));
            // A packet that is shorter than declared has the states that are whole in it.
            let whole = decoded(&decl, &packet[..cut]).unwrap_or_default();
            let count = cut.saturating_sub(32) / 4;
            let states = expected.iter().filter(|record| (record.state as usize) < count);
            prop_assert_eq!(whole.len(), states.count());
        }
    }
}
