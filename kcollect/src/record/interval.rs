//! What a thread did, in the unit in which it goes through the recording: one state, one kernel
//! stack.

use std::sync::Arc;

use bpf_abi::RecordHeader;
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use user_collector::io_calls::Operation;
use user_collector::join::StackPlace;
use user_collector::memory::Change;
use user_collector::process::ProcessInstance;

/// The numbers in a record of the BPF programs, which has them bare.
pub trait ThreadIds {
    /// Returns the number of the process; 0 is idle.
    fn pid(&self) -> Pid;

    /// Returns the number of the thread.
    fn tid(&self) -> Tid;
}

impl ThreadIds for RecordHeader {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }

    fn tid(&self) -> Tid {
        Tid(self.tid)
    }
}

/// A thread's ticks in one state with one kernel stack, or an event of it.
#[derive(Clone, Debug)]
pub struct StateInterval {
    /// Time, CPU, process and thread, and the number of the return to user mode at which the user
    /// stack is captured.
    pub header: RecordHeader,
    /// The process.
    pub instance: ProcessInstance,
    /// Kernel frames, leaf first, callers as addresses inside the call. Empty in user mode.
    pub kernel: Arc<[u64]>,
    /// The kernel stack was deeper than the kernel's limit.
    pub truncated: bool,
    /// The state.
    pub state: Microstate,
    /// Tick boundaries in it.
    pub ticks: u32,
    /// What is known beside the state.
    pub detail: Detail,
    /// Set where this is an event, and no ticks.
    pub event: Option<ThreadEvent>,
}

impl StateInterval {
    /// Whether there is nothing in it for an experiment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ticks == 0 && self.event.is_none()
    }

    /// Returns whose numbered user stacks its own is one of.
    #[must_use]
    pub fn stacks_of(&self) -> StackPlace {
        let place = match &self.event {
            Some(ThreadEvent::IoCall(call)) => call.place,
            Some(ThreadEvent::Memory { place, .. }) => *place,
            _ => 0,
        };
        (self.header.tid(), place)
    }
}

/// An event of a thread that has a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadEvent {
    /// A counter overflowed.
    Overflow(CounterOverflow),
    /// It was blocked in a futex, until the time of the interval.
    LockWait(LockWait),
    /// It made a system call that does I/O, which ended at the time of the interval.
    IoCall(Box<IoCall>),
    /// Memory that its process may use came or went, by a system call of the thread.
    Memory {
        /// Of which place of the thread the user stack is.
        place: u8,
        /// What changed.
        change: Change,
    },
}

/// A system call that does I/O, or what a descriptor is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoCall {
    /// Of which place of the thread its user stack is: see [`bpf_abi::IoCall::place`].
    pub place: u8,
    /// What it did.
    pub operation: Operation,
}

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// When it began, CLOCK_MONOTONIC, nanoseconds.
    pub begin_ns: u64,
    /// Address of the lock in the process; 0 if it is not known.
    pub object: u64,
    /// As [`experiment_format::packet::SyncEvent::kind`].
    pub kind: u32,
}

/// A counter overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterOverflow {
    /// The counter's [`experiment_format::log::CounterDecl::tag`].
    pub tag: u32,
    /// How many events the overflow stands for.
    pub value: u64,
}
