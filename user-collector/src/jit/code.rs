//! The machine code of JIT functions, for disassembly.
//!
//! A jitdump has the code of its functions. The code of a function that only a perf map names is in
//! the memory of its process: it is read when the function is found, and dropped if the function
//! has ended by then. Memory that is not mapped for execution is not read: perf maps name byte code
//! too.
//!
//! Both are read as files, and both may make their reader wait. So other threads read
//! ([`super::CodeReader`]). Only the end of a process waits for them, for [`LAST_WAIT`].
//!
//! Limits: no code of a process that the user who called kcollect could not read, since the
//! experiment belongs to that user; [`MAX_FUNCTION_CODE_BYTES`] of a function,
//! [`MAX_PROCESS_CODE_BYTES`] of a process, [`super::MAX_TOTAL_CODE_BYTES`] of all. What is left
//! out is counted.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use experiment_format::units::Nanos;

use super::code_reader::{
    CodeAnswer, CodeReader, MAX_READ_TIME, ProcessReads, ReadRequest, RequestRefusal, WantedCode,
};
use crate::files::InvokingUser;
use crate::space::{Mapping, mappings_between};

/// Largest function whose code is read, bytes.
pub const MAX_FUNCTION_CODE_BYTES: u64 = 1 << 20;
/// Max bytes of code of one process.
pub const MAX_PROCESS_CODE_BYTES: u64 = 32 << 20;
/// Longest wait for the code of a process that has ended. After a few timeouts there is no wait.
pub const LAST_WAIT: Duration = Duration::from_millis(500);

/// Max functions of one process that wait for the thread.
const MAX_WAITING_FUNCTIONS: usize = 100_000;
/// Max bytes of one process that are being read: they are in memory.
const MAX_READING_BYTES: u64 = 4 << 20;

/// The machine code of a JIT function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCode {
    /// When the function began, nanoseconds of the events' clock.
    pub at_ns: Nanos,
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub code: Vec<u8>,
}

/// Counts of the code that was read of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeCounts {
    pub(super) functions: u64,
    pub(super) bytes: u64,
    pub(super) left_out: u64,
    /// The part of `left_out` that was beyond a limit.
    pub(super) over_limit: u64,
}

/// The code of one process's JIT functions, from when a function is found until its code is read.
#[derive(Debug)]
pub(super) struct ProcessCode {
    reader: CodeReader,
    reads: Arc<ProcessReads>,
    waiting: VecDeque<WantedCode>,
    /// Functions that were requested and not answered yet.
    reading: u64,
    /// Bytes of these functions.
    reading_bytes: u64,
    answers: (Sender<CodeAnswer>, Receiver<CodeAnswer>),
    /// Bytes that were requested so far.
    requested_bytes: u64,
    counts: CodeCounts,
}

/// The files that code can be read from now.
pub(super) struct CodeSources<'a> {
    /// The jitdump, and how many bytes of it are written.
    pub(super) dump: Option<(&'a Arc<File>, u64)>,
    /// The memory of the process.
    pub(super) memory: Option<&'a Arc<File>>,
    /// The mappings for execution, by address.
    pub(super) mapped: &'a [Mapping],
}

/// The result of looking for the code of a function.
enum Found<'a> {
    /// At this offset of this file.
    At(&'a Arc<File>, u64),
    /// Not written to the jitdump yet.
    Later,
    /// In memory that is not mapped for execution: byte code, which no disassembler reads.
    NotExecutable,
    /// Nowhere any more.
    Nowhere,
}

impl<'a> CodeSources<'a> {
    fn find(&self, wanted: &WantedCode) -> Found<'a> {
        match (wanted.dump_offset, self.dump, self.memory) {
            (Some(offset), Some((dump, written)), _) => {
                if offset.saturating_add(wanted.size) > written {
                    Found::Later
                } else {
                    Found::At(dump, offset)
                }
            }
            (None, _, Some(memory)) => {
                if is_executable(self.mapped, wanted.address, wanted.size) {
                    Found::At(memory, wanted.address)
                } else if self.mapped.is_empty() {
                    // Without any mapping, the process has ended.
                    Found::Nowhere
                } else {
                    Found::NotExecutable
                }
            }
            _ => Found::Nowhere,
        }
    }
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
            || self.reads.is_stopped()
        {
            self.leave_out_over_limit();
        } else {
            self.waiting.push_back(wanted);
        }
    }

    fn leave_out_over_limit(&mut self) {
        self.counts.left_out += 1;
        self.counts.over_limit += 1;
    }

    /// Drops the functions that wait for code of the jitdump, which was replaced or written anew.
    pub(super) fn drop_waiting_for_dump(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|wanted| wanted.dump_offset.is_none());
        self.counts.left_out += (before - self.waiting.len()) as u64;
    }

    /// Returns whether functions wait for code of the process's memory.
    pub(super) fn wants_memory(&self) -> bool {
        self.waiting
            .iter()
            .any(|wanted| wanted.dump_offset.is_none())
    }

    /// Requests the code that can be read now, within the limits.
    pub(super) fn request(&mut self, sources: &CodeSources<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(wanted) = self.waiting.pop_front() else {
                return;
            };
            match sources.find(&wanted) {
                Found::At(file, offset) => {
                    if !self.request_one(wanted, file, offset) {
                        self.waiting.push_front(wanted);
                        return;
                    }
                }
                Found::Later => self.waiting.push_back(wanted),
                Found::NotExecutable => {}
                Found::Nowhere => self.counts.left_out += 1,
            }
        }
    }

    /// Requests one function, or counts it as left out. Returns false if it has to be tried again
    /// later.
    fn request_one(&mut self, wanted: WantedCode, file: &Arc<File>, offset: u64) -> bool {
        let size = wanted.size;
        if self.requested_bytes + size > MAX_PROCESS_CODE_BYTES {
            self.leave_out_over_limit();
            return true;
        }
        let request = ReadRequest {
            file: Arc::clone(file),
            offset,
            wanted,
            process: Arc::clone(&self.reads),
            answers: self.answers.0.clone(),
        };
        let requested = if self.reading_bytes >= MAX_READING_BYTES {
            Err(RequestRefusal::Busy)
        } else {
            self.reader.request(request)
        };
        match requested {
            Ok(()) => {
                self.requested_bytes += size;
                self.reading += 1;
                self.reading_bytes += size;
            }
            Err(RequestRefusal::Total) => self.leave_out_over_limit(),
            Err(RequestRefusal::Busy) => return false,
        }
        true
    }

    /// Returns the code that was read since the last call. `is_current` returns whether the
    /// function that began at a time, at an address, has not ended.
    pub(super) fn take(&mut self, is_current: impl Fn(Nanos, u64) -> bool) -> Vec<FunctionCode> {
        let answers: Vec<_> = self.answers.1.try_iter().collect();
        let answers = answers.into_iter();
        let code = answers.filter_map(|answer| self.finish(answer, &is_current));
        let code = code.collect();
        self.stop_if_blocked(MAX_READ_TIME);
        code
    }

    /// Waits for all that is being read, for [`LAST_WAIT`] at most, and returns it as
    /// [`ProcessCode::take`] does.
    pub(super) fn take_last(
        &mut self,
        is_current: impl Fn(Nanos, u64) -> bool,
    ) -> Vec<FunctionCode> {
        let until = Instant::now() + LAST_WAIT;
        let mut all = self.take(&is_current);
        while self.reading > 0 && !self.reads.is_stopped() && self.reader.may_wait() {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.1.recv_timeout(left) {
                Ok(answer) => all.extend(self.finish(answer, &is_current)),
                Err(_) if self.stop_if_blocked(LAST_WAIT / 2) => {}
                Err(_) => {
                    self.reader.last_wait_timed_out();
                    break;
                }
            }
        }
        all
    }

    /// Stops reads for the process if one of them has lasted this long. Returns whether it has.
    fn stop_if_blocked(&mut self, time: Duration) -> bool {
        let blocked = !self.reads.is_stopped() && self.reads.has_lasted(time);
        if blocked {
            self.reads.stop();
            self.reader.replace_thread();
            self.counts.left_out += self.waiting.len() as u64;
            self.waiting.clear();
        }
        blocked
    }

    fn finish(
        &mut self,
        CodeAnswer { wanted, code }: CodeAnswer,
        is_current: impl Fn(Nanos, u64) -> bool,
    ) -> Option<FunctionCode> {
        let WantedCode {
            at_ns,
            address,
            size,
            dump_offset,
        } = wanted;
        self.reading -= 1;
        self.reading_bytes -= size;
        let code = code.filter(|_| dump_offset.is_some() || is_current(at_ns, address));
        let Some(code) = code else {
            self.counts.left_out += 1;
            return None;
        };
        self.counts.functions += 1;
        self.counts.bytes += size;
        Some(FunctionCode {
            at_ns,
            address,
            code,
        })
    }

    pub(super) fn counts(&self) -> CodeCounts {
        CodeCounts {
            left_out: self.counts.left_out + self.waiting.len() as u64 + self.reading,
            ..self.counts
        }
    }
}

/// Returns whether these addresses are all mapped for execution, without a file.
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
