//! The clock packet that this crate writes. Its layout is in `spec`, with the field names of the
//! other kind of clock packet that is also read.
//!
//! A [`ClockTick`] begins with the fields of all packets: CPU, time, stack, thread, process. It
//! continues with one state, its ticks, and what is known beyond the state, a [`Detail`]. THRID has
//! only 4 bytes, which suffice for a thread id and which gprofng accepts.
//!
//! gprofng 2.40 shows the metrics of all clock tables of a header at once, so a founder has a table
//! of the CPUs' ticks and one of the ten states. It uses the length of a tick of the last table for
//! all, so a header whose tables differ in it is refused.

use num_enum::TryFromPrimitive;

use crate::Result;
use crate::cause::Cause;
use crate::ids::{Pid, StackUid, Tid};
use crate::log::ProfileDecl;
use crate::microstate::{Microstate, NumStates};
use crate::packet::PacketDecl;
use crate::packet::spec::CLOCK_SPEC;
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
    /// The [`Detail::number`] of all these ticks. A thread that slept for a disk and then waited
    /// for a CPU has two packets. The property `KDETAIL` in gprofng's filters.
    pub detail: u32,
    /// Why the thread was blocked, and so whether it suffered: the property `KCAUSE` in gprofng's
    /// filters.
    pub cause: Cause,
    /// The thread that ended a blocked state; 0 if an interrupt did, or it is not known. The
    /// property `KWAKER`.
    pub waker: Tid,
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
const CLOCK_BYTES: usize = 48;

impl ClockTick {
    /// Returns the declaration of this packet, for [`ProfileDecl::Clock`].
    pub fn declaration() -> PacketDecl {
        CLOCK_SPEC.declaration(&[])
    }

    /// Returns the declaration of the table of threads' ticks, which has the packet.
    pub fn table(tick_us: u32) -> ProfileDecl {
        ProfileDecl::Clock {
            tick_us,
            states: NumStates::Solaris,
            packets: vec![Self::declaration()],
        }
    }

    /// Returns the declaration of the table of CPUs' ticks. It adds their metric, and stands ahead
    /// of [`ClockTick::table`], whose packet they are in.
    pub fn table_of_cpus(tick_us: u32) -> ProfileDecl {
        ProfileDecl::Clock {
            tick_us,
            states: NumStates::Kernel,
            packets: Vec::new(),
        }
    }

    /// Returns the packet as it is in `profile`.
    ///
    /// # Errors
    ///
    /// More ticks or a later time than the fields, which gprofng reads as signed, can hold.
    pub fn encode(&self) -> Result<[u8; CLOCK_BYTES]> {
        let own = [
            self.state.number(),
            file_ticks(self.ticks),
            self.detail,
            self.cause.number(),
            self.waker.0,
        ];
        CLOCK_SPEC.encode(
            self.time_ns,
            self.stack,
            [self.cpu, self.tid.0, self.pid.0],
            own,
        )
    }
}

/// Returns a number of ticks as it is in a field; one that is too large remains too large.
fn file_ticks(ticks: Ticks) -> u32 {
    u32::try_from(ticks.0).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::spec::SHARED_FIELDS;
    use crate::packet::{ClockRecord, HEADER_BYTES, PacketLayout, SharedFields};
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
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        }
    }

    fn decoded(decl: &PacketDecl, packet: &[u8]) -> Option<ClockRecord> {
        PacketLayout::new(decl).ticks(packet)
    }

    #[test]
    fn fields_do_not_overlap_and_are_aligned() {
        let fields = SHARED_FIELDS.iter().chain(&CLOCK_SPEC.fields);
        let end = fields.fold(HEADER_BYTES, |end, field| {
            assert_eq!(field.offset as usize, end, "{}", field.name);
            assert!(end.is_multiple_of(field.kind.bytes()), "{}", field.name);
            end + field.kind.bytes()
        });
        assert_eq!(end, CLOCK_BYTES);
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

    #[test]
    fn the_example_of_the_format_document_is_one() {
        let mut tick = tick(7, Ticks(7), Nanos(1_500_000_000), [1, 102, 100], 5);
        tick.detail = Detail::BlockIo.number();
        tick.cause = Cause::Device;
        let document = include_str!("../../../docs/experiment-format.md");
        let (_, example) = document
            .split_once("One packet of `profile` as bytes")
            .unwrap();
        let (_, example) = example.split_once("```text\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let bytes = example.split_whitespace();
        let bytes: Vec<u8> = bytes
            .map(|it| u8::from_str_radix(it, 16).unwrap())
            .collect();
        assert_eq!(bytes, tick.encode().unwrap());
    }

    /// Other collectors have none.
    #[test]
    fn a_packet_without_a_detail_is_read() {
        let mut tick = tick(8, Ticks(1), Nanos(7), [0; 3], 1);
        tick.detail = Detail::Woken.number();
        let packet = tick.encode().unwrap();
        let mut decl = ClockTick::declaration();
        let detail = |decl: &PacketDecl, packet: &[u8]| decoded(decl, packet).unwrap().detail;
        assert_eq!(detail(&decl, &packet), 2);
        assert_eq!(detail(&decl, &packet[..36]), 0);
        decl.fields.retain(|field| field.name != "KDETAIL");
        assert_eq!(detail(&decl, &packet), 0);
    }

    #[test]
    fn values_beyond_a_field_are_refused() {
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
        assert!(
            tick(0, Ticks(1), Nanos::ZERO, [0; 3], 1 << 32)
                .encode()
                .is_err()
        );
        let most = Ticks(i32::MAX as u64);
        assert!(tick(9, most, Nanos::ZERO, [0; 3], 1).encode().is_ok());
    }

    proptest! {
        #[test]
        fn a_clock_packet_is_one_record(
            state in 0u32..12,
            ticks in 0u32..1 << 31,
            time_ns in 0u64..1 << 63,
            ids: [u32; 3],
            stack in 1u64..1 << 32,
            detail in 0u32..1 << 31,
            cause in 0u8..13,
            waker in 0u32..1 << 22,
            cut in 4..CLOCK_BYTES,
        ) {
            let tick = tick(state, Ticks(ticks.into()), Nanos(time_ns), ids, stack);
            let tick = ClockTick {
                detail,
                cause: Cause::try_from(cause).unwrap(),
                waker: Tid(waker),
                ..tick
            };
            let expected = ClockRecord {
                shared: SharedFields {
                    cpu: tick.cpu,
                    time_ns: Nanos(time_ns),
                    stack: Some(tick.stack),
                    thread: tick.tid.0.into(),
                    pid: Some(tick.pid),
                },
                state,
                ticks: ticks as i32,
                detail,
                cause: cause.into(),
                waker,
            };
            let (decl, packet) = (ClockTick::declaration(), tick.encode().unwrap());
            prop_assert_eq!(decoded(&decl, &packet), Some(expected));
            // One that is cut counts if its ticks are whole.
            let whole = decoded(&decl, &packet[..cut]).is_some();
            prop_assert_eq!(whole, cut >= 36);
        }
    }
}
