//! Every size, offset and number is the same in C and in Rust.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::mem::offset_of;

use proptest::prelude::*;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::layout::*;
use crate::unwind::UnwindEnd;
use crate::{DetailTimes, KernelCounts, OffCpuDetail};

#[repr(C)]
struct Entry {
    name: *const c_char,
    value: u64,
}

unsafe extern "C" {
    #[link_name = "kcollect_abi"]
    static ENTRIES: [Entry; 0];
    #[link_name = "kcollect_abi_entries"]
    static COUNT: u64;
}

/// The table of `c/native.c`.
fn c_side() -> BTreeMap<String, u64> {
    // SAFETY: a constant of `c/native.c`.
    let count = unsafe { COUNT };
    let first = (&raw const ENTRIES).cast::<Entry>();
    // SAFETY: the table is constant and has that many entries.
    let entries = unsafe { std::slice::from_raw_parts(first, count as usize) };
    entries
        .iter()
        .map(|entry| {
            // SAFETY: the name is a string literal.
            let name = unsafe { CStr::from_ptr(entry.name) };
            (name.to_str().unwrap().to_owned(), entry.value)
        })
        .collect()
}

/// Size and offsets of a structure that starts `$from` bytes into the C structure.
macro_rules! structure {
    ($all:ident, $c:ident, $rust:ty, $from:expr, [$($field:ident),* $(,)?]) => {
        $all.push((stringify!($c).to_owned(), $from + size_of::<$rust>()));
        $($all.push((
            concat!(stringify!($c), ".", stringify!($field)).to_owned(),
            $from + offset_of!($rust, $field),
        ));)*
    };
}

macro_rules! numbers {
    ($all:ident, $($c:ident = $rust:expr),* $(,)?) => {
        $($all.push((stringify!($c).to_owned(), $rust as usize));)*
    };
}

fn rust_side() -> BTreeMap<String, u64> {
    let mut all: Vec<(String, usize)> = Vec::new();
    records(&mut all);
    sums(&mut all);
    statistics(&mut all);
    unwind_structures(&mut all);
    record_numbers(&mut all);
    unwind_numbers(&mut all);
    limits(&mut all);
    all.into_iter()
        .map(|(name, value)| (name, value as u64))
        .collect()
}

/// Records, as in `records.h`.
fn records(all: &mut Vec<(String, usize)>) {
    let header = size_of::<HeaderLayout>();
    structure!(
        all,
        record_header,
        HeaderLayout,
        0,
        [
            time_ns,
            cpu,
            pid,
            tid,
            ticks,
            blocked,
            user_return,
            kind,
            state,
            detail,
            zero,
            frames,
            flags,
            name,
        ]
    );
    structure!(
        all,
        thread_record,
        ThreadLayout,
        header,
        [
            task, as_of_ns, since_ns, tracked_ns, ns, counts, cgroup, hierarchy, user
        ]
    );
    structure!(
        all,
        user_return_record,
        UserReturnLayout,
        header,
        [
            ip,
            sp,
            file,
            execution,
            call_site,
            end,
            via_frame_pointer,
            unwound,
            known,
            exact,
            via_scan,
        ]
    );
    structure!(
        all,
        overflow_record,
        OverflowLayout,
        header,
        [value, counter, zero]
    );
    structure!(
        all,
        lock_wait_record,
        LockWaitLayout,
        header,
        [begin_ns, object, operation, zero]
    );
    structure!(
        all,
        io_call_record,
        IoCallLayout,
        header,
        [
            begin_ns,
            result,
            arguments,
            files,
            call,
            extra_bytes,
            table,
            call_site
        ]
    );
    structure!(
        all,
        io_file_record,
        IoFileLayout,
        header,
        [file, inode, mode, bytes, end]
    );
    structure!(
        all,
        block_record,
        BlockLayout,
        header,
        [address, bytes, weighted_bytes, freed, zero]
    );
    structure!(all, probe_use, ProbeUse, 0, [taken_ns, closed]);
    structure!(
        all,
        usdt_operand,
        UsdtOperand,
        0,
        [kind, bytes, word, offset]
    );
    structure!(
        all,
        traced_call,
        TracedCall,
        0,
        [traced, extra, extra_argument, zero]
    );
    for record in [
        "thread_record",
        "user_return_record",
        "overflow_record",
        "lock_wait_record",
        "io_call_record",
        "io_file_record",
        "block_record",
    ] {
        all.push((format!("{record}.header"), 0));
    }
}

/// Sums in the record of a thread.
fn sums(all: &mut Vec<(String, usize)>) {
    let header = size_of::<HeaderLayout>();
    let details = header + offset_of!(ThreadLayout, details);
    for (name, offset) in [
        ("ns[DETAIL_BLOCK_IO]", offset_of!(DetailTimes, block_io)),
        ("ns[DETAIL_PREEMPTED]", offset_of!(DetailTimes, preempted)),
        ("ns[DETAIL_THROTTLED]", offset_of!(DetailTimes, throttled)),
        ("ns[DETAIL_STOLEN]", offset_of!(DetailTimes, stolen)),
    ] {
        all.push((format!("thread_record.{name}"), details + offset));
    }
    let counts = header + offset_of!(ThreadLayout, counts);
    for (name, offset) in [
        ("MINOR_FAULTS", offset_of!(KernelCounts, minor_faults)),
        ("MAJOR_FAULTS", offset_of!(KernelCounts, major_faults)),
        (
            "VOLUNTARY_SWITCHES",
            offset_of!(KernelCounts, voluntary_switches),
        ),
        (
            "INVOLUNTARY_SWITCHES",
            offset_of!(KernelCounts, involuntary_switches),
        ),
        ("READ_CHARS", offset_of!(KernelCounts, read_chars)),
        ("WRITTEN_CHARS", offset_of!(KernelCounts, written_chars)),
        ("READ_CALLS", offset_of!(KernelCounts, read_calls)),
        ("WRITE_CALLS", offset_of!(KernelCounts, write_calls)),
        ("READ_BYTES", offset_of!(KernelCounts, read_bytes)),
        ("WRITTEN_BYTES", offset_of!(KernelCounts, written_bytes)),
    ] {
        all.push((format!("thread_record.counts[{name}]"), counts + offset));
    }
}

/// Statistics, as in `cpu_stats.h`.
fn statistics(all: &mut Vec<(String, usize)>) {
    structure!(
        all,
        cpu_stats,
        CpuStats,
        0,
        [
            origin_ns,
            index,
            user,
            kernel,
            idle,
            unsent,
            lost,
            lost_records,
            late,
            truncated,
            no_stack,
            last_ns,
            in_idle,
            next_ns,
            offset_ns,
            offset_stale,
            off_cpu_lost,
            thread_records_lost,
            threads_untracked,
            begun_ns,
            user_returns_lost,
            busy,
            home_ns,
            stolen,
            steal_at,
            steal_ns,
            switch_steal_ns,
            raced_look_ups,
            woken_ns,
            lock_waits_lost,
            lock_waits_skipped,
            lock_waits_skipped_ns,
            lock_second,
            lock_waits,
            io_calls_lost,
            ignored_execution,
            index_at_rotation,
            last_pid,
            last_tid,
            blocks_lost,
            programs_ns,
            unmeasured,
            measured_ns,
            settling,
            in_programs,
            calls_unseen,
            arrived_ns,
            unused,
        ]
    );
    structure!(
        all,
        counter_stats,
        CounterStats,
        0,
        [since_overflow, events, recorded, lost]
    );
}

/// Structures of the unwinder, as in `unwind.h` and `unwind_tables.h`.
fn unwind_structures(all: &mut Vec<(String, usize)>) {
    use crate::unwind::native::{Reader, Scan, State};

    structure!(
        all,
        unwind_rule,
        EncodedRule,
        0,
        [
            cfa_offset,
            fp_offset,
            cfa_plus,
            ra_words,
            bx_words,
            bx_base,
            cfa_kind,
            cfa_register,
            fp_kind,
            fp_base,
            ra_kind,
            ra_base,
        ]
    );
    structure!(
        all,
        unwind_state,
        State,
        0,
        [pc, registers, known, exact, descents, bx_at]
    );
    all.push(("unwind_scan".to_owned(), size_of::<Scan>()));
    structure!(all, native_reader, Reader, 0, [read, find, context]);
    structure!(
        all,
        code_file,
        CodeFile,
        0,
        [inode, modified_ns, device, generation]
    );
    structure!(all, file_segment, FileSegment, 0, [offset, end, delta]);
    structure!(
        all,
        file_table,
        FileTable,
        0,
        [segments, first_page, pages, directory, zero]
    );
    structure!(all, page, UnwindPage, 0, [chunk, start, rows]);
    structure!(all, row, UnwindRow, 0, [low, rule]);
}

/// Numbers in records.
fn record_numbers(all: &mut Vec<(String, usize)>) {
    numbers!(
        all,
        TICK_USER = RecordKind::TickUser,
        TICK_KERNEL = RecordKind::TickKernel,
        TICK_IDLE = RecordKind::TickIdle,
        RECORD_OFF_CPU = RecordKind::OffCpu,
        RECORD_THREAD = RecordKind::Thread,
        RECORD_USER_RETURN = RecordKind::UserReturn,
        RECORD_OVERFLOW = RecordKind::Overflow,
        RECORD_LOCK_WAIT = RecordKind::LockWait,
        RECORD_IO_CALL = RecordKind::IoCall,
        RECORD_BLOCK = RecordKind::Block,
        RECORD_IO_SUBMITTED = RecordKind::IoSubmitted,
        RECORD_IO_FILE = RecordKind::IoFile,
        PATH_CUT = PathEnd::Cut,
        PATH_ROOTED = PathEnd::Rooted,
        PATH_DETACHED = PathEnd::Detached,
        EXTRA_PATH = IoExtra::Path,
        EXTRA_DESCRIPTORS = IoExtra::Descriptors,
        EXTRA_ADDRESS = IoExtra::Address,
        EXTRA_PEER_ADDRESS = IoExtra::PeerAddress,
        EXTRA_MESSAGE_BYTES = IoExtra::MessageBytes,
        IO_CALLS = IO_CALLS,
        CALLS_NATIVE = CallTable::Native,
        CALLS_COMPAT = CallTable::Compat,
        CALLS_IO_URING = CallTable::IoUring,
        CALL_TABLES = CALL_TABLES,
        FIRST_REGISTERED_FILE = FIRST_REGISTERED_FILE,
        ANY_REGISTERED_FILE = ANY_REGISTERED_FILE,
        MORE_RESULTS = MORE_RESULTS,
        MAX_IO_EXTRA_BYTES = MAX_IO_EXTRA_BYTES,
        IO_CALL_SITES = IO_CALL_SITES,
        ALLOCATION_CALL_SITE = ALLOCATION_CALL_SITE,
        FUNCTION_MALLOC = AllocatorFunction::Malloc,
        FUNCTION_CALLOC = AllocatorFunction::Calloc,
        FUNCTION_REALLOC = AllocatorFunction::Realloc,
        FUNCTION_REALLOCARRAY = AllocatorFunction::Reallocarray,
        FUNCTION_MEMALIGN = AllocatorFunction::Memalign,
        FUNCTION_POSIX_MEMALIGN = AllocatorFunction::PosixMemalign,
        FUNCTION_NEW = AllocatorFunction::New,
        FUNCTION_FREE = AllocatorFunction::Free,
        FUNCTION_SAMPLED = AllocatorFunction::Sampled,
        FUNCTION_SAMPLED_FREE = AllocatorFunction::SampledFree,
        OPERAND_CONSTANT = UsdtOperandKind::Constant,
        OPERAND_REGISTER = UsdtOperandKind::Register,
        OPERAND_MEMORY = UsdtOperandKind::Memory,
        USDT_OPERANDS = USDT_OPERANDS,
        MAX_USDT_OPERANDS = MAX_USDT_OPERANDS,
        PROBE_USE_SHIFT = PROBE_USE_SHIFT,
        PROBE_COST_SHIFT = PROBE_COST_SHIFT,
        PROBE_OPERANDS_SHIFT = PROBE_OPERANDS_SHIFT,
        OPERATION_UNKNOWN = OPERATION_UNKNOWN,
        FLAG_IRQ_WORK = RecordFlags::IRQ_WORK.bits(),
        FLAG_TRUNCATED = RecordFlags::TRUNCATED.bits(),
        FLAG_NO_STACK = RecordFlags::NO_STACK.bits(),
        FLAG_THREAD_EXITED = RecordFlags::THREAD_EXITED.bits(),
        FLAG_EXITING = RecordFlags::EXITING.bits(),
        FLAG_AT_SWITCH_OUT = RecordFlags::AT_SWITCH_OUT.bits(),
        FLAG_STACK_COPY = RecordFlags::STACK_COPY.bits(),
        FLAG_KERNEL_THREAD = RecordFlags::KERNEL_THREAD.bits(),
        FLAG_USER_WORKER = RecordFlags::USER_WORKER.bits(),
        STATE_WAIT_CPU = WAIT_CPU,
        STATES = STATES,
        DETAIL_BLOCK_IO = OffCpuDetail::BlockIo,
        DETAIL_PREEMPTED = OffCpuDetail::Preempted,
        DETAIL_THROTTLED = OffCpuDetail::Throttled,
        DETAILS_END = STATES + size_of::<DetailTimes>() / 8,
        KERNEL_COUNTS = size_of::<KernelCounts>() / 8,
        MAX_KERNEL_FRAMES = MAX_KERNEL_FRAMES,
    );
}

/// Numbers of the unwinder.
fn unwind_numbers(all: &mut Vec<(String, usize)>) {
    use crate::unwind::native::CONTINUES;

    numbers!(
        all,
        UNWIND_CONTINUES = CONTINUES,
        UNWIND_COMPLETE = UnwindEnd::Complete,
        UNWIND_DEPTH_LIMIT = UnwindEnd::DepthLimit,
        UNWIND_NO_MAPPING = UnwindEnd::NoMapping,
        UNWIND_NO_TABLE = UnwindEnd::NoTable,
        UNWIND_NO_RULE = UnwindEnd::NoRule,
        UNWIND_UNSUPPORTED = UnwindEnd::Unsupported,
        UNWIND_UNREADABLE = UnwindEnd::Unreadable,
        UNWIND_NOT_ASCENDING = UnwindEnd::NotAscending,
        UNWIND_EXECUTING = UnwindEnd::Executing,
        UNWIND_UNVERIFIED = UnwindEnd::Unverified,
        UNWIND_ENDS = UnwindEnd::ALL.len() + 1,
        CFA_ABSENT = CfaKind::Absent,
        CFA_STOP = CfaKind::Stop,
        CFA_UNSUPPORTED = CfaKind::Unsupported,
        CFA_REGISTER = CfaKind::Register,
        CFA_DEREF = CfaKind::Deref,
        CFA_PLT = CfaKind::Plt,
        FP_SAME = FramePointerKind::Same,
        FP_AT = FramePointerKind::At,
        FP_LOST = FramePointerKind::Lost,
        RA_AT = ReturnAddressKind::At,
        RA_INTERRUPTED = ReturnAddressKind::Interrupted,
        RA_REGISTER = ReturnAddressKind::Register,
        VIA_SCAN = VIA_SCAN,
        UNCONFIRMED = UNCONFIRMED,
        UNWIND_CFA = BASE_CFA,
        UNWIND_SAME = BX_SAME,
        UNWIND_LOST = BX_LOST,
        UNWIND_FP = FRAME_POINTER,
        UNWIND_SP = STACK_POINTER,
        UNWIND_REGISTERS = REGISTERS,
        SCAN_STACK_WORDS = SCAN_STACK_WORDS,
        ITERATOR_READ_BYTES = ITERATOR_READ_BYTES,
        MAX_USER_FRAMES = MAX_USER_FRAMES,
        MAX_USER_RETURN_WORDS = MAX_USER_RETURN_WORDS,
        RED_ZONE_BYTES = RED_ZONE_BYTES,
    );
}

/// Limits, as in `limits.h` and `unwind_tables.h`.
fn limits(all: &mut Vec<(String, usize)>) {
    numbers!(
        all,
        MAX_SEGMENTS = MAX_SEGMENTS,
        COPIED_CODE_DEVICE = COPIED_CODE_DEVICE,
        MAX_PAGES = MAX_PAGES,
        MAX_RULES = MAX_RULES,
        ROWS_PER_CHUNK = ROWS_PER_CHUNK,
        MAX_CHUNKS = MAX_CHUNKS,
        CPUS_PER_RING = CPUS_PER_RING,
        MAX_COUNTERS = MAX_COUNTERS,
        SCRATCHES_PER_CPU = SCRATCHES_PER_CPU,
        NO_LOCK_WAITS = NO_LOCK_WAITS,
        MAX_BLOCKS = MAX_BLOCKS,
        MAX_PROBE_USES = MAX_PROBE_USES,
        LOG2_STEPS = LOG2_STEPS,
        LOG2_BITS = LOG2_BITS,
        SCALE_BITS = SCALE_BITS,
        MAX_MEAN_BYTES = MAX_MEAN_BYTES,
        MAX_LOCK_WAITS_PER_CPU_AND_SECOND = MAX_LOCK_WAITS_PER_CPU_AND_SECOND,
    );
}

#[test]
fn layouts_are_those_of_c() {
    let (c, rust) = (c_side(), rust_side());
    assert!(c.len() > 100, "{c:?}");
    let difference: Vec<_> = c
        .iter()
        .filter(|(name, value)| rust.get(*name) != Some(value))
        .map(|(name, value)| (name, *value, rust.get(name)))
        .collect();
    assert!(difference.is_empty(), "{difference:?}");
    let of_rust_alone: Vec<_> = rust.keys().filter(|name| !c.contains_key(*name)).collect();
    assert!(of_rust_alone.is_empty(), "{of_rust_alone:?}");
}

proptest! {
    #[test]
    fn statistics_survive_the_way_there_and_back(
        words in proptest::collection::vec(any::<u64>(), size_of::<CpuStats>() / 8)
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let stats = CpuStats::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(stats.as_bytes(), &bytes);
    }

    /// What belongs to a clock that is gone is not kept.
    #[test]
    fn counts_outlast_a_clock(
        words in proptest::collection::vec(any::<u64>(), size_of::<CpuStats>() / 8)
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let stats = CpuStats::read_from_bytes(&bytes).unwrap();
        let kept = stats.without_clock();
        let expected = CpuStats {
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
            ..stats
        };
        prop_assert_eq!(kept.as_bytes(), expected.as_bytes());
    }
}
