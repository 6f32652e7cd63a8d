//! Decodes records from bytes. Nothing is trusted: lengths and numbers are checked.

use std::sync::Arc;

use zerocopy::{FromBytes, transmute};

use super::{
    BlockRecord, CapturedStack, CauseTimes, CgroupNumber, DetailTimes, IoCallRecord, IoFileRecord,
    KernelCounts, KernelStack, LockWaitRecord, Mode, OffCpuDetail, OffCpuRecord, OverflowRecord,
    Record, RecordHeader, ThreadName, ThreadRecord, TickRecord, UserReturnRecord,
};
use crate::layout::{
    ALLOCATION_CALL_SITE, BlockLayout, COPIED_CODE_DEVICE, CallTable, Cause, Detail, HeaderLayout,
    IoCallLayout, IoFileLayout, KernelCount, LockWaitLayout, MAX_IO_EXTRA_BYTES, MAX_KERNEL_FRAMES,
    MAX_USER_RETURN_WORDS, OverflowLayout, PathEnd, REGISTERS, RecordFlags, RecordKind, STATES,
    ThreadLayout, UNCONFIRMED, UserReturnLayout, VIA_SCAN,
};
use crate::unwind::{Registers, UnwindEnd};

/// Bytes that are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There are fewer bytes than the record has.
    #[error("a record of {bytes} bytes is cut off")]
    Short {
        /// How many there are.
        bytes: usize,
    },
    /// An unknown kind.
    #[error("{0} is not the kind of a record")]
    Kind(u8),
    /// An unknown microstate.
    #[error("{0} is not a microstate")]
    State(u8),
    /// An unknown cause of a wait.
    #[error("{0} is not the cause of a wait")]
    Cause(u8),
    /// An unknown reason why a stack ends.
    #[error("{0} is not a reason why a stack ends")]
    End(u8),
    /// A record of this kind has fewer frames.
    #[error("a record of kind {kind:?} has {frames} frames")]
    Frames {
        /// The kind.
        kind: RecordKind,
        /// Number of frames, or of words.
        frames: u16,
    },
    /// More boundaries are in one state, or were stolen, than there are.
    #[error("{blocked} of {ticks} boundaries are in one state")]
    Blocked {
        /// Those in one state.
        blocked: u32,
        /// All.
        ticks: u32,
    },
    /// A user stack or a system call is of a call site that does not exist.
    #[error("{0} is not a call site of a thread")]
    CallSite(u32),
    /// A system call is of no table.
    #[error("{0} is not a table of system calls")]
    CallTable(u8),
    /// The path of a file ends in an unknown way.
    #[error("{0} is not an end of a path")]
    PathEnd(u16),
    /// A stack copy has no space for its registers.
    #[error("a stack copy of {words} words has no registers")]
    StackCopy {
        /// Its words, after the frames that were unwound.
        words: usize,
    },
}

impl Record {
    /// Whether the bytes of one record are a stack copy.
    #[must_use]
    pub fn is_stack_copy(bytes: &[u8]) -> bool {
        let copy = |raw: HeaderLayout| {
            raw.kind == u8::from(RecordKind::UserReturn) && raw.has(RecordFlags::STACK_COPY)
        };
        HeaderLayout::read_from_prefix(bytes).is_ok_and(|(raw, _)| copy(raw))
    }

    /// Decodes adjacent records, one after the other. The first bytes that are not a record are a
    /// [`RecordError`], and the end.
    pub fn decode_all(mut bytes: &[u8]) -> impl Iterator<Item = Result<Record, RecordError>> {
        std::iter::from_fn(move || {
            if bytes.is_empty() {
                return None;
            }
            let decoded = Record::decode_first(bytes);
            Some(
                decoded
                    .map(|(record, rest)| {
                        bytes = rest;
                        record
                    })
                    .inspect_err(|_| bytes = &[]),
            )
        })
    }

    /// Decodes the first of several adjacent records, and returns it with the remaining bytes.
    ///
    /// # Errors
    /// A [`RecordError`] when the bytes do not begin with a record.
    pub fn decode_first(bytes: &[u8]) -> Result<(Record, &[u8]), RecordError> {
        let mut rest = Bytes(bytes);
        let raw: HeaderLayout = Bytes(bytes).take()?;
        let kind = RecordKind::try_from(raw.kind).map_err(|_| RecordError::Kind(raw.kind))?;
        if usize::from(raw.frames) > max_frames(kind) {
            return Err(RecordError::Frames {
                kind,
                frames: raw.frames,
            });
        }
        if usize::from(raw.state) >= STATES {
            return Err(RecordError::State(raw.state));
        }
        // The fixed part of a record begins with its header.
        let record = match kind {
            RecordKind::TickUser => tick(Mode::User, &mut rest)?,
            RecordKind::TickKernel => tick(Mode::Kernel, &mut rest)?,
            RecordKind::TickIdle => tick(Mode::Idle, &mut rest)?,
            RecordKind::OffCpu => off_cpu(&mut rest)?,
            RecordKind::Thread => Record::Thread(Box::new(thread(&rest.take()?))),
            RecordKind::UserReturn => user_return(&mut rest)?,
            RecordKind::Overflow => {
                let raw: OverflowLayout = rest.take()?;
                Record::Overflow(OverflowRecord {
                    header: RecordHeader::from(&raw.header),
                    value: raw.value,
                    counter: raw.counter,
                    irq_work: raw.header.has(RecordFlags::IRQ_WORK),
                    stack: kernel_stack(&raw.header, &mut rest)?,
                })
            }
            RecordKind::LockWait => {
                let raw: LockWaitLayout = rest.take()?;
                Record::LockWait(LockWaitRecord {
                    header: RecordHeader::from(&raw.header),
                    begin_ns: raw.begin_ns,
                    object: raw.object,
                    operation: raw.operation,
                    stack: kernel_stack(&raw.header, &mut rest)?,
                })
            }
            RecordKind::IoCall => Record::IoCall(Box::new(io_call(&mut rest)?)),
            RecordKind::IoSubmitted => Record::IoSubmitted(Box::new(io_call(&mut rest)?)),
            RecordKind::IoFile => Record::IoFile(Box::new(io_file(&mut rest)?)),
            RecordKind::Block => {
                let raw: BlockLayout = rest.take()?;
                Record::Block(BlockRecord {
                    header: RecordHeader::from(&raw.header),
                    address: raw.address,
                    allocated_bytes: (raw.freed == 0).then_some(raw.bytes),
                    weighted_bytes: Some(raw.weighted_bytes).filter(|bytes| *bytes > 0),
                })
            }
        };
        Ok((record, rest.0))
    }
}

/// Returns the most frames, or words, that a record of a kind has.
fn max_frames(kind: RecordKind) -> usize {
    match kind {
        RecordKind::TickUser
        | RecordKind::TickKernel
        | RecordKind::TickIdle
        | RecordKind::OffCpu
        | RecordKind::Overflow
        | RecordKind::LockWait => MAX_KERNEL_FRAMES,
        RecordKind::UserReturn => MAX_USER_RETURN_WORDS,
        RecordKind::IoCall | RecordKind::IoFile => MAX_IO_EXTRA_BYTES / 8,
        RecordKind::Thread | RecordKind::Block | RecordKind::IoSubmitted => 0,
    }
}

/// Bytes that are not decoded yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take<T: FromBytes>(&mut self) -> Result<T, RecordError> {
        let short = RecordError::Short {
            bytes: self.0.len(),
        };
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| short)?;
        self.0 = rest;
        Ok(value)
    }

    fn words(
        &mut self,
        count: u16,
    ) -> Result<impl ExactSizeIterator<Item = u64> + use<'a>, RecordError> {
        let short = RecordError::Short {
            bytes: self.0.len(),
        };
        let (words, rest) = self
            .0
            .split_at_checked(usize::from(count) * 8)
            .ok_or(short)?;
        self.0 = rest;
        let (words, _) = words.as_chunks();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)))
    }

    /// Reads `words` words and returns the first `count` bytes of them.
    fn bytes(&mut self, words: u16, count: u16) -> Result<Box<[u8]>, RecordError> {
        let bytes = self.words(words)?.flat_map(u64::to_ne_bytes);
        Ok(bytes.take(count.into()).collect())
    }
}

impl HeaderLayout {
    fn has(&self, flag: RecordFlags) -> bool {
        self.flags & flag.0 != 0
    }
}

impl From<&HeaderLayout> for RecordHeader {
    fn from(raw: &HeaderLayout) -> RecordHeader {
        RecordHeader {
            time_ns: raw.time_ns,
            cpu: raw.cpu,
            pid: raw.pid,
            tid: raw.tid,
            user_return: raw.user_return,
            name: ThreadName(transmute!(raw.name)),
            kernel_thread: raw.has(RecordFlags::KERNEL_THREAD),
            user_worker: raw.has(RecordFlags::USER_WORKER),
            exiting: raw.has(RecordFlags::EXITING),
        }
    }
}

fn tick(mode: Mode, rest: &mut Bytes<'_>) -> Result<Record, RecordError> {
    let raw: HeaderLayout = rest.take()?;
    if raw.blocked > raw.ticks {
        return Err(RecordError::Blocked {
            blocked: raw.blocked,
            ticks: raw.ticks,
        });
    }
    Ok(Record::Tick(TickRecord {
        header: RecordHeader::from(&raw),
        ticks: raw.ticks,
        stolen_ticks: raw.blocked,
        mode,
        irq_work: raw.has(RecordFlags::IRQ_WORK),
        at_switch_out: raw.has(RecordFlags::AT_SWITCH_OUT),
        stack: kernel_stack(&raw, rest)?,
    }))
}

fn off_cpu(rest: &mut Bytes<'_>) -> Result<Record, RecordError> {
    let raw: HeaderLayout = rest.take()?;
    let waited_ticks = raw.ticks.checked_sub(raw.blocked);
    Ok(Record::OffCpu(OffCpuRecord {
        header: RecordHeader::from(&raw),
        state: raw.state,
        detail: OffCpuDetail::try_from(raw.detail).ok(),
        cause: Cause::try_from(raw.cause).map_err(|_| RecordError::Cause(raw.cause))?,
        waker: Some(raw.waker).filter(|waker| *waker != 0),
        blocked_ticks: raw.blocked,
        waited_ticks: waited_ticks.ok_or(RecordError::Blocked {
            blocked: raw.blocked,
            ticks: raw.ticks,
        })?,
        stack: kernel_stack(&raw, rest)?,
    }))
}

fn user_return(rest: &mut Bytes<'_>) -> Result<Record, RecordError> {
    let raw: UserReturnLayout = rest.take()?;
    let words = rest.words(raw.header.frames)?;
    Ok(Record::UserReturn(UserReturnRecord {
        header: RecordHeader::from(&raw.header),
        ip: raw.ip,
        sp: raw.sp,
        execution: raw.execution,
        call_site: call_site(raw.call_site, ALLOCATION_CALL_SITE)?,
        anonymous: (raw.file.device == COPIED_CODE_DEVICE).then_some(raw.file),
        stack: captured_stack(&raw, words)?,
    }))
}

fn call_site(number: u32, most: u8) -> Result<u8, RecordError> {
    match u8::try_from(number) {
        Ok(call_site) if call_site <= most => Ok(call_site),
        _ => Err(RecordError::CallSite(number)),
    }
}

fn io_call(rest: &mut Bytes<'_>) -> Result<IoCallRecord, RecordError> {
    let raw: IoCallLayout = rest.take()?;
    Ok(IoCallRecord {
        header: RecordHeader::from(&raw.header),
        begin_ns: raw.begin_ns,
        result: raw.result,
        arguments: raw.arguments,
        files: raw.files,
        call: raw.call,
        table: CallTable::try_from(raw.table).map_err(|_| RecordError::CallTable(raw.table))?,
        call_site: call_site(raw.call_site.into(), ALLOCATION_CALL_SITE)?,
        extra: rest.bytes(raw.header.frames, raw.extra_bytes)?,
    })
}

fn io_file(rest: &mut Bytes<'_>) -> Result<IoFileRecord, RecordError> {
    let raw: IoFileLayout = rest.take()?;
    let end = u8::try_from(raw.end).ok();
    let end = end.and_then(|end| PathEnd::try_from(end).ok());
    Ok(IoFileRecord {
        header: RecordHeader::from(&raw.header),
        file: raw.file,
        inode: raw.inode,
        mode: raw.mode,
        path: rest.bytes(raw.header.frames, raw.bytes)?,
        end: end.ok_or(RecordError::PathEnd(raw.end))?,
    })
}

fn kernel_stack(raw: &HeaderLayout, rest: &mut Bytes<'_>) -> Result<KernelStack, RecordError> {
    Ok(KernelStack {
        frames: match raw.frames {
            // Allocates nothing.
            0 => Arc::default(),
            frames => rest.words(frames)?.collect(),
        },
        truncated: raw.has(RecordFlags::TRUNCATED),
        missing: raw.has(RecordFlags::NO_STACK),
    })
}

fn thread(raw: &ThreadLayout) -> ThreadRecord {
    let time = |detail: Detail| raw.ns[detail as usize];
    let count = |count: KernelCount| raw.counts[count as usize];
    ThreadRecord {
        header: RecordHeader::from(&raw.header),
        exited: raw.header.has(RecordFlags::THREAD_EXITED),
        state: raw.header.state,
        task: raw.task,
        as_of_ns: raw.as_of_ns,
        since_ns: raw.since_ns,
        tracked_ns: raw.tracked_ns,
        ns: std::array::from_fn(|state| raw.ns[state]),
        details: DetailTimes {
            block_io: time(Detail::BlockIo),
            preempted: time(Detail::Preempted),
            throttled: time(Detail::Throttled),
            stolen: time(Detail::Stolen),
        },
        causes: CauseTimes::of(&raw.cause_ns),
        counts: KernelCounts {
            minor_faults: count(KernelCount::MinorFaults),
            major_faults: count(KernelCount::MajorFaults),
            voluntary_switches: count(KernelCount::VoluntarySwitches),
            involuntary_switches: count(KernelCount::InvoluntarySwitches),
            read_chars: count(KernelCount::ReadChars),
            written_chars: count(KernelCount::WrittenChars),
            read_calls: count(KernelCount::ReadCalls),
            write_calls: count(KernelCount::WriteCalls),
            read_bytes: count(KernelCount::ReadBytes),
            written_bytes: count(KernelCount::WrittenBytes),
        },
        faulted_in_kernel: raw.header.blocked != 0,
        cgroup: CgroupNumber {
            inode: raw.cgroup,
            hierarchy: raw.hierarchy,
        },
        user: raw.user,
    }
}

fn captured_stack(
    raw: &UserReturnLayout,
    words: impl Iterator<Item = u64>,
) -> Result<CapturedStack, RecordError> {
    let via_frame_pointer = raw.via_frame_pointer != 0;
    let via_scan = raw.via_scan & VIA_SCAN != 0;
    if !raw.header.has(RecordFlags::STACK_COPY) {
        return Ok(CapturedStack::Unwound {
            frames: words.collect(),
            end: UnwindEnd::try_from(raw.end).map_err(|_| RecordError::End(raw.end))?,
            via_frame_pointer,
            via_scan,
        });
    }
    let words: Vec<u64> = words.collect();
    let (unwound, copy) = words
        .split_at_checked(usize::from(raw.unwound))
        .ok_or(RecordError::StackCopy { words: 0 })?;
    let no_registers = RecordError::StackCopy { words: copy.len() };
    let (general, rest) = copy.split_first_chunk::<REGISTERS>().ok_or(no_registers)?;
    let (pc, stack) = rest.split_first().ok_or(no_registers)?;
    Ok(CapturedStack::StackCopy {
        unwound: unwound.into(),
        via_frame_pointer,
        file: raw.file,
        via_scan,
        unconfirmed: raw.via_scan & UNCONFIRMED != 0,
        registers: Box::new(Registers {
            pc: *pc,
            general: *general,
            known: raw.known,
            exact: raw.exact != 0,
            own_stack: 0..0,
        }),
        stack: stack.into(),
    })
}
