//! `archives/`: copies of load objects, under names that gprofng derives from their paths.

use std::fs::File;
use std::io::{self, Write};

use crate::Result;

/// Name of a load object's copy in `archives/`.
pub fn archive_name(load_object: &str) -> String {
    let _ = load_object;
    todo!()
}

/// A file of `archives/` being written. It gets its name by [`ArchiveFile::commit`]; dropped
/// before, it leaves nothing.
#[derive(Debug)]
pub struct ArchiveFile<'a> {
    file: File,
    _dir: &'a (),
}

impl ArchiveFile<'_> {
    /// Gives the complete file its name.
    pub fn commit(self) -> Result<()> {
        todo!()
    }
}

impl Write for ArchiveFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
