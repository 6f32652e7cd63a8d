//! Copies of load objects and sources in `archives/`.

use std::fs::File;
use std::path::Path;

use crate::Result;
use crate::archive::archive_name;
use crate::file::open_regular;
use kcollect_elf::section_build_id;

/// Returns whether the directory `archives` has a copy of a load object or source.
#[must_use]
pub fn has_copy(archives: &Path, name: &str) -> bool {
    archives.join(archive_name(name)).exists()
}

/// Opens the copy of a load object or source in the directory `archives`. None: no copy exists.
///
/// # Errors
/// The copy is not a regular file, or can't be opened.
pub fn open_copy(archives: &Path, name: &str) -> Result<Option<File>> {
    open_regular(&archives.join(archive_name(name)))
}

/// The build id of a load object's copy in the directory `archives`; empty if the object has no
/// build id. None if there is no copy.
#[must_use]
pub fn build_id_of_copy(archives: &Path, name: &str) -> Option<Box<[u8]>> {
    let copy = open_copy(archives, name).ok().flatten()?;
    Some(section_build_id(&copy))
}
