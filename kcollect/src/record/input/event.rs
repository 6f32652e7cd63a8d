//! Events: anything that happened at an instant, from whichever input.

use bpf_abi::{Record, UserReturnRecord};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::space::Mapping;

use super::sideband::SidebandEvent;
use super::totals::Totals;

/// Anything that happened at an instant.
#[derive(Clone, Debug)]
pub enum InputEvent {
    /// A record of the BPF programs.
    Record(Record),
    /// A record of the side-band.
    Sideband(SidebandEvent),
    /// A process that the snapshot found.
    Found {
        /// The process.
        pid: Pid,
        /// Its name, bytes.
        name: Vec<u8>,
        /// The path of the program that it executes, bytes; None if no process is followed, and
        /// of the kernel's own.
        executable: Option<Vec<u8>>,
        /// What it has mapped for execution; empty if no process is followed.
        mappings: Vec<Mapping>,
    },
    /// The mappings of a process, read again.
    MappingsRead {
        /// The process.
        pid: Pid,
        /// When the reading began, CLOCK_MONOTONIC nanoseconds. The event's own time is when it
        /// ended.
        began_ns: Nanos,
        /// What it has mapped for execution; None if it is gone.
        mappings: Option<Vec<Mapping>>,
    },
    /// Recording starts or stops.
    Recording {
        /// Whether recording is on from this time on.
        on: bool,
    },
    /// A CPU came online or went offline.
    CpuChange(CpuChange),
    /// An experiment ends and the next one begins. All events before it have been returned.
    Rotation(Box<Rotation>),
    /// A sample. The records of all threads until its time have been returned.
    Sample {
        /// Its time, CLOCK_MONOTONIC nanoseconds.
        at_ns: Nanos,
        /// Why it was taken.
        label: &'static str,
    },
}

/// A CPU that came online or went offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuChange {
    /// Its id.
    pub cpu: u32,
    /// Whether it came online.
    pub online: bool,
}

/// The instant at which one experiment of a recording ends and the next one begins.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// That instant, CLOCK_MONOTONIC nanoseconds. The event comes after all other events of that
    /// instant.
    pub at_ns: Nanos,
    /// Whether recording was on.
    pub recording: bool,
    /// What had been counted by then.
    pub totals: Totals,
    /// The first return to user mode of each thread after the rotation: its stack may belong to
    /// what the thread did before the rotation.
    pub returns: Vec<UserReturnRecord>,
}
