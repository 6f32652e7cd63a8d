//! A file that grows by whole records: text elements, usage records, packets.
//!
//! gprofng rejects an experiment with half an element or half a usage record, so a record is
//! written whole or taken back. Two things can cut a record. A disk may fill up: space is reserved
//! ahead, the end of a failed write is cut off, and a spare part of the reservation leaves space
//! for the events that close the experiment. And the process may be killed: Linux ends a write only
//! between two pages of the file, so no text element lies across a page border.
//!
//! A file may also be closed and resumed later, given its length. Such files are small and many,
//! and nothing is reserved for them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::Result;
use crate::error::Error;

/// The smallest page of any machine; every border of a larger page is a border of this.
const PAGE_BYTES: u64 = 4096;
/// Space is reserved in steps of this.
const RESERVE_STEP_BYTES: u64 = 16 * 1024;

/// The kind of a file's records, which decides how one that would lie across a page border is kept
/// whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Records {
    /// Text, one element a line: blanks between lines mean nothing, and fill the page.
    Text,
    /// An array: nothing may stand between records. Before a record across a border is written, the
    /// file is made longer, so that its size is always a whole number of records.
    Array,
    /// Packets: nothing is done, since readers skip a packet that is cut at the end of a file.
    Packets,
}

/// A file that grows by whole records.
#[derive(Debug)]
pub(crate) struct AppendFile {
    file: File,
    path: PathBuf,
    records: Records,
    len: u64,
    /// Up to here space is reserved. None if nothing is: then a write may meet a full disk.
    reserved: Option<u64>,
    /// The reserved bytes that ordinary records leave unused.
    spare: u64,
}

impl AppendFile {
    /// Takes a new, empty file. Keeps `spare` bytes reserved beyond the records, for a full disk.
    pub(crate) fn new(file: File, path: &Path, records: Records, spare: u64) -> Result<Self> {
        let mut this = AppendFile {
            file,
            path: path.to_owned(),
            records,
            len: 0,
            reserved: Some(0),
            spare,
        };
        this.reserve(0)?;
        Ok(this)
    }

    /// Takes a file that was closed with `len` bytes. Reserves nothing.
    pub(crate) fn resume(file: File, path: &Path, records: Records, len: u64) -> Self {
        AppendFile {
            file,
            path: path.to_owned(),
            records,
            len,
            reserved: None,
            spare: 0,
        }
    }

    /// Returns the bytes written.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Lets the following records use the spare space, all but `rest` bytes.
    pub(crate) fn use_spare(&mut self, rest: u64) {
        self.spare = self.spare.min(rest);
    }

    /// Appends one record of an array, or any number of lines or packets; all or nothing.
    pub(crate) fn append(&mut self, records: &[u8]) -> Result<()> {
        match self.records {
            Records::Text => self.write(&between_borders(records, self.len)),
            Records::Array => {
                let size = records.len() as u64;
                if size > to_border(self.len) {
                    self.reserve(size)?;
                    let grown = self.file.set_len(self.len + size);
                    grown.map_err(|error| Error::io("extend", &self.path, error))?;
                }
                self.write(records)
            }
            Records::Packets => self.write(records),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes.len() as u64)?;
        if let Err(error) = self.file.write_all_at(bytes, self.len) {
            self.cut(self.len)?;
            return Err(Error::io("write", &self.path, error));
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Cuts off everything from `len` on.
    pub(crate) fn cut(&mut self, len: u64) -> Result<()> {
        self.len = len;
        self.release()?;
        if self.reserved.is_some() {
            // The cut released the reserved space too. If it cannot be reserved again, the next
            // record returns the error.
            self.reserved = Some(len);
            let _ = self.reserve(0);
        }
        Ok(())
    }

    /// Ends the file: releases the space that is reserved beyond its records.
    pub(crate) fn release(&mut self) -> Result<()> {
        self.file
            .set_len(self.len)
            .map_err(|error| Error::io("truncate", &self.path, error))
    }

    /// Reserves space for `more` bytes and the spare bytes.
    fn reserve(&mut self, more: u64) -> Result<()> {
        let needed = self.len + more + self.spare;
        let reserved = match self.reserved {
            Some(reserved) if reserved < needed => reserved,
            _ => return Ok(()),
        };
        let from = reserved.max(self.len);
        // In large steps while there is space, else exactly what is needed.
        let step = needed.next_multiple_of(RESERVE_STEP_BYTES);
        match self.reserve_range(from, step) {
            Err(Errno::ENOSPC | Errno::EDQUOT) if step > needed => self.reserve_range(from, needed),
            other => other,
        }
        .map_err(|errno| Error::io("reserve space for", &self.path, errno))
    }

    fn reserve_range(&mut self, from: u64, end: u64) -> nix::Result<()> {
        let (offset, size) = (from as i64, (end - from) as i64);
        match retry(|| {
            fallocate(
                &self.file,
                FallocateFlags::FALLOC_FL_KEEP_SIZE,
                offset,
                size,
            )
        }) {
            Ok(()) => self.reserved = Some(end),
            // A file system without reservations.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.reserved = None,
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

/// Returns the bytes from `at` to the end of its page.
fn to_border(at: u64) -> u64 {
    PAGE_BYTES - at % PAGE_BYTES
}

/// Returns the lines as they stand in a file from `at` on: a blank line stands ahead of each that
/// would lie across a page border. A line longer than a page is not padded.
fn between_borders(lines: &[u8], at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let rest = to_border(at + out.len() as u64);
        let size = line.len() as u64;
        if size > rest && size <= PAGE_BYTES {
            out.resize(out.len() + rest as usize - 1, b' ');
            out.push(b'\n');
        }
        out.extend_from_slice(line);
    }
    out
}

/// Repeats a call until no signal interrupts it.
pub(crate) fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: Records, spare: u64) -> (tempfile::TempDir, PathBuf, AppendFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create_new(&path).unwrap();
        let file = AppendFile::new(file, &path, records, spare).unwrap();
        (dir, path, file)
    }

    #[test]
    fn no_text_record_lies_across_a_page_border() {
        let (_dir, path, mut file) = file(Records::Text, 0);
        for n in 0..500 {
            file.append(format!("<{}>\n", "x".repeat(n)).as_bytes())
                .unwrap();
        }
        file.append(format!("<{}>\n", "y".repeat(9000)).as_bytes())
            .unwrap();
        file.release().unwrap();
        let text = std::fs::read(&path).unwrap();
        assert_eq!(text.len() as u64, file.len());
        let begins = text
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'<')
            .map(|(i, _)| i);
        for (n, begin) in begins.enumerate().take(500) {
            assert_eq!(
                begin / 4096,
                (begin + n + 2) / 4096,
                "element {n} at {begin}"
            );
        }
    }

    #[test]
    fn lines_lie_the_same_whether_they_come_one_by_one_or_at_once() {
        let lines: Vec<_> = (0..400)
            .map(|n| format!("<{}>\n", "x".repeat(n * 13 % 5000)))
            .collect();
        let (_dir, path, mut file) = file(Records::Text, 100);
        for line in &lines {
            file.append(line.as_bytes()).unwrap();
        }
        file.release().unwrap();
        let one_by_one = std::fs::read(&path).unwrap();
        file.cut(0).unwrap();
        let mut len = 0;
        for lines in lines.chunks(150) {
            let again = File::options().write(true).open(&path).unwrap();
            let mut again = AppendFile::resume(again, &path, Records::Text, len);
            again.append(lines.concat().as_bytes()).unwrap();
            len = again.len();
        }
        assert!(std::fs::read(&path).unwrap() == one_by_one);
    }

    #[test]
    fn array_records_stand_one_after_the_other() {
        let (_dir, path, mut file) = file(Records::Array, 4096);
        for n in 0..100u8 {
            file.append(&[n; 504]).unwrap();
        }
        file.release().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 504 * 100);
        assert!(
            bytes
                .chunks(504)
                .enumerate()
                .all(|(n, record)| record == [n as u8; 504])
        );
    }

    #[test]
    fn truncated_bytes_are_gone_and_writing_continues() {
        let (_dir, path, mut file) = file(Records::Text, 100);
        file.append(b"one\n").unwrap();
        let mark = file.len();
        file.append(b"two\n").unwrap();
        file.cut(mark).unwrap();
        file.append(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\nthree\n");
    }
}
