//! The writer of an experiment.
//!
//! An experiment has one writer. It writes events in the order in which they become known. A reader
//! may look at the files at any time: the header is there first, a stack before the first packet
//! that refers to it, a sample's event before its usage record (gprofng ignores an event without
//! its record, and would show a record without its event as `<unknown>`).
//!
//! Optional files are created when they get their first content. That matters for stacks: gprofng
//! skips a subexperiment with an empty `data.frameinfo`, but not one without that file.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use crate::Result;
use crate::directory::ExperimentDir;
use crate::error::Error;
use crate::file::append::{AppendFile, Records};
use crate::file::block::BlockFile;
use crate::log::event_encoder::EventEncoder;
use crate::log::{LogEvent, LogHeader, StartTime};
use crate::map::MapEvent;
use crate::packet::{ClockTick, CounterEvent, counter, tick};
use crate::stacks::{StackEnd, StackInterner, StackUid};
use crate::units::{Nanos, Ticks};
use crate::usage::{USAGE_BYTES, UsageRecord};

/// The space reserved in `log.xml` for events on a full disk.
const LOG_SPARE_BYTES: u64 = 64 * 1024;
/// The part of it that only the exit event may use.
const EXIT_SPARE_BYTES: u64 = 4096;
/// The space reserved in `overview` for the last usage records.
const USAGE_SPARE_BYTES: u64 = 8 * USAGE_BYTES as u64;

/// The writer of an experiment. The experiment is readable at every instant, also after the process
/// was killed.
///
/// After an error for which [`Error::is_disk_full`] holds, some more log events and samples can be
/// written (space is reserved for them), and [`ExperimentWriter::close`] leaves a valid experiment.
#[derive(Debug)]
pub struct ExperimentWriter {
    dir: ExperimentDir,
    log: AppendFile,
    map: AppendFile,
    overview: AppendFile,
    notes: Option<AppendFile>,
    warnings: Option<AppendFile>,
    profile: Option<BlockFile>,
    counters: Option<BlockFile>,
    frames: Option<BlockFile>,
    /// Text files that are not part of the format, by name.
    side_files: BTreeMap<&'static str, AppendFile>,
    stacks: StackInterner,
    events: EventEncoder,
}

impl ExperimentWriter {
    /// Writes the header and the start. If that fails, the directory is removed again.
    ///
    /// # Errors
    ///
    /// A system error, or a header that gprofng would misread.
    pub fn create(dir: ExperimentDir, header: &LogHeader, start: StartTime) -> Result<Self> {
        match Self::start(&dir, header, start) {
            Ok((events, [log, map, overview])) => Ok(ExperimentWriter {
                dir,
                log,
                map,
                overview,
                notes: None,
                warnings: None,
                profile: None,
                counters: None,
                frames: None,
                side_files: BTreeMap::new(),
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

    /// Writes the header and the start. Returns the encoder and the files.
    fn start(
        dir: &ExperimentDir,
        header: &LogHeader,
        start: StartTime,
    ) -> Result<(EventEncoder, [AppendFile; 3])> {
        let (events, text) = EventEncoder::begin(header, start)?;
        let mut log = append_file(dir, "log.xml", Records::Text, LOG_SPARE_BYTES)?;
        log.append(text.as_bytes())?;
        let map = append_file(dir, "map.xml", Records::Text, 0)?;
        let overview = append_file(dir, "overview", Records::Array, USAGE_SPARE_BYTES)?;
        Ok((events, [log, map, overview]))
    }

    /// Returns the directory.
    pub fn dir(&self) -> &ExperimentDir {
        &self.dir
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// A start, a sample or an exit, which have methods of their own; the name of a thread in an
    /// experiment that does not declare [`ThreadNames`](crate::log::ProfileDecl::ThreadNames); a
    /// time beyond 2^31 seconds; a system error.
    pub fn log(&mut self, event: &LogEvent) -> Result<()> {
        let event = self.events.event(event)?;
        self.append_to_log(&event)
    }

    /// Writes a mapping. It may be written later than the packets whose stacks need it; but what is
    /// not written when the collector is killed is lost.
    ///
    /// # Errors
    ///
    /// Numbers that the file has no space for, or a system error.
    pub fn map(&mut self, event: &MapEvent) -> Result<()> {
        self.map.append(event.encode()?.as_bytes())
    }

    /// Adds a line to `notes`, which gprofng prints ahead of the header.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn note(&mut self, text: &str) -> Result<()> {
        lazily(&mut self.notes, || {
            append_file(&self.dir, "notes", Records::Text, 0)
        })?
        .append(format!("{text}\n").as_bytes())
    }

    /// Adds a warning to `warnings.xml`; `at_ns` in nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, or a system error.
    pub fn warning(&mut self, at_ns: Nanos, text: &str) -> Result<()> {
        let warning = self.events.warning(at_ns, text)?;
        lazily(&mut self.warnings, || {
            append_file(&self.dir, "warnings.xml", Records::Text, 0)
        })?
        .append(warning.as_bytes())
    }

    /// Interns a stack, leaf first. A caller is an address within its call instruction (return
    /// address − 1), the leaf its exact address.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn stack(&mut self, frames: &[u64], end: StackEnd) -> Result<StackUid> {
        let file = &mut self.frames;
        let dir = &self.dir;
        self.stacks.intern(frames, end, |packet| {
            lazily(file, || block_file(dir, "data.frameinfo"))?.append(packet)
        })
    }

    /// Writes a clock packet. One without ticks is left out.
    ///
    /// The header has to declare it, see [`ClockTick::declaration`]; readers skip packets that are
    /// not declared.
    ///
    /// # Errors
    ///
    /// More than 2^31 − 1 ticks or a time beyond 2^63 ns, or a system error.
    pub fn tick(&mut self, tick: &ClockTick) -> Result<()> {
        if tick.ticks == Ticks::ZERO {
            return Ok(());
        }
        self.profile()?.append(&tick.encode()?)
    }

    /// Writes an overflow of a counter. The header has to declare it:
    /// [`crate::log::ProfileDecl::Counters`].
    ///
    /// # Errors
    ///
    /// A value or a time beyond 2^63, or a system error.
    pub fn counted(&mut self, event: &CounterEvent) -> Result<()> {
        lazily(&mut self.counters, || block_file(&self.dir, counter::FILE))?
            .append(&event.encode()?)
    }

    /// Writes a usage record and the sample event that belongs to it; `at_ns` in nanoseconds since
    /// the start. The first call is the start point. Either both are written or neither.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, or a system error.
    pub fn sample(&mut self, at_ns: Nanos, label: &str, usage: &UsageRecord) -> Result<()> {
        let event = self.events.sample(at_ns, label)?;
        let before = self.log.len();
        self.append_to_log(&event)?;
        let record = usage.encode();
        let mut written = self.overview.append(&record);
        if self.is_full(&written) {
            written = self.overview.append(&record);
        }
        if let Err(error) = written {
            self.log.cut(before)?;
            return Err(error);
        }
        self.events.sampled();
        Ok(())
    }

    /// Stores a file that is not part of the format in the experiment. It replaces a file of the
    /// same name as a whole.
    ///
    /// # Errors
    ///
    /// A system error; the file is then as it was.
    pub fn side_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.dir.pending(name)?;
        file.fill(bytes)?;
        file.commit()
    }

    /// Appends a line and its newline to a text file that is not part of the format. The line is in
    /// the file whole or not at all; there may be blank lines between lines.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn side_line(&mut self, name: &'static str, line: &str) -> Result<()> {
        let file = match self.side_files.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(append_file(&self.dir, name, Records::Text, 0)?),
        };
        file.append(line.as_bytes())
    }

    /// Returns the number of bytes in the experiment's files, without archives.
    pub fn bytes_written(&self) -> u64 {
        let texts = [&self.log, &self.map, &self.overview];
        let texts = texts.into_iter().chain(&self.notes).chain(&self.warnings);
        let texts = texts.chain(self.side_files.values());
        let packets = [&self.profile, &self.counters, &self.frames];
        let packets = packets.into_iter().flatten();
        texts.map(AppendFile::len).sum::<u64>() + packets.map(BlockFile::len).sum::<u64>()
    }

    /// Closes the experiment: `at_ns` in nanoseconds since the start. Returns its path.
    /// `profile` is made even if it has no packet, since a missing one is a loss.
    ///
    /// # Errors
    ///
    /// A system error. As much as possible is closed in spite of it.
    pub fn close(mut self, at_ns: Nanos) -> Result<PathBuf> {
        let exit = self.events.exit(at_ns);
        self.log.use_spare(0);
        // Every step is done; the first error is returned.
        let mut outcome = exit.and_then(|exit| self.log.append(exit.as_bytes()));
        if self.profile.is_none() {
            outcome = outcome.and(self.dir.create_file(tick::FILE).map(drop));
        }
        let packets = [self.profile, self.counters, self.frames];
        for file in packets.into_iter().flatten() {
            outcome = outcome.and(file.close());
        }
        let texts = [self.log, self.map, self.overview];
        let texts = texts.into_iter().chain(self.notes).chain(self.warnings);
        for mut file in texts.chain(self.side_files.into_values()) {
            outcome = outcome.and(file.release());
        }
        outcome.map(|()| self.dir.path().to_owned())
    }

    /// Removes the experiment, after a start that failed.
    ///
    /// # Errors
    ///
    /// As [`ExperimentDir::remove_all`].
    pub fn discard(self) -> Result<()> {
        self.dir.remove_all()
    }

    /// Returns the file `profile`.
    fn profile(&mut self) -> Result<&mut BlockFile> {
        lazily(&mut self.profile, || block_file(&self.dir, tick::FILE))
    }

    /// Appends to the log, on a full disk into the reserved space.
    fn append_to_log(&mut self, event: &str) -> Result<()> {
        let written = self.log.append(event.as_bytes());
        if self.is_full(&written) {
            return self.log.append(event.as_bytes());
        }
        written
    }

    /// Returns whether the disk is full. If it is, lets the next records use the reserved space.
    fn is_full(&mut self, result: &Result<()>) -> bool {
        let full = result.as_ref().is_err_and(Error::is_disk_full);
        if full {
            self.log.use_spare(EXIT_SPARE_BYTES);
            self.overview.use_spare(0);
        }
        full
    }
}

/// Makes a file of records.
fn append_file(
    dir: &ExperimentDir,
    name: &str,
    records: Records,
    spare: u64,
) -> Result<AppendFile> {
    AppendFile::new(
        dir.create_file(name)?,
        &dir.path().join(name),
        records,
        spare,
    )
}

/// Makes a mapped file of packets.
fn block_file(dir: &ExperimentDir, name: &str) -> Result<BlockFile> {
    Ok(BlockFile::new(
        dir.create_file(name)?,
        &dir.path().join(name),
    ))
}

/// Returns the value in `slot`; makes it first if the slot is empty.
fn lazily<T>(slot: &mut Option<T>, make: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    let value = match slot.take() {
        Some(value) => value,
        None => make()?,
    };
    Ok(slot.insert(value))
}
