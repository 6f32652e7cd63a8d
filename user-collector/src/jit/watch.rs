//! The files of one process, read as they grow.
//!
//! A round costs a `fstat` when nothing was written, and once a second a look-up of the path: the
//! file may not be there yet, as the JVM writes its map only on request, or it may have been
//! replaced. A file that is written anew in place, which the JVM does too, is found by its size, or
//! by the last bytes that were read of it being others now; then all of it is read once more, and
//! what is the same changes nothing.
//!
//! Where a process has a jitdump its perf map is not read: the dump has times, and both name the
//! same functions.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::AddAssign;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use experiment_format::ids::Pid;

use super::code::{CodePlaces, FunctionCode, ProcessCode};
use super::code_reader::WantedCode;
use super::functions::{JitFunctions, without_momentary};
use super::growing_file::{GrowingFile, identity};
use super::jitdump::{JitDump, JitDumpRecord};
use super::perf_map::PerfMap;
use super::process_files::ProcessFiles;
use super::{JitChange, JitRefusal, SharedJit};
use crate::files::{Share, may_hold};
use crate::space::Mapping;

/// Most bytes that are read of one process, all files and readings together.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Most bytes that are read in one round, but for the last: some 60,000 functions, and a round
/// stays short.
const MAX_ROUND_BYTES: u64 = 4 << 20;
/// Most bytes that are read when a process ends: others wait meanwhile, and processes may end by
/// the thousand.
const MAX_LAST_ROUND_BYTES: u64 = 32 << 20;
const READ_BYTES: usize = 64 << 10;
const SECOND_NS: u64 = 1_000_000_000;

/// What was read of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JitStats {
    /// Bytes.
    pub bytes: u64,
    /// Functions that the files named, those that were named before too.
    pub functions: u64,
    /// Lines and records that were none.
    pub bad: u64,
    /// Functions without bytes, too large, or too many.
    pub refused: u64,
    /// How often a file was read from its beginning again.
    pub rereadings: u64,
    /// Bytes that were there at the last look and have not been read.
    pub unread: u64,
    /// Functions whose machine code was read,
    pub code_functions: u64,
    /// its bytes,
    pub code_bytes: u64,
    /// and functions whose code was not read: it was beyond a limit, the function had ended, or the
    /// user who called kcollect may not read it.
    pub code_left_out: u64,
}

impl AddAssign for JitStats {
    fn add_assign(&mut self, more: JitStats) {
        self.bytes += more.bytes;
        self.functions += more.functions;
        self.bad += more.bad;
        self.refused += more.refused;
        self.rereadings += more.rereadings;
        self.unread += more.unread;
        self.code_functions += more.code_functions;
        self.code_bytes += more.code_bytes;
        self.code_left_out += more.code_left_out;
    }
}

/// Reads what one process reports of the code that it makes. For a process that executes anonymous
/// memory; ended and begun anew when it executes another program.
#[derive(Debug)]
pub struct JitWatch {
    files: ProcessFiles,
    path: PathBuf,
    growing: Option<GrowingFile>,
    format: Format,
    functions: JitFunctions,
    code: Option<ProcessCode>,
    /// The memory of the process, once code was wanted from there; none if it can't be read.
    memory: Option<Option<Arc<File>>>,
    /// Whether the user who called kcollect may read the file.
    readable: bool,
    counts: JitStats,
    refusal: Option<JitRefusal>,
    start: u64,
    /// What is read now was written after this instant, as far as is known.
    since: u64,
    next_look: u64,
}

#[derive(Debug)]
enum Format {
    PerfMap(PerfMap),
    JitDump(JitDump),
}

impl Format {
    fn bad(&self) -> u64 {
        match self {
            Format::PerfMap(map) => map.bad(),
            Format::JitDump(dump) => dump.bad(),
        }
    }

    fn restart(&mut self) {
        match self {
            Format::PerfMap(map) => map.restart(),
            Format::JitDump(dump) => dump.restart(),
        }
    }
}

impl JitWatch {
    /// Begins to watch `pid`, which lives, whose program was started, or found, at `start`. Its
    /// functions are within the limits of `shared`.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be looked at: that takes CAP_SYS_PTRACE, and the files
    /// CAP_DAC_READ_SEARCH.
    pub fn open(pid: Pid, start: u64, shared: &SharedJit) -> Result<JitWatch, JitRefusal> {
        let files = ProcessFiles::open(pid).map_err(|error| JitRefusal::Io {
            path: format!("/proc/{pid}").into(),
            error,
        })?;
        let path = format!("/tmp/perf-{}.map", files.own_pid());
        Ok(JitWatch {
            files,
            path: path.into(),
            growing: None,
            format: Format::PerfMap(PerfMap::default()),
            functions: JitFunctions::within(&shared.memory),
            code: shared.code.as_ref().map(ProcessCode::new),
            memory: None,
            readable: false,
            counts: JitStats::default(),
            refusal: None,
            start,
            since: start,
            next_look: 0,
        })
    }

    /// Notes that the process mapped a file for execution, from `start` to `end`: functions there
    /// end.
    ///
    /// If the file is the process's jitdump, which it maps for no other reason than to announce it,
    /// the dump is read from now on. A dump with another process's number was inherited, and is of
    /// that process.
    ///
    /// Not to be called for anonymous memory: when that grows, or its protection changes, the
    /// kernel reports it as mapped once more, with all the code that it has.
    pub fn mapped(&mut self, at: u64, start: u64, end: u64, path: &[u8]) -> Vec<JitChange> {
        if dump_number(path) == Some(self.files.own_pid()) {
            let path = Path::new(OsStr::from_bytes(path)).to_owned();
            if path != self.path {
                self.path = path;
                self.growing = None;
                self.counts.bad += self.format.bad();
                self.format = Format::JitDump(JitDump::default());
                self.next_look = 0;
            }
        }
        self.functions.clear(at, start, end)
    }

    /// Reads what was written since the last time. To be called at each round; `now` must not run
    /// backwards.
    pub fn poll(&mut self, now: u64) -> Vec<JitChange> {
        self.round(now, MAX_ROUND_BYTES)
    }

    /// Reads what is left, up to a limit. For the process's exit, before or after it, and for the
    /// end of the run.
    pub fn last_poll(&mut self, now: u64) -> Vec<JitChange> {
        self.next_look = 0;
        self.round(now, MAX_LAST_ROUND_BYTES)
    }

    /// Ends all functions, since the process executes another program.
    pub fn end(mut self, at: u64) -> Vec<JitChange> {
        self.functions.clear(at, 0, u64::MAX)
    }

    /// Notes that a function is in the experiment, so that its code is wanted too.
    pub fn want_code(&mut self, change: &JitChange) {
        let JitChange::Begin {
            at,
            address,
            size,
            dumped,
            ..
        } = *change
        else {
            return;
        };
        if let Some(code) = &mut self.code {
            code.want(WantedCode {
                at,
                address,
                size,
                dumped,
            });
        }
    }

    /// Returns the code that was read since the last time, and has more read. `mapped` is what the
    /// process has mapped for execution.
    pub fn take_code(&mut self, mapped: &[Mapping]) -> Vec<FunctionCode> {
        self.request_code(mapped);
        let functions = &self.functions;
        let is_current = |at, address| functions.begun(address) == Some(at);
        let code = self.code.as_mut();
        code.map_or_else(Vec::new, |code| code.take(is_current))
    }

    /// The same, after waiting for what can be read now, but not long. For the process's end.
    pub fn take_last_code(&mut self, mapped: &[Mapping]) -> Vec<FunctionCode> {
        let mut all = Vec::new();
        loop {
            self.request_code(mapped);
            let functions = &self.functions;
            let is_current = |at, address| functions.begun(address) == Some(at);
            let code = self.code.as_mut();
            let more = code.map_or_else(Vec::new, |code| code.take_last(is_current));
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    fn request_code(&mut self, mapped: &[Mapping]) {
        let Some(code) = &mut self.code else {
            return;
        };
        if self.memory.is_none() && code.wants_memory() {
            let user = code.user().uid;
            let may = user == 0 || self.files.is_of(user);
            let memory = may.then(|| self.files.memory().ok()).flatten();
            let memory = memory.filter(|memory| may_hold(memory, Share::Half));
            self.memory = Some(memory.map(Arc::new));
        }
        let dump = self.growing.as_ref().filter(|_| self.readable);
        code.request(&CodePlaces {
            dump: dump.map(|growing| (&growing.file, growing.offset)),
            memory: self.memory.as_ref().and_then(Option::as_ref),
            mapped,
        });
    }

    /// Returns what was read so far.
    #[must_use]
    pub fn counts(&self) -> JitStats {
        let code = self.code.as_ref().map(ProcessCode::counts);
        let code = code.unwrap_or_default();
        JitStats {
            code_functions: code.functions,
            code_bytes: code.bytes,
            code_left_out: code.left_out,
            bad: self.counts.bad + self.format.bad(),
            refused: self.functions.refused(),
            unread: self
                .growing
                .as_ref()
                .map_or(0, |growing| growing.size.saturating_sub(growing.offset)),
            ..self.counts
        }
    }

    /// Returns whether what the process writes last can be read after it has exited.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.growing.is_some() || self.files.are_held()
    }

    /// Why a file is not read, or not any further, if so: the last reason.
    #[must_use]
    pub fn refusal(&self) -> Option<&JitRefusal> {
        self.refusal.as_ref()
    }

    fn round(&mut self, now: u64, memory: u64) -> Vec<JitChange> {
        let mut changes = Vec::new();
        if let Err(refusal) = self.read(now, memory, &mut changes) {
            self.refusal = Some(refusal);
        }
        without_momentary(&mut changes);
        changes
    }

    fn read(
        &mut self,
        now: u64,
        memory: u64,
        changes: &mut Vec<JitChange>,
    ) -> Result<(), JitRefusal> {
        if now >= self.next_look {
            self.next_look = now.saturating_add(SECOND_NS);
            self.look()?;
        }
        let Some(growing) = &mut self.growing else {
            return Ok(());
        };
        let io = |error| JitRefusal::Io {
            path: self.path.clone(),
            error,
        };
        if growing.is_rewritten().map_err(io)? {
            growing.restart();
            self.counts.rereadings += 1;
            self.format.restart();
            self.code.iter_mut().for_each(ProcessCode::forget_dump);
        }
        let mut memory = memory;
        let mut buffer = Vec::new();
        loop {
            if growing.is_at_end() {
                // What comes next was written after this.
                self.since = now;
                return Ok(());
            }
            if self.counts.bytes >= MAX_READ_BYTES {
                return Err(JitRefusal::TooLong {
                    path: self.path.clone(),
                    limit: MAX_READ_BYTES,
                });
            }
            if memory == 0 {
                return Ok(());
            }
            let wanted = memory
                .min(MAX_READ_BYTES - self.counts.bytes)
                .min(READ_BYTES as u64);
            buffer.resize(wanted as usize, 0);
            let count = growing.read(&mut buffer).map_err(io)?;
            memory -= (count as u64).min(memory);
            self.counts.bytes += count as u64;
            let (functions, counts, start) = (&mut self.functions, &mut self.counts, self.start);
            match &mut self.format {
                Format::PerfMap(map) => map.feed(&buffer[..count], |entry| {
                    counts.functions += 1;
                    changes.extend(functions.load(
                        self.since,
                        entry.address,
                        entry.size,
                        entry.name,
                    ));
                }),
                Format::JitDump(dump) => {
                    // The process says when, so it can say anything.
                    let instant = |at: Option<u64>| at.unwrap_or(self.since).min(now).max(start);
                    let each = |record: JitDumpRecord<'_>| match record {
                        JitDumpRecord::Load {
                            at,
                            address,
                            size,
                            name,
                            code,
                        } => {
                            counts.functions += 1;
                            changes.extend(functions.load(instant(at), address, size, name));
                            if let Some(JitChange::Begin { dumped, .. }) = changes.last_mut() {
                                *dumped = code;
                            }
                        }
                        JitDumpRecord::Move { at, from, to } => {
                            changes.extend(functions.moved(instant(at), from, to));
                        }
                    };
                    let path = &self.path;
                    dump.feed(&buffer[..count], each)
                        .map_err(|broken| JitRefusal::JitDump {
                            path: path.clone(),
                            broken,
                        })?;
                }
            }
        }
    }

    /// Looks the path up: is there a file, or another file?
    fn look(&mut self) -> Result<(), JitRefusal> {
        let Some(file) = self.files.file(&self.path)? else {
            return Ok(());
        };
        let io = |error| JitRefusal::Io {
            path: self.path.clone(),
            error,
        };
        let metadata = file.metadata().map_err(io)?;
        let identity = identity(&metadata);
        if let Some(growing) = &self.growing
            && growing.identity == identity
        {
            return Ok(());
        }
        if !may_hold(&file, Share::Half) {
            let path = self.path.clone();
            return Err(JitRefusal::Descriptors { path });
        }
        self.counts.rereadings += u64::from(self.growing.is_some());
        self.format.restart();
        if let Some(code) = &mut self.code {
            code.forget_dump();
            self.readable = code.user().may_read(&metadata);
        }
        self.growing = Some(GrowingFile::new(file, identity));
        Ok(())
    }
}

/// Returns the number in the base name `jit-NUMBER.dump`.
fn dump_number(path: &[u8]) -> Option<u32> {
    let base = path.rsplit(|byte| *byte == b'/').next()?;
    let digits = base.strip_prefix(b"jit-")?.strip_suffix(b".dump")?;
    if !path.starts_with(b"/") || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
