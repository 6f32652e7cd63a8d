//! The files of one process, read as they grow.
//!
//! A round costs a `fstat` when nothing was written, and once a second a look-up of the path: the file may not be
//! there yet, as the JVM writes its map only when it is told to, or it may have been replaced. A file that is written anew in place,
//! which the JVM does too, is found by its size, or by the last bytes that were read of it being others now; then all of it
//! is read once more, and what is the same changes nothing.
//!
//! Where a process has a jitdump its perf map is not read: the dump has times, and both tell the same.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::jitdump::{JitDump, Record};
use super::open::ProcessFiles;
use super::perf_map::PerfMap;
use super::{Change, Functions, Refusal, without_the_brief};

/// Bytes that are read of one process at most, all files and readings together.
const MOST_BYTES: u64 = 256 << 20;
/// Bytes that are read in one round, but for the last: some 60,000 functions, and a round stays short.
const MOST_A_ROUND: u64 = 4 << 20;
const PIECE: usize = 64 << 10;
/// How many of the last bytes read are remembered.
const TAIL: usize = 64;
const SECOND: u64 = 1_000_000_000;

/// What was read of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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
}

/// Watches what one process tells of the code that it makes. For a process that executes anonymous memory; ended
/// and begun anew when it executes another program.
#[derive(Debug)]
pub struct JitWatch {
    files: ProcessFiles,
    path: PathBuf,
    growing: Option<Growing>,
    format: Format,
    functions: Functions,
    counts: Counts,
    refusal: Option<Refusal>,
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

impl JitWatch {
    /// Begins to watch `pid`, which lives, whose program was started, or found, at `start`.
    ///
    /// # Errors
    ///
    /// The process is gone, or may not be looked at: that takes CAP_SYS_PTRACE, and the files CAP_DAC_READ_SEARCH.
    pub fn open(pid: u32, start: u64) -> Result<JitWatch, Refusal> {
        let files = ProcessFiles::open(pid).map_err(|error| Refusal::Io {
            path: format!("/proc/{pid}").into(),
            error,
        })?;
        let path = format!("/tmp/perf-{}.map", files.own_pid());
        Ok(JitWatch {
            files,
            path: path.into(),
            growing: None,
            format: Format::PerfMap(PerfMap::default()),
            functions: Functions::default(),
            counts: Counts::default(),
            refusal: None,
            start,
            since: start,
            next_look: 0,
        })
    }

    /// The process mapped a file for execution, from `start` to `end`. Functions there are no more.
    ///
    /// If the file is the process's jitdump, which it maps for no other reason than to tell of it, the dump is
    /// read from now on. A dump with another process's number was inherited, and tells of that one.
    ///
    /// Not to be called for anonymous memory: when that grows, or its protection changes, the kernel tells it as
    /// mapped once more, with all the code that it has.
    pub fn mapped(&mut self, at: u64, start: u64, end: u64, path: &[u8]) -> Vec<Change> {
        if dump_number(path) == Some(self.files.own_pid()) {
            let path = Path::new(OsStr::from_bytes(path)).to_owned();
            if path != self.path {
                self.path = path;
                self.growing = None;
                self.format = Format::JitDump(JitDump::default());
                self.next_look = 0;
            }
        }
        self.functions.clear(at, start, end)
    }

    /// Reads what was written since the last time. To be called at each round; `now` must not run backwards.
    pub fn poll(&mut self, now: u64) -> Vec<Change> {
        self.round(now, MOST_A_ROUND)
    }

    /// Reads all that is left. For the process's exit, before or after it, and for the end of the run.
    pub fn last_poll(&mut self, now: u64) -> Vec<Change> {
        self.next_look = 0;
        self.round(now, MOST_BYTES)
    }

    /// All functions end: the process executes another program.
    pub fn end(mut self, at: u64) -> Vec<Change> {
        self.functions.clear(at, 0, u64::MAX)
    }

    /// What was read so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let bad = match &self.format {
            Format::PerfMap(map) => map.bad(),
            Format::JitDump(dump) => dump.bad(),
        };
        Counts {
            bad: self.counts.bad + bad,
            refused: self.functions.refused(),
            ..self.counts
        }
    }

    /// Why a file is not read, or not any further, if so: the last reason.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    fn round(&mut self, now: u64, room: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Err(refusal) = self.read(now, room, &mut changes) {
            self.refusal = Some(refusal);
        }
        without_the_brief(&mut changes);
        changes
    }

    fn read(&mut self, now: u64, room: u64, changes: &mut Vec<Change>) -> Result<(), Refusal> {
        if now >= self.next_look {
            self.next_look = now.saturating_add(SECOND);
            self.look()?;
        }
        let Some(growing) = &mut self.growing else {
            return Ok(());
        };
        let io = |error| Refusal::Io {
            path: self.path.clone(),
            error,
        };
        if growing.is_written_anew().map_err(io)? {
            growing.restart();
            self.counts.rereadings += 1;
            match &mut self.format {
                Format::PerfMap(map) => map.restart(),
                Format::JitDump(dump) => dump.restart(),
            }
        }
        let mut room = room;
        let mut buffer = Vec::new();
        loop {
            if growing.is_at_end() {
                // What comes next was written after this.
                self.since = now;
                return Ok(());
            }
            if self.counts.bytes >= MOST_BYTES {
                return Err(Refusal::TooLong {
                    path: self.path.clone(),
                    limit: MOST_BYTES,
                });
            }
            if room == 0 {
                return Ok(());
            }
            let wanted = room.min(MOST_BYTES - self.counts.bytes).min(PIECE as u64);
            buffer.resize(wanted as usize, 0);
            let count = growing.read(&mut buffer).map_err(io)?;
            room -= (count as u64).min(room);
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
                    let each = |record: Record<'_>| match record {
                        Record::Load {
                            at,
                            address,
                            size,
                            name,
                        } => {
                            counts.functions += 1;
                            changes.extend(functions.load(instant(at), address, size, name));
                        }
                        Record::Move { at, from, to } => {
                            changes.extend(functions.moved(instant(at), from, to));
                        }
                    };
                    let path = &self.path;
                    dump.feed(&buffer[..count], each)
                        .map_err(|broken| Refusal::Broken {
                            path: path.clone(),
                            broken,
                        })?;
                }
            }
        }
    }

    /// Looks the path up: is there a file, or another file?
    fn look(&mut self) -> Result<(), Refusal> {
        let Some(file) = self.files.file(&self.path)? else {
            return Ok(());
        };
        let io = |error| Refusal::Io {
            path: self.path.clone(),
            error,
        };
        let identity = identity(&file.metadata().map_err(io)?);
        match &self.growing {
            Some(growing) if growing.identity == identity => return Ok(()),
            Some(_) => self.counts.rereadings += 1,
            None => {}
        }
        match &mut self.format {
            Format::PerfMap(map) => map.restart(),
            Format::JitDump(dump) => dump.restart(),
        }
        self.growing = Some(Growing::new(file, identity));
        Ok(())
    }
}

/// The number in the base name `jit-NUMBER.dump`.
fn dump_number(path: &[u8]) -> Option<u32> {
    let base = path.rsplit(|byte| *byte == b'/').next()?;
    let digits = base.strip_prefix(b"jit-")?.strip_suffix(b".dump")?;
    if !path.starts_with(b"/") || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// A file that is read as it grows.
#[derive(Debug)]
struct Growing {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    offset: u64,
    size: u64,
    /// Seconds and nanoseconds.
    written: (i64, i64),
    /// The bytes before `offset`.
    tail: Vec<u8>,
}

impl Growing {
    fn new(file: File, identity: (u64, u64)) -> Growing {
        Growing {
            file,
            identity,
            offset: 0,
            size: 0,
            written: (0, 0),
            tail: Vec::new(),
        }
    }

    fn restart(&mut self) {
        self.offset = 0;
        self.tail.clear();
    }

    /// Asks for size and time. Was there written something else than more?
    fn is_written_anew(&mut self) -> io::Result<bool> {
        let found = self.file.metadata()?;
        let before = (self.size, self.written);
        self.size = found.size();
        self.written = (found.mtime(), found.mtime_nsec());
        if (self.size, self.written) == before || self.offset == 0 {
            return Ok(false);
        }
        // Written, and not longer by it.
        if self.size < self.offset || self.size == before.0 {
            return Ok(true);
        }
        let mut tail = vec![0; self.tail.len()];
        let from = self.offset - tail.len() as u64;
        match self.file.read_exact_at(&mut tail, from) {
            Ok(()) => Ok(tail != self.tail),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn is_at_end(&self) -> bool {
        self.offset >= self.size
    }

    /// The next bytes. None but at the end, where the file has become shorter.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            match self.file.read_at(buffer, self.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => break count?,
            }
        };
        if count == 0 {
            self.size = self.offset;
        }
        self.offset += count as u64;
        self.tail.extend_from_slice(&buffer[..count]);
        let old = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..old);
        Ok(count)
    }
}
