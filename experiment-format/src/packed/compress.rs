//! The copies of load objects of an experiment that is packed in its directory: each is compressed
//! once, and shared by the packed experiments of a directory.
//!
//! The experiment that is recorded meanwhile may link to the uncompressed copies. So these stay
//! next to the compressed ones until another experiment is complete
//! ([`OlderExperiment::remove_double_copies`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::PackStep;
use super::in_place::{Paced, complete};
use super::pack::{kind_of, open_entry};
use crate::Result;
use crate::archive::ARCHIVES;
use crate::copies::encoder;
use crate::directory::{ExperimentDir, INCOMPLETE, OlderExperiment, archives_in, plain_copies};
use crate::elf::section_build_id;
use crate::error::Error;

/// Compresses each copy of a load object or source into a file next to it. If another packed
/// experiment of the directory has the compressed copy (the experiment `before` this one in the
/// series, or one of the newest), links to it instead. `wait` is called after each write.
///
/// # Errors
/// A system error, or an error of `wait`. What is compressed by then stays. If another process
/// compresses them, it has a lock on `archives/`, and nothing is done.
pub fn compress_copies(
    older: &OlderExperiment,
    before: Option<&OlderExperiment>,
    wait: &mut dyn FnMut(PackStep) -> io::Result<()>,
) -> Result<()> {
    // It may be removed meanwhile.
    older.release();
    let dir = older.dir();
    let failed = |error: io::Error| Error::io("compress", &dir.path().join(ARCHIVES), error);
    let Some(archives) = archives_in(dir.as_fd()) else {
        return Ok(());
    };
    let locked = File::from(archives.try_clone().map_err(failed)?);
    if locked.try_lock().is_err() {
        return Ok(());
    }
    // A process that was killed left it.
    let _ = unlinkat(&archives, INCOMPLETE, UnlinkatFlags::NoRemoveDir);
    let before = before.and_then(|before| archives_in(before.dir().as_fd()));
    let siblings: Vec<_> = before.into_iter().chain(dir.sibling_archives()).collect();
    let copies = plain_copies(archives.as_fd());
    for copy in copies.into_iter().filter(|copy| !copy.is_double) {
        let opened = open_entry(archives.as_fd(), &copy.name).map_err(failed)?;
        let Some((file, stat)) = opened.filter(|(_, stat)| kind_of(stat) == SFlag::S_IFREG) else {
            continue;
        };
        if !is_linked(&archives, &siblings, &copy.compressed, &stat) {
            compress_file(dir, File::from(file), &copy.compressed, wait)?;
        }
    }
    Ok(())
}

/// Compresses a file of `archives/`. The compressed file gets the same time, and is recognised by
/// it.
fn compress_file(
    dir: &ExperimentDir,
    mut file: File,
    compressed: &str,
    wait: &mut dyn FnMut(PackStep) -> io::Result<()>,
) -> Result<()> {
    let failed = |error: io::Error| Error::io("compress", &dir.path().join(ARCHIVES), error);
    let pending = dir.archive_pending(compressed)?;
    let paced = Paced::new(pending, wait);
    let written = file.metadata().and_then(|file| file.modified());
    let write = || {
        let mut encoder = encoder(paced, &section_build_id(&file))?;
        io::copy(&mut file, &mut encoder)?;
        let paced = encoder.finish()?;
        complete(paced.file.file(), written?)?;
        Ok(paced.file)
    };
    write().map_err(failed)?.commit()
}

/// Links to a file's compressed copy in one of `siblings`. Returns whether one of them has such a
/// copy, of the same owner and time.
fn is_linked(archives: &OwnedFd, siblings: &[OwnedFd], compressed: &str, of: &FileStat) -> bool {
    let mut siblings = siblings.iter();
    siblings.any(|other| {
        let found = fstatat(other, compressed, AtFlags::AT_SYMLINK_NOFOLLOW);
        let is_same = found.is_ok_and(|found| {
            kind_of(&found) == SFlag::S_IFREG
                && found.st_uid == of.st_uid
                && (found.st_mtime, found.st_mtime_nsec) == (of.st_mtime, of.st_mtime_nsec)
        });
        is_same && linkat(other, compressed, archives, compressed, AtFlags::empty()).is_ok()
    })
}
