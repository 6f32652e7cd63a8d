//! Directories and files of subexperiments, which are closed between two visits.
//!
//! Thousands of processes may be followed at once, too many for a descriptor each. So a directory
//! and its files are opened again by name. Their owner may be hostile and can put anything under
//! these names. What is opened is therefore compared with what was made. Anything else is refused:
//! a link, another directory, a file that another user's process writes to.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::libc::{S_IFMT, S_IFREG};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::ExperimentDir;
use super::create::make_dir;
use super::name::check_name;
use crate::Result;
use crate::error::Error;
use crate::text::printable;

/// The name of a subexperiment's directory until its log begins. gprofng reports an error for a
/// subexperiment without a log, and a collector can be killed at any moment.
const INCOMPLETE_SUB: &str = ".incomplete-subexperiment";

/// The identity of a file or directory, independent of its name.
///
/// The inode number of a removed file may be used again for a new one. The owner is compared too:
/// it differs if another user's file was moved here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    owner: u32,
}

impl From<&FileStat> for Identity {
    fn from(stat: &FileStat) -> Self {
        Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
            owner: stat.st_uid,
        }
    }
}

impl Identity {
    /// Returns the identity of an open file; `path` is for the error.
    pub(crate) fn of(fd: impl AsFd, path: &Path) -> Result<Self> {
        let stat = fstat(fd).map_err(|errno| Error::io("examine", path, errno))?;
        Ok(Identity::from(&stat))
    }
}

impl ExperimentDir {
    /// Makes the directory of a subexperiment in this one: mode 0700, with the same owner. No
    /// reader finds it before [`ExperimentDir::appear`].
    ///
    /// # Errors
    ///
    /// A name that does not begin with `_` and end in `.er`, which no reader would find; a system
    /// error.
    pub(crate) fn create_sub(&self, name: &str) -> Result<ExperimentDir> {
        check_name(name)?;
        if !name.starts_with('_') {
            return Err(Error::BadName {
                name: printable(name.as_bytes()),
                problem: "does not begin with _",
            });
        }
        let (parent, path) = (self.descriptor()?, self.path.join(name));
        let fd = make_dir(self.fd.as_fd(), INCOMPLETE_SUB, &path, self.owner)?;
        let mut sub = self.sub(name, parent, fd);
        sub.name = INCOMPLETE_SUB.to_owned();
        Ok(sub)
    }

    /// Renames the directory of a subexperiment, which is not empty any more, to its name.
    ///
    /// # Errors
    ///
    /// [`Error::NameInUse`]; a system error.
    pub(crate) fn appear(&mut self, name: &str) -> Result<()> {
        // A directory can replace none but an empty directory, which no subexperiment is.
        match renameat(&self.parent, self.name.as_str(), &self.parent, name) {
            Ok(()) => {
                self.name = name.to_owned();
                Ok(())
            }
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => Err(Error::NameInUse {
                name: name.to_owned(),
            }),
            Err(errno) => Err(Error::io("create", &self.path, errno)),
        }
    }

    /// Opens a directory again that [`ExperimentDir::create_sub`] made.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] if it is another one now; a system error.
    pub(crate) fn open_sub(&self, name: &str, made: Identity) -> Result<ExperimentDir> {
        let flags = OFlag::O_DIRECTORY;
        let (fd, _) = open_made(self.fd.as_fd(), name, &self.path.join(name), flags, made)?;
        Ok(self.sub(name, self.descriptor()?, fd))
    }

    /// Opens a file again that [`ExperimentDir::create_file`] made, for writing.
    ///
    /// # Errors
    ///
    /// [`Error::Replaced`] if it is another one now or has a second name; a system error.
    pub(crate) fn open_file(&self, name: &str, made: Identity) -> Result<File> {
        let path = self.path.join(name);
        // Without O_NONBLOCK, opening a pipe in its place would wait for a reader.
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let (fd, stat) = open_made(self.fd.as_fd(), name, &path, flags, made)?;
        if stat.st_mode & S_IFMT != S_IFREG || stat.st_nlink != 1 {
            return Err(Error::Replaced { path });
        }
        Ok(File::from(fd))
    }

    /// Removes a name from the directory, whatever file it means now.
    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)
            .map_err(|errno| Error::io("remove", &self.path.join(name), errno))
    }

    /// Returns another descriptor of this directory.
    fn descriptor(&self) -> Result<OwnedFd> {
        let copy = self.fd.try_clone();
        copy.map_err(|error| Error::io("open directory", &self.path, error))
    }

    /// Returns the handle of a subexperiment whose directory is open.
    fn sub(&self, name: &str, parent: OwnedFd, fd: OwnedFd) -> ExperimentDir {
        ExperimentDir {
            parent,
            fd,
            name: name.to_owned(),
            path: self.path.join(name),
            owner: self.owner,
            archives: OnceLock::new(),
            temporary: self.temporary,
        }
    }
}

/// Opens `name` in `dir`, if it has the identity of what was made.
fn open_made(
    dir: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    flags: OFlag,
    made: Identity,
) -> Result<(OwnedFd, FileStat)> {
    let replaced = || Error::Replaced {
        path: path.to_owned(),
    };
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(dir, name, flags, Mode::empty()).map_err(|errno| match errno {
        // A link; a file for a directory or the reverse; a pipe without a reader, or a socket.
        Errno::ELOOP | Errno::ENOTDIR | Errno::EISDIR | Errno::ENXIO => replaced(),
        other => Error::io("open", path, other),
    })?;
    let stat = fstat(&fd).map_err(|errno| Error::io("examine", path, errno))?;
    if Identity::from(&stat) != made {
        return Err(replaced());
    }
    Ok((fd, stat))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::directory::NameRequest;

    #[test]
    fn a_subexperiment_appears_with_its_log() {
        let tmp = tempfile::tempdir().unwrap();
        let request = NameRequest::Exactly("k.er".to_owned());
        let (founder, _) = ExperimentDir::create(tmp.path(), &request, None).unwrap();
        let log = |name: &str| fs::read(founder.path().join(name).join("log.xml"));
        let mut first = founder.create_sub("_a.er").unwrap();
        first.create_file("log.xml").unwrap();
        assert!(log("_a.er").is_err());
        first.appear("_a.er").unwrap();
        assert!(log("_a.er").is_ok());
        fs::write(founder.path().join("_b.er"), "").unwrap();
        for used in ["_a.er", "_b.er"] {
            let mut second = founder.create_sub(used).unwrap();
            second.create_file("log.xml").unwrap();
            let refused = second.appear(used);
            assert!(matches!(refused, Err(Error::NameInUse { .. })), "{used}");
            second.remove_all().unwrap();
        }
        assert!(!founder.path().join(INCOMPLETE_SUB).exists());
        first.remove_all().unwrap();
        assert!(log("_a.er").is_err());
    }
}
