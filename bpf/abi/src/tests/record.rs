//! Tests of the decoder.

use std::sync::Arc;

use proptest::prelude::*;

use crate::layout::{CAUSE_SLOTS, CAUSES, CallTable, Cause, CodeFile, MAX_KERNEL_FRAMES, PathEnd};
use crate::record::*;
use crate::unwind::{Registers, UnwindEnd};

/// Decodes bytes that are one record and nothing else.
fn alone(bytes: &[u8]) -> Result<Record, Option<RecordError>> {
    match Record::decode_first(bytes)? {
        (record, []) => Ok(record),
        _ => Err(None),
    }
}

/// A record's bytes: kind, state, detail, flags, frames, and what follows the head.
fn record(head: [u8; 4], frames: usize, body: &[u64]) -> Vec<u8> {
    record_of_wait(head, frames, (0, 0), body)
}

/// The same with a cause and a waker.
fn record_of_wait(
    [kind, state, detail, flags]: [u8; 4],
    frames: usize,
    (cause, waker): (u8, u32),
    body: &[u64],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(7_000_000_001_u64.to_ne_bytes());
    for half in [3_u32, 100, 101, 5, 2, 9] {
        bytes.extend(half.to_ne_bytes());
    }
    bytes.extend([kind, state, detail, cause]);
    bytes.extend((frames as u16).to_ne_bytes());
    bytes.extend(u16::from(flags).to_ne_bytes());
    bytes.extend(b"worker/7\0garbage");
    [waker, 0_u32]
        .iter()
        .for_each(|half| bytes.extend(half.to_ne_bytes()));
    body.iter()
        .for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

fn header() -> RecordHeader {
    RecordHeader {
        time_ns: 7_000_000_001,
        cpu: 3,
        pid: 100,
        tid: 101,
        user_return: 9,
        name: ThreadName::from(*b"worker/7\0garbage"),
        kernel_thread: false,
        user_worker: false,
        exiting: false,
    }
}

#[test]
fn a_kernel_tick_decodes() {
    let frames = [0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000];
    let tick = alone(&record([1, 0, 0, 3], 2, &frames)).unwrap();
    assert_eq!(
        tick,
        Record::Tick(TickRecord {
            header: header(),
            ticks: 5,
            stolen_ticks: 2,
            mode: Mode::Kernel,
            irq_work: true,
            at_switch_out: false,
            stack: KernelStack {
                frames: Arc::new(frames),
                truncated: true,
                missing: false,
            },
        })
    );
    assert_eq!(header().name.bytes(), b"worker/7");
}

#[test]
fn an_off_cpu_interval_decodes() {
    let bytes = record([3, 6, 10, 4], 0, &[]);
    let Record::OffCpu(off_cpu) = alone(&bytes).unwrap() else {
        panic!("not an off-CPU record");
    };
    assert_eq!(off_cpu.counts(), [0, 0, 0, 0, 0, 0, 2, 0, 3, 0]);
    assert_eq!(off_cpu.detail, Some(OffCpuDetail::BlockIo));
    assert!(off_cpu.stack.missing && off_cpu.stack.frames.is_empty());
    assert_eq!((off_cpu.cause, off_cpu.waker), (Cause::Undecided, None));
    let caused = |cause| alone(&record_of_wait([3, 6, 10, 4], 0, (cause, 77), &[]));
    let Record::OffCpu(off_cpu) = caused(3).unwrap() else {
        panic!("not an off-CPU record");
    };
    assert_eq!((off_cpu.cause, off_cpu.waker), (Cause::Lock, Some(77)));
    let refused = RecordError::Cause(CAUSES as u8);
    assert_eq!(caused(CAUSES as u8), Err(Some(refused)));
    // Preempted: nothing else than a wait.
    let Record::OffCpu(off_cpu) = alone(&record([3, 8, 11, 4], 0, &[])).unwrap() else {
        panic!("not an off-CPU record");
    };
    assert_eq!(off_cpu.counts(), [0, 0, 0, 0, 0, 0, 0, 0, 5, 0]);
}

#[test]
fn a_thread_and_a_user_return_decode() {
    let mut words: Vec<u64> = (0..18).collect();
    words.extend((0..CAUSE_SLOTS as u64).map(|slot| 1000 + slot));
    words.extend(18..29);
    words.push(29 << 32 | 30);
    let Record::Thread(thread) = alone(&record([4, 7, 0, 8], 0, &words)).unwrap() else {
        panic!("not a thread");
    };
    assert!(thread.exited);
    assert_eq!((thread.task, thread.as_of_ns), (0, 1));
    assert_eq!((thread.since_ns, thread.tracked_ns), (2, 3));
    assert_eq!((thread.ns[0], thread.ns[9]), (4, 13));
    assert_eq!(thread.details.throttled, 16);
    assert_eq!(thread.details.stolen, 17);
    assert_eq!(thread.causes.other[Cause::Device as usize], 1001);
    assert_eq!(thread.causes.lock[Cause::NotEnded as usize], 1028);
    assert_eq!(thread.counts.minor_faults, 18);
    assert_eq!(thread.counts.written_bytes, 27);
    let CgroupNumber { inode, hierarchy } = thread.cgroup;
    assert_eq!((inode, hierarchy, thread.user), (28, 30, 29));

    let unwound = [1, 2, 0, 0, 0, 3 << 32 | 5, 0x0101, 0x1000, 0x2000];
    let user_return = alone(&record([5, 0, 0, 0], 2, &unwound)).unwrap();
    let expected = UserReturnRecord {
        header: header(),
        ip: 1,
        sp: 2,
        execution: 5,
        call_site: 3,
        anonymous: None,
        stack: CapturedStack::Unwound {
            frames: Box::new([0x1000, 0x2000]),
            end: UnwindEnd::Complete,
            via_frame_pointer: true,
            via_scan: false,
        },
    };
    assert_eq!(user_return, Record::UserReturn(expected));

    // One frame was left, and the next is known by its frame pointer and stack pointer.
    let mut copied = vec![1, 2, 77, 88, 9, 5, 3 << 56 | 0xc0 << 32 | 1 << 16 | 2];
    copied.push(0x1000);
    copied.extend(0..19);
    let Record::UserReturn(user_return) = alone(&record([5, 0, 0, 64], 20, &copied)).unwrap()
    else {
        panic!("not a user return");
    };
    let expected = CapturedStack::StackCopy {
        unwound: Box::new([0x1000]),
        via_frame_pointer: false,
        file: CodeFile {
            inode: 77,
            modified_ns: 88,
            device: 9,
            generation: 0,
        },
        via_scan: true,
        unconfirmed: true,
        registers: Box::new(Registers {
            pc: 16,
            general: std::array::from_fn(|number| number as u64),
            known: 0xc0,
            exact: false,
            own_stack: 0..0,
        }),
        stack: Box::new([17, 18]),
    };
    assert_eq!(user_return.stack, expected);
}

#[test]
fn an_overflow_decodes() {
    let frames = [0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000];
    let bytes = record([7, 0, 0, 2], 2, &[&[1 << 40, 3][..], &frames].concat());
    let expected = OverflowRecord {
        header: header(),
        counter: 3,
        value: 1 << 40,
        irq_work: false,
        stack: KernelStack {
            frames: Arc::new(frames),
            truncated: true,
            missing: false,
        },
    };
    assert_eq!(alone(&bytes).unwrap(), Record::Overflow(expected));
}

#[test]
fn a_lock_wait_decodes() {
    let frames = [0xffff_ffff_8100_0010];
    let bytes = record(
        [8, 6, 0, 4],
        1,
        &[&[17, 0x7f00_0000_1234, 9][..], &frames].concat(),
    );
    let expected = LockWaitRecord {
        header: header(),
        begin_ns: 17,
        object: 0x7f00_0000_1234,
        operation: 9,
        stack: KernelStack {
            frames: Arc::new(frames),
            truncated: false,
            missing: true,
        },
    };
    assert_eq!(alone(&bytes).unwrap(), Record::LockWait(expected));
}

#[test]
fn a_block_decodes() {
    let expected = |allocated_bytes, weighted_bytes| {
        Record::Block(BlockRecord {
            header: header(),
            address: 0x1000,
            allocated_bytes,
            weighted_bytes,
        })
    };
    let bytes = record([10, 0, 0, 0], 0, &[0x1000, 17, 0, 0]);
    assert_eq!(alone(&bytes).unwrap(), expected(Some(17), None));
    let bytes = record([10, 0, 0, 0], 0, &[0x1000, 17, 5000, 0]);
    assert_eq!(alone(&bytes).unwrap(), expected(Some(17), Some(5000)));
    let bytes = record([10, 0, 0, 0], 0, &[0x1000, 0, 0, 1]);
    assert_eq!(alone(&bytes).unwrap(), expected(None, None));
}

#[test]
fn a_traced_system_call_decodes() {
    let path = u64::from_ne_bytes(*b"/tmp/abc");
    let body = [
        17,
        (-2_i64).cast_unsigned(),
        1,
        2,
        3,
        4,
        0xffff_8880_0000_1000,
        32 << 56 | 1 << 48 | 7 << 32 | 257,
        path,
    ];
    let expected = IoCallRecord {
        header: header(),
        begin_ns: 17,
        result: -2,
        arguments: [1, 2, 3, 4],
        files: 0xffff_8880_0000_1000,
        call: 257,
        table: CallTable::Compat,
        call_site: 32,
        extra: Box::from(&b"/tmp/ab"[..]),
    };
    let bytes = record([9, 0, 0, 0], 1, &body);
    assert_eq!(alone(&bytes).unwrap(), Record::IoCall(Box::new(expected)));
    let mut elsewhere = body;
    elsewhere[7] += 2 << 56;
    let bytes = record([9, 0, 0, 0], 1, &elsewhere);
    assert_eq!(alone(&bytes), Err(Some(RecordError::CallSite(34))));
    elsewhere[7] = body[7] + (2 << 48);
    let bytes = record([9, 0, 0, 0], 1, &elsewhere);
    assert_eq!(alone(&bytes), Err(Some(RecordError::CallTable(3))));
}

#[test]
fn an_operation_that_was_handed_to_io_uring_decodes() {
    let body = [17, 0, 5, 0, 0, 0, 0, 3 << 56 | 2 << 48 | 22];
    let expected = IoCallRecord {
        header: header(),
        begin_ns: 17,
        result: 0,
        arguments: [5, 0, 0, 0],
        files: 0,
        call: 22,
        table: CallTable::IoUring,
        call_site: 3,
        extra: Box::default(),
    };
    let bytes = record([11, 0, 0, 0], 0, &body);
    assert_eq!(
        alone(&bytes).unwrap(),
        Record::IoSubmitted(Box::new(expected))
    );
}

#[test]
fn the_path_of_a_registered_file_decodes() {
    let path = u64::from_ne_bytes(*b"ab/tmp/x");
    let numbers = |end: u64| [5, 77, end << 48 | 7 << 32 | 0o100_600, path];
    let expected = IoFileRecord {
        header: header(),
        file: 5,
        inode: 77,
        mode: 0o100_600,
        path: Box::from(&b"ab/tmp/"[..]),
        end: PathEnd::Rooted,
    };
    let bytes = record([12, 0, 0, 0], 1, &numbers(1));
    assert_eq!(alone(&bytes).unwrap(), Record::IoFile(Box::new(expected)));
    let bytes = record([12, 0, 0, 0], 1, &numbers(3));
    assert_eq!(alone(&bytes), Err(Some(RecordError::PathEnd(3))));
}

#[test]
fn records_that_follow_each_other_decode_one_by_one() {
    let mut bytes = record([3, 7, 0, 0], 2, &[1, 2]);
    bytes.extend(record([4, 7, 0, 0], 0, &[0; 30 + CAUSE_SLOTS]));
    let all = |bytes| Record::decode_all(bytes).collect::<Result<Vec<_>, _>>();
    let records = all(&bytes).unwrap();
    assert!(matches!(
        records[..],
        [Record::OffCpu(_), Record::Thread(_)]
    ));
    assert_eq!(all(&[]).unwrap(), []);
    assert!(all(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn bad_records_are_refused() {
    let good = record([0, 0, 0, 0], 3, &[1, 2, 3]);
    assert!(alone(&good).is_ok());
    for cut in 0..good.len() {
        assert!(alone(&good[..cut]).is_err(), "cut at {cut}");
    }
    let refused = [
        record([0, 0, 0, 0], 1, &[1, 2]),
        record([4, 0, 0, 0], 0, &[0; 27]),
        record([4, 0, 0, 0], 30, &[0; 30 + CAUSE_SLOTS]),
        record([5, 0, 0, 0], 0, &[0; 3]),
        record([5, 0, 0, 0], 0, &[0, 0, 0, 200]),
        record([5, 0, 0, 64], 1, &[0; 5]),
        record(
            [5, 0, 0, 64],
            17,
            &[[0, 0, 0, 1 << 16].as_slice(), &[0; 17]].concat(),
        ),
        record([6, 0, 0, 0], 1, &[1]),
        record([7, 0, 0, 0], 0, &[]),
        record([7, 0, 0, 0], 2, &[9, 1, 1]),
        record([8, 0, 0, 0], 0, &[]),
        record([9, 0, 0, 0], 1, &[0; 8]),
        record([9, 0, 0, 0], 65, &[0; 73]),
        record([3, 10, 0, 0], 0, &[]),
        record(
            [1, 0, 0, 0],
            MAX_KERNEL_FRAMES + 1,
            &[0; MAX_KERNEL_FRAMES + 1],
        ),
    ];
    for bytes in refused {
        assert!(alone(&bytes).is_err(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = alone(&bytes);
    }

    #[test]
    fn any_header_of_a_known_kind_decodes_or_is_refused(
        kind in 0_u8..10, bytes in proptest::collection::vec(any::<u8>(), 300..400)
    ) {
        let mut bytes = bytes;
        bytes[32] = kind;
        bytes[33] %= 10;
        bytes[37] = 0;
        let _ = Record::decode_first(&bytes);
    }
}
