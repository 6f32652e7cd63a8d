//! A file that is read as it grows.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

/// Bytes before the offset that are kept, to notice that a file was written anew.
const TAIL_BYTES: usize = 64;

/// Returns device and inode of a file.
pub(super) fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// A file that is read as it grows.
#[derive(Debug)]
pub(super) struct GrowingFile {
    pub(super) file: Arc<File>,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The time of its last change: seconds and nanoseconds.
    modified: (i64, i64),
    /// The bytes before `offset`.
    tail: Vec<u8>,
}

impl GrowingFile {
    pub(super) fn new(file: File, identity: (u64, u64)) -> GrowingFile {
        GrowingFile {
            file: Arc::new(file),
            identity,
            offset: 0,
            size: 0,
            modified: (0, 0),
            tail: Vec::new(),
        }
    }

    pub(super) fn restart(&mut self) {
        self.offset = 0;
        self.tail.clear();
    }

    /// Returns whether anything was written since the last call, other than more at the end.
    pub(super) fn is_rewritten(&mut self) -> io::Result<bool> {
        let found = self.file.metadata()?;
        let before = (self.size, self.modified);
        self.size = found.size();
        self.modified = (found.mtime(), found.mtime_nsec());
        if (self.size, self.modified) == before || self.offset == 0 {
            return Ok(false);
        }
        // Written to, and not longer.
        if self.size < self.offset || self.size == before.0 {
            return Ok(true);
        }
        let mut tail = vec![0; self.tail.len()];
        let from = self.offset - tail.len() as u64;
        match self.file.read_exact_at(&mut tail, from) {
            Ok(()) => Ok(tail != self.tail),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.offset >= self.size
    }

    /// Reads the next bytes, and returns how many; 0 where the file has become shorter.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            match self.file.read_at(buffer, self.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => break count?,
            }
        };
        if count == 0 {
            self.size = self.offset;
        }
        self.offset += count as u64;
        self.tail.extend_from_slice(&buffer[..count]);
        let old = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..old);
        Ok(count)
    }
}
