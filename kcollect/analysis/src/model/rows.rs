//! What was recorded, each with its time, stack, thread and CPU: ticks, overflows of counters, and
//! traced events.

use experiment_format::log::CounterUnit;
use experiment_format::microstate::Microstate;
use experiment_format::packet::IoKind;
use experiment_format::units::Nanos;

use super::ids::{CpuId, ExperimentId, FileId, StackId, ThreadId};
#[cfg(doc)]
use super::{ExperimentInfo, Model};

/// The number of slots of [`Sums`] for states: one for each of the twelve states with names, and
/// one for all others together.
pub const STATE_SLOTS: usize = Microstate::ALL.len() + 1;

/// Sums of times or of counters. Times are microseconds by state number; all states without a name
/// share the last of [`STATE_SLOTS`]. Counters are counts by [`CounterRow::counter`].
pub type Sums = [i64; SUM_SLOTS];

/// Sums that are all zero.
pub const ZERO_SUMS: Sums = [0; SUM_SLOTS];

/// The number of slots of [`Sums`]: enough for all states, or for the metrics of everything that is
/// traced and some counters. Further counters are left out, with a warning.
pub const SUM_SLOTS: usize = 20;

const _: () = assert!(SUM_SLOTS >= STATE_SLOTS);

/// Ticks of one thread, or of one CPU, in one state with one stack. A row takes 48 bytes, since
/// there may be many millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickRow {
    /// When the ticks were recorded, since the start of [`ExperimentInfo::first`].
    pub time_ns: Nanos,
    /// The stack of the ticks.
    pub stack: StackId,
    /// The thread of the ticks.
    pub thread: ThreadId,
    /// The experiment that holds them.
    pub experiment: ExperimentId,
    /// The CPU on which they were recorded.
    pub cpu: CpuId,
    /// The number of ticks, each [`ExperimentInfo::tick_us`] microseconds long. None: exact time in
    /// which no tick fell.
    pub ticks: i32,
    /// The exact time that the ticks stand for, or the length of the ticks where that is not known
    /// or [`Model::show_ticks`] was called, microseconds. For memory it is bytes: [`Model::unit`].
    pub micros: i64,
    /// The state's number, [`Microstate::number`], up to 255, whether it has a name or not.
    pub state: u8,
    /// The detail of the state, [`experiment_format::packet::Detail::number`].
    pub detail: u8,
    /// Why the thread was blocked: [`experiment_format::cause::Cause::number`].
    pub cause: u8,
    /// The number of the thread that ended a blocked state; 0 if none did, or it is not known.
    pub waker: u32,
}

impl TickRow {
    /// Returns the state's position in [`Sums`].
    #[must_use]
    pub fn slot(&self) -> usize {
        usize::from(self.state).min(STATE_SLOTS - 1)
    }
}

/// A counter of one or more experiments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterInfo {
    /// The metric's keyword.
    pub name: String,
    /// The metric's title.
    pub title: String,
    /// The unit of its values.
    pub unit: CounterUnit,
}

/// An overflow of a counter, or the value of a traced event in one of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRow {
    /// Time, stack, thread, experiment and CPU of the overflow, which has no ticks and no state.
    pub row: TickRow,
    /// Position in [`Model::counters`].
    pub counter: u8,
    /// The number of events that the overflow stands for.
    pub value: i64,
}

/// A traced wait for a lock. [`Model::counts`] has its time and number too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockWaitRow {
    /// Time of the wait's end, stack, thread, experiment and CPU. A wait has no ticks and no state.
    pub row: TickRow,
    /// The length of the wait.
    pub duration_ns: i64,
    /// The address of the lock in its process; 0 if it is not known.
    pub object: u64,
    /// The kind of the wait, as [`experiment_format::packet::SyncEvent::kind`], if it is known.
    pub kind: Option<u32>,
}

/// Returns the name of a lock, given [`LockWaitRow::object`].
#[must_use]
pub fn lock_name(object: u64) -> String {
    match object {
        0 => "(unknown)".to_owned(),
        object => format!("{object:#x}"),
    }
}

/// A traced system call that does I/O. [`Model::counts`] has its time, bytes and number too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoCallRow {
    /// Time of the call's end, stack, thread, experiment and CPU. A call has no ticks and no state.
    pub row: TickRow,
    /// The time that the call took.
    pub duration_ns: i64,
    /// The bytes that the call moved.
    pub bytes: u64,
    /// What the call did.
    pub kind: IoKind,
    /// Whether the call failed.
    pub failed: bool,
    /// The file of the call.
    pub file: FileId,
    /// The name of the system call, if the packet has its number and the number is known.
    pub name: Option<&'static str>,
}

/// How a traced call counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallClass {
    /// It read.
    Read,
    /// It wrote.
    Write,
    /// It did something else, such as opening a file.
    Other,
    /// It failed, whatever it was to do.
    Error,
}

impl IoCallRow {
    /// Returns how the call counts.
    #[must_use]
    pub fn class(&self) -> CallClass {
        match self.kind {
            _ if self.failed => CallClass::Error,
            IoKind::Read => CallClass::Read,
            IoKind::Write => CallClass::Write,
            IoKind::Open | IoKind::Close | IoKind::Other => CallClass::Other,
        }
    }
}

/// A traced allocation of memory. [`Model::counts`] has its bytes, and those that were not freed,
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationRow {
    /// Time, stack, thread, experiment and CPU of the allocation, which has no ticks and no state.
    pub row: TickRow,
    /// The bytes that were allocated.
    pub bytes: u64,
    /// The bytes of one block: fewer, if it was sampled and stands for others.
    pub own_bytes: u64,
    /// The number of blocks that it stands for, times
    /// [`WEIGHT_OF_ONE`](experiment_format::packet::WEIGHT_OF_ONE).
    pub weight: u64,
    /// The bytes of them that were not freed when the experiment ended.
    pub live_bytes: u64,
}

/// The most memory that an experiment had at a time, of what was allocated in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPeak {
    /// The experiment.
    pub experiment: ExperimentId,
    /// The bytes.
    pub bytes: u64,
    /// When that was, since the start of [`ExperimentInfo::first`].
    pub time_ns: Nanos,
}
