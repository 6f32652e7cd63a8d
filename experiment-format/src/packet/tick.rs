//! The two clock packets that this crate writes.
//!
//! Both begin with the same fields: CPU, time, stack, thread, process. A [`ClockTick`] goes on with
//! one state and its ticks, a [`TickArray`] with the ticks of each of the ten states. All fields
//! are aligned. THRID has only 4 bytes, which suffice for a thread id and which gprofng accepts. A
//! tick array ends with what is known beyond the states, a [`Detail`].
//!
//! gprofng 2.40 reads both from one file and shows all their metrics at once, if the clock tables
//! of the header are in the right order: that of the CPUs' ticks first, that of the tick arrays
//! last. In the other order it offers the same metrics, takes the states 0 to 2 from the arrays,
//! and silently drops the rest. A header with that order is refused. So is one whose tables have
//! ticks of different length, since gprofng uses that of the last one for all.

use num_enum::TryFromPrimitive;

use crate::Result;
use crate::ids::{Pid, StackUid, Tid};
use crate::microstate::Microstate;
use crate::packet::spec::{FieldSpec, PacketSpec, field};
use crate::packet::{CLOCK, FieldType, PacketDecl, TICK_ARRAY};
use crate::units::{Nanos, Ticks};

/// A clock packet: one thread, or one CPU, spent ticks in one state with one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTick {
    /// The CPU.
    pub cpu: u32,
    /// The time, by the clock of [`crate::log::StartTime::tstamp_ns`].
    pub time_ns: Nanos,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: Tid,
    /// Its process: the property `KPID` in gprofng's filters.
    pub pid: Pid,
    /// The state.
    pub state: Microstate,
    /// The number of ticks; 2^31 − 1 at most.
    pub ticks: Ticks,
}

/// A tick array: the ticks of one thread in each of the ten states, with one stack.
///
/// gprofng recognizes it by the packet's type, which Solaris used for it. It reads as many states
/// as the *last* clock table of the header has, so that table has to be one of
/// [`NumStates::Solaris`](crate::microstate::NumStates::Solaris); a table of CPUs' ticks
/// ([`NumStates::Kernel`](crate::microstate::NumStates::Kernel)) stands ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickArray {
    /// The CPU.
    pub cpu: u32,
    /// The time, by the clock of [`crate::log::StartTime::tstamp_ns`].
    pub time_ns: Nanos,
    /// The stack, from [`crate::writer::ExperimentWriter::stack`].
    pub stack: StackUid,
    /// The thread.
    pub tid: Tid,
    /// Its process: the property `KPID` in gprofng's filters.
    pub pid: Pid,
    /// The number of ticks in each state, by [`Microstate::number`]; 2^31 − 1 at most.
    pub ticks: [Ticks; Microstate::PER_THREAD],
    /// The [`Detail::number`] of all these ticks. A thread that slept for a disk and then waited
    /// for a CPU has two arrays. The property `KDETAIL` in gprofng's filters.
    pub detail: u32,
}

/// The reason why a thread was in its state, as far as the state does not say it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromPrimitive)]
#[repr(u32)]
pub enum Detail {
    /// No reason is known.
    #[default]
    None = 0,
    /// Blocked for block I/O.
    BlockIo = 1,
    /// Waiting for a CPU after a wake-up.
    Woken = 2,
    /// Waiting for a CPU after it was preempted or yielded.
    Preempted = 3,
    /// Waiting because the quota of its cgroup is used up.
    Throttled = 4,
    /// Waiting for a CPU because the hypervisor ran something else on the one that it was on.
    Stolen = 5,
}

impl Detail {
    /// All details, in the order of their numbers.
    pub const ALL: [Detail; 6] = [
        Detail::None,
        Detail::BlockIo,
        Detail::Woken,
        Detail::Preempted,
        Detail::Throttled,
        Detail::Stolen,
    ];

    /// Returns the number in the file; [`Detail::try_from`] is the reverse.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The file of an experiment that has them.
pub(crate) const FILE: &str = "profile";

/// The size of a clock packet.
const CLOCK_BYTES: usize = 40;
/// The size of a tick array; its last 4 bytes are unused.
const ARRAY_BYTES: usize = 80;

/// The layout of a clock packet.
pub(super) const CLOCK_SPEC: PacketSpec<2> = PacketSpec::new(
    CLOCK,
    "Clock profiling data",
    [
        field("MSTATE", "Thread state", FieldType::Uint32, 32),
        field("NTICK", "Duration", FieldType::Int32, 36),
    ],
);

/// The layout of a tick array, without its detail. MSTATE and NTICK are not declared: gprofng makes
/// them from the counts, in the order of the declaration, and a declared field would replace them.
pub(super) const ARRAY_SPEC: PacketSpec<{ Microstate::PER_THREAD }> = PacketSpec::new(
    TICK_ARRAY,
    "Microstate profiling data",
    [
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
);

/// The field of a tick array behind its counts. gprofng copies it to the record of each state;
/// records of packets without this field have the value 0.
pub(super) const DETAIL_FIELD: FieldSpec = field("KDETAIL", "Detail", FieldType::Uint32, 72);

/// Returns the field of the count of a state.
const fn count(name: &'static str, state: Microstate) -> FieldSpec {
    field(
        name,
        state.label(),
        FieldType::Int32,
        32 + 4 * state.number(),
    )
}

impl ClockTick {
    /// Returns the declaration of this packet, for [`crate::log::ProfileDecl::Clock`].
    pub fn declaration() -> PacketDecl {
        CLOCK_SPEC.declaration()
    }

    /// Returns the packet as it is in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks or a later time than the fields, which gprofng reads as signed, can hold.
    pub fn encode(&self) -> Result<[u8; CLOCK_BYTES]> {
        let own = [self.state.number(), file_ticks(self.ticks)];
        CLOCK_SPEC.encode(
            self.time_ns,
            self.stack,
            [self.cpu, self.tid.0, self.pid.0],
            own,
        )
    }
}

impl TickArray {
    /// Returns the declaration of this packet, for the last [`crate::log::ProfileDecl::Clock`] of a
    /// header.
    pub fn declaration() -> PacketDecl {
        let mut declaration = ARRAY_SPEC.declaration();
        declaration.fields.push(DETAIL_FIELD.declaration());
        declaration
    }

    /// Returns whether it has no ticks. Writers leave out such an array.
    pub fn is_empty(&self) -> bool {
        self.ticks == [Ticks::ZERO; Microstate::PER_THREAD]
    }

    /// Returns the packet as it is in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks of a state or a later time than the fields, which gprofng reads as signed, can
    /// hold.
    pub fn encode(&self) -> Result<[u8; ARRAY_BYTES]> {
        let ids = [self.cpu, self.tid.0, self.pid.0];
        let mut packet =
            ARRAY_SPEC.encode(self.time_ns, self.stack, ids, self.ticks.map(file_ticks))?;
        DETAIL_FIELD.put(&mut packet, self.detail.into());
        Ok(packet)
    }
}

/// Returns a number of ticks as it is in a field; one that is too large remains too large.
fn file_ticks(ticks: Ticks) -> u32 {
    u32::try_from(ticks.0).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microstate::NumStates;
    use crate::packet::spec::SHARED_FIELDS;
    use crate::packet::{ClockRecord, HEADER_BYTES, PacketLayout};
    use proptest::prelude::*;

    fn tick(
        state: u32,
        ticks: Ticks,
        time_ns: Nanos,
        [cpu, tid, pid]: [u32; 3],
        stack: u64,
    ) -> ClockTick {
        ClockTick {
            cpu,
            time_ns,
            stack: StackUid::new(stack).unwrap(),
            tid: Tid(tid),
            pid: Pid(pid),
            state: Microstate::try_from(state).unwrap(),
            ticks,
        }
    }

    fn array(
        ticks: [Ticks; 10],
        time_ns: Nanos,
        [cpu, tid, pid]: [u32; 3],
        stack: u64,
    ) -> TickArray {
        TickArray {
            cpu,
            time_ns,
            stack: StackUid::new(stack).unwrap(),
            tid: Tid(tid),
            pid: Pid(pid),
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
        let ends = |own: &[FieldSpec]| {
            SHARED_FIELDS
                .iter()
                .chain(own)
                .fold(HEADER_BYTES, |end, field| {
                    assert_eq!(field.offset as usize, end, "{}", field.name);
                    assert!(end.is_multiple_of(field.kind.bytes()), "{}", field.name);
                    end + field.kind.bytes()
                })
        };
        assert_eq!(ends(&CLOCK_SPEC.fields), CLOCK_BYTES);
        let whole = [&ARRAY_SPEC.fields[..], &[DETAIL_FIELD]].concat();
        assert_eq!(ends(&whole).next_multiple_of(8), ARRAY_BYTES);
        assert!(CLOCK_BYTES.is_multiple_of(8) && ARRAY_BYTES.is_multiple_of(8));
    }

    #[test]
    fn numbers_of_details_are_positions() {
        for (position, detail) in Detail::ALL.into_iter().enumerate() {
            assert_eq!(detail.number() as usize, position);
            assert_eq!(Detail::try_from(detail.number()), Ok(detail));
        }
        assert!(Detail::try_from(6).is_err());
        assert_eq!(
            Detail::try_from(Detail::default().number()),
            Ok(Detail::None)
        );
    }

    /// Packets had no detail at first.
    #[test]
    fn a_tick_array_without_a_detail_is_read() {
        let mut array = array([Ticks(1); 10], Nanos(7), [0; 3], 1);
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
        assert!(
            tick(0, Ticks(1 << 31), Nanos::ZERO, [0; 3], 1)
                .encode()
                .is_err()
        );
        assert!(
            tick(0, Ticks(1), Nanos(1 << 63), [0; 3], 1)
                .encode()
                .is_err()
        );
        let mut ticks = [Ticks::ZERO; 10];
        ticks[9] = Ticks(i32::MAX as u64);
        assert!(array(ticks, Nanos::ZERO, [0; 3], 1).encode().is_ok());
        assert!(array(ticks, Nanos(1 << 63), [0; 3], 1).encode().is_err());
        ticks[9] += Ticks(1);
        assert!(array(ticks, Nanos::ZERO, [0; 3], 1).encode().is_err());
    }

    proptest! {
        #[test]
        fn a_clock_packet_is_one_record(
            state in 0u32..12,
            ticks in 0u32..1 << 31,
            time_ns in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..,
        ) {
            let tick = tick(state, Ticks(ticks.into()), Nanos(time_ns), ids, stack);
            let expected = ClockRecord {
                cpu: tick.cpu,
                time_ns: Nanos(time_ns),
                stack: Some(tick.stack),
                thread: tick.tid.0.into(),
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
            time_ns in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..,
            detail: u32,
            cut in 4..ARRAY_BYTES,
        ) {
            let array = TickArray { detail, ..array(ticks.map(|ticks| Ticks(ticks.into())), Nanos(time_ns), ids, stack) };
            let records = (0..).zip(ticks).filter(|(_, ticks)| *ticks > 0);
            let expected: Vec<_> = records.map(|(state, ticks)| ClockRecord {
                cpu: array.cpu,
                time_ns: Nanos(time_ns),
                stack: Some(array.stack),
                thread: array.tid.0.into(),
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
