//! An experiment being written.
//!
//! One owner writes one experiment, in the order in which things become known. The files are laid
//! out so that a reader may look at any time: the header is there first, a stack before the first
//! packet that refers to it, a sample's event before its usage record (an event without its record
//! is dropped by gprofng; a record without its event would be shown as `<unknown>`).
//!
//! Files that an experiment may do without are made when they get their first content. That
//! matters for stacks: a subexperiment with an empty `data.frameinfo` is skipped by gprofng, one
//! without that file is not.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use crate::Result;
use crate::append::{AppendFile, Records};
use crate::block::BlockFile;
use crate::error::Error;
use crate::layout::ExperimentDir;
use crate::log::events::Events;
use crate::log::{Header, LogEvent, Run};
use crate::map::MapEvent;
use crate::packet::{ClockTick, CounterEvent, TickArray, counter};
use crate::stacks::{StackEnd, StackInterner, StackUid};
use crate::usage::{USAGE_BYTES, UsageRecord};

/// Space kept in `log.xml` for what is to be said when the disk is full.
const LOG_SPARE: u64 = 64 * 1024;
/// What of that only the exit event may use.
const EXIT_SPARE: u64 = 4096;
/// Space kept in `overview` for the last usage records.
const USAGE_SPARE: u64 = 8 * USAGE_BYTES as u64;

/// An experiment being written. Readable at every instant, also after the process was killed.
///
/// After an error for which [`Error::is_disk_full`] holds, log events and samples still go through
/// for a while (space is reserved for them), and [`ExperimentWriter::close`] leaves a valid
/// experiment.
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
    sides: BTreeMap<&'static str, AppendFile>,
    stacks: StackInterner,
    events: Events,
}

impl ExperimentWriter {
    /// Writes the header and the start. If that fails, the directory is removed again.
    ///
    /// # Errors
    ///
    /// What the system refuses, and a header that gprofng would misread.
    pub fn create(dir: ExperimentDir, header: &Header, start: Run) -> Result<Self> {
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
                sides: BTreeMap::new(),
                stacks: StackInterner::default(),
                events,
            }),
            Err(error) => {
                // The error to tell is the one that brought us here.
                let _ = dir.remove_all();
                Err(error)
            }
        }
    }

    fn start(
        dir: &ExperimentDir,
        header: &Header,
        start: Run,
    ) -> Result<(Events, [AppendFile; 3])> {
        let (events, text) = Events::begin(header, start)?;
        let mut log = append_file(dir, "log.xml", Records::Text, LOG_SPARE)?;
        log.append(text.as_bytes())?;
        let map = append_file(dir, "map.xml", Records::Text, 0)?;
        let overview = append_file(dir, "overview", Records::Array, USAGE_SPARE)?;
        Ok((events, [log, map, overview]))
    }

    /// The directory.
    pub fn dir(&self) -> &ExperimentDir {
        &self.dir
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// A start, a sample or an exit, which have methods of their own; the name of a thread in an
    /// experiment that does not declare [`ThreadNames`](crate::log::ProfileDecl::ThreadNames); a
    /// time beyond 2^31 seconds; what the system refuses.
    pub fn log(&mut self, event: &LogEvent) -> Result<()> {
        let event = self.events.event(event)?;
        self.append_to_log(&event)
    }

    /// Writes a mapping. A report places stacks by mappings whenever they were written, but what
    /// is not written when the collector is killed is not known.
    ///
    /// # Errors
    ///
    /// Numbers that the file has no room for, and what the system refuses.
    pub fn map(&mut self, event: &MapEvent) -> Result<()> {
        self.map.append(event.encode()?.as_bytes())
    }

    /// Adds a line to `notes`, printed ahead of the header.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub fn note(&mut self, text: &str) -> Result<()> {
        lazily(&mut self.notes, || {
            append_file(&self.dir, "notes", Records::Text, 0)
        })?
        .append(format!("{text}\n").as_bytes())
    }

    /// Adds a warning to `warnings.xml`; `at` in nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, and what the system refuses.
    pub fn warning(&mut self, at: u64, text: &str) -> Result<()> {
        let warning = self.events.warning(at, text)?;
        lazily(&mut self.warnings, || {
            append_file(&self.dir, "warnings.xml", Records::Text, 0)
        })?
        .append(warning.as_bytes())
    }

    /// Interns a stack, leaf first. Callers are given as the address of their call instruction
    /// (return address − 1 will do), the leaf exactly.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub fn stack(&mut self, frames: &[u64], end: StackEnd) -> Result<StackUid> {
        let file = &mut self.frames;
        let dir = &self.dir;
        self.stacks.intern(frames, end, |packet| {
            lazily(file, || block_file(dir, "data.frameinfo"))?.append(packet)
        })
    }

    /// Writes a clock packet.
    ///
    /// # Errors
    ///
    /// More than 2^31 − 1 ticks or a time beyond 2^63 ns, and what the system refuses.
    pub fn tick(&mut self, tick: &ClockTick) -> Result<()> {
        self.profile()?.append(&tick.encode()?)
    }

    /// Writes a tick array. One without ticks says nothing and is not written.
    ///
    /// The header has to declare it, see [`TickArray::declaration`]; the reader skips packets that
    /// are not declared.
    ///
    /// # Errors
    ///
    /// More than 2^31 − 1 ticks of one state or a time beyond 2^63 ns, and what the system refuses.
    pub fn tick_array(&mut self, array: &TickArray) -> Result<()> {
        if array.is_empty() {
            return Ok(());
        }
        self.profile()?.append(&array.encode()?)
    }

    /// Writes that a counter has overflowed. The header has to declare it:
    /// [`crate::log::ProfileDecl::Counters`].
    ///
    /// # Errors
    ///
    /// A value or a time beyond 2^63, and what the system refuses.
    pub fn counted(&mut self, event: &CounterEvent) -> Result<()> {
        lazily(&mut self.counters, || block_file(&self.dir, counter::FILE))?
            .append(&event.encode()?)
    }

    /// Writes a usage record and the sample event that belongs to it; `at` in nanoseconds since
    /// the start. The first call is the start point. Either both are written or none.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, and what the system refuses.
    pub fn sample(&mut self, at: u64, label: &str, usage: &UsageRecord) -> Result<()> {
        let event = self.events.sample(at, label)?;
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

    /// Stores a file of our own beside the others; a file of that name is replaced as a whole.
    ///
    /// # Errors
    ///
    /// What the system refuses; the file is then as it was.
    pub fn side_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.dir.pending(name)?;
        file.fill(bytes)?;
        file.commit()
    }

    /// Appends a line to a text file of our own beside the others, with the newline that ends it.
    /// The line is there whole or not at all; blank lines may stand between.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub fn side_line(&mut self, name: &'static str, line: &str) -> Result<()> {
        let file = match self.sides.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(append_file(&self.dir, name, Records::Text, 0)?),
        };
        file.append(line.as_bytes())
    }

    /// Bytes in the experiment's data and log files so far, without archives.
    pub fn bytes_written(&self) -> u64 {
        let texts = [&self.log, &self.map, &self.overview];
        let texts = texts.into_iter().chain(&self.notes).chain(&self.warnings);
        let texts = texts.chain(self.sides.values());
        let packets = [&self.profile, &self.counters, &self.frames];
        let packets = packets.into_iter().flatten();
        texts.map(AppendFile::len).sum::<u64>() + packets.map(BlockFile::len).sum::<u64>()
    }

    /// Closes the experiment: `at` in nanoseconds since the start. Gives its path.
    ///
    /// # Errors
    ///
    /// What the system refuses. As much as possible is closed nevertheless.
    pub fn close(mut self, at: u64) -> Result<PathBuf> {
        let exit = self.events.exit(at);
        self.log.use_spare(0);
        // Every step is taken; the first error is the one to tell.
        let mut outcome = exit.and_then(|exit| self.log.append(exit.as_bytes()));
        let packets = [self.profile, self.counters, self.frames];
        for file in packets.into_iter().flatten() {
            outcome = outcome.and(file.close());
        }
        let texts = [self.log, self.map, self.overview];
        let texts = texts.into_iter().chain(self.notes).chain(self.warnings);
        for mut file in texts.chain(self.sides.into_values()) {
            outcome = outcome.and(file.release());
        }
        outcome.map(|()| self.dir.path().to_owned())
    }

    /// Removes the experiment, for a start that failed: nothing half-made is left behind.
    ///
    /// # Errors
    ///
    /// Those of [`ExperimentDir::remove_all`].
    pub fn discard(self) -> Result<()> {
        self.dir.remove_all()
    }

    fn profile(&mut self) -> Result<&mut BlockFile> {
        lazily(&mut self.profile, || block_file(&self.dir, "profile"))
    }

    /// Appends to the log, at a full disk from the space that was kept for that.
    fn append_to_log(&mut self, event: &str) -> Result<()> {
        let written = self.log.append(event.as_bytes());
        if self.is_full(&written) {
            return self.log.append(event.as_bytes());
        }
        written
    }

    /// Whether the disk is full; if it is, the space that was kept for this case is opened.
    fn is_full(&mut self, result: &Result<()>) -> bool {
        let full = result.as_ref().is_err_and(Error::is_disk_full);
        if full {
            self.log.use_spare(EXIT_SPARE);
            self.overview.use_spare(0);
        }
        full
    }
}

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

fn block_file(dir: &ExperimentDir, name: &str) -> Result<BlockFile> {
    Ok(BlockFile::new(
        dir.create_file(name)?,
        &dir.path().join(name),
    ))
}

/// What is in `slot`, made now if it is not there.
fn lazily<T>(slot: &mut Option<T>, make: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    let value = match slot.take() {
        Some(value) => value,
        None => make()?,
    };
    Ok(slot.insert(value))
}
