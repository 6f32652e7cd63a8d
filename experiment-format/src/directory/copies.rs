//! The files in `archives/` of an experiment: copies of load objects as they are, and compressed.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::INCOMPLETE;
use super::create::entries;
use crate::archive::{ARCHIVES, compressed_name, is_compressed};

/// An uncompressed copy that can be compressed.
#[derive(Debug)]
pub(crate) struct PlainCopy {
    /// Its name in `archives/`.
    pub(crate) name: CString,
    /// The name of its compressed copy.
    pub(crate) compressed: String,
    /// Whether there is a compressed copy too.
    pub(crate) is_double: bool,
}

/// Opens the `archives/` of an experiment.
pub(crate) fn archives_in(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, ARCHIVES, flags, Mode::empty()).ok()
}

/// Returns the copies in `archives/` that are not compressed.
pub(crate) fn plain_copies(archives: BorrowedFd<'_>) -> Vec<PlainCopy> {
    let names = entries(archives).unwrap_or_default();
    let all: HashSet<&[u8]> = names.iter().map(|name| name.to_bytes()).collect();
    let copy = |name: &CString| {
        let compressed = compressed_name_of(name)?;
        Some(PlainCopy {
            name: name.clone(),
            is_double: all.contains(compressed.as_bytes()),
            compressed,
        })
    };
    names.iter().filter_map(copy).collect()
}

/// Removes the uncompressed copies that also have a compressed one.
pub(super) fn remove_doubles(archives: BorrowedFd<'_>) {
    for copy in plain_copies(archives) {
        if copy.is_double {
            let _ = unlinkat(archives.as_fd(), &*copy.name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// The name of the compressed copy of a file in `archives/`. None if the file is not a copy or is
/// compressed itself, or if the name is too long.
fn compressed_name_of(name: &CStr) -> Option<String> {
    let name = name.to_str().ok()?;
    let is_plain = !name.starts_with(INCOMPLETE) && !is_compressed(name);
    is_plain.then(|| compressed_name(name)).flatten()
}
