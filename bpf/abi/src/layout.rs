//! The structures of the C side, byte by byte.
//!
//! Structures that are read as they are, such as [`CpuStats`], are used by other crates. Records
//! are for the decoder of [`Record`](crate::Record) alone: a number in them may be any.

use bitflags::bitflags;
use num_enum::{IntoPrimitive, TryFromPrimitive};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::CpuCounts;

/// Max frames of a kernel stack in a record.
pub const MAX_KERNEL_FRAMES: usize = 127;

/// Bytes of an iterator over threads that are read at once.
pub const ITERATOR_READ_BYTES: usize = 4096;

/// Max frames of a user stack that the BPF programs unwind.
pub const MAX_USER_FRAMES: usize = 1000;

/// Bytes below the stack pointer with which a stack copy begins: the red zone of the ABI. OpenSSL's
/// SHA-2 has its frame address there.
pub const RED_ZONE_BYTES: u64 = 128;

/// Max words that can follow a [`UserReturnLayout`].
pub const MAX_USER_RETURN_WORDS: usize = 8192;

/// The number of microstates.
pub const STATES: usize = 10;

/// The microstate in which a thread waits for a CPU.
pub const WAIT_CPU: usize = 8;

/// Number of time sums in a thread's record: first the states, then the details.
pub const TIMES: usize = 14;

/// General registers of a frame, by DWARF number.
pub const REGISTERS: usize = 16;

/// DWARF number of the frame pointer.
pub const FRAME_POINTER: u8 = 6;

/// DWARF number of the stack pointer.
pub const STACK_POINTER: u8 = 7;

/// Max words of a stack in which scans look for return addresses.
pub const SCAN_STACK_WORDS: u32 = 2048;

/// Bit of [`UserReturnLayout::via_scan`]: a caller was found by a scan of the stack.
pub const VIA_SCAN: u8 = 1;

/// Likewise: nothing confirms a caller that was found by the frame pointer or a scan.
pub const UNCONFIRMED: u8 = 2;

/// In place of a register number in a rule: relative to the canonical frame address.
pub const BASE_CFA: u8 = 255;

/// In place of a register number in a rule: the caller's rbx is unchanged.
pub const BX_SAME: u8 = 254;

/// In place of a register number in a rule: the caller's rbx is not known.
pub const BX_LOST: u8 = 253;

/// Segments of a file that are kept with its table.
pub const MAX_SEGMENTS: usize = 4;

/// Max pages of all unwind tables.
pub const MAX_PAGES: u32 = 65_536;

/// Max unwind rules.
pub const MAX_RULES: usize = 65_536;

/// [`crate::LockWaitRecord::operation`] of a wait whose end was not seen.
pub const OPERATION_UNKNOWN: u32 = 0xffff;

/// System calls of 64-bit programs with a number below this one can be traced. Each further
/// [`CallTable`] has as many places, after them.
pub const IO_CALLS: usize = 512;

/// Number of tables of traced calls, a power of two: one per [`CallTable`], and an empty one.
pub const CALL_TABLES: usize = 4;

/// In place of the descriptor of an `io_uring` operation: the first number of the files that the
/// program has registered and that have no descriptor.
pub const FIRST_REGISTERED_FILE: i32 = 0x4000_0000;

/// The second argument of an operation of `io_uring` whose result says among which registered files
/// it is.
pub const ANY_REGISTERED_FILE: u32 = 0xffff_ffff;

/// A bit of the second argument of an operation of `io_uring`: more results follow.
pub const MORE_RESULTS: u64 = 1 << 32;

/// Max bytes that a traced system call brings from the thread's memory; a longer path is cut.
pub const MAX_IO_EXTRA_BYTES: usize = 512;

/// The greatest [`crate::IoCallRecord::call_site`].
pub const IO_CALL_SITES: u8 = 32;

/// The call site of an allocation's user stack.
pub const ALLOCATION_CALL_SITE: u8 = 33;

/// Unwind rows in a chunk of memory.
pub const ROWS_PER_CHUNK: u32 = 65_536;

/// Max chunks that the programs have space for.
pub const MAX_CHUNKS: u16 = 1024;

/// CPUs that share a ring.
pub const CPUS_PER_RING: u32 = 8;

/// Max counters that can overflow.
pub const MAX_COUNTERS: usize = 16;

/// User stacks that can be built on one CPU at the same time.
pub const SCRATCHES_PER_CPU: u32 = 4;

/// In place of the shortest lock wait that is recorded, nanoseconds: none is.
pub const NO_LOCK_WAITS: u64 = u64::MAX;

/// Max lock waits that a CPU sends in a second.
pub const MAX_LOCK_WAITS_PER_CPU_AND_SECOND: u64 = 5000;

/// Max blocks of all traced processes that are allocated at a time.
pub const MAX_BLOCKS: u32 = 1_048_576;

/// Max processes whose allocators are probed at a time.
pub const MAX_PROBE_USES: u32 = 1024;

/// Steps of the programs' table of logarithms, from 1 to 2.
pub const LOG2_STEPS: usize = 256;

/// The bits of its fractions.
pub const LOG2_BITS: u32 = 24;

/// The bits of fractions of bytes by which logarithms are multiplied.
pub const SCALE_BITS: u32 = 5;

/// The greatest mean of bytes between two samples of allocated blocks.
pub const MAX_MEAN_BYTES: u64 = 1 << 30;

/// The kind of a record: `enum record_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u8)]
pub enum RecordKind {
    /// A tick in user mode.
    TickUser = 0,
    /// A tick in the kernel.
    TickKernel = 1,
    /// A tick in the idle task.
    TickIdle = 2,
    /// An off-CPU interval has ended.
    OffCpu = 3,
    /// A thread's times and counts.
    Thread = 4,
    /// A user stack.
    UserReturn = 5,
    /// A counter has overflowed.
    Overflow = 7,
    /// A thread was blocked in a futex.
    LockWait = 8,
    /// A traced system call has ended.
    IoCall = 9,
    /// A block of an allocator was allocated or freed.
    Block = 10,
    /// An operation was handed to `io_uring`.
    IoSubmitted = 11,
    /// The path of a file that is registered with `io_uring`.
    IoFile = 12,
}

/// Which numbers the number of a traced call is one of: `enum call_table`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, TryFromPrimitive, IntoPrimitive,
)]
#[repr(u8)]
pub enum CallTable {
    /// System calls of 64-bit programs.
    #[default]
    Native = 0,
    /// System calls of 32-bit programs.
    Compat = 1,
    /// Operations of `io_uring`.
    IoUring = 2,
}

/// Where the path of a file ends: `enum path_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u16)]
pub enum PathEnd {
    /// There is more of it.
    Cut = 0,
    /// At the root.
    Rooted = 1,
    /// The file is in no directory.
    Detached = 2,
}

/// What of a thread's memory goes with a traced system call: `enum io_extra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoPrimitive)]
#[repr(u8)]
pub enum IoExtra {
    /// Nothing.
    None = 0,
    /// A path, without its NUL.
    Path = 1,
    /// Two descriptors that the call returned, 32 bits each.
    Descriptors = 2,
    /// A socket address, whose length is the next argument.
    Address = 3,
    /// A socket address that the call returned.
    PeerAddress = 4,
    /// The bytes of the messages that the call sent or received, a 64-bit number.
    MessageBytes = 5,
}

/// What is traced of a system call: `struct traced_call`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TracedCall {
    /// 1: it is traced.
    pub traced: u8,
    /// An [`IoExtra`].
    pub extra: u8,
    /// Which argument points to that, from 0.
    pub extra_argument: u8,
    /// 0.
    pub zero: u8,
}

/// Facts of a record in addition to its kind: `enum record_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct RecordFlags(u16);

bitflags! {
    impl RecordFlags: u16 {
        /// An interrupt or softirq ran on the CPU.
        const IRQ_WORK = 1;
        /// The stack was deeper than the kernel's limit.
        const TRUNCATED = 2;
        /// The kernel returned no stack.
        const NO_STACK = 4;
        /// The last record of the thread.
        const THREAD_EXITED = 8;
        /// The thread is exiting.
        const EXITING = 16;
        /// The tick was taken in a context switch.
        const AT_SWITCH_OUT = 32;
        /// A stack copy follows the frames.
        const STACK_COPY = 64;
        /// A thread of the kernel.
        const KERNEL_THREAD = 128;
        /// A thread of a process that never runs user code.
        const USER_WORKER = 256;
    }
}

/// The beginning of every record: `struct record_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct HeaderLayout {
    pub time_ns: u64,
    pub cpu: u32,
    pub pid: u32,
    pub tid: u32,
    pub ticks: u32,
    pub blocked: u32,
    pub user_return: u32,
    pub kind: u8,
    pub state: u8,
    pub detail: u8,
    pub zero: u8,
    pub frames: u16,
    pub flags: RecordFlags,
    pub name: [u8; 16],
}

/// What follows the header of a thread's record: `struct thread_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct ThreadLayout {
    pub task: u64,
    pub as_of_ns: u64,
    pub since_ns: u64,
    pub tracked_ns: u64,
    pub ns: [u64; STATES],
    pub details: crate::DetailTimes,
    pub counts: crate::KernelCounts,
    pub cgroup: u64,
    pub hierarchy: u32,
    pub user: u32,
}

/// What follows the header of a return to user mode: `struct user_return_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct UserReturnLayout {
    pub ip: u64,
    pub sp: u64,
    pub file: CodeFile,
    pub execution: u32,
    pub call_site: u32,
    pub end: u8,
    pub via_frame_pointer: u8,
    pub unwound: u16,
    pub known: u16,
    pub exact: u8,
    pub via_scan: u8,
}

/// What follows the header of an overflow: `struct overflow_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct OverflowLayout {
    pub value: u64,
    pub counter: u32,
    pub zero: u32,
}

/// What follows the header of a lock wait: `struct lock_wait_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct LockWaitLayout {
    pub begin_ns: u64,
    pub object: u64,
    pub operation: u32,
    pub zero: u32,
}

/// What follows the header of a traced system call: `struct io_call_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct IoCallLayout {
    pub begin_ns: u64,
    pub result: i64,
    pub arguments: [u64; 4],
    pub files: u64,
    pub call: u32,
    pub extra_bytes: u16,
    pub table: u8,
    pub call_site: u8,
}

/// What follows the header of the path of a registered file: `struct io_file_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct IoFileLayout {
    pub file: u64,
    pub inode: u64,
    pub mode: u32,
    pub bytes: u16,
    pub end: u16,
}

/// What follows the header of a change of a block: `struct block_record`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "described in c/records.h")]
pub struct BlockLayout {
    pub address: u64,
    pub bytes: u64,
    pub weighted_bytes: u64,
    pub freed: u32,
    pub zero: u32,
}

/// What a probed function of an allocator does: `enum allocator_function`. Named after the C
/// function with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoPrimitive)]
#[repr(u64)]
pub enum AllocatorFunction {
    /// `malloc(size)`.
    Malloc = 1,
    /// `calloc(count, size)`.
    Calloc = 2,
    /// `realloc(block, size)`.
    Realloc = 3,
    /// `reallocarray(block, count, size)`.
    Reallocarray = 4,
    /// `memalign(alignment, size)`.
    Memalign = 5,
    /// `posix_memalign(where the address is put, alignment, size)`.
    PosixMemalign = 6,
    /// `operator new(size)`, which calls malloc where it is not an allocator's own.
    New = 7,
    /// `free(block)`.
    Free = 8,
    /// No function, but a USDT: the allocator has sampled a block itself. (block, size, bytes of
    /// all blocks that it stands for).
    Sampled = 9,
    /// Likewise: such a block is freed. (block).
    SampledFree = 10,
}

/// The arguments of a USDT that are read, at the most.
pub const USDT_OPERANDS: usize = 3;

/// Max arrays of [`UsdtOperand`] that differ.
pub const MAX_USDT_OPERANDS: usize = 256;

/// The kind of a [`UsdtOperand`]: `enum usdt_operand_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u8)]
pub enum UsdtOperandKind {
    /// The offset itself.
    Constant = 0,
    /// The value of a register.
    Register = 1,
    /// A word at a register and the offset.
    Memory = 2,
}

/// Where an argument of a USDT is: `struct usdt_operand`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UsdtOperand {
    /// A [`UsdtOperandKind`].
    pub kind: u8,
    /// Its size: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Index of the register's word in `struct pt_regs`.
    pub word: u16,
    /// A constant, or the distance from a register.
    pub offset: i32,
}

/// The first bit of a cookie that has the index of a [`ProbeUse`], which has 16 of them.
pub const PROBE_USE_SHIFT: u32 = 16;

/// The first bit of a cookie that has what a call takes longer by a probe, nanoseconds, in 16 bits.
pub const PROBE_COST_SHIFT: u32 = 32;

/// The first bit of a cookie that has the index of the operands of a USDT.
pub const PROBE_OPERANDS_SHIFT: u32 = 48;

/// How much the probes of a process were used, on one CPU: `struct probe_use`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ProbeUse {
    /// What they took, nanoseconds: a fixed cost of each call, and the measured time of the
    /// programs at sampled calls.
    pub taken_ns: u64,
    /// 1: these probes are being taken out, and do nothing.
    pub closed: u64,
}

/// The statistics of one CPU: interval boundaries by what became of them, since it was first
/// recorded, and its tick grid (`struct cpu_stats`).
///
/// Its counts are [`CpuStats::counts`]. The rest is state of the programs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CpuStats {
    /// When the tick grid began, CLOCK_MONOTONIC; 0 while the CPU has no clock.
    pub origin_ns: u64,
    /// The last boundary that was counted.
    pub index: u64,
    /// Boundaries in user mode.
    pub user: u64,
    /// Boundaries in the kernel.
    pub kernel: u64,
    /// Boundaries in the idle task.
    pub idle: u64,
    /// Idle boundaries not sent, because idle time is not recorded.
    pub unsent: u64,
    /// Boundaries whose record found the ring full.
    pub lost: u64,
    /// Records that found the ring full.
    pub lost_records: u64,
    /// Boundaries beyond the first of a firing on a busy CPU, whose timer was late.
    pub late: u64,
    /// Records whose stack was cut at the kernel's depth limit.
    pub truncated: u64,
    /// Records for which the kernel returned no stack.
    pub no_stack: u64,
    /// When the clock last fired or idle time was last counted, CLOCK_MONOTONIC; 0 before.
    pub last_ns: u64,
    /// 1 while the CPU is in the idle loop's sleep.
    pub in_idle: u64,
    /// The next boundary, CLOCK_MONOTONIC.
    pub next_ns: u64,
    /// The scheduler's clock minus CLOCK_MONOTONIC.
    pub offset_ns: u64,
    /// 1 when `offset_ns` was not taken since the last tick.
    pub offset_stale: u64,
    /// Boundaries of off-CPU records that found the ring full.
    pub off_cpu_lost: u64,
    /// Thread records that found the ring full.
    pub thread_records_lost: u64,
    /// Times that the kernel had no memory for the account of a thread: at a context switch (the
    /// thread is then tracked from its next one), or when recording starts.
    pub threads_untracked: u64,
    /// The recording start up to which the grid was counted.
    pub begun_ns: u64,
    /// Returns to user mode that could not be waited for or sent: records with their numbers have
    /// no user stack.
    pub user_returns_lost: u64,
    /// 1 while a program works on threads of this CPU.
    pub busy: u64,
    /// `origin_ns` when recording started or the clock was last started.
    pub home_ns: u64,
    /// Boundaries that passed while the hypervisor ran something else, and a thread was on the CPU.
    pub stolen: u64,
    /// Address of the kernel's sum of the time stolen from this CPU; 0 if it has none.
    pub steal_at: u64,
    /// That sum when boundaries were last counted.
    pub steal_ns: u64,
    /// The run queue's sum at the last context switch.
    pub switch_steal_ns: u64,
    /// Look-ups of mapped code that were thrown away, since the mappings changed meanwhile.
    pub raced_look_ups: u64,
    /// When the reader was last woken for a stack copy.
    pub woken_ns: u64,
    /// Lock waits that found the ring full.
    pub lock_waits_lost: u64,
    /// Lock waits that were not sent, since there were too many in the same second.
    pub lock_waits_skipped: u64,
    /// Their time.
    pub lock_waits_skipped_ns: u64,
    /// The second in which lock waits were last sent, by the scheduler's clock.
    pub lock_second: u64,
    /// How many were in it.
    pub lock_waits: u64,
    /// Traced system calls that found the ring full.
    pub io_calls_lost: u64,
    /// The last process that made a traced system call on this CPU and is not followed: its number
    /// times 2^32, plus how often it had called exec.
    pub ignored_execution: u64,
    /// `index` at the end of the last experiment.
    pub index_at_rotation: u64,
    /// The process of the thread that the last context switch brought to this CPU that the programs
    /// have seen.
    pub last_pid: u32,
    /// That thread.
    pub last_tid: u32,
    /// Changes of blocks that found the ring full, or no space among the blocks that are kept.
    pub blocks_lost: u64,
    /// What the programs took at context switches, ticks and returns to user mode, nanoseconds. Of
    /// the switches it is an estimate: one of 61 is measured.
    pub programs_ns: u64,
    /// Context switches since the last that was measured.
    pub unmeasured: u64,
    /// When a context switch began that is measured, CLOCK_MONOTONIC.
    pub measured_ns: u64,
    /// 1 while a program that user space runs counts boundaries.
    pub settling: u64,
    /// A byte for each program at system calls, 1 while it runs there: `enum call_program`.
    pub in_programs: u64,
    /// See [`CpuCounts::calls_unseen`].
    pub calls_unseen: u64,
    /// When the last context switch was, CLOCK_MONOTONIC: only where run queues are not read.
    pub arrived_ns: u64,
    /// Fills the last cache line.
    pub unused: [u64; 2],
}

impl CpuStats {
    /// Returns its counts alone.
    #[must_use]
    pub fn counts(&self) -> CpuCounts {
        CpuCounts {
            user: self.user,
            kernel: self.kernel,
            idle: self.idle,
            stolen: self.stolen,
            unsent: self.unsent,
            lost: self.lost,
            late: self.late,
            off_cpu_lost: self.off_cpu_lost,
            thread_records_lost: self.thread_records_lost,
            threads_untracked: self.threads_untracked,
            user_returns_lost: self.user_returns_lost,
            raced_look_ups: self.raced_look_ups,
            lock_waits_lost: self.lock_waits_lost,
            lock_waits_skipped: self.lock_waits_skipped,
            lock_waits_skipped_ns: self.lock_waits_skipped_ns,
            io_calls_lost: self.io_calls_lost,
            blocks_lost: self.blocks_lost,
            calls_unseen: self.calls_unseen,
            programs_ns: self.programs_ns,
        }
    }

    /// What an offline CPU has counted, without its clock and its grid.
    #[must_use]
    pub fn without_clock(self) -> CpuStats {
        CpuStats {
            origin_ns: 0,
            in_idle: 0,
            next_ns: 0,
            offset_ns: 0,
            offset_stale: 0,
            begun_ns: 0,
            busy: 0,
            home_ns: 0,
            steal_at: 0,
            steal_ns: 0,
            switch_steal_ns: 0,
            ignored_execution: 0,
            index_at_rotation: 0,
            last_pid: 0,
            last_tid: 0,
            settling: 0,
            in_programs: 0,
            arrived_ns: 0,
            ..self
        }
    }
}

/// A counter on one CPU: `struct counter_stats`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CounterStats {
    /// Of a tracepoint: events since the last overflow.
    pub since_overflow: u64,
    /// Of a tracepoint: all events.
    pub events: u64,
    /// Events that sent records stand for.
    pub recorded: u64,
    /// Events of records that found the ring full.
    pub lost: u64,
}

/// How the canonical frame address is found: `enum unwind_cfa_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u8)]
pub enum CfaKind {
    /// There is no rule.
    Absent = 0,
    /// The frame is the outermost one.
    Stop = 1,
    /// The rule can't be expressed; `cfa_register` is the reason.
    Unsupported = 2,
    /// `register + offset`.
    Register = 3,
    /// `*(register + offset) + plus`.
    Deref = 4,
    /// `register + offset`, and 8 more in the second part of an entry of the PLT.
    Plt = 5,
}

/// How the caller's frame pointer is found: `enum unwind_fp_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u8)]
pub enum FramePointerKind {
    /// It is unchanged.
    Same = 0,
    /// It is stored at `base + offset`.
    At = 1,
    /// It is not known.
    Lost = 2,
}

/// How the caller's pc is found: `enum unwind_ra_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromPrimitive, IntoPrimitive)]
#[repr(u8)]
pub enum ReturnAddressKind {
    /// A return address at `base + offset`.
    At = 0,
    /// The pc that a signal interrupted, at `base + offset`.
    Interrupted = 1,
    /// A return address in a register.
    Register = 2,
}

/// How to find the caller of a frame: `struct unwind_rule`. A rule of zeros is
/// [`CfaKind::Absent`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EncodedRule {
    /// Bytes, added to the register.
    pub cfa_offset: i32,
    /// Bytes.
    pub fp_offset: i16,
    /// [`CfaKind::Deref`]: bytes, added to the word; [`CfaKind::Plt`]: the offset in an entry at
    /// which the push is done.
    pub cfa_plus: i8,
    /// Words of 8 bytes.
    pub ra_words: i8,
    /// Words of 8 bytes.
    pub bx_words: i8,
    /// Where the caller's rbx is: DWARF number of a register, or [`BASE_CFA`], or [`BX_SAME`], or
    /// [`BX_LOST`].
    pub bx_base: u8,
    /// A [`CfaKind`].
    pub cfa_kind: u8,
    /// DWARF number of the register; the reason of [`CfaKind::Unsupported`].
    pub cfa_register: u8,
    /// A [`FramePointerKind`].
    pub fp_kind: u8,
    /// DWARF number of a register, or [`BASE_CFA`].
    pub fp_base: u8,
    /// A [`ReturnAddressKind`].
    pub ra_kind: u8,
    /// DWARF number of a register, or [`BASE_CFA`].
    pub ra_base: u8,
}

/// The rule for addresses from this one to the next row's: `struct row`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UnwindRow {
    /// The low 16 bits of an address of the file's own address space.
    pub low: u16,
    /// Number of the rule.
    pub rule: u16,
}

/// Where the rows of 64 KiB of addresses are: `struct page`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UnwindPage {
    /// Number of the chunk.
    pub chunk: u16,
    /// The first row, in the chunk.
    pub start: u16,
    /// How many.
    pub rows: u32,
}

/// The [`CodeFile::device`] of code that a program has copied from a file to anonymous memory.
pub const COPIED_CODE_DEVICE: u32 = u32::MAX;

/// A file with code, as the kernel identifies it: `struct code_file`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CodeFile {
    /// Number of its inode.
    pub inode: u64,
    /// When it was last written to (`st_mtim`), nanoseconds since 1970; wraps.
    pub modified_ns: u64,
    /// Its device, as the kernel encodes it: the major number above 20 bits of the minor one.
    pub device: u32,
    /// The inode's generation; 0 where the file system has none.
    pub generation: u32,
}

impl CodeFile {
    /// The kernel's code for user mode, which is in no file.
    pub const VDSO: CodeFile = CodeFile {
        inode: 0,
        modified_ns: 0,
        device: 0,
        generation: 0,
    };
}

/// A part of a file, and where it is loaded: `struct file_segment`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FileSegment {
    /// Offset in the file, of the page in which it begins.
    pub offset: u64,
    /// Offset of its end.
    pub end: u64,
    /// Added to an offset: an address of the file's own address space; wraps.
    pub delta: u64,
}

/// What is known of a file: `struct file_table`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FileTable {
    /// Its segments; offset and end of those not used are 0.
    pub segments: [FileSegment; MAX_SEGMENTS],
    /// Number of the first page that the table has.
    pub first_page: u32,
    /// How many pages; 0: the file has no table.
    pub pages: u32,
    /// Index of the first page.
    pub directory: u32,
    /// 0.
    pub zero: u32,
}

const _: () = assert!(size_of::<HeaderLayout>() == 56);
const _: () = assert!(size_of::<ThreadLayout>() == 296 - 56);
const _: () = assert!(size_of::<UserReturnLayout>() == 112 - 56);
const _: () = assert!(size_of::<OverflowLayout>() == 72 - 56);
const _: () = assert!(size_of::<LockWaitLayout>() == 80 - 56);
const _: () = assert!(size_of::<IoCallLayout>() == 120 - 56);
const _: () = assert!(size_of::<IoFileLayout>() == 80 - 56);
const _: () = assert!(size_of::<BlockLayout>() == 88 - 56);
const _: () = assert!(size_of::<TracedCall>() == 4);
const _: () = assert!(size_of::<CpuStats>() == 384);
const _: () = assert!(size_of::<CounterStats>() == 32);
const _: () = assert!(size_of::<EncodedRule>() == 16);
const _: () = assert!(size_of::<UnwindRow>() == 4);
const _: () = assert!(size_of::<UnwindPage>() == 8);
const _: () = assert!(size_of::<CodeFile>() == 24);
const _: () = assert!(size_of::<FileSegment>() == 24);
const _: () = assert!(size_of::<FileTable>() == 112);
