//! Packs a complete experiment of a series in its directory. The load objects, which the series
//! shares by links, stay.
//!
//! A reader holds a shared lock on the directory, and looks for the packed file once it has it. So
//! the file gets its name, and what is packed is removed, only with an exclusive lock: no reader
//! that found the files loses them, and a later one finds the packed file. If this process ends in
//! between, both are there, and the packed file is what counts.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::Path;

use super::pack::{Content, pack_open};
use crate::Result;
use crate::archive::ARCHIVES;
use crate::directory::{OlderExperiment, PACKED, PendingFile};
use crate::error::Error;

/// What became of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedInPlace {
    /// It is packed.
    Packed {
        /// The bytes of its files.
        before: u64,
        /// The bytes of the packed file.
        packed: u64,
    },
    /// It was already packed. A process that ended early may have left files, which are removed.
    Before,
    /// Another process reads or writes it, so it is as it was.
    InUse,
}

/// Packs an experiment in its directory. `pace` is called after each write. It may sleep, and may
/// end the packing with an error.
///
/// # Errors
/// A file can't be read, or the packed file can't be written: then the experiment is as it was. The
/// original files can't be removed: then both are there.
pub fn pack_in_place(
    older: &OlderExperiment,
    pace: &mut dyn FnMut() -> io::Result<()>,
) -> Result<PackedInPlace> {
    let dir = older.dir();
    let failed = |error: io::Error| Error::io("pack", dir.path(), error);
    // Nothing may write to it any more.
    if !older.is_alone() {
        return Ok(PackedInPlace::InUse);
    }
    dir.remove_incomplete();
    if dir.has_file(PACKED) {
        dir.remove_all_but(&[ARCHIVES, PACKED])?;
        return Ok(PackedInPlace::Before);
    }
    older.share();
    let mut before = 0;
    let to = Paced {
        file: dir.pending(PACKED)?,
        bytes: 0,
        pace,
    };
    let mut progress = |bytes| before = bytes;
    let (name, content) = (Path::new(older.name()), Content::AllButArchives);
    let packed = pack_open(dir.as_fd(), name, content, to, &mut progress).map_err(failed)?;
    let Paced { file, bytes, .. } = packed;
    // The files that it replaces are removed next.
    let synced = file.file().set_modified(older.written);
    synced
        .and_then(|()| file.file().sync_all())
        .map_err(failed)?;
    if !older.is_alone() {
        return Ok(PackedInPlace::InUse);
    }
    file.commit()?;
    dir.remove_all_but(&[ARCHIVES, PACKED])?;
    Ok(PackedInPlace::Packed {
        before,
        packed: bytes,
    })
}

/// The packed file, with a pause after each write.
struct Paced<'a, 'd> {
    file: PendingFile<'d>,
    bytes: u64,
    pace: &'a mut dyn FnMut() -> io::Result<()>,
}

impl Write for Paced<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        match (self.pace)() {
            // Writers write again what was interrupted, and it is written already.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Err(io::Error::other(error))
            }
            paced => paced.map(|()| written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
