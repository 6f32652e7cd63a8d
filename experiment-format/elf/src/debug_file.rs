//! The separate debug file of a stripped program or library: where distributions put the symbol
//! tables.
//!
//! It is found as by debuggers: by build id below `/usr/lib/debug/.build-id`, or by the name and
//! checksum in `.gnu_debuglink`, next to the file, in `.debug` there, or below `/usr/lib/debug`;
//! first in the root of the process that runs the file, then in the host's. gprofng itself looks
//! only for `.gnu_debuglink` and only next to the original path, and could not use what it found,
//! since a debug file's sections have other offsets.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag};

use crate::open::{openat2, reopen};
use crate::{ElfFile, ElfLimits, section_build_id};

/// The directory of debug files.
const DEBUG_DIRECTORY: &str = "usr/lib/debug";
/// Max bytes of a debug file whose checksum is computed.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// Returns the debug file of an ELF file that has this path in the processes that map it. It is
/// looked for in these root directories in turn, the process's own first. No link leads out of a
/// root.
///
/// A file is accepted if it has the same build id, or else the checksum that `.gnu_debuglink` has.
#[must_use]
pub fn find_debug_file(roots: &[BorrowedFd<'_>], path: &Path, file: &File) -> Option<File> {
    let elf = ElfFile::read(file, ElfLimits::PROGRAM).ok()?;
    let elf = elf.only_64_bit_little_endian().ok()?;
    let id = section_build_id(file);
    if let Some(found) = find_by_build_id(roots, &id) {
        return Some(found);
    }
    let (name, checksum) = link_of(&elf)?;
    let directory = path.parent()?.strip_prefix("/").ok()?;
    for root in roots {
        for directory in [
            directory.to_owned(),
            directory.join(".debug"),
            Path::new(DEBUG_DIRECTORY).join(directory),
        ] {
            let found = regular(*root, &directory.join(OsStr::from_bytes(&name)))
                .filter(|found| same(found, &id, checksum));
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Returns the debug file for a build id, as [`find_debug_file`] does; `None` for an empty one.
#[must_use]
pub fn find_by_build_id(roots: &[BorrowedFd<'_>], id: &[u8]) -> Option<File> {
    if id.is_empty() {
        return None;
    }
    let path = path_of_id(id);
    roots
        .iter()
        .find_map(|root| regular(*root, &path).filter(|found| *section_build_id(found) == *id))
}

/// Returns the path for a build id: `usr/lib/debug/.build-id/xx/yyyy.debug`.
fn path_of_id(id: &[u8]) -> PathBuf {
    let (first, rest) = id.split_at(id.len().min(1));
    let [first, rest] = [first, rest].map(hex::encode);
    Path::new(DEBUG_DIRECTORY).join(format!(".build-id/{first}/{rest}.debug"))
}

/// Opens a path below a root, if it is a regular file.
fn regular(root: BorrowedFd<'_>, path: &Path) -> Option<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let held = File::from(openat2(root, path, how).ok()?);
    let is_regular = held.metadata().ok()?.is_file();
    is_regular.then(|| reopen(&held).ok()).flatten()
}

/// Returns whether a debug file matches: by the build ids if both files have one, or else by the
/// checksum.
fn same(debug: &File, id: &[u8], checksum: u32) -> bool {
    let own = section_build_id(debug);
    if !id.is_empty() && !own.is_empty() {
        return *own == *id;
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < MAX_CHECKED_BYTES {
        match debug.read_at(&mut buffer, at) {
            Ok(0) => return hasher.finalize() == checksum,
            Ok(read) => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
            Err(_) => return false,
        }
    }
    false
}

/// Returns name and checksum of `.gnu_debuglink`: a name without `/`, a NUL, padding to 4 bytes,
/// the checksum.
fn link_of(elf: &ElfFile<&File>) -> Option<(Vec<u8>, u32)> {
    let sections = elf.section_table().ok()?;
    let section = sections.named(b".gnu_debuglink")?;
    let data = elf.plain_content(section, "a section").ok()?;
    let end = data.iter().take(256).position(|byte| *byte == 0)?;
    let name = &data[..end];
    let bad = name.is_empty() || name.contains(&b'/') || name == b"..";
    let checksum = data.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    (!bad).then(|| (name.to_vec(), u32::from_le_bytes(*checksum)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_a_path() {
        assert_eq!(
            path_of_id(&[0x93, 0xac, 0x01]),
            Path::new("usr/lib/debug/.build-id/93/ac01.debug")
        );
    }
}
