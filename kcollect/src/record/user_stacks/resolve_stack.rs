//! Resolves user stacks. Stacks that the BPF programs have unwound only need mappings that are
//! known here too. Stacks whose memory the programs have copied are unwound here, at once or when
//! the unwind table that they need is ready.

use std::time::Instant;

use bpf_abi::unwind::UnwindEnd;
use bpf_abi::{CapturedStack, UserReturnRecord};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::machine;
use serde::Serialize;
use user_collector::join::UserStackKey;
use user_collector::loaded_code::LoadedCode;
use user_collector::space::Mapping;
use user_collector::space::{MappedCode, mapping_at};

use super::process_stacks::ProcessStacks;
use super::publish::TablePublisher;
use super::user_stack::{StackCopy, UserStack};
use crate::record::activity::TypedHeader;

/// Max memory that stack copies take while they wait for tables.
const MAX_COPIED_BYTES: usize = 64 << 20;
/// The bytes of waiting copies above which new ones are shortened: many shallow stacks are worth
/// more than a few deep ones.
const SHORTEN_COPIES_BYTES: usize = MAX_COPIED_BYTES / 8;
/// Bytes of copies above which their memory is returned to the system, once no copy waits.
const RETURN_MEMORY_BYTES: usize = 1 << 20;
/// Max processes whose mappings are read in a round.
const MAX_READS: usize = 16;
/// The longest wait at the end for the tables that copies need.
const LAST_TABLES: std::time::Duration = std::time::Duration::from_secs(3);

/// Returns the processes that are likely to see the same files as a process: its parents.
pub type Relatives<'a> = &'a dyn Fn(Pid) -> Vec<Pid>;

/// The resolver of user stacks.
#[derive(Debug, Default)]
pub struct StackResolver {
    copies: Vec<(UserStackKey, StackCopy)>,
    copied_bytes: usize,
    /// Some of them can be unwound without a new table.
    copies_due: bool,
    /// Processes whose mappings have to be read, since stacks wait for them.
    unread: Vec<Pid>,
    /// What was lost.
    pub losses: StackLosses,
    /// Where stacks were unwound.
    pub unwound: UnwindCounts,
}

/// User stacks by where they were unwound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnwindCounts {
    /// In the kernel, by the BPF programs.
    pub in_kernel: u64,
    /// Here, from a stack copy, because the BPF programs did not have a table or a mapping.
    pub from_copies: u64,
}

/// Stacks that are not complete for a reason of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackLosses {
    /// Copies for which there was no memory until a table was ready.
    pub dropped_copies: u64,
    /// Stacks with an address in no known mapping, of processes that had exited
    /// when their mappings were read.
    pub unread_mappings: u64,
}

impl StackResolver {
    /// The user stack of a record. None while it waits for a table or for mappings.
    pub fn resolve(
        &mut self,
        code: &mut LoadedCode,
        publisher: &mut TablePublisher,
        (process, relatives): (&mut ProcessStacks, &[Pid]),
        slot: UserStackKey,
        record: UserReturnRecord,
    ) -> Option<UserStack> {
        let pid = record.header.pid();
        let at_ns = record.header.time_ns();
        match record.stack {
            CapturedStack::Unwound {
                frames,
                end,
                via_frame_pointer,
                via_scan,
            } => {
                self.unwound.in_kernel += 1;
                let mapped = process.space.code();
                // A leaf is kept also where the kernel found no code.
                let of_code = frames.len() > 1 || end != UnwindEnd::NoMapping;
                let known = |frame: &u64| mapping_at(&mapped, *frame).is_some();
                let unwound = UserStack {
                    frames: frames.into_vec(),
                    end,
                    via_frame_pointer,
                    via_scan,
                };
                if !of_code || unwound.frames.iter().all(known) {
                    return Some(unwound);
                }
                let copy = StackCopy::of_unwound(unwound, mapped, pid);
                if self.copied_bytes + copy.bytes() > MAX_COPIED_BYTES {
                    return copy.unwound_stack();
                }
                self.wait_for_mappings(process, at_ns, slot, copy)?
                    .unwound_stack()
            }
            CapturedStack::StackCopy {
                unwound,
                via_frame_pointer,
                file,
                via_scan,
                unconfirmed,
                registers,
                stack,
            } => {
                self.unwound.from_copies += 1;
                let mut copy = StackCopy {
                    unwound,
                    end: None,
                    via_frame_pointer,
                    file,
                    via_scan,
                    unconfirmed,
                    registers: *registers,
                    stack,
                    code: process.space.code(),
                    pid,
                };
                if self.copied_bytes > SHORTEN_COPIES_BYTES {
                    copy.shorten();
                }
                let bytes = copy.bytes();
                let has_budget = self.copied_bytes + bytes <= MAX_COPIED_BYTES;
                copy.report_file(code, publisher, relatives);
                match copy.unwind(&mut code.objects, publisher, relatives) {
                    Some(stack) if stack.end == UnwindEnd::NoMapping && has_budget => {
                        let copy = self.wait_for_mappings(process, at_ns, slot, copy);
                        copy.map(|_| stack)
                    }
                    None if has_budget => {
                        self.copied_bytes += bytes;
                        self.copies.push((slot, copy));
                        None
                    }
                    None => {
                        self.losses.dropped_copies += 1;
                        Some(copy.cut())
                    }
                    stack => stack,
                }
            }
        }
    }

    /// Lets a stack wait until the mappings of its process are read. Returns it if they were read
    /// recently.
    fn wait_for_mappings(
        &mut self,
        process: &mut ProcessStacks,
        at_ns: Nanos,
        slot: UserStackKey,
        copy: StackCopy,
    ) -> Option<StackCopy> {
        let (pid, bytes) = (copy.pid, copy.bytes());
        let unmapped = process.unmapped.get_or_insert_default();
        let is_first = !unmapped.is_waiting();
        let refused = unmapped.wait(at_ns, slot, copy);
        if refused.is_some() {
            return refused;
        }
        if is_first {
            self.unread.push(pid);
        }
        self.copied_bytes += bytes;
        None
    }

    /// The processes whose mappings have to be read now, because stacks have an address in no known
    /// mapping.
    pub fn take_unread(&mut self) -> Vec<Pid> {
        let most = self.unread.len().min(MAX_READS);
        self.unread.drain(..most).collect()
    }

    /// Unwinds the copies whose tables are ready; when `last`, all copies, as far as possible.
    /// Returns their stacks.
    pub fn unwind_copies(
        &mut self,
        code: &mut LoadedCode,
        publisher: &mut TablePublisher,
        relatives: Relatives<'_>,
        last: bool,
    ) -> Vec<(UserStackKey, UserStack)> {
        let ready = code.objects.take();
        publisher.tables_ready(&ready);
        if ready.is_empty() && !std::mem::take(&mut self.copies_due) && !last {
            return Vec::new();
        }
        let before = self.copied_bytes;
        let mut resolved = self.unwind_ready(code, publisher, relatives);
        // Each table shows which file the caller is in, whose table may be needed next.
        let began = Instant::now();
        while last && !self.copies.is_empty() && code.objects.waiting() > 0 {
            let Some(left) = LAST_TABLES.checked_sub(began.elapsed()) else {
                break;
            };
            publisher.tables_ready(&code.objects.wait(left));
            resolved.extend(self.unwind_ready(code, publisher, relatives));
        }
        if last {
            self.copied_bytes = 0;
            let rest = std::mem::take(&mut self.copies);
            resolved.extend(rest.into_iter().map(|(slot, copy)| (slot, copy.cut())));
        }
        if self.copied_bytes == 0 && before > RETURN_MEMORY_BYTES {
            machine::give_rest_back();
        }
        resolved
    }

    /// Unwinds the copies that need no table which is being made. Returns their stacks.
    fn unwind_ready(
        &mut self,
        code: &mut LoadedCode,
        publisher: &mut TablePublisher,
        relatives: Relatives<'_>,
    ) -> Vec<(UserStackKey, UserStack)> {
        let mut resolved = Vec::new();
        for (slot, copy) in std::mem::take(&mut self.copies) {
            let bytes = copy.bytes();
            let relatives = relatives(copy.pid);
            copy.report_file(code, publisher, &relatives);
            match copy.unwind(&mut code.objects, publisher, &relatives) {
                Some(stack) => {
                    self.copied_bytes -= bytes;
                    resolved.push((slot, stack));
                }
                None => self.copies.push((slot, copy)),
            }
        }
        resolved
    }

    /// Adds the mappings of a process that were read from one instant until another; None if the
    /// process is gone. Returns whether they hold anything new.
    pub fn mappings_read(
        &mut self,
        process: &mut ProcessStacks,
        (began, now_ns): (Nanos, Nanos),
        mappings: Option<Vec<Mapping>>,
    ) -> bool {
        let Some(unmapped) = &mut process.unmapped else {
            return false;
        };
        let (since, waiting) = unmapped.take();
        if mappings.is_none() {
            self.losses.unread_mappings += waiting.len() as u64;
        }
        let found = mappings.unwrap_or_default();
        let changed = !waiting.is_empty() && process.space.discovered(found, began, since);
        unmapped.had_news(now_ns, changed);
        let mapped = process.space.code();
        self.unwind_soon(waiting.into_iter().map(|(slot, copy)| {
            let code = MappedCode::clone(&mapped);
            (slot, StackCopy { code, ..copy })
        }));
        changed
    }

    /// Ends the wait of a process's stacks for mappings, since it executed another program or is
    /// gone: no mappings are read.
    pub fn stop_waiting(&mut self, pid: Pid, process: &mut ProcessStacks) {
        if let Some(mut unmapped) = process.unmapped.take() {
            self.unread.retain(|unread| *unread != pid);
            self.unwind_soon(unmapped.take().1);
        }
    }

    fn unwind_soon(&mut self, copies: impl IntoIterator<Item = (UserStackKey, StackCopy)>) {
        let before = self.copies.len();
        self.copies.extend(copies);
        self.copies_due |= self.copies.len() > before;
    }

    /// The processes with stacks that wait for tables.
    pub fn awaited(&self) -> impl Iterator<Item = Pid> {
        self.copies.iter().map(|(_, copy)| copy.pid)
    }
}
