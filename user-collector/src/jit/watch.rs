//! The JIT files of one process, read as they grow.
//!
//! A round costs a `fstat` when nothing was written, and once a second a look-up of the path: the
//! file may not be there yet, as the JVM writes its map only on request, or it may have been
//! replaced. While no anonymous memory is mapped for execution, the file can have no functions, and
//! only every tenth look-up is made, since the event of the mapping may have been lost. The JVM
//! also rewrites its map in place. That is noticed by the file's size, or because the last bytes
//! that were read have changed; then the whole file is read again. Functions that are still the
//! same stay.
//!
//! Where a process has a jitdump too, both are read: a process may have two compilers, each with
//! its own file. Where both name a function at an address it has the name of the dump, which has
//! times.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::AddAssign;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;

use super::code::{CodeSources, FunctionCode, ProcessCode};
use super::code_reader::WantedCode;
use super::functions::{JitFunctions, without_momentary};
use super::growing_file::{GrowingFile, identity};
use super::jitdump::{JitDump, JitDumpRecord};
use super::memory_limit::LastBytes;
use super::perf_map::PerfMap;
use super::process_files::ProcessFiles;
use super::{JitChange, JitRefusal, SharedJit, is_anonymous};
use crate::files::{Share, may_hold};
use crate::process::{ParentMap, ProcDir, ProcessFacts};
use crate::space::Mapping;

/// Max bytes that are read of one process, all files and readings together.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Max bytes that are read in one round other than the last: some 60,000 functions, so that a
/// round stays short.
const MAX_ROUND_BYTES: u64 = 4 << 20;
/// Bytes that are read of each process when it ends: other processes wait meanwhile, and thousands
/// may end at once. More are read within [`LastBytes`].
const MAX_LAST_ROUND_BYTES: u64 = 32 << 20;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
const SECOND_NS: Nanos = Nanos::from_secs(1);
/// The look-ups in succession that are left out where no anonymous memory is mapped.
const MAX_LEFT_OUT: u32 = 9;

/// Counts of what was read of one process's JIT files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JitFileStats {
    /// Bytes.
    pub bytes: u64,
    /// Functions that the files named, repetitions included.
    pub functions: u64,
    /// Lines and records that could not be parsed.
    pub bad: u64,
    /// Functions that were refused: without bytes, too large, or too many.
    pub refused: u64,
    /// The part of `refused` that exceeded the limit of the process or of all processes.
    pub too_many: u64,
    /// How often a file was read from its beginning again.
    pub rereadings: u64,
    /// Bytes that the file had at the last look and that were not read.
    pub unread: u64,
    /// Functions whose machine code was read.
    pub code_functions: u64,
    /// Bytes of machine code that were read.
    pub code_bytes: u64,
    /// Functions whose machine code was not read: it was beyond a limit, the function had ended, or
    /// the user who called kcollect may not read it.
    pub code_left_out: u64,
    /// The part of `code_left_out` that was beyond a limit.
    pub code_over_limit: u64,
}

impl AddAssign for JitFileStats {
    fn add_assign(&mut self, more: JitFileStats) {
        self.bytes += more.bytes;
        self.functions += more.functions;
        self.bad += more.bad;
        self.refused += more.refused;
        self.too_many += more.too_many;
        self.rereadings += more.rereadings;
        self.unread += more.unread;
        self.code_functions += more.code_functions;
        self.code_bytes += more.code_bytes;
        self.code_left_out += more.code_left_out;
        self.code_over_limit += more.code_over_limit;
    }
}

/// The reader of one process's perf map or jitdump. It belongs to one program: an exec makes
/// another one.
#[derive(Debug)]
pub struct JitWatch {
    files: ProcessFiles,
    map: Source,
    dump: Option<Source>,
    functions: JitFunctions,
    last_bytes: LastBytes,
    code: Option<ProcessCode>,
    /// The memory of the process: `None` until code of it is wanted, `Some(None)` if it can't be
    /// read.
    memory: Option<Option<Arc<File>>>,
    counts: JitFileStats,
    refusal: Option<JitRefusal>,
    start_ns: Nanos,
    next_check_ns: Nanos,
    /// The look-ups that were left out since the last one.
    left_out: u32,
}

/// A file that is read as it grows.
#[derive(Debug, Default)]
struct Source {
    path: PathBuf,
    growing: Option<GrowingFile>,
    format: Format,
    /// A time before which nothing was written of what is read now.
    since_ns: Nanos,
    /// Whether the user who called kcollect may read the file.
    readable: bool,
}

impl Source {
    fn new(path: PathBuf, format: Format, since_ns: Nanos) -> Source {
        Source {
            path,
            growing: None,
            format,
            since_ns,
            readable: false,
        }
    }

    fn io_refusal(&self, error: io::Error) -> JitRefusal {
        JitRefusal::Io {
            path: self.path.clone(),
            error,
        }
    }

    fn unread(&self) -> u64 {
        let growing = self.growing.as_ref();
        growing.map_or(0, |growing| growing.size.saturating_sub(growing.offset))
    }
}

#[derive(Debug)]
enum Format {
    PerfMap(PerfMap),
    JitDump(JitDump),
}

impl Default for Format {
    fn default() -> Format {
        Format::PerfMap(PerfMap::default())
    }
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
    /// Returns the reader for a process, whose program was started, or found, at `start_ns`. Its
    /// functions are within the limits of `shared`.
    ///
    /// # Errors
    ///
    /// The process has exited, or must not be read: that takes CAP_SYS_PTRACE, and its files
    /// CAP_DAC_READ_SEARCH.
    pub fn open(
        proc: ProcDir,
        facts: &ProcessFacts,
        start_ns: Nanos,
        shared: &SharedJit,
    ) -> io::Result<JitWatch> {
        let files = ProcessFiles::open(proc, facts)?;
        Ok(JitWatch::new(files, start_ns, shared))
    }

    fn new(files: ProcessFiles, start_ns: Nanos, shared: &SharedJit) -> JitWatch {
        let path = format!("/tmp/perf-{}.map", files.own_pid());
        let format = Format::default();
        JitWatch {
            files,
            map: Source::new(path.into(), format, start_ns),
            dump: None,
            functions: JitFunctions::within(&shared.memory),
            last_bytes: shared.last_bytes.clone(),
            code: shared.code.as_ref().map(ProcessCode::new),
            memory: None,
            counts: JitFileStats::default(),
            refusal: None,
            start_ns,
            next_check_ns: Nanos::ZERO,
            left_out: 0,
        }
    }

    /// Notes that the process mapped a file for execution, from `start` to `end`. Returns the
    /// functions that this ends.
    ///
    /// If the file is the process's jitdump, which is mapped only to announce it, the dump is read
    /// from now on. A dump with another process's number was inherited from that process: see
    /// [`JitWatch::inherit`].
    ///
    /// Not to be called for anonymous memory: when that grows, or its protection changes, the
    /// kernel reports it as mapped once more, with all the code in it.
    pub fn mapped(&mut self, at_ns: Nanos, start: u64, end: u64, path: &[u8]) -> Vec<JitChange> {
        let numbers = [self.files.own_pid(), self.files.pid()];
        if dump_number(path).is_some_and(|number| numbers.contains(&Pid(number))) {
            let path = Path::new(OsStr::from_bytes(path));
            if self.dump.as_ref().is_none_or(|dump| dump.path != path) {
                let since_ns = self
                    .dump
                    .as_ref()
                    .map_or(self.start_ns, |dump| dump.since_ns);
                let format = Format::JitDump(JitDump::default());
                let new = Source::new(path.to_owned(), format, since_ns);
                if let Some(old) = self.dump.replace(new) {
                    self.counts.bad += old.format.bad();
                }
                (self.next_check_ns, self.left_out) = (Nanos::ZERO, MAX_LEFT_OUT);
            }
        }
        self.functions.clear(at_ns, start, end)
    }

    /// Adds the functions that the process has from those that it was forked from, at `forked_ns`:
    /// by their perf maps, the oldest first, and by the jitdumps that it has mapped. To be called
    /// before the first poll. Returns them.
    pub fn inherit(
        &mut self,
        maps: &[ParentMap],
        mapped: &[Mapping],
        forked_ns: Nanos,
    ) -> Vec<JitChange> {
        let mut changes = Vec::new();
        let own_pid = self.files.own_pid().0;
        let host_pid = self.files.pid().0;
        for map in maps.iter().filter(|map| map.own_pid.0 != own_pid) {
            let result = self.inherit_map(map, &mut changes);
            self.refusal = result.err().or(self.refusal.take());
        }
        let dumps: BTreeSet<_> = mapped
            .iter()
            .map(|mapping| &mapping.file.path)
            .filter(|path| {
                dump_number(path).is_some_and(|number| number != own_pid && number != host_pid)
            })
            .collect();
        for path in dumps {
            let path = Path::new(OsStr::from_bytes(path));
            let result = self.inherit_dump(path, forked_ns, &mut changes);
            self.refusal = result.err().or(self.refusal.take());
        }
        without_momentary(&mut changes);
        changes
    }

    fn inherit_map(
        &mut self,
        map: &ParentMap,
        changes: &mut Vec<JitChange>,
    ) -> Result<(), JitRefusal> {
        let path = map.path();
        let Some(file) = self.files.file_since(&path, map.start_ticks)? else {
            return Ok(());
        };
        let (mut parser, start_ns) = (PerfMap::default(), self.start_ns);
        let (functions, counts) = (&mut self.functions, &mut self.counts);
        let each = |bytes: &[u8]| {
            parser.feed(bytes, |entry| {
                counts.functions += 1;
                changes.extend(functions.load(start_ns, entry.address, entry.size, entry.name));
            });
            Ok(())
        };
        let read = read_pieces(&path, file, map.bytes.unwrap_or(u64::MAX), each)?;
        self.counts.bytes += read;
        self.counts.bad += parser.bad();
        Ok(())
    }

    fn inherit_dump(
        &mut self,
        path: &Path,
        forked_ns: Nanos,
        changes: &mut Vec<JitChange>,
    ) -> Result<(), JitRefusal> {
        // Since the process maps it, it does not belong to an older process.
        let Some(file) = self.files.file_since(path, 0)? else {
            return Ok(());
        };
        let (mut parser, start_ns) = (JitDump::default(), self.start_ns);
        let (functions, counts) = (&mut self.functions, &mut self.counts);
        let before = |at_ns: Option<Nanos>| at_ns.is_none_or(|at_ns| at_ns <= forked_ns);
        let each = |bytes: &[u8]| {
            let each = |record: JitDumpRecord<'_>| {
                if before(record.at_ns()) {
                    apply_record(functions, counts, changes, (record, start_ns, false));
                }
            };
            let fed = parser.feed(bytes, each);
            fed.map_err(|broken| JitRefusal::JitDump {
                path: path.to_owned(),
                broken,
            })
        };
        let read = read_pieces(path, file, u64::MAX, each)?;
        self.counts.bytes += read;
        self.counts.bad += parser.bad();
        Ok(())
    }

    /// Reads what was written since the last call. To be called once a round; `now_ns` must not
    /// decrease. `mapped` are the mappings of the process for execution.
    pub fn poll(&mut self, now_ns: Nanos, mapped: &[Mapping]) -> Vec<JitChange> {
        if now_ns >= self.next_check_ns
            && self.left_out < MAX_LEFT_OUT
            && self.map.growing.is_none()
            && self.dump.as_ref().is_none_or(|dump| dump.growing.is_none())
            && !mapped.iter().any(|mapping| is_anonymous(&mapping.file))
        {
            self.left_out += 1;
            self.next_check_ns = now_ns.saturating_add(SECOND_NS);
        }
        self.round(now_ns, MAX_ROUND_BYTES)
    }

    /// Reads what is left, up to a limit. For the process's exit, before or after it, and for the
    /// end of the run.
    pub fn last_poll(&mut self, now_ns: Nanos) -> Vec<JitChange> {
        self.next_check_ns = Nanos::ZERO;
        let mut changes = self.round(now_ns, MAX_LAST_ROUND_BYTES);
        let more = self.last_bytes.take(self.counts().unread);
        if more > 0 {
            changes.extend(self.round(now_ns, more));
        }
        changes
    }

    /// Ends all functions, since the process executes another program. Returns them, and the
    /// reader for that program, if the process lives.
    pub fn executed(
        mut self,
        at_ns: Nanos,
        shared: &SharedJit,
    ) -> (Vec<JitChange>, Option<JitWatch>) {
        let ended = self.functions.clear(at_ns, 0, u64::MAX);
        let files = self.files.executed().ok();
        let next = files.map(|files| JitWatch::new(files, at_ns + Nanos(1), shared));
        (ended, next)
    }

    /// Requests the code of a function, which is in the experiment.
    pub fn want_code(&mut self, change: &JitChange) {
        let JitChange::Begin {
            at_ns,
            address,
            size,
            dump_offset,
            ..
        } = *change
        else {
            return;
        };
        if let Some(code) = &mut self.code {
            code.want(WantedCode {
                at_ns,
                address,
                size,
                dump_offset,
            });
        }
    }

    /// Returns the code that was read since the last call, and requests more. `mapped` are the
    /// mappings of the process for execution.
    pub fn take_code(&mut self, mapped: &[Mapping]) -> Vec<FunctionCode> {
        self.request_code(mapped);
        let functions = &self.functions;
        let is_current = |at_ns, address| functions.begin_ns(address) == Some(at_ns);
        let code = self.code.as_mut();
        code.map_or_else(Vec::new, |code| code.take(is_current))
    }

    /// Waits, for a limited time, for all code that can be read now, and returns it as
    /// [`JitWatch::take_code`] does. For the process's end.
    pub fn take_last_code(&mut self, mapped: &[Mapping]) -> Vec<FunctionCode> {
        let mut all = Vec::new();
        loop {
            self.request_code(mapped);
            let functions = &self.functions;
            let is_current = |at_ns, address| functions.begin_ns(address) == Some(at_ns);
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
        let dump = self.dump.as_ref().filter(|dump| dump.readable);
        let dump = dump.and_then(|dump| dump.growing.as_ref());
        code.request(&CodeSources {
            dump: dump.map(|growing| (&growing.file, growing.offset)),
            memory: self.memory.as_ref().and_then(Option::as_ref),
            mapped,
        });
    }

    /// Returns what was read so far.
    #[must_use]
    pub fn counts(&self) -> JitFileStats {
        let code = self.code.as_ref().map(ProcessCode::counts);
        let code = code.unwrap_or_default();
        JitFileStats {
            code_functions: code.functions,
            code_bytes: code.bytes,
            code_left_out: code.left_out,
            code_over_limit: code.over_limit,
            bad: self.counts.bad
                + self
                    .sources()
                    .map(|source| source.format.bad())
                    .sum::<u64>(),
            refused: self.functions.refused(),
            too_many: self.functions.too_many(),
            unread: self.sources().map(Source::unread).sum(),
            ..self.counts
        }
    }

    /// Returns whether the process's files can be read after it has exited.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        let source = self.dump.as_ref().unwrap_or(&self.map);
        self.files.are_held() || source.growing.is_some()
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.dump.iter().chain([&self.map])
    }

    /// The last reason why a file is not read, or not read any further.
    #[must_use]
    pub fn refusal(&self) -> Option<&JitRefusal> {
        self.refusal.as_ref()
    }

    fn round(&mut self, now_ns: Nanos, max_bytes: u64) -> Vec<JitChange> {
        let looks = now_ns >= self.next_check_ns;
        if looks {
            self.next_check_ns = now_ns.saturating_add(SECOND_NS);
            self.left_out = 0;
        }
        let (mut changes, mut left) = (Vec::new(), max_bytes);
        // The dump comes first: what it has is not taken from the map.
        for of_dump in [true, false] {
            let taken = if of_dump {
                self.dump.take()
            } else {
                Some(std::mem::take(&mut self.map))
            };
            let Some(mut source) = taken else {
                continue;
            };
            let read = self.read(&mut source, now_ns, looks, &mut left, &mut changes);
            self.refusal = read.err().or(self.refusal.take());
            if of_dump {
                self.dump = Some(source);
            } else {
                self.map = source;
            }
        }
        without_momentary(&mut changes);
        changes
    }

    fn read(
        &mut self,
        source: &mut Source,
        now_ns: Nanos,
        looks: bool,
        left: &mut u64,
        changes: &mut Vec<JitChange>,
    ) -> Result<(), JitRefusal> {
        if looks {
            self.look(source)?;
        }
        self.restart_if_rewritten(source)?;
        let mut buffer = Vec::new();
        loop {
            let Some(growing) = &mut source.growing else {
                return Ok(());
            };
            if growing.is_at_end() {
                // What comes next was written after this.
                source.since_ns = now_ns;
                return Ok(());
            }
            if self.counts.bytes >= MAX_READ_BYTES {
                return Err(JitRefusal::TooLong {
                    path: source.path.clone(),
                    limit: MAX_READ_BYTES,
                });
            }
            if *left == 0 {
                return Ok(());
            }
            let wanted = (*left)
                .min(MAX_READ_BYTES - self.counts.bytes)
                .min(READ_BYTES as u64);
            buffer.resize(wanted as usize, 0);
            let count = growing
                .read(&mut buffer)
                .map_err(|error| source.io_refusal(error))?;
            *left -= (count as u64).min(*left);
            self.counts.bytes += count as u64;
            self.parse(source, &buffer[..count], now_ns, changes)?;
        }
    }

    fn restart_if_rewritten(&mut self, source: &mut Source) -> Result<(), JitRefusal> {
        let Some(growing) = &mut source.growing else {
            return Ok(());
        };
        let rewritten = growing.is_rewritten();
        if rewritten.map_err(|error| source.io_refusal(error))? {
            source.growing.iter_mut().for_each(GrowingFile::restart);
            self.counts.rereadings += 1;
            source.format.restart();
            self.drop_waiting_for(source);
        }
        Ok(())
    }

    /// Drops requests of code that was to be read from a file that is another one now.
    fn drop_waiting_for(&mut self, source: &Source) {
        if let Format::JitDump(_) = source.format {
            let code = self.code.iter_mut();
            code.for_each(ProcessCode::drop_waiting_for_dump);
        }
    }

    /// Parses the next bytes of a file, and adds what they change.
    fn parse(
        &mut self,
        source: &mut Source,
        bytes: &[u8],
        now_ns: Nanos,
        changes: &mut Vec<JitChange>,
    ) -> Result<(), JitRefusal> {
        let (functions, counts) = (&mut self.functions, &mut self.counts);
        let (start_ns, since_ns) = (self.start_ns, source.since_ns);
        match &mut source.format {
            Format::PerfMap(map) => map.feed(bytes, |entry| {
                counts.functions += 1;
                let (address, size) = (entry.address, entry.size);
                changes.extend(functions.load_mapped(since_ns, address, size, entry.name));
            }),
            Format::JitDump(dump) => {
                // The times are the process's, so they can be any.
                let instant =
                    |at_ns: Option<Nanos>| at_ns.unwrap_or(since_ns).min(now_ns).max(start_ns);
                let each = |record: JitDumpRecord<'_>| {
                    let at_ns = instant(record.at_ns());
                    apply_record(functions, counts, changes, (record, at_ns, true));
                };
                let path = &source.path;
                dump.feed(bytes, each)
                    .map_err(|broken| JitRefusal::JitDump {
                        path: path.clone(),
                        broken,
                    })?;
            }
        }
        Ok(())
    }

    /// Opens a file if there is one now, or another one than before.
    fn look(&mut self, source: &mut Source) -> Result<(), JitRefusal> {
        let Some(file) = self.files.file(&source.path)? else {
            return Ok(());
        };
        let metadata = file.metadata().map_err(|error| source.io_refusal(error))?;
        let identity = identity(&metadata);
        if let Some(growing) = &source.growing
            && growing.identity == identity
        {
            return Ok(());
        }
        if !may_hold(&file, Share::Half) {
            let path = source.path.clone();
            return Err(JitRefusal::Descriptors { path });
        }
        self.counts.rereadings += u64::from(source.growing.is_some());
        source.format.restart();
        self.drop_waiting_for(source);
        let user = self.code.as_ref().map(ProcessCode::user);
        source.readable = user.is_some_and(|user| user.may_read(&metadata));
        source.growing = Some(GrowingFile::new(file, identity));
        Ok(())
    }
}

/// Adds what a record of a jitdump changes at a time. Code is read only from the process's own
/// dump.
fn apply_record(
    functions: &mut JitFunctions,
    counts: &mut JitFileStats,
    changes: &mut Vec<JitChange>,
    (record, at_ns, is_own): (JitDumpRecord<'_>, Nanos, bool),
) {
    match record {
        JitDumpRecord::Load {
            address,
            size,
            name,
            code_offset,
            ..
        } => {
            counts.functions += 1;
            let mut loaded = if is_own {
                functions.load_dumped(at_ns, address, size, name)
            } else {
                functions.load(at_ns, address, size, name)
            };
            // Nothing begins where the function is refused, or is there already.
            if let Some(JitChange::Begin { dump_offset, .. }) = loaded.last_mut() {
                *dump_offset = code_offset.filter(|_| is_own);
            }
            changes.extend(loaded);
        }
        JitDumpRecord::Move { from, to, .. } => {
            changes.extend(functions.moved(at_ns, from, to));
        }
    }
}

/// Reads the first bytes of a file, and passes them on in pieces. Returns how many there were.
fn read_pieces(
    path: &Path,
    file: File,
    limit: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), JitRefusal>,
) -> Result<u64, JitRefusal> {
    let (mut left, mut read) = (file.take(limit.min(MAX_LAST_ROUND_BYTES)), 0);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match left.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                read += count as u64;
                each(&buffer[..count])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let path = path.to_owned();
                return Err(JitRefusal::Io { path, error });
            }
        }
    }
    if read == MAX_LAST_ROUND_BYTES && read < limit {
        let path = path.to_owned();
        let limit = MAX_LAST_ROUND_BYTES;
        return Err(JitRefusal::TooLong { path, limit });
    }
    Ok(read)
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
