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

use super::publish::TablePublisher;
use super::unmapped::Unmapped;
use super::user_stack::{StackCopy, UserStack};
use crate::record::activity::TypedHeader;

/// Max memory that stack copies take while they wait for tables.
const MAX_COPIED_BYTES: usize = 64 << 20;
/// The bytes of waiting copies above which new ones are shortened: many shallow stacks are worth
/// more than a few deep ones.
const SHORTEN_COPIES_BYTES: usize = MAX_COPIED_BYTES / 8;
/// Bytes of copies above which their memory is returned to the system, once no copy waits.
const RETURN_MEMORY_BYTES: usize = 1 << 20;
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
    /// Stacks that wait for mappings.
    pub(in crate::record) unmapped: Unmapped,
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
        relatives: Relatives<'_>,
        slot: UserStackKey,
        record: UserReturnRecord,
    ) -> Option<UserStack> {
        let pid = record.header.pid();
        let space = code.spaces.get_mut(pid)?;
        match record.stack {
            CapturedStack::Unwound {
                frames,
                end,
                via_frame_pointer,
                via_scan,
            } => {
                self.unwound.in_kernel += 1;
                let mapped = space.code();
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
                let bytes = copy.bytes();
                if self.copied_bytes + bytes > MAX_COPIED_BYTES {
                    return copy.unwound_stack();
                }
                match self.unmapped.wait(record.header.time_ns(), slot, copy) {
                    Some(copy) => copy.unwound_stack(),
                    None => {
                        self.copied_bytes += bytes;
                        None
                    }
                }
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
                let copy = StackCopy {
                    unwound,
                    end: None,
                    via_frame_pointer,
                    file,
                    via_scan,
                    unconfirmed,
                    registers: *registers,
                    stack,
                    code: space.code(),
                    pid,
                };
                self.unwind_or_keep(
                    code,
                    publisher,
                    relatives,
                    (record.header.time_ns(), slot),
                    copy,
                )
            }
        }
    }

    /// Unwinds a copy of an instant. None where it is kept until it can be unwound.
    fn unwind_or_keep(
        &mut self,
        code: &mut LoadedCode,
        publisher: &mut TablePublisher,
        relatives: Relatives<'_>,
        (at_ns, slot): (Nanos, UserStackKey),
        mut copy: StackCopy,
    ) -> Option<UserStack> {
        if self.copied_bytes > SHORTEN_COPIES_BYTES {
            copy.shorten();
        }
        let bytes = copy.bytes();
        let has_budget = self.copied_bytes + bytes <= MAX_COPIED_BYTES;
        let relatives = relatives(copy.pid);
        copy.report_file(code, publisher, &relatives);
        match copy.unwind(&mut code.objects, publisher, &relatives) {
            Some(stack) if stack.end == UnwindEnd::NoMapping && has_budget => {
                if self.unmapped.wait(at_ns, slot, copy).is_some() {
                    return Some(stack);
                }
                self.copied_bytes += bytes;
                None
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
        if last {
            let waiting = self.unmapped.close();
            self.copies.extend(waiting);
        }
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
        code: &mut LoadedCode,
        pid: Pid,
        (began, now_ns): (Nanos, Nanos),
        mappings: Option<Vec<Mapping>>,
    ) -> bool {
        let (since, waiting) = self.unmapped.was_read(pid);
        if mappings.is_none() {
            self.losses.unread_mappings += waiting.len() as u64;
        }
        let found = mappings.unwrap_or_default();
        let changed = !waiting.is_empty() && code.spaces.discovered(pid, found, began, since);
        self.unmapped.had_news(pid, now_ns, changed);
        let mapped = code.mapped_by(pid);
        self.unwind_soon(waiting.into_iter().map(|(slot, copy)| {
            let code = MappedCode::clone(&mapped);
            (slot, StackCopy { code, ..copy })
        }));
        changed
    }

    /// Ends the wait of a process's stacks for mappings: no mappings are read.
    pub fn stop_waiting(&mut self, pid: Pid) {
        let waiting = self.unmapped.evict(pid);
        self.unwind_soon(waiting);
    }

    fn unwind_soon(&mut self, copies: impl IntoIterator<Item = (UserStackKey, StackCopy)>) {
        let before = self.copies.len();
        self.copies.extend(copies);
        self.copies_due |= self.copies.len() > before;
    }

    /// The processes with waiting stacks.
    pub fn awaited(&self) -> impl Iterator<Item = Pid> {
        let copies = self.copies.iter().map(|(_, copy)| copy.pid);
        copies.chain(self.unmapped.awaited())
    }
}
