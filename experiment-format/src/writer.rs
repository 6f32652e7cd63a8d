//! The writer of an experiment: of the whole machine, or of one followed process inside that.
//!
//! An experiment has one writer. It writes events in the order in which they become known. A reader
//! may look at the files at any time: the header is there first, a stack before the first packet
//! that refers to it, a sample's event before its usage record (gprofng ignores an event without
//! its record, and would show a record without its event as `<unknown>`).
//!
//! The two kinds differ in how bytes reach the files. The machine's experiment is one, with many
//! packets a second, so its files are held open and written at once. Subexperiments may be
//! thousands with little data each, so their files are closed, and what is added waits in memory
//! until [`ExperimentWriter::flush`] (`output_file`).
//!
//! # A flush
//!
//! A flush writes the maps, the stacks, and then the packets that refer to them; the log, and then
//! the usage records that its samples announce. So a collector that is killed in between leaves no
//! dangling reference. What waited is lost with it: keep the time between two flushes short.
//!
//! The writer often runs as root, and the directory belongs to a user who may be hostile. No path
//! is followed. The directory of a subexperiment is opened by its name in the machine's, a file by
//! its name in the directory, never through a link, and each must be what was made under that name;
//! otherwise the flush fails with [`Error::Replaced`] and nothing is written there.
//!
//! # Optional files
//!
//! Optional files are created when they get their first content. That matters for stacks: gprofng
//! skips a subexperiment with an empty `data.frameinfo`, but not one without that file.

mod output_file;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::rc::Rc;

use crate::Result;
use crate::directory::{ExperimentDir, Identity};
use crate::dynamic_code;
use crate::error::Error;
use crate::file::append::Records;
use crate::log::event_encoder::EventEncoder;
use crate::log::{LogEvent, LogHeader, StartTime};
use crate::map::MapEvent;
use crate::packet::{
    ClockTick, CounterEvent, HeapEvent, IoEvent, SyncEvent, counter, heap, io_call, sync, tick,
};
use crate::stacks::{StackEnd, StackInterner, StackUid};
use crate::units::{Nanos, Ticks};
use crate::usage::{USAGE_BYTES, UsageRecord};
use output_file::{BufferedFile, OutputFile};

/// The space reserved in `log.xml` for events on a full disk.
const LOG_SPARE_BYTES: u64 = 64 * 1024;
/// The part of it that only the exit event may use.
const EXIT_SPARE_BYTES: u64 = 4096;
/// The space reserved in `overview` for the last usage records.
const USAGE_SPARE_BYTES: u64 = 8 * USAGE_BYTES as u64;

/// A file of an experiment, in the order in which a flush writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Map,
    Code,
    Stacks,
    Ticks,
    Overflows,
    Waits,
    Calls,
    Blocks,
    Log,
    Usage,
    Warnings,
    Notes,
}

/// Names of the files, in the order of [`Part`], and the kinds of their records.
const PARTS: [(&str, Records); 12] = [
    ("map.xml", Records::Text),
    (dynamic_code::FILE, Records::Packets),
    ("data.frameinfo", Records::Packets),
    (tick::FILE, Records::Packets),
    (counter::FILE, Records::Packets),
    (sync::FILE, Records::Packets),
    (io_call::FILE, Records::Packets),
    (heap::FILE, Records::Packets),
    ("log.xml", Records::Text),
    ("overview", Records::Array),
    ("warnings.xml", Records::Text),
    ("notes", Records::Text),
];

/// The experiment's directory.
#[derive(Debug)]
enum Place {
    /// It is held open: the machine's experiment.
    Open(Rc<ExperimentDir>),
    /// It is opened to flush: a subexperiment.
    Sub {
        parent: Rc<ExperimentDir>,
        name: String,
        made: Identity,
    },
}

impl Place {
    fn with_dir<T>(&self, act: impl FnOnce(&ExperimentDir) -> Result<T>) -> Result<T> {
        match self {
            Place::Open(dir) => act(dir),
            Place::Sub { parent, name, made } => act(&parent.open_sub(name, *made)?),
        }
    }

    /// Makes a file, or what will be one at the next flush.
    /// One that is held open has `spare` bytes reserved beyond its records, for a full disk.
    fn create(&self, name: &'static str, records: Records, spare: u64) -> Result<OutputFile> {
        match self {
            Place::Open(dir) => OutputFile::open(dir, name, records, spare),
            Place::Sub { .. } => Ok(OutputFile::Buffered(BufferedFile::new(name, records))),
        }
    }
}

/// The writer of an experiment. What is written is readable at every instant, also after the
/// process was killed; of a subexperiment, what is flushed.
///
/// After an error for which [`Error::is_disk_full`] holds, some more log events and samples can be
/// written (space is reserved for them), and [`ExperimentWriter::close`] leaves a valid experiment.
///
/// What is added to a subexperiment waits in memory: only [`ExperimentWriter::flush`] and
/// [`ExperimentWriter::close`] return errors of the system.
#[derive(Debug)]
pub struct ExperimentWriter {
    place: Place,
    /// The files that have content, by [`Part`].
    files: [Option<OutputFile>; PARTS.len()],
    /// Text files that are not part of the format, by name.
    side_files: BTreeMap<&'static str, OutputFile>,
    stacks: StackInterner,
    events: EventEncoder,
}

impl ExperimentWriter {
    /// Writes the header and the start of the machine's experiment. If that fails, the directory is
    /// removed again.
    ///
    /// # Errors
    ///
    /// A system error, or a header that gprofng would misread.
    pub fn create(dir: ExperimentDir, header: &LogHeader, start: StartTime) -> Result<Self> {
        let dir = Rc::new(dir);
        let begun = EventEncoder::begin(header, start).and_then(|(events, text)| {
            let mut writer = Self::new(Place::Open(Rc::clone(&dir)), events);
            writer.file(Part::Log)?.append(text.as_bytes())?;
            writer.file(Part::Map)?;
            writer.file(Part::Usage)?;
            Ok(writer)
        });
        // The first error is the one to return.
        begun.inspect_err(|_| drop(dir.remove_all()))
    }

    /// Creates the subexperiment `name`, for instance `_sshd_PID_1264.1.er`, in the machine's
    /// experiment, with mode 0700 and the same owner. It appears with the header and the start in
    /// its log. On failure, its directory is removed again.
    ///
    /// # Errors
    ///
    /// [`Error::NameInUse`]; a name that does not begin with `_` and end in `.er`, or has a `/` or
    /// a NUL; a header that gprofng would misread; a system error.
    pub fn create_sub(
        parent: &Rc<ExperimentDir>,
        name: &str,
        header: &LogHeader,
        start: StartTime,
    ) -> Result<Self> {
        let (events, text) = EventEncoder::begin(header, start)?;
        let mut dir = parent.create_sub(name)?;
        let begun = Identity::of(&dir, dir.path()).and_then(|made| {
            let (parent, name) = (Rc::clone(parent), name.to_owned());
            let mut writer = Self::new(Place::Sub { parent, name, made }, events);
            let log = writer.file(Part::Log)?;
            log.append(text.as_bytes())?;
            log.flush(&dir)?;
            Ok(writer)
        });
        let begun = begun.and_then(|writer| dir.appear(name).map(|()| writer));
        // The first error is the one to return.
        begun.inspect_err(|_| drop(dir.remove_all()))
    }

    fn new(place: Place, events: EventEncoder) -> Self {
        ExperimentWriter {
            place,
            files: [const { None }; PARTS.len()],
            side_files: BTreeMap::new(),
            stacks: StackInterner::default(),
            events,
        }
    }

    /// The directory that is held open: of a subexperiment, the one that it is in.
    pub fn dir(&self) -> &Rc<ExperimentDir> {
        match &self.place {
            Place::Open(dir) => dir,
            Place::Sub { parent, .. } => parent,
        }
    }

    /// Name of the experiment's directory.
    pub fn name(&self) -> &str {
        match &self.place {
            Place::Open(dir) => dir.name(),
            Place::Sub { name, .. } => name,
        }
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
        self.append(Part::Log, event.as_bytes())
    }

    /// Writes a mapping. It may be written later than the packets whose stacks need it; but what is
    /// not written when the collector is killed is lost.
    ///
    /// # Errors
    ///
    /// Numbers that the file has no space for, or a system error.
    pub fn map(&mut self, event: &MapEvent) -> Result<()> {
        self.append(Part::Map, event.encode()?.as_bytes())
    }

    /// Writes the machine code of the dynamic function that is mapped at `address` at this time, in
    /// nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn dynamic_code(&mut self, at_ns: Nanos, address: u64, code: &[u8]) -> Result<()> {
        let packets = dynamic_code::encode(at_ns, address, code);
        self.append(Part::Code, &packets)
    }

    /// Adds a line to `notes`, which gprofng prints ahead of the header.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn note(&mut self, text: &str) -> Result<()> {
        let line = format!("{text}\n");
        self.append(Part::Notes, line.as_bytes())
    }

    /// Adds a warning to `warnings.xml`; `at_ns` in nanoseconds since the start.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, or a system error.
    pub fn warning(&mut self, at_ns: Nanos, text: &str) -> Result<()> {
        let warning = self.events.warning(at_ns, text)?;
        self.append(Part::Warnings, warning.as_bytes())
    }

    /// Interns a stack, leaf first. A caller is an address within its call instruction (return
    /// address − 1), the leaf its exact address. The number is valid in this experiment only.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn stack(&mut self, frames: &[u64], end: StackEnd) -> Result<StackUid> {
        let (place, files) = (&self.place, &mut self.files);
        self.stacks.intern(frames, end, |packet| {
            file(place, files, Part::Stacks)?.append(packet)
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
        self.append(Part::Ticks, &tick.encode()?)
    }

    /// Writes an overflow of a counter. The header has to declare it:
    /// [`crate::log::ProfileDecl::Counters`].
    ///
    /// # Errors
    ///
    /// A value or a time beyond 2^63, or a system error.
    pub fn counted(&mut self, event: &CounterEvent) -> Result<()> {
        self.append(Part::Overflows, &event.encode()?)
    }

    /// Writes a wait for a lock. The header has to declare the table: [`SyncEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63, or a system error.
    pub fn waited(&mut self, event: &SyncEvent) -> Result<()> {
        self.append(Part::Waits, &event.encode()?)
    }

    /// Writes a call that does I/O. The header has to declare the table: [`IoEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63, or a system error.
    pub fn called(&mut self, event: &IoEvent) -> Result<()> {
        self.append(Part::Calls, &event.encode()?)
    }

    /// Writes memory that was allocated or freed. The header has to declare the table:
    /// [`HeapEvent::table`].
    ///
    /// # Errors
    ///
    /// A time beyond 2^63, or a system error.
    pub fn allocated(&mut self, event: &HeapEvent) -> Result<()> {
        self.append(Part::Blocks, &event.encode()?)
    }

    /// Writes a usage record and the sample event that belongs to it; `at_ns` in nanoseconds since
    /// the start. The first call is the start point. Either both are written or neither.
    ///
    /// # Errors
    ///
    /// A time beyond 2^31 seconds, or a system error.
    pub fn sample(&mut self, at_ns: Nanos, label: &str, usage: &UsageRecord) -> Result<()> {
        let event = self.events.sample(at_ns, label)?;
        let before = self.file(Part::Log)?.bytes();
        self.append(Part::Log, event.as_bytes())?;
        if let Err(error) = self.append(Part::Usage, &usage.encode()) {
            self.file(Part::Log)?.cut(before)?;
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
        self.place.with_dir(|dir| {
            let mut file = dir.pending(name)?;
            file.fill(bytes)?;
            file.commit()
        })
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
            Entry::Vacant(new) => new.insert(self.place.create(name, Records::Text, 0)?),
        };
        file.append(line.as_bytes())
    }

    /// Number of bytes that wait for [`ExperimentWriter::flush`].
    pub fn buffered(&self) -> usize {
        self.all_files().map(OutputFile::waiting).sum()
    }

    /// Number of bytes in the experiment's files, without archives, and of bytes that wait to be
    /// written.
    pub fn bytes_written(&self) -> u64 {
        self.all_files().map(OutputFile::bytes).sum()
    }

    fn all_files(&self) -> impl Iterator<Item = &OutputFile> {
        self.files.iter().flatten().chain(self.side_files.values())
    }

    /// Writes what waits. Does nothing if nothing does.
    ///
    /// After an error, the files are whole and what was not written still waits. On a full disk,
    /// packets are written as far as there is space, text completely or not at all. A later flush
    /// may succeed; until then what waits grows, unless the caller stops adding.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] if the directory or a file is not what was made, or a system error. The
    /// log is written even if packets were not; the first of several errors is returned.
    pub fn flush(&mut self) -> Result<()> {
        if self.buffered() == 0 {
            return Ok(());
        }
        let (data, others) = self.files.split_at_mut(Part::Log as usize);
        let (log, texts) = others.split_at_mut(Part::Warnings as usize - Part::Log as usize);
        self.place.with_dir(|dir| {
            let mut outcome = Ok(());
            for group in [data, log, texts] {
                let mut files = group.iter_mut().flatten();
                outcome = outcome.and(files.try_for_each(|file| file.flush(dir)));
            }
            let mut side_files = self.side_files.values_mut();
            outcome.and(side_files.try_for_each(|file| file.flush(dir)))
        })
    }

    /// Closes the experiment: `at_ns` in nanoseconds since the start. Returns its path.
    /// `profile` is made even if it has no packet, since a missing one is a loss.
    ///
    /// # Errors
    ///
    /// As [`ExperimentWriter::flush`], and for a time beyond 2^31 seconds. As much as possible is
    /// closed in spite of it.
    pub fn close(mut self, at_ns: Nanos) -> Result<PathBuf> {
        let exit = self.events.exit(at_ns);
        self.use_spare(Part::Log, 0);
        // Every step is done; the first error is returned.
        let mut outcome = exit.and_then(|exit| self.file(Part::Log)?.append(exit.as_bytes()));
        outcome = outcome.and(self.flush());
        if self.files[Part::Ticks as usize].is_none() {
            let made = self.place.with_dir(|dir| dir.create_file(tick::FILE));
            outcome = outcome.and(made.map(drop));
        }
        let files = self.files.into_iter().flatten();
        for file in files.chain(self.side_files.into_values()) {
            outcome = outcome.and(file.close());
        }
        outcome.map(|()| match self.place {
            Place::Open(dir) => dir.path().to_owned(),
            Place::Sub { parent, name, .. } => parent.path().join(name),
        })
    }

    /// Adds whole records to a file; to the log, on a full disk into the reserved space.
    fn append(&mut self, part: Part, records: &[u8]) -> Result<()> {
        let written = self.file(part)?.append(records);
        let is_full = written.as_ref().is_err_and(Error::is_disk_full);
        if is_full && matches!(part, Part::Log | Part::Usage) {
            self.use_spare(Part::Log, EXIT_SPARE_BYTES);
            self.use_spare(Part::Usage, 0);
            return self.file(part)?.append(records);
        }
        written
    }

    /// Lets the next records use the reserved space of a file, except for `rest` bytes.
    fn use_spare(&mut self, part: Part, rest: u64) {
        if let Some(file) = &mut self.files[part as usize] {
            file.use_spare(rest);
        }
    }

    fn file(&mut self, part: Part) -> Result<&mut OutputFile> {
        file(&self.place, &mut self.files, part)
    }
}

/// Returns a file; makes it first if it is not there.
fn file<'a>(
    place: &Place,
    files: &'a mut [Option<OutputFile>; PARTS.len()],
    part: Part,
) -> Result<&'a mut OutputFile> {
    match &mut files[part as usize] {
        Some(file) => Ok(file),
        missing => {
            let (name, records) = PARTS[part as usize];
            let spare = match part {
                Part::Log => LOG_SPARE_BYTES,
                Part::Usage => USAGE_SPARE_BYTES,
                _ => 0,
            };
            Ok(missing.insert(place.create(name, records, spare)?))
        }
    }
}
