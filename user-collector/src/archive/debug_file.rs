//! The separate debug file of a stripped program or library: where distributions put the symbol
//! tables.
//!
//! It is found as debuggers do, by build id below `/usr/lib/debug/.build-id`, or by the name and
//! checksum in `.gnu_debuglink`, beside the file, in `.debug` there, or below `/usr/lib/debug`.
//! First in the root of the process that runs the file, then in the host's. gprofng itself looks
//! only for `.gnu_debuglink` and only beside the original path; and what it found would not help,
//! since a debug file's sections lie at positions of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use object::elf::{NT_GNU_BUILD_ID, SHT_NOTE};
use object::read::elf::SectionHeader;

use crate::files::openat2;

use super::MAX_FILE;
use super::elf::{Elf, LITTLE};
use super::invoking_user::reopen;

/// Longest build id that is believed, bytes. SHA-1 has 20.
const LONGEST_ID: usize = 64;
/// Largest section of notes that is looked at, bytes.
const LARGEST_NOTES: u64 = 64 * 1024;
/// Most sections of notes that are looked at.
const MOST_NOTES: usize = 16;
/// The directory of debug files.
const DEBUG: &str = "usr/lib/debug";

/// The build id of an ELF file; empty where it has none.
#[must_use]
pub fn build_id(file: &File) -> Box<[u8]> {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    Elf::read(file, length)
        .map(|elf| id_of(&elf))
        .unwrap_or_default()
}

/// Finds the debug file of the ELF file that processes know as `path`, in one of these roots:
/// directories that stand for `/`, the process's own first. No link leads out of a root.
///
/// A file is taken for it if it has the same build id, or else the checksum that the file tells.
#[must_use]
pub fn find_debug_file(roots: &[BorrowedFd<'_>], path: &Path, file: &File) -> Option<File> {
    let length = file.metadata().ok()?.len();
    let elf = Elf::read(file, length).ok()?;
    let id = id_of(&elf);
    let link = link_of(&elf);
    if let Some(found) = find_by_build_id(roots, &id) {
        return Some(found);
    }
    let (name, checksum) = link?;
    let directory = path.parent()?.strip_prefix("/").ok()?;
    for root in roots {
        for directory in [
            directory.to_owned(),
            directory.join(".debug"),
            Path::new(DEBUG).join(directory),
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

/// Finds the debug file of whatever has this build id, as [`find_debug_file`] does; none for an
/// empty one.
#[must_use]
pub fn find_by_build_id(roots: &[BorrowedFd<'_>], id: &[u8]) -> Option<File> {
    if id.is_empty() {
        return None;
    }
    let path = path_of_id(id);
    roots
        .iter()
        .find_map(|root| regular(*root, &path).filter(|found| *build_id(found) == *id))
}

/// `usr/lib/debug/.build-id/xx/yyyy.debug`.
fn path_of_id(id: &[u8]) -> PathBuf {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let (first, rest) = id.split_at(id.len().min(1));
    Path::new(DEBUG).join(format!(".build-id/{}/{}.debug", hex(first), hex(rest)))
}

fn regular(root: BorrowedFd<'_>, path: &Path) -> Option<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let place = File::from(openat2(root, path, how).ok()?);
    let file = place.metadata().ok()?.is_file();
    file.then(|| reopen(&place).ok()).flatten()
}

/// Has it the build id, where there is one on both sides, and else the checksum?
fn same(debug: &File, id: &[u8], checksum: u32) -> bool {
    let own = build_id(debug);
    if !id.is_empty() && !own.is_empty() {
        return *own == *id;
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < MAX_FILE {
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

fn id_of(elf: &Elf<'_>) -> Box<[u8]> {
    let notes = elf
        .sections
        .iter()
        .filter(|section| {
            section.sh_type(LITTLE) == SHT_NOTE && section.sh_size(LITTLE) <= LARGEST_NOTES
        })
        .take(MOST_NOTES);
    notes
        .filter_map(|section| elf.data(section).ok())
        .find_map(|notes| id_in(&notes))
        .unwrap_or_default()
}

/// The build id among notes: size of name, size of content, type; each of the two padded to 4
/// bytes.
fn id_in(notes: &[u8]) -> Option<Box<[u8]>> {
    let mut rest = notes;
    loop {
        let (head, behind) = rest.split_at_checked(12)?;
        let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let (name_size, size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let (name, behind) = behind.split_at_checked(name_size.checked_next_multiple_of(4)?)?;
        let content = behind.get(..size)?;
        if kind == NT_GNU_BUILD_ID.0 && name.starts_with(b"GNU\0") {
            return (1..=LONGEST_ID).contains(&size).then(|| content.into());
        }
        rest = behind.get(size.checked_next_multiple_of(4)?..)?;
    }
}

/// Name and checksum of `.gnu_debuglink`: a name without `/`, a NUL, padding to 4 bytes, the
/// checksum.
fn link_of(elf: &Elf<'_>) -> Option<(Vec<u8>, u32)> {
    let data = elf.data(elf.named(b".gnu_debuglink")?).ok()?;
    let end = data.iter().take(256).position(|byte| *byte == 0)?;
    let name = &data[..end];
    let bad = name.is_empty() || name.contains(&b'/') || name == b"..";
    let checksum = data.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    (!bad).then(|| (name.to_vec(), u32::from_le_bytes(*checksum)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_build_id_is_a_path() {
        assert_eq!(
            path_of_id(&[0x93, 0xac, 0x01]),
            Path::new("usr/lib/debug/.build-id/93/ac01.debug")
        );
    }

    #[test]
    fn a_build_id_is_found_among_other_notes() {
        let note = |kind: u32, content: &[u8]| {
            let words = [4, content.len() as u32, kind];
            let mut note: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            note.extend_from_slice(b"GNU\0");
            note.extend_from_slice(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let notes = [note(5, &[1; 9]), note(3, &[7; 20]), note(3, &[8; 20])].concat();
        assert_eq!(id_in(&notes).unwrap().as_ref(), [7; 20]);
        assert_eq!(id_in(&note(3, &[])), None);
        assert_eq!(id_in(&note(3, &[1; 65])), None);
        assert_eq!(id_in(&notes[..40]), None);
    }

    proptest! {
        #[test]
        fn any_notes_end(notes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = id_in(&notes);
        }
    }
}
