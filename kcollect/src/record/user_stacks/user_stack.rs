//! User stacks, and the unwinding of copied stack memory.

use std::collections::BTreeMap;

use bpf_abi::layout::{MAX_USER_FRAMES, RED_ZONE_BYTES, REGISTERS, STACK_POINTER};
use bpf_abi::unwind::{self, Registers, UnwindBy, UnwindEnd};
use bpf_abi::{CodeFile, RecordHeader};
use experiment_format::ids::Pid;
use experiment_format::stacks::StackEnd;
use experiment_format::units::Ticks;
use serde::Serialize;
use user_collector::loaded_code::LoadedCode;
use user_collector::objects::{LoadObjects, UnwindTableState};
use user_collector::space::Mapping;
use user_collector::space::{MappedCode, mapping_at};
use user_collector::unwind::UnwindRule;

use super::publish::TablePublisher;

/// The user stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserStack {
    /// Leaf first: where it was interrupted; callers as addresses inside the call.
    pub frames: Vec<u64>,
    /// Why the stack ends there.
    pub end: UnwindEnd,
    /// A frame was unwound by its frame pointer.
    pub via_frame_pointer: bool,
    /// A caller was found by a scan of the stack.
    pub via_scan: bool,
}

impl UserStack {
    /// Returns how it ends in the experiment.
    #[must_use]
    pub fn mark(&self) -> StackEnd {
        match self.end {
            // Nothing is missing of either. Of an unverified one callers may be.
            UnwindEnd::Complete | UnwindEnd::Executing => StackEnd::Complete,
            UnwindEnd::DepthLimit => StackEnd::Truncated,
            _ => StackEnd::UnwindFailed,
        }
    }
}

/// Ticks by how their user stack ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackCounts {
    /// Ticks, by the end.
    #[serde(flatten)]
    pub by_end: BTreeMap<UnwindEnd, Ticks>,
    /// Ticks without a user stack that should have one.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing: Ticks,
    /// Ticks of exiting threads, whose memory was gone, and their user stack with it.
    #[serde(skip_serializing_if = "is_zero")]
    pub exiting: Ticks,
    /// Ticks of the kernel's workers in a process, which never run user code.
    #[serde(skip_serializing_if = "is_zero")]
    pub user_workers: Ticks,
    /// Ticks with a frame that was unwound by its frame pointer.
    #[serde(skip_serializing_if = "is_zero")]
    pub via_frame_pointer: Ticks,
    /// Ticks with a caller that was found by a scan of the stack.
    #[serde(skip_serializing_if = "is_zero")]
    pub via_scan: Ticks,
}

fn is_zero(ticks: &Ticks) -> bool {
    *ticks == Ticks::ZERO
}

impl StackCounts {
    /// Adds ticks of a thread, with or without a user stack.
    pub fn add(&mut self, stack: Option<&UserStack>, thread: &RecordHeader, ticks: Ticks) {
        match stack {
            Some(stack) => {
                *self.by_end.entry(stack.end).or_default() += ticks;
                self.via_frame_pointer += if stack.via_frame_pointer {
                    ticks
                } else {
                    Ticks::ZERO
                };
                self.via_scan += if stack.via_scan { ticks } else { Ticks::ZERO };
            }
            None if thread.user_worker => self.user_workers += ticks,
            None if thread.exiting => self.exiting += ticks,
            None => self.missing += ticks,
        }
    }

    /// Returns the ticks whose stack ends, with callers maybe missing.
    #[must_use]
    pub fn unverified(&self) -> Ticks {
        let unverified = self.by_end.get(&UnwindEnd::Unverified).copied();
        unverified.unwrap_or_default()
    }

    /// Returns the ticks that reach the thread's first function, and all that could.
    #[must_use]
    pub fn complete(&self) -> (Ticks, Ticks) {
        let complete = self.by_end.get(&UnwindEnd::Complete).copied();
        let could = |(end, _): &(&UnwindEnd, &Ticks)| **end != UnwindEnd::Executing;
        let unwound: Ticks = self
            .by_end
            .iter()
            .filter(could)
            .map(|(_, ticks)| ticks)
            .sum();
        (complete.unwrap_or_default(), unwound + self.missing)
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &StackCounts) {
        for (end, ticks) in &other.by_end {
            *self.by_end.entry(*end).or_default() += *ticks;
        }
        self.missing += other.missing;
        self.exiting += other.exiting;
        self.user_workers += other.user_workers;
        self.via_frame_pointer += other.via_frame_pointer;
        self.via_scan += other.via_scan;
    }
}

/// Stack memory from some frame on, with all that is needed to unwind it.
#[derive(Debug)]
pub struct StackCopy {
    /// The frames that were unwound already, leaf first.
    pub unwound: Box<[u64]>,
    /// Why there are no more, if the BPF programs have unwound the whole stack.
    pub end: Option<UnwindEnd>,
    /// One of these was unwound by its frame pointer.
    pub via_frame_pointer: bool,
    /// The caller of one was found by a scan of the stack.
    pub via_scan: bool,
    /// Nothing confirms a caller that was found by either.
    pub unconfirmed: bool,
    /// The file that the kernel found at the next frame, whose table the BPF programs did not have.
    pub file: CodeFile,
    /// The next frame.
    pub registers: Registers,
    /// The words from 128 bytes below its stack pointer on.
    pub stack: Box<[u64]>,
    /// What was mapped.
    pub code: MappedCode,
    /// A process that mapped it.
    pub pid: Pid,
}

impl StackCopy {
    /// Returns a stack that was unwound and needs no memory, only mappings that are not known yet.
    pub fn of_unwound(stack: UserStack, code: MappedCode, pid: Pid) -> StackCopy {
        StackCopy {
            unwound: stack.frames.into(),
            end: Some(stack.end),
            via_frame_pointer: stack.via_frame_pointer,
            via_scan: stack.via_scan,
            unconfirmed: false,
            file: CodeFile::default(),
            registers: Registers::innermost(0, [0; REGISTERS]),
            stack: Box::default(),
            code,
            pid,
        }
    }

    /// The stack, if the BPF programs have unwound all of it.
    pub fn unwound_stack(&self) -> Option<UserStack> {
        Some(UserStack {
            frames: self.unwound.to_vec(),
            end: self.end?,
            via_frame_pointer: self.via_frame_pointer,
            via_scan: self.via_scan,
        })
    }

    /// Reports the file whose table the BPF programs did not have.
    pub fn report_file(
        &self,
        code: &mut LoadedCode,
        publisher: &mut TablePublisher,
        relatives: &[Pid],
    ) {
        let mapping = mapping_at(&self.code, self.registers.address());
        if let Some(mapping) = mapping.filter(|_| self.end.is_none()) {
            publisher.on_missing_table(code, (self.pid, relatives), mapping, self.file);
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.stack) + size_of_val(&*self.unwound) + size_of::<StackCopy>()
    }

    /// Keeps the innermost `SHORT_WORDS` of the stack.
    pub fn shorten(&mut self) {
        if self.stack.len() > SHORT_WORDS {
            self.stack = self.stack[..SHORT_WORDS].into();
        }
    }

    /// Unwinds it. None while a table that it needs is being built.
    pub fn unwind(
        &self,
        objects: &mut LoadObjects,
        publisher: &TablePublisher,
        relatives: &[Pid],
    ) -> Option<UserStack> {
        if let Some(stack) = self.unwound_stack() {
            return Some(stack);
        }
        let (mut waits, mut leaves) = (false, false);
        let lowest =
            self.registers.general[usize::from(STACK_POINTER)].wrapping_sub(RED_ZONE_BYTES);
        let copied_to = lowest.wrapping_add(8 * self.stack.len() as u64);
        let mut past_copy = false;
        let read = |address: u64| {
            past_copy |= address == copied_to;
            self.word(address.checked_sub(lowest)?)
        };
        let mut find = |address: u64| {
            leaves = false;
            let Some(mapping) = mapping_at(&self.code, address) else {
                return UnwindBy::Nothing(UnwindEnd::NoMapping);
            };
            let id = objects.object_of(self.pid, relatives, mapping);
            match objects.get(id).map(|object| object.table.clone()) {
                Some(UnwindTableState::Pending) => {
                    waits = true;
                    UnwindBy::Nothing(UnwindEnd::NoTable)
                }
                Some(UnwindTableState::Ready(module)) => {
                    let rule = file_address(mapping, &module, address)
                        .map(|address| {
                            let number = publisher.number_at(id, address);
                            number.unwrap_or_else(|| module.table.number_at(address))
                        })
                        .filter(|number| *number != 0)
                        .and_then(|number| objects.rule(number));
                    leaves = rule
                        .and_then(|rule| UnwindRule::decode(&rule))
                        .is_some_and(|rule| rule.changes_stacks());
                    rule.map_or(UnwindBy::Hole, UnwindBy::Rule)
                }
                Some(UnwindTableState::None) | None => UnwindBy::FramePointer,
            }
        };
        let max_frames = MAX_USER_FRAMES.saturating_sub(self.unwound.len());
        let mut unwound = unwind::unwind(&self.registers, max_frames, &mut find, read);
        let outermost = unwound.frames.last().copied();
        let in_hole = outermost.is_some_and(|address| find(address) == UnwindBy::Hole);
        if waits {
            return None;
        }
        // There is no copy of the goroutine's stack, but this one has been unwound to its first
        // function.
        if unwound.end == UnwindEnd::Unreadable && leaves {
            unwound.end = UnwindEnd::Unverified;
        }
        // Where a scan has come to the end of the copy, that need not be the end of the stack.
        if unwound.end == UnwindEnd::Unverified
            && unwound.via_frame_pointer
            && past_copy
            && !in_hole
        {
            unwound.end = UnwindEnd::NoTable;
        }
        if unwound.end == UnwindEnd::Complete && self.unconfirmed {
            unwound.end = UnwindEnd::Unverified;
        }
        let mut frames = [&*self.unwound, &unwound.frames].concat();
        // An address without code is no caller. The leaf stays where it is.
        if unwound.end == UnwindEnd::NoMapping && frames.len() > 1 {
            frames.pop();
        }
        Some(UserStack {
            frames,
            end: unwound.end,
            via_frame_pointer: self.via_frame_pointer || unwound.via_frame_pointer,
            via_scan: self.via_scan || unwound.via_scan,
        })
    }

    /// Returns the stack as far as it could be unwound without a table that it needs.
    pub fn cut(self) -> UserStack {
        let mut frames = self.unwound.into_vec();
        frames.push(self.registers.address());
        UserStack {
            frames,
            end: UnwindEnd::NoTable,
            via_frame_pointer: self.via_frame_pointer,
            via_scan: self.via_scan,
        }
    }

    /// The word `above` bytes above the lowest copied one.
    fn word(&self, above: u64) -> Option<u64> {
        let index = usize::try_from(above / 8).ok()?;
        let low = *self.stack.get(index)?;
        let shift = above % 8 * 8;
        if shift == 0 {
            return Some(low);
        }
        let high = *self.stack.get(index + 1)?;
        Some(low >> shift | high << (64 - shift))
    }
}

/// Words of a stack that is kept where space is short: most stacks are no longer.
const SHORT_WORDS: usize = 1024;

/// Returns the address of the file's own space that is mapped at an address.
fn file_address(
    mapping: &Mapping,
    module: &user_collector::objects::UnwindInfo,
    address: u64,
) -> Option<u64> {
    module.address_of(mapping.file_offset(address))
}
