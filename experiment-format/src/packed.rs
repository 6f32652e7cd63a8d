//! An experiment in one file, `NAME.er.zst`, to be kept or carried away: its directory as a tar
//! archive, compressed with zstd. `tar --zstd -xf` unpacks it too.
//!
//! Experiments of a series share their load objects by links. Where they are packed (`in_place`),
//! `archives/` stays as it is; the rest becomes such a file, next to `archives/` in the directory.
//!
//! The directories and the log come first, so that the log can be read without the rest.
//!
//! A packed experiment may come from anywhere. Unpacking refuses names outside of one directory
//! `NAME.er`, whatever is neither a file nor a directory, and more than there is space for. It
//! never writes a file over another one, nor through a link.

mod in_place;
mod pack;
mod unpack;

use std::path::{Path, PathBuf};

use crate::directory::PACKED;
pub use in_place::{PackedInPlace, pack_in_place};
pub use pack::pack;
pub(crate) use unpack::read_log;
pub use unpack::{unpack, unpack_all};

/// The end of the name of a packed experiment.
pub const SUFFIX: &str = ".er.zst";

/// Max files and directories: 60,000 processes, each with a subexperiment of ten files.
const MAX_ENTRIES: u64 = 1 << 20;
/// The longest path of one: the experiment, the subexperiment, the file, each of 255 bytes.
const MAX_PATH_BYTES: u64 = 3 * 256;

/// The file that the experiment at `path` is packed into: `path` itself, or the file in its
/// directory. None if it is not packed.
#[must_use]
pub fn packed_file(path: &Path) -> Option<PathBuf> {
    let file = if is_packed(path) && !path.is_dir() {
        return Some(path.to_owned());
    } else {
        path.join(PACKED)
    };
    file.symlink_metadata()
        .is_ok_and(|found| found.is_file())
        .then_some(file)
}

/// Returns whether a path has the name of a packed experiment.
#[must_use]
pub fn is_packed(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() > SUFFIX.len() && name.ends_with(SUFFIX.as_bytes())
}

/// Returns the path of the directory that a packed experiment was: without `.zst`. Another path is
/// returned as it is.
#[must_use]
pub fn directory_of(path: &Path) -> PathBuf {
    if is_packed(path) {
        path.with_extension("")
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests;
