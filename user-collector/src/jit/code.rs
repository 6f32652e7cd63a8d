//! The machine code of functions that are made at run time, for disassembly.
//!
//! A jitdump has the bytes as they were made. Of a function that only a perf map names, they are in
//! the memory of its process, as long as it exists: they are read when the function is found, and
//! dropped if by then the function has ended. Memory that is not mapped for execution is not read:
//! perf maps name byte code too.
//!
//! Both places are files and offsets, and both may make their reader wait. So other threads read
//! ([`super::CodeReader`]). Nothing waits for them but the end of a process, and that for
//! [`LAST_WAIT`].
//!
//! What it refuses: code of processes that the user who called kcollect could not read, since the
//! experiment will be that user's; functions above [`MAX_FUNCTION_CODE_BYTES`]; and more than
//! [`MAX_PROCESS_CODE_BYTES`] of a process or [`super::MAX_TOTAL_CODE_BYTES`] of all. What is left
//! out is counted.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::code_reader::{
    CodeAnswer, CodeReader, MAX_READ_TIME, ProcessReads, ReadRequest, RequestRefusal, WantedCode,
};
use crate::files::InvokingUser;
use crate::space::{Mapping, mappings_between};

/// Largest function whose code is read, bytes.
pub const MAX_FUNCTION_CODE_BYTES: u64 = 1 << 20;
/// Most bytes of code of one process.
pub const MAX_PROCESS_CODE_BYTES: u64 = 32 << 20;
/// How long the end of a process waits for its code. A few that wait in vain are the last.
pub const LAST_WAIT: Duration = Duration::from_millis(500);

/// Functions of one process that wait for the thread, at most.
const MAX_WAITING_FUNCTIONS: usize = 100_000;
/// Bytes of one process that are being read, at most: they are in memory.
const MAX_READING_BYTES: u64 = 4 << 20;

/// The code of a function that was made at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCode {
    /// When the function began, nanoseconds of the events' clock.
    pub at: u64,
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub code: Vec<u8>,
}

/// How much code was read of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeCounts {
    pub(super) functions: u64,
    pub(super) bytes: u64,
    pub(super) left_out: u64,
}

/// The code of one process, on its way from where it is to the experiment.
#[derive(Debug)]
pub(super) struct ProcessCode {
    reader: CodeReader,
    reads: Arc<ProcessReads>,
    waiting: VecDeque<WantedCode>,
    /// Functions that were requested and not answered,
    reading: u64,
    /// and their bytes.
    reading_bytes: u64,
    answers: (Sender<CodeAnswer>, Receiver<CodeAnswer>),
    /// Bytes that were requested so far.
    requested_bytes: u64,
    counts: CodeCounts,
}

/// Where code may be read now.
pub(super) struct CodePlaces<'a> {
    /// The jitdump, and how far it is written.
    pub(super) dump: Option<(&'a Arc<File>, u64)>,
    /// The memory of the process.
    pub(super) memory: Option<&'a Arc<File>>,
    /// What is mapped for execution.
    pub(super) mapped: &'a [Mapping],
}

impl ProcessCode {
    pub(super) fn new(reader: &CodeReader) -> ProcessCode {
        ProcessCode {
            reader: reader.clone(),
            reads: Arc::default(),
            waiting: VecDeque::new(),
            reading: 0,
            reading_bytes: 0,
            answers: channel(),
            requested_bytes: 0,
            counts: CodeCounts::default(),
        }
    }

    /// Returns the user who called kcollect, whose rights decide what is read.
    pub(super) fn user(&self) -> &InvokingUser {
        self.reader.user()
    }

    /// Notes that the code of a function is wanted.
    pub(super) fn want(&mut self, wanted: WantedCode) {
        if wanted.size > MAX_FUNCTION_CODE_BYTES
            || self.waiting.len() >= MAX_WAITING_FUNCTIONS
            || self.reads.is_refused()
        {
            self.counts.left_out += 1;
        } else {
            self.waiting.push_back(wanted);
        }
    }

    /// The jitdump is another one, or written anew: what it had is gone.
    pub(super) fn forget_dump(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|wanted| wanted.dumped.is_none());
        self.counts.left_out += (before - self.waiting.len()) as u64;
    }

    /// Returns whether functions wait whose code is in memory.
    pub(super) fn wants_memory(&self) -> bool {
        self.waiting.iter().any(|wanted| wanted.dumped.is_none())
    }

    /// Has the thread read what waits, as far as it can be read now and the limits allow.
    pub(super) fn request(&mut self, places: &CodePlaces<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(wanted) = self.waiting.pop_front() else {
                return;
            };
            let size = wanted.size;
            let (file, offset) = match (wanted.dumped, places) {
                (
                    Some(offset),
                    CodePlaces {
                        dump: Some((dump, written)),
                        ..
                    },
                ) => {
                    if offset.saturating_add(size) > *written {
                        self.waiting.push_back(wanted);
                        continue;
                    }
                    (*dump, offset)
                }
                (
                    None,
                    CodePlaces {
                        memory: Some(memory),
                        mapped,
                        ..
                    },
                ) => {
                    if !is_executable(mapped, wanted.address, size) {
                        // Without any mapping, the process has ended.
                        self.counts.left_out += u64::from(mapped.is_empty());
                        continue;
                    }
                    (*memory, wanted.address)
                }
                _ => {
                    self.counts.left_out += 1;
                    continue;
                }
            };
            if self.requested_bytes + size > MAX_PROCESS_CODE_BYTES {
                self.counts.left_out += 1;
                continue;
            }
            let request = ReadRequest {
                file: Arc::clone(file),
                offset,
                wanted,
                process: Arc::clone(&self.reads),
                answers: self.answers.0.clone(),
            };
            let requested = match self.reading_bytes >= MAX_READING_BYTES {
                true => Err(RequestRefusal::Busy),
                false => self.reader.request(request),
            };
            match requested {
                Ok(()) => {
                    self.requested_bytes += size;
                    self.reading += 1;
                    self.reading_bytes += size;
                }
                Err(RequestRefusal::Total) => self.counts.left_out += 1,
                Err(RequestRefusal::Busy) => {
                    self.waiting.push_front(wanted);
                    return;
                }
            }
        }
    }

    /// Returns the code that was read since the last time. `is_current` says that a function that
    /// began then at an address has not ended.
    pub(super) fn take(&mut self, is_current: impl Fn(u64, u64) -> bool) -> Vec<FunctionCode> {
        let answers: Vec<_> = self.answers.1.try_iter().collect();
        let answers = answers.into_iter();
        let code = answers.filter_map(|answer| self.finish(answer, &is_current));
        let code = code.collect();
        self.refuse_after(MAX_READ_TIME);
        code
    }

    /// The same, after waiting for all that is being read.
    pub(super) fn take_last(&mut self, is_current: impl Fn(u64, u64) -> bool) -> Vec<FunctionCode> {
        let until = Instant::now() + LAST_WAIT;
        let mut all = self.take(&is_current);
        while self.reading > 0 && !self.reads.is_refused() && self.reader.may_wait() {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.1.recv_timeout(left) {
                Ok(answer) => all.extend(self.finish(answer, &is_current)),
                Err(_) if self.refuse_after(LAST_WAIT / 2) => {}
                Err(_) => {
                    self.reader.waited_in_vain();
                    break;
                }
            }
        }
        all
    }

    /// Refuses the process if one of its reads takes so long. Returns whether it does.
    fn refuse_after(&mut self, time: Duration) -> bool {
        let blocked = !self.reads.is_refused() && self.reads.has_taken(time);
        if blocked {
            self.reads.refuse();
            self.reader.replace_thread();
            self.counts.left_out += self.waiting.len() as u64;
            self.waiting.clear();
        }
        blocked
    }

    fn finish(
        &mut self,
        CodeAnswer { wanted, code }: CodeAnswer,
        is_current: impl Fn(u64, u64) -> bool,
    ) -> Option<FunctionCode> {
        let WantedCode {
            at,
            address,
            size,
            dumped,
        } = wanted;
        self.reading -= 1;
        self.reading_bytes -= size;
        let code = code.filter(|_| dumped.is_some() || is_current(at, address));
        let Some(code) = code else {
            self.counts.left_out += 1;
            return None;
        };
        self.counts.functions += 1;
        self.counts.bytes += size;
        Some(FunctionCode { at, address, code })
    }

    pub(super) fn counts(&self) -> CodeCounts {
        CodeCounts {
            left_out: self.counts.left_out + self.waiting.len() as u64 + self.reading,
            ..self.counts
        }
    }
}

/// Returns whether all of this is mapped for execution, without a file.
fn is_executable(mapped: &[Mapping], address: u64, size: u64) -> bool {
    let Some(end) = address.checked_add(size) else {
        return false;
    };
    let mut next = address;
    for mapping in mappings_between(mapped, address, end) {
        if mapping.start > next || !super::is_anonymous(&mapping.file) {
            return false;
        }
        next = mapping.end;
    }
    next >= end
}

#[cfg(test)]
mod tests;
