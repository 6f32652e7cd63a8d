//! The records of the BPF programs, decoded.

mod decode;
mod sums;

pub use decode::RecordError;
pub use sums::{CauseTimes, CpuCounts, DetailTimes, KernelCounts};

use std::fmt;
use std::sync::Arc;

use crate::layout::{CallTable, Cause, CodeFile, Detail, MORE_RESULTS, PathEnd, STATES, State};
use crate::unwind::{Registers, UnwindEnd};

/// A thread's name as the kernel keeps it: at most 15 bytes of any kind but NUL.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ThreadName([u8; 16]);

impl ThreadName {
    /// Returns the name of these bytes, as far as the kernel would keep it.
    #[must_use]
    pub fn of(name: &[u8]) -> ThreadName {
        let mut bytes = [0; 16];
        let kept = name.iter().take_while(|byte| **byte != 0).take(15);
        bytes
            .iter_mut()
            .zip(kept)
            .for_each(|(to, byte)| *to = *byte);
        ThreadName(bytes)
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        &self.0[..end.unwrap_or(self.0.len())]
    }
}

impl From<[u8; 16]> for ThreadName {
    fn from(bytes: [u8; 16]) -> ThreadName {
        ThreadName(bytes)
    }
}

impl fmt::Debug for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bytes().escape_ascii().to_string())
    }
}

/// The part that all records have: when, on which CPU, of which thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The CPU's id.
    pub cpu: u32,
    /// The process, in the initial pid namespace; 0 is idle.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Number of the thread's return to user mode whose record has the user stack; 0 when none is
    /// expected.
    pub user_return: u32,
    /// The thread's name at that time.
    pub name: ThreadName,
    /// The thread is one of the kernel.
    pub kernel_thread: bool,
    /// The kernel made the thread in its process (io_uring, vhost): it never runs user code.
    pub user_worker: bool,
    /// The thread is exiting: it will not be in user mode again, and frees its memory.
    pub exiting: bool,
}

/// What the CPU was doing at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In user mode.
    User,
    /// In the kernel.
    Kernel,
    /// In the idle task, with no interrupt's work on top.
    Idle,
}

/// A kernel stack as the kernel returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStack {
    /// Kernel addresses, leaf first, callers as return addresses. Empty in user mode and where the
    /// kernel returned no stack.
    pub frames: Arc<[u64]>,
    /// It was deeper than the kernel's limit: its root is missing.
    pub truncated: bool,
    /// The kernel returned no stack: `frames` is the leaf alone, or nothing.
    pub missing: bool,
}

/// One firing of one CPU's clock, or the idle time before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickRecord {
    /// When, where, and of which thread.
    pub header: RecordHeader,
    /// Interval boundaries that this stands for: 1 unless the timer was late.
    pub ticks: u32,
    /// The part of `ticks` that passed while the hypervisor ran something else.
    pub stolen_ticks: u32,
    /// What the CPU was doing.
    pub mode: Mode,
    /// An interrupt or softirq ran on the CPU, on top of the thread.
    pub irq_work: bool,
    /// Taken in the context switch away from the thread: the first frames of the stack belong to
    /// the BPF program.
    pub at_switch_out: bool,
    /// Empty unless `mode` is [`Mode::Kernel`].
    pub stack: KernelStack,
}

/// What is known of an off-CPU interval in addition to its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, num_enum::TryFromPrimitive)]
#[repr(u8)]
pub enum OffCpuDetail {
    /// Blocked for block I/O, according to the scheduler.
    BlockIo = Detail::BlockIo as u8,
    /// Waiting for a CPU since a preemption or a yield, not since a wake-up.
    Preempted = Detail::Preempted as u8,
    /// Waiting for a CPU since the quota of its cgroup was used up.
    Throttled = Detail::Throttled as u8,
}

/// A thread is on a CPU again after interval boundaries had passed in an off-CPU interval; or data
/// stopped in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCpuRecord {
    /// When and where it came back, and which thread.
    pub header: RecordHeader,
    /// The microstate that it went into, numbered as in the experiment.
    pub state: u8,
    /// What else is known of the state.
    pub detail: Option<OffCpuDetail>,
    /// Why the thread was blocked.
    pub cause: Cause,
    /// The thread that woke it; None: an interrupt did, or it was not seen.
    pub waker: Option<u32>,
    /// Boundaries in that state.
    pub blocked_ticks: u32,
    /// Boundaries since its wake-up, waiting for a CPU.
    pub waited_ticks: u32,
    /// The kernel stack in which it was off the CPU.
    pub stack: KernelStack,
}

impl OffCpuRecord {
    /// Returns the boundaries by microstate.
    #[must_use]
    pub fn counts(&self) -> [u32; STATES] {
        let mut counts = [0; STATES];
        counts[usize::from(self.state)] += self.blocked_ticks;
        counts[State::WaitCpu as usize] += self.waited_ticks;
        counts
    }
}

/// A control group. No other one, of the past or the future, has the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupNumber {
    /// The hierarchy, as in `/proc/PID/cgroup`: 0 is version 2.
    pub hierarchy: u32,
    /// The inode of its directory. 0 if it was not read: for a kernel thread, and for a thread
    /// other than the leader while the process lives.
    pub inode: u64,
}

/// A thread's exact times and counts, since it was tracked first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadRecord {
    /// When this was sent, and of which thread.
    pub header: RecordHeader,
    /// It has exited.
    pub exited: bool,
    /// The microstate that it is in, numbered as in the experiment; on a CPU it is user.
    pub state: u8,
    /// A number that no other living thread has.
    pub task: u64,
    /// The times and counts are those until then, CLOCK_MONOTONIC.
    pub as_of_ns: u64,
    /// When it went into its state, CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// For how long it was tracked.
    pub tracked_ns: u64,
    /// Times by microstate; all time on a CPU, in whatever mode, is under user.
    pub ns: [u64; STATES],
    /// Times by detail.
    pub details: DetailTimes,
    /// Blocked times by cause.
    pub causes: CauseTimes,
    /// What the kernel counted meanwhile.
    pub counts: KernelCounts,
    /// The hook on page faults of the kernel has seen one of this thread.
    pub faulted_in_kernel: bool,
    /// Its control group: of version 2, unless that is the root of all; else the deepest one of
    /// version 1.
    pub cgroup: CgroupNumber,
    /// Its effective user id, in the initial user namespace.
    pub user: u32,
}

/// A thread returned to user mode, or was there: this is the user stack of all records with this
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserReturnRecord {
    /// When and where, which thread, and the number.
    pub header: RecordHeader,
    /// The address at which it continues in user mode.
    pub ip: u64,
    /// Its stack pointer there.
    pub sp: u64,
    /// How often the process had called exec until then, counted from any number.
    pub execution: u32,
    /// Which numbers its number is one of: 0, or as in [`IoCallRecord::call_site`].
    pub call_site: u8,
    /// The first anonymous code in its stack for which the BPF programs have no table, as code that
    /// is copied from a file ([`COPIED_CODE_DEVICE`](crate::layout::COPIED_CODE_DEVICE)). Not of a
    /// stack copy.
    pub anonymous: Option<CodeFile>,
    /// Its user stack there.
    pub stack: CapturedStack,
}

/// A user stack as the BPF programs captured it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturedStack {
    /// Unwound in the kernel.
    Unwound {
        /// User addresses, leaf first: where it was interrupted; of callers, inside the call.
        frames: Box<[u64]>,
        /// Why there are no more.
        end: UnwindEnd,
        /// A caller was found by the frame pointer, since no table covers the code.
        via_frame_pointer: bool,
        /// A caller was found by a scan of the stack.
        via_scan: bool,
    },
    /// Copied from some frame on, because the table of the file there was not there yet.
    StackCopy {
        /// User addresses of the frames before, leaf first.
        unwound: Box<[u64]>,
        /// One of their callers was found by the frame pointer.
        via_frame_pointer: bool,
        /// The file that is mapped at the next frame's pc.
        file: CodeFile,
        /// One of their callers was found by a scan of the stack.
        via_scan: bool,
        /// Nothing confirms one that was found by the frame pointer or a scan.
        unconfirmed: bool,
        /// What is known of the next frame.
        registers: Box<Registers>,
        /// Words of the stack, from [`RED_ZONE_BYTES`](crate::layout::RED_ZONE_BYTES) below its
        /// pointer on.
        stack: Box<[u64]>,
    },
}

/// A counter overflowed while the thread was on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverflowRecord {
    /// When, where, and in which thread.
    pub header: RecordHeader,
    /// Index of the counter, as it was attached.
    pub counter: u32,
    /// Number of events that it stands for.
    pub value: u64,
    /// An interrupt or softirq ran on the CPU, on top of the thread.
    pub irq_work: bool,
    /// The kernel's stack; empty in user mode.
    pub stack: KernelStack,
}

/// A thread of a followed process is on a CPU again after it was blocked in a futex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWaitRecord {
    /// When and where it came back, and which thread.
    pub header: RecordHeader,
    /// When it blocked, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// Address in the process of the futex word, or of `futex_waitv`'s array; 0 if the end of the
    /// wait was not seen.
    pub object: u64,
    /// `futex`'s command, such as 0 for `FUTEX_WAIT`; the number of any other system call;
    /// [`OPERATION_UNKNOWN`](crate::layout::OPERATION_UNKNOWN) if the end of the wait was not seen.
    pub operation: u32,
    /// The kernel stack of the wait.
    pub stack: KernelStack,
}

/// A traced system call of a process has ended, or an operation that it handed to `io_uring`: the
/// thread is the one that did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoCallRecord {
    /// When and where it ended, and which thread; the number is one of this call site.
    pub header: RecordHeader,
    /// When it began, CLOCK_MONOTONIC; 0: that was not seen.
    pub begin_ns: u64,
    /// What it returned: a negative error number if it failed.
    pub result: i64,
    /// Its first arguments. An operation of `io_uring` has its descriptor, or
    /// [`FIRST_REGISTERED_FILE`](crate::layout::FIRST_REGISTERED_FILE) and more; then, if it opens,
    /// where the result is put: 0 is a descriptor, others are registered files, from 1 on; with
    /// [`MORE_RESULTS`](crate::layout::MORE_RESULTS). The others are the
    /// [`file`](IoFileRecord::file) that is registered there, and the one that it opened, or 0.
    pub arguments: [u64; 4],
    /// The table in which its descriptors are: a number that no other table has at that time.
    /// Processes may share one (`CLONE_FILES`), and a thread may have one of its own. 0: not known.
    pub files: u64,
    /// Its number.
    pub call: u32,
    /// Which numbers that is one of.
    pub table: CallTable,
    /// The call site of the thread that its user stack belongs to, from 1 to
    /// [`IO_CALL_SITES`](crate::layout::IO_CALL_SITES). The stacks of each call site have numbers
    /// of their own. [`ALLOCATION_CALL_SITE`](crate::layout::ALLOCATION_CALL_SITE) if a function
    /// with the call's name was probed.
    pub call_site: u8,
    /// What it brought from memory: see [`IoExtra`](crate::layout::IoExtra).
    pub extra: Box<[u8]>,
}

impl IoCallRecord {
    /// Returns whether a signal has interrupted the call, so that the kernel may make it again. The
    /// program does not see such a result: `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`,
    /// `ERESTART_RESTARTBLOCK`.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.table != CallTable::IoUring && matches!(self.result, -514..=-512 | -516)
    }

    /// Returns whether more results of this operation of `io_uring` follow.
    #[must_use]
    pub fn more_follow(&self) -> bool {
        self.table == CallTable::IoUring && self.arguments[1] & MORE_RESULTS != 0
    }
}

/// The path of a file that is registered with `io_uring`. It comes before the first operation that
/// has the number of the file, and may come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFileRecord {
    /// When it was read. The thread is the one that submitted the operation.
    pub header: RecordHeader,
    /// The number of the file in [`IoCallRecord::arguments`], which no other file has.
    pub file: u64,
    /// Its inode number.
    pub inode: u64,
    /// Its type and permissions.
    pub mode: u32,
    /// The names of the file, its directory and so on, each with a slash after it.
    pub path: Box<[u8]>,
    /// Where that ends.
    pub end: PathEnd,
}

/// A block of an allocator was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// When, where, and by which thread. The time of an allocation is after the call, of a release
    /// before it.
    /// The number is one of the thread's allocations: see
    /// [`ALLOCATION_CALL_SITE`](crate::layout::ALLOCATION_CALL_SITE).
    pub header: RecordHeader,
    /// Its address.
    pub address: u64,
    /// The bytes that the program asked for; None if the block was freed.
    pub allocated_bytes: Option<u64>,
    /// The bytes of all blocks that it stands for, where the program has sampled it itself.
    pub weighted_bytes: Option<u64>,
}

/// One record of a ring, or of an iteration over all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A clock fired.
    Tick(TickRecord),
    /// An off-CPU interval ended.
    OffCpu(OffCpuRecord),
    /// A thread's times and counts.
    Thread(Box<ThreadRecord>),
    /// A thread returns to user mode.
    UserReturn(UserReturnRecord),
    /// A counter has overflowed.
    Overflow(OverflowRecord),
    /// A thread was blocked in a futex.
    LockWait(LockWaitRecord),
    /// A traced system call has ended.
    IoCall(Box<IoCallRecord>),
    /// A block was allocated or freed.
    Block(BlockRecord),
    /// An operation was handed to `io_uring`: its end will be a [`Record::IoCall`] with the same
    /// user stack.
    IoSubmitted(Box<IoCallRecord>),
    /// The path of a registered file.
    IoFile(Box<IoFileRecord>),
}

impl Record {
    /// Returns its header.
    #[must_use]
    pub fn header(&self) -> &RecordHeader {
        match self {
            Record::Tick(tick) => &tick.header,
            Record::OffCpu(off_cpu) => &off_cpu.header,
            Record::Thread(thread) => &thread.header,
            Record::UserReturn(user_return) => &user_return.header,
            Record::Overflow(overflow) => &overflow.header,
            Record::LockWait(wait) => &wait.header,
            Record::IoCall(call) | Record::IoSubmitted(call) => &call.header,
            Record::IoFile(file) => &file.header,
            Record::Block(block) => &block.header,
        }
    }

    /// Returns when it happened, CLOCK_MONOTONIC.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.header().time_ns
    }
}
