//! A file of an experiment, by how its bytes reach the disk.

use crate::Result;
use crate::directory::{ExperimentDir, Identity};
use crate::dynamic_code;
use crate::file::append::{AppendFile, Records};
use crate::file::block::BlockFile;
use crate::usage::USAGE_BYTES;

/// The size of one write of packets, bytes. When the disk fills up, the space that is left is used,
/// and only the rest waits.
const PACKET_WRITE_BYTES: usize = 64 * 1024;

/// A file of an experiment.
#[derive(Debug)]
pub(super) enum OutputFile {
    /// Written by a system call for each record.
    Appended(AppendFile),
    /// Filled through mapped memory, without system calls: packets of the whole machine.
    Mapped(BlockFile),
    /// Closed between two flushes.
    Buffered(BufferedFile),
}

impl OutputFile {
    /// Makes a file that is held open, with `spare` bytes reserved beyond its records.
    pub(super) fn open(
        dir: &ExperimentDir,
        name: &str,
        records: Records,
        spare: u64,
    ) -> Result<OutputFile> {
        let (file, path) = (dir.create_file(name)?, dir.path().join(name));
        // Records of code are not of the packets that fill a block.
        if records == Records::Packets && name != dynamic_code::FILE {
            return Ok(OutputFile::Mapped(BlockFile::new(file, &path)));
        }
        AppendFile::new(file, &path, records, spare).map(OutputFile::Appended)
    }

    /// Adds whole records.
    pub(super) fn append(&mut self, records: &[u8]) -> Result<()> {
        match self {
            OutputFile::Appended(file) => file.append(records),
            OutputFile::Mapped(file) => file.append(records),
            OutputFile::Buffered(file) => {
                file.waiting.extend_from_slice(records);
                Ok(())
            }
        }
    }

    /// Number of bytes in the file, and of those that wait for a flush.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            OutputFile::Appended(file) => file.len(),
            OutputFile::Mapped(file) => file.len(),
            OutputFile::Buffered(file) => file.len + file.waiting.len() as u64,
        }
    }

    /// Number of bytes that wait for a flush.
    pub(super) fn waiting(&self) -> usize {
        match self {
            OutputFile::Buffered(file) => file.waiting.len(),
            _ => 0,
        }
    }

    /// Lets the next records use the reserved space, except for `rest` bytes.
    pub(super) fn use_spare(&mut self, rest: u64) {
        if let OutputFile::Appended(file) = self {
            file.use_spare(rest);
        }
    }

    /// Cuts off what was written at once from `len` on.
    pub(super) fn cut(&mut self, len: u64) -> Result<()> {
        match self {
            OutputFile::Appended(file) => file.cut(len),
            _ => Ok(()),
        }
    }

    /// Writes what waits to the file in `dir`.
    pub(super) fn flush(&mut self, dir: &ExperimentDir) -> Result<()> {
        match self {
            OutputFile::Buffered(file) => file.flush(dir),
            _ => Ok(()),
        }
    }

    /// Cuts the file after its last record.
    pub(super) fn close(self) -> Result<()> {
        match self {
            OutputFile::Appended(mut file) => file.release(),
            OutputFile::Mapped(file) => file.close(),
            OutputFile::Buffered(_) => Ok(()),
        }
    }
}

/// A file that is closed between two flushes, and the records that wait to be written to it.
#[derive(Debug)]
pub(super) struct BufferedFile {
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
    pub(super) fn new(name: &'static str, records: Records) -> Self {
        BufferedFile {
            name,
            records,
            made: None,
            len: 0,
            waiting: Vec::new(),
        }
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
