//! Errors of the crate. Each names the file (and the offset in it) or the value that is at fault.
//!
//! One enum serves writer and reader: a caller asks it two things, what to print and whether the
//! disk is full ([`Error::is_disk_full`]), which ends a recording but not the experiment.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Why an experiment could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file or directory.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted, an infinitive: `create`, `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The wanted name is taken and has no series number that could be raised.
    #[error("name {name} is in use and cannot be updated")]
    NameInUse {
        /// The name as requested.
        name: String,
    },

    /// The wanted name cannot name an experiment.
    #[error("experiment name {name} {problem}")]
    BadName {
        /// The name as requested, made printable.
        name: String,
        /// What is wrong with it, as the rest of the sentence.
        problem: &'static str,
    },

    /// Other processes took every number that was tried.
    #[error("no free name {stem}.N.er found in {attempts} attempts")]
    NoFreeName {
        /// The series.
        stem: String,
        /// How many numbers were tried.
        attempts: u32,
    },

    /// Something else was put in the place of a directory or file that was made here.
    #[error("{} was replaced by something else", path.display())]
    Replaced {
        /// The directory or file.
        path: PathBuf,
    },

    /// A value that the format has no room for.
    #[error("{}: cannot express {what}", path.display())]
    Unwritable {
        /// The file it was meant for.
        path: PathBuf,
        /// The value and the limit that it breaks.
        what: String,
    },

    /// A file does not say what its format demands.
    #[error("{}: byte {offset}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes from the beginning.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

impl Error {
    /// Whether the cause is a full disk, an exhausted quota or the limit on the size of files.
    ///
    /// An experiment that meets this error can still be closed and is then valid.
    pub fn is_disk_full(&self) -> bool {
        let Error::Io { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error().map(Errno::from_raw);
        matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG))
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

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
    fn a_full_disk_and_a_spent_quota_are_told_from_other_errors() {
        let of = |errno: Errno| Error::io("write", Path::new("x"), errno);
        assert!(of(Errno::ENOSPC).is_disk_full());
        assert!(of(Errno::EDQUOT).is_disk_full());
        assert!(of(Errno::EFBIG).is_disk_full());
        assert!(!of(Errno::EIO).is_disk_full());
        assert!(!Error::unwritable("x", "y").is_disk_full());
    }
}
