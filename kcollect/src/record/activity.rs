//! What a thread did, in the unit in which it goes through the recording: its time in one state, or
//! one event, with one kernel stack.

use std::sync::Arc;

use bpf_abi::RecordHeader;
use bpf_abi::layout::ALLOCATION_CALL_SITE;
use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, StackUid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::packet::{ClockTick, CounterEvent, Detail, IoOperation};
use experiment_format::units::{Nanos, Ticks};
use user_collector::allocators::BlockChange;
use user_collector::join::StackSeries;
use user_collector::memory::Change;
use user_collector::process::ProcessInstance;

/// The ids and the time in a record of the BPF programs, which has them as bare numbers.
pub trait TypedHeader {
    /// Returns the number of the process; 0 is idle.
    fn pid(&self) -> Pid;

    /// Returns the number of the thread.
    fn tid(&self) -> Tid;

    /// Returns the time, CLOCK_MONOTONIC.
    fn time_ns(&self) -> Nanos;
}

impl TypedHeader for RecordHeader {
    fn pid(&self) -> Pid {
        Pid(self.pid)
    }

    fn tid(&self) -> Tid {
        Tid(self.tid)
    }

    fn time_ns(&self) -> Nanos {
        Nanos(self.time_ns)
    }
}

/// What a thread did, with its kernel stack.
#[derive(Clone, Debug)]
pub struct ThreadActivity {
    /// Time, CPU, process and thread, and the number of the return to user mode at which the user
    /// stack is captured.
    pub header: RecordHeader,
    /// The process.
    pub instance: ProcessInstance,
    /// Kernel frames, leaf first, callers as addresses inside the call. Empty in user mode.
    pub kernel: Arc<[u64]>,
    /// The kernel stack was deeper than the kernel's limit.
    pub truncated: bool,
    /// What it did.
    pub kind: ActivityKind,
}

/// A time in one state, or an event.
#[derive(Clone, Debug)]
pub enum ActivityKind {
    /// A time in one state.
    Interval(StateInterval),
    /// An event, which has no ticks.
    Event(ThreadEvent),
}

/// A thread's time in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInterval {
    /// The state.
    pub state: Microstate,
    /// Tick boundaries in it.
    pub ticks: Ticks,
    /// Details of the state.
    pub detail: Detail,
    /// Why the thread was blocked.
    pub cause: Cause,
    /// The thread that ended it; 0 if none did, or it is not known.
    pub waker: Tid,
}

impl StateInterval {
    /// The packet of a thread or of a CPU, with the number of its stack.
    #[must_use]
    pub fn packet(&self, header: &RecordHeader, stack: StackUid) -> ClockTick {
        ClockTick {
            cpu: header.cpu,
            time_ns: header.time_ns(),
            stack,
            tid: header.tid(),
            pid: header.pid(),
            state: self.state,
            ticks: self.ticks,
            detail: self.detail.number(),
            cause: self.cause,
            waker: self.waker,
        }
    }
}

impl OverflowEvent {
    /// The packet of a thread or of a CPU, with the number of its stack.
    #[must_use]
    pub fn packet(&self, header: &RecordHeader, stack: StackUid) -> CounterEvent {
        CounterEvent {
            cpu: header.cpu,
            time_ns: header.time_ns(),
            stack,
            tid: header.tid(),
            pid: header.pid(),
            tag: self.tag,
            value: self.value,
        }
    }
}

impl ThreadActivity {
    /// Its ticks; zero for an event.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        match &self.kind {
            ActivityKind::Interval(interval) => interval.ticks,
            ActivityKind::Event(_) => Ticks::ZERO,
        }
    }

    /// Returns whether the thread was on a CPU at a tick or an overflow.
    #[must_use]
    pub fn is_on_cpu(&self) -> bool {
        match &self.kind {
            ActivityKind::Interval(interval) => matches!(
                interval.state,
                Microstate::User | Microstate::System | Microstate::Trap
            ),
            ActivityKind::Event(event) => matches!(event, ThreadEvent::Overflow(_)),
        }
    }

    /// Returns the series of numbered user stacks in which its own is.
    #[must_use]
    pub fn stack_series(&self) -> StackSeries {
        let call_site = match &self.kind {
            ActivityKind::Event(ThreadEvent::IoCall(call)) => call.call_site,
            ActivityKind::Event(ThreadEvent::Memory { call_site, .. }) => *call_site,
            ActivityKind::Event(ThreadEvent::Block(_)) => ALLOCATION_CALL_SITE,
            _ => 0,
        };
        (self.header.tid(), call_site)
    }
}

/// An event of a thread that has a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadEvent {
    /// A counter overflowed.
    Overflow(OverflowEvent),
    /// The thread was blocked in a futex, until the time of the event.
    LockWait(LockWaitEvent),
    /// The thread made a system call that does I/O, which ended at the time of the event.
    IoCall(Box<IoCallEvent>),
    /// Memory that its process may use came or went, by a system call of the thread.
    Memory {
        /// The call site of the event, which says which of the thread's last user stacks it has:
        /// see [`bpf_abi::IoCallRecord::call_site`].
        call_site: u8,
        /// What changed.
        change: Change,
    },
    /// A block was allocated or freed.
    Block(BlockChange),
}

/// A system call that does I/O, or the name of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoCallEvent {
    /// The call site of the call, which says which of the thread's last user stacks it has: see
    /// [`bpf_abi::IoCallRecord::call_site`].
    pub call_site: u8,
    /// What it did.
    pub operation: IoOperation,
}

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWaitEvent {
    /// When it began, CLOCK_MONOTONIC, nanoseconds.
    pub begin_ns: Nanos,
    /// Address of the lock in the process; 0 if it is not known.
    pub object: u64,
    /// As [`experiment_format::packet::SyncEvent::kind`].
    pub kind: u32,
}

/// An overflow of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowEvent {
    /// The counter's [`experiment_format::log::CounterDecl::tag`].
    pub tag: u32,
    /// How many events the overflow stands for.
    pub value: u64,
}
