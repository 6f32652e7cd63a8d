//! Names and directories: how an experiment is called, and how it is made safely.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::Result;

/// Text that is safe on a terminal, from bytes that anybody chose.
///
/// Printable UTF-8 stays. Control characters, newlines, DEL, invalid bytes and the invisible
/// characters that reorder or hide text become `\xHH`, byte by byte.
pub fn printable(bytes: &[u8]) -> String {
    let _ = bytes;
    todo!()
}

/// Which name an experiment shall have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameRequest {
    /// `STEM.N.er`, N one more than the largest in use.
    Series {
        /// For instance `ktest`.
        stem: String,
    },
    /// This name. If it is taken and has the form `STEM.N.er`, it becomes the next of its series;
    /// if it is taken and has not, that is an error.
    Exactly(String),
}

/// A name that was taken: to be told as `name {wanted} is in use; changed to {used}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The name as requested.
    pub wanted: String,
    /// The name that was used instead.
    pub used: String,
}

/// The directory of an experiment, new and ours.
#[derive(Debug)]
pub struct ExperimentDir {
    fd: OwnedFd,
    name: String,
    path: PathBuf,
}

impl ExperimentDir {
    /// Makes a new experiment directory in `parent`, which must exist.
    ///
    /// It has mode 0700 and belongs to `owner`, (uid, gid), or to the caller.
    pub fn create(
        parent: &Path,
        request: &NameRequest,
        owner: Option<(u32, u32)>,
    ) -> Result<(ExperimentDir, Option<Renamed>)> {
        let _ = (parent, request, owner);
        todo!()
    }

    /// Its name, for instance `ktest.1.er`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path: the parent as given, and the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new file in it, mode 0600, of the directory's owner. Never opens what is there.
    pub fn create_file(&self, name: &str) -> Result<File> {
        let _ = name;
        todo!()
    }

    /// Removes the directory with all that is in it. Follows no link.
    pub fn remove_all(self) -> Result<()> {
        todo!()
    }
}

impl AsFd for ExperimentDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
