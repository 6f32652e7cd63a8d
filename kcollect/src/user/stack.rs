//! User stacks: those that the kernel walked, held against what is mapped at the instant; those
//! that it copied, walked here.

use std::collections::BTreeMap;

use bpf_abi::unwind::{self, Registers, UnwindBy, UnwindEnd};
use experiment_format::stacks::StackEnd;
use serde::Serialize;
use user_collector::maps::Mapping;
use user_collector::objects::{Objects, Table};
use user_collector::spaces::{Code, find};
use user_collector::unwind::Rule;

use super::HandOver;

/// As many frames as the kernel's walk has at most (`DEEPEST` of the BPF side).
const DEEPEST: usize = 1000;

/// The user side of what was recorded of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserStack {
    /// Leaf first: where it was interrupted; callers as addresses inside the call.
    pub frames: Vec<u64>,
    /// Why there are no more.
    pub end: UnwindEnd,
    /// A frame was left by its frame pointer.
    pub guessed: bool,
}

impl UserStack {
    /// How it ends in the experiment.
    #[must_use]
    pub fn mark(&self) -> StackEnd {
        match self.end {
            UnwindEnd::Complete => StackEnd::Complete,
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
    pub by_end: BTreeMap<UnwindEnd, u64>,
    /// Ticks that have no user side, and should have one.
    pub missing: u64,
    /// Ticks of threads that were ending and had given their memory up, and their user stack with
    /// it.
    pub exiting: u64,
    /// Ticks with a frame that was left by its frame pointer.
    pub guessed: u64,
}

impl StackCounts {
    /// Adds ticks with a user stack, or without, of a thread that ends or doesn't.
    pub fn add(&mut self, stack: Option<&UserStack>, exiting: bool, ticks: u64) {
        match stack {
            Some(stack) => {
                *self.by_end.entry(stack.end).or_default() += ticks;
                self.guessed += if stack.guessed { ticks } else { 0 };
            }
            None if exiting => self.exiting += ticks,
            None => self.missing += ticks,
        }
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &StackCounts) {
        for (end, ticks) in &other.by_end {
            *self.by_end.entry(*end).or_default() += ticks;
        }
        self.missing += other.missing;
        self.exiting += other.exiting;
        self.guessed += other.guessed;
    }
}

/// A stack that was copied from some frame on, with all that is needed to walk it.
#[derive(Debug)]
pub struct Copied {
    /// The frames that were left, leaf first.
    pub walked: Box<[u64]>,
    /// One of these was left by its frame pointer.
    pub guessed: bool,
    /// The next frame.
    pub registers: Registers,
    /// The words from 128 bytes below its stack pointer on.
    pub stack: Box<[u64]>,
    /// What was mapped.
    pub code: Code,
    /// A process that mapped it.
    pub pid: u32,
}

impl Copied {
    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.stack) + size_of_val(&*self.walked) + size_of::<Copied>()
    }

    /// Keeps the inner part of the stack alone.
    pub fn shorten(&mut self) {
        if self.stack.len() > SHORT {
            self.stack = self.stack[..SHORT].into();
        }
    }

    /// Walks it; nothing while a table is being made that it needs.
    pub fn walk(
        &self,
        objects: &mut Objects,
        handed_over: &HandOver,
        relatives: &[u32],
    ) -> Option<UserStack> {
        let (mut waits, mut leaves) = (false, false);
        let lowest = self.registers.general[usize::from(SP)].wrapping_sub(RED_ZONE);
        let read = |address: u64| self.word(address.checked_sub(lowest)?);
        let find = |address: u64| {
            leaves = false;
            let Some(mapping) = find(&self.code, address) else {
                return UnwindBy::Nothing(UnwindEnd::NoMapping);
            };
            let id = objects.of(self.pid, relatives, mapping);
            match objects.get(id).map(|object| object.table.clone()) {
                Some(Table::Pending) => {
                    waits = true;
                    UnwindBy::Nothing(UnwindEnd::NoTable)
                }
                Some(Table::Ready(module)) => {
                    let rule = file_address(mapping, &module, address)
                        .map(|address| {
                            let number = handed_over.number_at(id, address);
                            number.unwrap_or_else(|| module.table.number_at(address))
                        })
                        .filter(|number| *number != 0)
                        .and_then(|number| objects.rule(number));
                    leaves = rule
                        .and_then(|rule| Rule::decode(&rule))
                        .is_some_and(|rule| rule.changes_stacks());
                    rule.map_or(UnwindBy::FramePointer, UnwindBy::Rule)
                }
                Some(Table::None) | None => UnwindBy::FramePointer,
            }
        };
        let most = DEEPEST.saturating_sub(self.walked.len());
        let mut walked = unwind::unwind(&self.registers, most, find, read);
        if waits {
            return None;
        }
        // Of the goroutine's stack there is no copy, but this one has been walked to its first
        // function.
        if walked.end == UnwindEnd::Unreadable && leaves {
            walked.end = UnwindEnd::Complete;
        }
        let mut frames = [&*self.walked, &walked.frames].concat();
        // A caller where no code is was no caller. The leaf is where it is.
        if walked.end == UnwindEnd::NoMapping && frames.len() > 1 {
            frames.pop();
        }
        Some(UserStack {
            frames,
            end: walked.end,
            guessed: self.guessed || walked.via_frame_pointer,
        })
    }

    /// The stack as far as it is known without a table that it needs.
    pub fn cut(self) -> UserStack {
        let mut frames = self.walked.into_vec();
        frames.push(self.registers.address());
        UserStack {
            frames,
            end: UnwindEnd::NoTable,
            guessed: self.guessed,
        }
    }

    /// The word so many bytes above the lowest that was copied.
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

/// Bytes below the stack pointer that are copied too (`RED_ZONE` of the BPF side): OpenSSL's SHA-2
/// has its frame address there.
const RED_ZONE: u64 = 128;

/// Words of a stack that is kept where room is short: most stacks are no longer.
const SHORT: usize = 1024;

/// DWARF number of the stack pointer.
const SP: u8 = 7;

/// The address of the file's own space that is mapped at an address.
fn file_address(
    mapping: &Mapping,
    module: &user_collector::modules::Module,
    address: u64,
) -> Option<u64> {
    module.address_of(mapping.file_offset(address))
}
