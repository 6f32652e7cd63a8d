//! The files of a machine, as the kernel unpacks them at boot: an archive in cpio's `newc` format.
//! Making it needs no root, since owners and devices in it are numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::elf::{libraries, stripped};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;
/// Major and minor number of `/dev/console`.
const CONSOLE_DEVICE: (u32, u32) = (5, 1);

/// Files by their paths in the machine.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Initramfs {
    /// Adds a file as it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn file(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.files.insert(to.as_ref().to_owned(), bytes);
        Ok(())
    }

    /// Adds a program, and the libraries that it needs at their own paths.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn program(&mut self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        self.files.insert(to.as_ref().to_owned(), stripped(from)?);
        for library in libraries(from)? {
            if !self.files.contains_key(&library) {
                self.file(&library, &library)?;
            }
        }
        Ok(())
    }

    /// Returns the archive.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        let mut inode = 0;
        let mut add = |path: &Path, mode, device, bytes: &[u8]| {
            inode += 1;
            entry(&mut archive, inode, path, mode, device, bytes);
        };
        let directories: BTreeSet<&Path> = self
            .files
            .keys()
            .flat_map(|path| path.ancestors().skip(1))
            .chain([Path::new("/dev")])
            .collect();
        // Each directory after its parent.
        for directory in directories {
            if directory != Path::new("/") {
                add(directory, DIRECTORY, (0, 0), &[]);
            }
        }
        // Before anything is mounted, the kernel opens it for the first process.
        add(Path::new("/dev/console"), CONSOLE, CONSOLE_DEVICE, &[]);
        for (path, bytes) in &self.files {
            add(path, PROGRAM, (0, 0), bytes);
        }
        entry(&mut archive, 0, Path::new("TRAILER!!!"), 0, (0, 0), &[]);
        archive
    }
}

/// Adds an entry: thirteen numbers of eight hexadecimal digits, the path with a zero, the bytes;
/// both padded to four.
fn entry(
    archive: &mut Vec<u8>,
    inode: u32,
    path: &Path,
    mode: u32,
    device: (u32, u32),
    bytes: &[u8],
) {
    let name = path.strip_prefix("/").unwrap_or(path);
    let name = name.as_os_str().as_encoded_bytes();
    let fields = [
        inode,
        mode,
        0, // owner
        0, // group
        1, // links
        0, // time
        bytes.len() as u32,
        0, // the device that it is on
        0,
        device.0,
        device.1,
        name.len() as u32 + 1,
        0, // no sum
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(name);
    archive.push(0);
    fill(archive);
    archive.extend(bytes);
    fill(archive);
}

fn fill(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
