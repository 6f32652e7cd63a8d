//! The error type of the crate. Each error names the file (and the offset in it) or the value at
//! fault.
//!
//! Writer and reader share it: a caller needs only the message, and whether the disk is full
//! ([`Error::is_disk_full`]), which ends a recording but leaves the experiment valid.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// The reason why an experiment could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a file or directory failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation, a verb: `create`, `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },

    /// The wanted name is in use and has no series number that could be increased.
    #[error("name {name} is in use and cannot be updated")]
    NameInUse {
        /// The name as requested.
        name: String,
    },

    /// The wanted name is not valid for an experiment.
    #[error("experiment name {name} {problem}")]
    BadName {
        /// The name as requested, made printable.
        name: String,
        /// The problem, as the rest of the sentence.
        problem: &'static str,
    },

    /// Every number that was tried was taken by other processes.
    #[error("no free name {stem}.N.er found in {attempts} attempts")]
    NoFreeName {
        /// The stem of the series.
        stem: String,
        /// The number of attempts.
        attempts: u32,
    },

    /// Another file took the place of a directory or file that was made here.
    #[error("{} was replaced by something else", path.display())]
    Replaced {
        /// The directory or file.
        path: PathBuf,
    },

    /// The experiment's directory was deleted while it was written.
    #[error("{} was deleted while it was written", path.display())]
    Deleted {
        /// The directory.
        path: PathBuf,
    },

    /// A value does not fit the format.
    #[error("{}: cannot express {what}", path.display())]
    Unwritable {
        /// The file it was meant for.
        path: PathBuf,
        /// The value, and the limit that it exceeds.
        what: String,
    },

    /// A file violates its format.
    #[error("{}: byte {offset}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The offset of the damage in the file, in bytes.
        offset: u64,
        /// The problem.
        what: String,
    },
}

impl Error {
    /// Returns whether the cause is a full disk, an exhausted quota or the limit on the size of
    /// files.
    ///
    /// After this error, an experiment can still be closed and is then valid.
    pub fn is_disk_full(&self) -> bool {
        let Error::Io { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error().map(Errno::from_raw);
        matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG))
    }

    /// Returns the error of a system call.
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Returns the error of a value that does not fit the format.
    pub(crate) fn unwritable(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Unwritable {
            path: path.as_ref().to_owned(),
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_an_exhausted_quota_differ_from_other_errors() {
        let of = |errno: Errno| Error::io("write", Path::new("x"), errno);
        assert!(of(Errno::ENOSPC).is_disk_full());
        assert!(of(Errno::EDQUOT).is_disk_full());
        assert!(of(Errno::EFBIG).is_disk_full());
        assert!(!of(Errno::EIO).is_disk_full());
        assert!(!Error::unwritable("x", "y").is_disk_full());
    }
}
