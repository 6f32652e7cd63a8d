//! The user stacks that threads tell: those that the kernel walked are held against what is mapped,
//! those that it copied are walked here, at once or when the table is there that they need.

use std::sync::Arc;
use std::time::Instant;

use bpf_abi::unwind::UnwindEnd;
use bpf_abi::{CapturedStack, UserReturn};
use experiment_format::layout::ExperimentDir;
use user_collector::join::Slot;
use user_collector::process::Processes;
use user_collector::spaces::Space;

use super::{Copied, LONGEST_WAIT, MANY_COPIES, MOST_COPIES, Stay, UserSide, UserStack};
use crate::machine;

impl UserSide {
    /// The user stack that an entry tells. None where it waits, for a table or for what is mapped.
    pub(super) fn told(
        &mut self,
        processes: &Processes,
        slot: Slot,
        entry: UserReturn,
    ) -> Option<UserStack> {
        let pid = entry.header.pid;
        let space = self.spaces.get_mut(pid)?;
        match entry.stack {
            CapturedStack::Unwound {
                frames,
                mut end,
                via_frame_pointer: guessed,
                mappings_version: version,
            } => {
                self.walks.kernel += 1;
                let mut frames = frames.into_vec();
                // Where nothing was known of its mappings, and no room for a copy: at least where
                // it was.
                if frames.is_empty() {
                    frames.push(entry.ip);
                }
                if disbelieved(space, version, &mut frames) {
                    self.losses.disbelieved += 1;
                    end = UnwindEnd::NoMapping;
                }
                Some(UserStack {
                    frames,
                    end,
                    guessed,
                })
            }
            CapturedStack::StackCopy {
                unwound: walked,
                via_frame_pointer: guessed,
                mappings_version: version,
                registers,
                stack,
            } => {
                self.walks.copied += 1;
                let mut frames = walked.into_vec();
                frames.push(registers.address());
                if disbelieved(space, version, &mut frames) {
                    self.losses.disbelieved += 1;
                    return Some(UserStack {
                        frames,
                        end: UnwindEnd::NoMapping,
                        guessed,
                    });
                }
                frames.pop();
                let copied = Copied {
                    walked: frames.into(),
                    guessed,
                    registers: *registers,
                    stack,
                    code: space.code(),
                    pid,
                };
                self.walk_or_keep(processes, entry.header.time_ns, slot, copied)
            }
        }
    }

    /// Walks a stack that was copied at a time. None where it was kept until it can be walked.
    fn walk_or_keep(
        &mut self,
        processes: &Processes,
        at: u64,
        slot: Slot,
        mut copied: Copied,
    ) -> Option<UserStack> {
        // Where many wait, the shallow half of programs is not to suffer for the deep one.
        if self.copied_bytes > MOST_COPIES / 8 {
            copied.shorten();
        }
        let bytes = copied.bytes();
        let room = self.copied_bytes + bytes <= MOST_COPIES;
        let relatives = relatives(processes, copied.pid);
        match copied.walk(&mut self.objects, &self.hand_over, &relatives) {
            Some(stack) if stack.end == UnwindEnd::NoMapping && room => {
                if self.unmapped.wait(at, slot, copied).is_some() {
                    return Some(stack);
                }
                self.copied_bytes += bytes;
                None
            }
            None if room => {
                self.copied_bytes += bytes;
                self.copies.push((slot, copied));
                None
            }
            None => {
                self.losses.copies += 1;
                Some(copied.cut())
            }
            stack => stack,
        }
    }

    /// Walks the stacks that were copied and whose tables are there now; all of them when `last`.
    pub fn walk_copies(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        last: bool,
    ) -> Vec<Stay> {
        let mut settled = self.objects.take();
        if last {
            let waiting = self.unmapped.close();
            self.copies.extend(waiting);
        }
        let began = Instant::now();
        while last && !self.copies.is_empty() && self.objects.waiting() > 0 {
            match LONGEST_WAIT.checked_sub(began.elapsed()) {
                Some(left) => settled.extend(self.objects.wait(left)),
                None => break,
            }
        }
        self.hand_over.settled(&settled);
        if settled.is_empty() && !std::mem::take(&mut self.copies_due) && !last {
            return Vec::new();
        }
        let mut complete = Vec::new();
        let before = self.copied_bytes;
        for (slot, copied) in std::mem::take(&mut self.copies) {
            let (walked, bytes) = (
                copied.walk(
                    &mut self.objects,
                    &self.hand_over,
                    &relatives(processes, copied.pid),
                ),
                copied.bytes(),
            );
            let stack = match walked {
                Some(stack) => stack,
                None if !last => {
                    self.copies.push((slot, copied));
                    continue;
                }
                None => copied.cut(),
            };
            self.copied_bytes -= bytes;
            complete.extend(self.join.resolved(slot, Arc::new(stack)));
        }
        if self.copied_bytes == 0 && before > MANY_COPIES {
            machine::give_rest_back();
        }
        self.deliver(dir, processes, complete)
    }
}

/// Cuts off the frames that were found by what was no longer mapped. Were there any?
fn disbelieved(space: &mut Space, version: u32, frames: &mut Vec<u64>) -> bool {
    if version == 0 {
        return false;
    }
    let believed = space.believed(version, frames);
    let cut = believed < frames.len();
    frames.truncate(believed);
    cut
}

/// Whoever is likely to see the same files: parents.
pub(super) fn relatives(processes: &Processes, pid: u32) -> Vec<u32> {
    let parent = |pid: u32| processes.get(pid).and_then(|process| process.parent);
    std::iter::successors(parent(pid), |pid| parent(*pid))
        .take(3)
        .collect()
}
