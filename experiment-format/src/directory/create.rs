//! Makes and removes directories and files, by the descriptor of their parent, never through links.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, geteuid, unlinkat};

use super::Owner;
use crate::Result;
use crate::error::Error;

/// A file that gets its name by [`PendingFile::commit`] once it is complete. If it is dropped
/// before, nothing is left of it.
#[derive(Debug)]
pub struct PendingFile<'a> {
    dir: BorrowedFd<'a>,
    file: File,
    path: PathBuf,
    temporary: &'static str,
    name: String,
    committed: bool,
}

impl<'a> PendingFile<'a> {
    /// Makes the file under its temporary name.
    pub(super) fn begin(
        dir: BorrowedFd<'a>,
        dir_path: &Path,
        name: &str,
        temporary: &'static str,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let path = dir_path.join(name);
        let file = make_file(dir, temporary, &path, owner)?;
        Ok(PendingFile {
            dir,
            file,
            path,
            temporary,
            name: name.to_owned(),
            committed: false,
        })
    }

    /// Renames the complete file to its name. A file that has the name already is replaced.
    pub fn commit(mut self) -> Result<()> {
        renameat(self.dir, self.temporary, self.dir, self.name.as_str())
            .map_err(|errno| Error::io("create", &self.path, errno))?;
        self.committed = true;
        Ok(())
    }

    /// Returns the file, whose position is its end.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the name that it will have.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory that it is in.
    pub(super) fn dir(&self) -> BorrowedFd<'a> {
        self.dir
    }

    /// Writes all of `bytes`.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|error| Error::io("write", &self.path, error))
    }
}

impl Write for PendingFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PendingFile<'_> {
    fn drop(&mut self) {
        if !self.committed {
            // If this fails, a hidden file is left over, which no reader looks at.
            let _ = unlinkat(self.dir, self.temporary, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Returns the names in a directory, without `.` and `..`.
pub(crate) fn entries(dir: BorrowedFd<'_>) -> nix::Result<Vec<CString>> {
    // A new descriptor, whose position is the beginning of the directory.
    let mut listing = Dir::openat(dir, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        let name: &CStr = entry.as_ref().map_err(|errno| *errno)?.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Creates a directory and opens it, unless another one took its place in between. If it cannot be
/// opened, for instance without a free descriptor, it is removed again.
pub(super) fn make_dir(
    parent: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    owner: Option<Owner>,
) -> Result<OwnedFd> {
    mkdirat(parent, name, Mode::S_IRWXU).map_err(|errno| Error::io("create", path, errno))?;
    let opened = open_new_dir(parent, name, path, owner);
    if matches!(opened, Err(Error::Io { .. })) {
        // The first error is the one to return.
        let _ = unlinkat(parent, name, UnlinkatFlags::RemoveDir);
    }
    opened
}

fn open_new_dir(
    parent: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    owner: Option<Owner>,
) -> Result<OwnedFd> {
    let failed = |errno| Error::io("create", path, errno);
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(parent, name, flags, Mode::empty()).map_err(failed)?;
    // Since it was made, the owner of the parent may have put another directory here. The new one
    // is empty and belongs to this process. Another one for which both hold may be used as well:
    // changing its owner discloses nothing.
    let stat = fstat(&fd).map_err(failed)?;
    if stat.st_uid != geteuid().as_raw() || !entries(fd.as_fd()).map_err(failed)?.is_empty() {
        return Err(Error::Replaced {
            path: path.to_owned(),
        });
    }
    fchmod(&fd, Mode::S_IRWXU).map_err(failed)?;
    set_owner(&fd, owner).map_err(failed)?;
    Ok(fd)
}

/// Makes a file, mode 0600. Fails if the name is in use, by a link too.
pub(super) fn make_file(
    dir: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    owner: Option<Owner>,
) -> Result<File> {
    let failed = |errno| Error::io("create", path, errno);
    let flags =
        OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
    set_owner(&fd, owner).map_err(failed)?;
    Ok(File::from(fd))
}

fn set_owner(fd: &OwnedFd, owner: Option<Owner>) -> nix::Result<()> {
    match owner {
        Some(Owner { uid, gid }) => fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
        None => Ok(()),
    }
}

/// Empties a directory, except entries named in `kept`. Directories in an experiment are nested
/// less deep than the limit here.
pub(super) fn remove_content(dir: BorrowedFd<'_>, kept: &[&str], depth: u32) -> nix::Result<()> {
    for name in entries(dir)? {
        let name = OsStr::from_bytes(name.to_bytes());
        if kept.iter().any(|kept| name == *kept) {
            continue;
        }
        match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) if depth < 3 => {
                let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let inner = openat(dir, name, flags, Mode::empty())?;
                remove_content(inner.as_fd(), &[], depth + 1)?;
                unlinkat(dir, name, UnlinkatFlags::RemoveDir)?;
            }
            // Its owner removed it first.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
