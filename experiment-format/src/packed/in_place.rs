//! Packs a complete experiment of a series in its directory. The load objects, which the series
//! shares by links, stay: see [`super::compress_copies`].
//!
//! A reader holds a shared lock on the directory, and looks for the packed file once it has it. So
//! the file gets its name, and what is packed is removed, only with an exclusive lock: no reader
//! that found the files loses them, and a later one finds the packed file. If this process ends in
//! between, both are there, and the packed file is what counts.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::SystemTime;

use super::pack::{Content, pack_open};
use crate::Result;
use crate::archive::ARCHIVES;
use crate::directory::{OlderExperiment, PACKED, PendingFile};
use crate::error::Error;

/// A step of [`pack_in_place`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackStep {
    /// It has written some bytes.
    Written,
    /// Another process reads or writes the experiment.
    InUse,
}

/// Packs an experiment in its directory. Returns the bytes of its files and of the packed file;
/// None if it was already packed by a process that ended before it had removed the files. `wait` is
/// called after each step. It may sleep, and may end the packing with an error.
///
/// # Errors
/// A file can't be read, or the packed file can't be written: then the experiment is as it was. The
/// original files can't be removed: then both are there.
pub fn pack_in_place(
    older: &OlderExperiment,
    wait: &mut dyn FnMut(PackStep) -> io::Result<()>,
) -> Result<Option<(u64, u64)>> {
    let dir = older.dir();
    let failed = |error: io::Error| Error::io("pack", dir.path(), error);
    // Nothing may write to it any more.
    alone(older, wait).map_err(failed)?;
    dir.remove_incomplete();
    if dir.has_file(PACKED) {
        dir.remove_all_but(&[ARCHIVES, PACKED])?;
        return Ok(None);
    }
    older.share();
    let mut before = 0;
    let paced = Paced::new(dir.pending(PACKED)?, wait);
    let mut progress = |bytes| before = bytes;
    let (name, content) = (Path::new(older.name()), Content::AllButArchives);
    let packed = pack_open(dir.as_fd(), name, content, paced, &mut progress).map_err(failed)?;
    let Paced { file, bytes, wait } = packed;
    complete(file.file(), older.written).map_err(failed)?;
    alone(older, wait).map_err(failed)?;
    file.commit()?;
    dir.remove_all_but(&[ARCHIVES, PACKED])?;
    Ok(Some((before, bytes)))
}

/// Waits until nothing else uses the experiment.
fn alone(
    older: &OlderExperiment,
    wait: &mut dyn FnMut(PackStep) -> io::Result<()>,
) -> io::Result<()> {
    while !older.is_alone() {
        wait(PackStep::InUse)?;
    }
    Ok(())
}

/// Syncs a file to the disk, since the files that it replaces are removed next. It gets the time at
/// which these were written.
pub(super) fn complete(file: &File, written: SystemTime) -> io::Result<()> {
    file.set_modified(written)?;
    file.sync_all()
}

/// The packed file. It waits after each write.
pub(super) struct Paced<'a, 'd> {
    pub(super) file: PendingFile<'d>,
    bytes: u64,
    wait: &'a mut dyn FnMut(PackStep) -> io::Result<()>,
}

impl<'a, 'd> Paced<'a, 'd> {
    pub(super) fn new(
        file: PendingFile<'d>,
        wait: &'a mut dyn FnMut(PackStep) -> io::Result<()>,
    ) -> Paced<'a, 'd> {
        Paced {
            file,
            bytes: 0,
            wait,
        }
    }
}

impl Write for Paced<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        match (self.wait)(PackStep::Written) {
            // Writers write again what was interrupted, and it is written already.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Err(io::Error::other(error))
            }
            waited => waited.map(|()| written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
