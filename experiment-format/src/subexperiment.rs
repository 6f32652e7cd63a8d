//! The experiment of one followed process, inside the founder's directory.
//!
//! There may be thousands of these at once, most of them with little data. So a subexperiment holds
//! no file open: what is added waits in memory, as whole elements, records and packets, until a
//! flush opens each file, appends, and closes it. The caller decides how much waits, and for how
//! long: see [`SubexperimentWriter::buffered`].
//!
//! # The order
//!
//! A flush writes the maps, the stacks, and then the packets that refer to them; the log, and then
//! the usage records that its samples announce. So a collector that is killed in between leaves no
//! dangling reference. What waited is lost with it: keep the time between two flushes short. Files
//! are made when they get their first content, since gprofng skips a subexperiment with an empty
//! `data.frameinfo`.
//!
//! # What is refused
//!
//! The writer often runs as root, and the directory belongs to a user who may be hostile. No path
//! is followed. The directory is opened by its name in the founder's, a file by its name in the
//! directory, never through a link, and each must be what was made under that name; otherwise the
//! flush fails with [`Error::Replaced`] and nothing is written there.
//!
//! [`Error::Replaced`]: crate::Error::Replaced

use crate::Result;
use crate::directory::{ExperimentDir, Identity};
use crate::dynamic_code;
use crate::file::append::{AppendFile, Records};
use crate::log::event_encoder::EventEncoder;
use crate::log::{LogEvent, LogHeader, StartTime};
use crate::map::MapEvent;
use crate::packet::{
    ClockTick, CounterEvent, HeapEvent, IoEvent, SyncEvent, counter, heap, io_call, sync, tick,
};
use crate::stacks::{StackEnd, StackInterner, StackUid};
use crate::units::{Nanos, Ticks};
use crate::usage::{USAGE_BYTES, UsageRecord};

/// The size of one write of packets, bytes. When the disk fills up, the space that is left is used,
/// and only the rest waits.
const PACKET_WRITE_BYTES: usize = 64 * 1024;

/// The writer of a subexperiment. What is flushed is readable at every instant, also after the
/// process was killed.
///
/// If it is dropped, what was flushed stays.
#[derive(Debug)]
pub struct SubexperimentWriter {
    name: String,
    made: Identity,
    map: BufferedFile,
    code: BufferedFile,
    frames: BufferedFile,
    profile: BufferedFile,
    counters: BufferedFile,
    waits: BufferedFile,
    calls: BufferedFile,
    memory: BufferedFile,
    log: BufferedFile,
    overview: BufferedFile,
    notes: BufferedFile,
    warnings: BufferedFile,
    stacks: StackInterner,
    events: EventEncoder,
}

impl SubexperimentWriter {
    /// Creates the directory `name`, for instance `_sshd_PID_1264.1.er`, in the founder's
    /// directory, with mode 0700 and the same owner. It appears with the header and the start in
    /// its log. On failure, the directory is removed again.
    ///
    /// # Errors
    ///
    /// [`Error::NameInUse`](crate::Error::NameInUse); a name that does not begin with `_` and end
    /// in `.er`, or has a `/` or a NUL; a header that gprofng would misread; a system error.
    pub fn create(
        founder: &ExperimentDir,
        name: &str,
        header: &LogHeader,
        start: StartTime,
    ) -> Result<Self> {
        let (events, text) = EventEncoder::begin(header, start)?;
        let mut dir = founder.create_sub(name)?;
        let mut log = BufferedFile::new("log.xml", Records::Text);
        log.push(text.as_bytes());
        let begun = Identity::of(&dir, dir.path()).and_then(|made| {
            log.flush(&dir)?;
            dir.appear(name)?;
            Ok(made)
        });
        match begun {
            Ok(made) => Ok(SubexperimentWriter {
                name: name.to_owned(),
                made,
                map: BufferedFile::new("map.xml", Records::Text),
                code: BufferedFile::new(dynamic_code::FILE, Records::Packets),
                frames: BufferedFile::new("data.frameinfo", Records::Packets),
                profile: BufferedFile::new(tick::FILE, Records::Packets),
                counters: BufferedFile::new(counter::FILE, Records::Packets),
                waits: BufferedFile::new(sync::FILE, Records::Packets),
                calls: BufferedFile::new(io_call::FILE, Records::Packets),
                memory: BufferedFile::new(heap::FILE, Records::Packets),
                log,
                overview: BufferedFile::new("overview", Records::Array),
                notes: BufferedFile::new("notes", Records::Text),
                warnings: BufferedFile::new("warnings.xml", Records::Text),
                stacks: StackInterner::default(),
                events,
            }),
            Err(error) => {
                // The first error is the one to return.
                let _ = dir.remove_all();
                Err(error)
            }
        }
    }

    /// Returns the name of its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// A start, a sample or an exit, which have methods of their own; the name of a thread in an
    /// experiment that does not declare [`ThreadNames`](crate::log::ProfileDecl::ThreadNames); a
    /// time beyond 2^31 seconds.
    pub fn log(&mut self, event: &LogEvent) -> Result<()> {
        let event = self.events.event(event)?;
        self.log.push(event.as_bytes());
        Ok(())
    }

    /// Adds a mapping.
    ///
    /// # Errors
    ///
    /// Numbers that the file has no space for.
    pub fn map(&mut self, event: &MapEvent) -> Result<()> {
        self.map.push(event.encode()?.as_bytes());
        Ok(())
    }

    /// Adds the machine code of the dynamic function that is mapped at `address` at this time, in
    /// nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// None for now: it waits in memory.
    pub fn dynamic_code(&mut self, at_ns: Nanos, address: u64, code: &[u8]) -> Result<()> {
        self.code.push(&dynamic_code::encode(at_ns, address, code));
        Ok(())
    }

    /// Adds a line to `notes`, which gprofng prints ahead of the header.
    pub fn note(&mut self, text: &str) {
        self.notes.push(format!("{text}\n").as_bytes());
    }

    /// Adds a warning to `warnings.xml`; `at_ns` in nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds.
    pub fn warning(&mut self, at_ns: Nanos, text: &str) -> Result<()> {
        let warning = self.events.warning(at_ns, text)?;
        self.warnings.push(warning.as_bytes());
        Ok(())
    }

    /// Interns a stack, leaf first, like
    /// [`ExperimentWriter::stack`](crate::writer::ExperimentWriter::stack). Its number is valid in
    /// this subexperiment only.
    ///
    /// # Errors
    ///
    /// None for now: a new stack waits in memory.
    pub fn stack(&mut self, frames: &[u64], end: StackEnd) -> Result<StackUid> {
        let file = &mut self.frames;
        self.stacks.intern(frames, end, |packet| {
            file.push(packet);
            Ok(())
        })
    }

    /// Adds a clock packet. One without ticks is left out.
    ///
    /// The header has to declare it, see [`ClockTick::declaration`].
    ///
    /// # Errors
    ///
    /// More than 2^31 − 1 ticks or a time beyond 2^63 ns.
    pub fn tick(&mut self, tick: &ClockTick) -> Result<()> {
        if tick.ticks > Ticks::ZERO {
            self.profile.push(&tick.encode()?);
        }
        Ok(())
    }

    /// Adds an overflow of a counter. The header has to declare it.
    ///
    /// # Errors
    ///
    /// A value or a time beyond 2^63.
    pub fn counted(&mut self, event: &CounterEvent) -> Result<()> {
        self.counters.push(&event.encode()?);
        Ok(())
    }

    /// Adds a wait for a lock. The header has to declare the table: [`SyncEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63.
    pub fn waited(&mut self, event: &SyncEvent) -> Result<()> {
        self.waits.push(&event.encode()?);
        Ok(())
    }

    /// Adds a call that does I/O. The header has to declare the table: [`IoEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63.
    pub fn called(&mut self, event: &IoEvent) -> Result<()> {
        self.calls.push(&event.encode()?);
        Ok(())
    }

    /// Adds memory that was allocated or freed. The header has to declare the table:
    /// [`HeapEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63.
    pub fn allocated(&mut self, event: &HeapEvent) -> Result<()> {
        self.memory.push(&event.encode()?);
        Ok(())
    }

    /// Adds a usage record and the sample event that belongs to it; `at_ns` in nanoseconds since
    /// the start. The first call is the start point.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds.
    pub fn sample(&mut self, at_ns: Nanos, label: &str, usage: &UsageRecord) -> Result<()> {
        let event = self.events.sample(at_ns, label)?;
        self.log.push(event.as_bytes());
        self.overview.push(&usage.encode());
        self.events.sampled();
        Ok(())
    }

    /// Returns the number of bytes that wait to be written.
    pub fn buffered(&self) -> usize {
        self.files().iter().map(|part| part.waiting.len()).sum()
    }

    /// Number of bytes in its files, and of bytes that wait to be written.
    pub fn bytes_written(&self) -> u64 {
        let files: u64 = self.files().iter().map(|part| part.len).sum();
        files + self.buffered() as u64
    }

    /// Writes what waits. Does nothing if nothing does.
    ///
    /// After an error, the files are whole and what was not written still waits. On a full disk,
    /// packets are written as far as there is space, text completely or not at all. A later flush
    /// may succeed; until then what waits grows, unless the caller stops adding.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`](crate::Error::Replaced) if the directory or a file is not what was made,
    /// or a system error. The log is written even if packets were not; the first of several errors
    /// is returned.
    pub fn flush(&mut self, founder: &ExperimentDir) -> Result<()> {
        if self.buffered() == 0 {
            return Ok(());
        }
        let dir = &founder.open_sub(&self.name, self.made)?;
        let in_order =
            |files: &mut [&mut BufferedFile]| files.iter_mut().try_for_each(|p| p.flush(dir));
        let data = in_order(&mut [
            &mut self.map,
            &mut self.code,
            &mut self.frames,
            &mut self.profile,
            &mut self.counters,
            &mut self.waits,
            &mut self.calls,
            &mut self.memory,
        ]);
        let log = in_order(&mut [&mut self.log, &mut self.overview]);
        let texts = in_order(&mut [&mut self.warnings, &mut self.notes]);
        data.and(log).and(texts)
    }

    /// Closes the subexperiment: `at_ns` in nanoseconds since the start. `profile` is made even if
    /// it has no packet, since a missing one is a loss.
    ///
    /// # Errors
    ///
    /// As [`SubexperimentWriter::flush`], and for a time beyond 2^31 seconds. As much as possible
    /// is written in spite of an error.
    pub fn close(mut self, founder: &ExperimentDir, at_ns: Nanos) -> Result<()> {
        let exit = self
            .events
            .exit(at_ns)
            .map(|exit| self.log.push(exit.as_bytes()));
        let mut outcome = exit.and(self.flush(founder));
        if self.profile.made.is_none() && self.profile.waiting.is_empty() {
            let dir = founder.open_sub(&self.name, self.made);
            outcome = outcome.and(dir.and_then(|dir| dir.create_file(tick::FILE)).map(drop));
        }
        outcome
    }

    fn files(&self) -> [&BufferedFile; 12] {
        [
            &self.map,
            &self.code,
            &self.frames,
            &self.profile,
            &self.counters,
            &self.waits,
            &self.calls,
            &self.memory,
            &self.log,
            &self.overview,
            &self.notes,
            &self.warnings,
        ]
    }
}

/// A file of a subexperiment, and the records that wait to be written to it.
#[derive(Debug)]
struct BufferedFile {
    name: &'static str,
    records: Records,
    /// Identifies the file, once it is made.
    made: Option<Identity>,
    /// The bytes in the file.
    len: u64,
    /// The records that wait, whole ones only.
    waiting: Vec<u8>,
}

impl BufferedFile {
    fn new(name: &'static str, records: Records) -> Self {
        BufferedFile {
            name,
            records,
            made: None,
            len: 0,
            waiting: Vec::new(),
        }
    }

    /// Adds whole records to those that wait.
    fn push(&mut self, records: &[u8]) {
        self.waiting.extend_from_slice(records);
    }

    /// Writes what waits; what could not be written waits on.
    fn flush(&mut self, dir: &ExperimentDir) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let path = dir.path().join(self.name);
        let file = match self.made {
            Some(made) => dir.open_file(self.name, made)?,
            None => dir.create_file(self.name)?,
        };
        let outcome = Identity::of(&file, &path).and_then(|made| {
            self.made = Some(made);
            self.append(AppendFile::resume(file, &path, self.records, self.len))
        });
        if outcome.is_err() && self.len == 0 {
            // The file is empty, which readers distinguish from a missing one. If removing it fails
            // too, the next flush returns an error.
            self.made = dir.remove_file(self.name).map_or(self.made, |()| None);
        }
        outcome
    }

    /// Writes what waits to the open file, as far as there is space.
    fn append(&mut self, mut file: AppendFile) -> Result<()> {
        let piece = match self.records {
            Records::Text => self.waiting.len(),
            Records::Array => USAGE_BYTES,
            Records::Packets => PACKET_WRITE_BYTES,
        };
        let mut done = 0;
        let outcome = self.waiting.chunks(piece).try_for_each(|piece| {
            file.append(piece)?;
            done += piece.len();
            Ok(())
        });
        self.len = file.len();
        self.waiting.drain(..done);
        if self.waiting.is_empty() {
            // Many subexperiments last long and record little: no memory is kept for later records.
            self.waiting = Vec::new();
        }
        outcome
    }
}
