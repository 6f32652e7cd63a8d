//! An experiment being written.

use std::path::PathBuf;

use crate::Result;
use crate::archive::ArchiveFile;
use crate::layout::ExperimentDir;
use crate::log::{Header, LogEvent, Run};
use crate::map::MapEvent;
use crate::packet::ClockTick;
use crate::stacks::{StackEnd, StackUid};
use crate::usage::UsageRecord;

/// An experiment being written. Readable at every instant, also after the process was killed.
///
/// After an error for which [`crate::Error::is_disk_full`] holds, log events and samples still go
/// through for a while (space is reserved for them), and [`ExperimentWriter::close`] leaves a
/// valid experiment.
#[derive(Debug)]
pub struct ExperimentWriter {
    dir: ExperimentDir,
}

impl ExperimentWriter {
    /// Writes the header and the start. If that fails, the directory is removed again.
    pub fn create(dir: ExperimentDir, header: &Header, start: Run) -> Result<Self> {
        let _ = (header, start);
        Ok(ExperimentWriter { dir })
    }

    /// The directory.
    pub fn dir(&self) -> &ExperimentDir {
        &self.dir
    }

    /// Writes an event. Start, samples and exit have methods of their own and are refused here.
    pub fn log(&mut self, event: &LogEvent) -> Result<()> {
        let _ = event;
        todo!()
    }

    /// Writes a mapping. Write it before the stacks that need it, as far as it is known.
    pub fn map(&mut self, event: &MapEvent) -> Result<()> {
        let _ = event;
        todo!()
    }

    /// Adds a line to `notes`, printed ahead of the header.
    pub fn note(&mut self, text: &str) -> Result<()> {
        let _ = text;
        todo!()
    }

    /// Adds a warning to `warnings.xml`; `at` in nanoseconds since the start.
    pub fn warning(&mut self, at: u64, text: &str) -> Result<()> {
        let _ = (at, text);
        todo!()
    }

    /// Interns a stack, leaf first. Callers are given as the address of their call instruction
    /// (return address − 1 will do), the leaf exactly.
    pub fn stack(&mut self, frames: &[u64], end: StackEnd) -> Result<StackUid> {
        let _ = (frames, end);
        todo!()
    }

    /// Writes a clock packet.
    pub fn tick(&mut self, tick: &ClockTick) -> Result<()> {
        let _ = tick;
        todo!()
    }

    /// Writes a usage record and the sample event that belongs to it; `at` in nanoseconds since
    /// the start. The first call is the start point.
    pub fn sample(&mut self, at: u64, label: &str, usage: &UsageRecord) -> Result<()> {
        let _ = (at, label, usage);
        todo!()
    }

    /// Stores a copy of a load object in `archives/`.
    pub fn archive(&mut self, load_object: &str, bytes: &[u8]) -> Result<()> {
        let _ = (load_object, bytes);
        todo!()
    }

    /// Like [`ExperimentWriter::archive`] for what is not in memory as a whole: write to the
    /// result, then commit it.
    pub fn archive_file(&mut self, load_object: &str) -> Result<ArchiveFile<'_>> {
        let _ = load_object;
        todo!()
    }

    /// Stores a file of our own beside the others; a file of that name is replaced as a whole.
    pub fn side_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let _ = (name, bytes);
        todo!()
    }

    /// Bytes in the experiment's data and log files so far, without archives.
    pub fn bytes_written(&self) -> u64 {
        todo!()
    }

    /// Closes the experiment: `at` in nanoseconds since the start. Gives its path.
    pub fn close(self, at: u64) -> Result<PathBuf> {
        let _ = at;
        todo!()
    }

    /// Removes the experiment, for a start that failed: nothing half-made is left behind.
    pub fn discard(self) -> Result<()> {
        self.dir.remove_all()
    }
}
