//! A process's directory in `/proc`, held open.
//!
//! All that is read through it is of one process. Once that has exited and was waited for, reading
//! fails, whichever process has its number by then.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use experiment_format::ids::Pid;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;

/// The flags with which a directory is held.
const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);
/// The size of most files there is below this, so that one call reads all of them.
const READ_BYTES: usize = 4096;

/// A process's directory in `/proc`.
#[derive(Debug)]
pub struct ProcDir {
    pid: Pid,
    fd: OwnedFd,
}

impl ProcDir {
    /// Opens that of the process which has a number now.
    ///
    /// # Errors
    /// There is none, or too many files are open.
    pub fn open(pid: Pid) -> io::Result<ProcDir> {
        let path = format!("/proc/{pid}");
        ProcDir::at(Path::new(&path), pid)
    }

    /// Opens a directory with such files.
    pub(super) fn at(path: &Path, pid: Pid) -> io::Result<ProcDir> {
        let fd = open(path, DIRECTORY, Mode::empty())?;
        Ok(ProcDir { pid, fd })
    }

    /// Returns a second descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<ProcDir> {
        let (pid, fd) = (self.pid, self.fd.try_clone()?);
        Ok(ProcDir { pid, fd })
    }

    /// Returns the number of the process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Holds a directory in it, such as `root`, without opening it.
    pub(crate) fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(openat(&self.fd, name, DIRECTORY, Mode::empty())?)
    }

    /// Opens a file in it.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(openat(&self.fd, name, flags, Mode::empty())?.into())
    }

    /// Returns the beginning of a file, `most` bytes of it, and whether there is more. What was
    /// read before an error is returned.
    pub(crate) fn read(&self, name: &str, most: usize) -> io::Result<(Vec<u8>, bool)> {
        let mut bytes = Vec::with_capacity(READ_BYTES);
        let file = self.file(name)?.take(most as u64 + 1);
        let result = { file }.read_to_end(&mut bytes);
        if bytes.is_empty() {
            result?;
        }
        let cut = bytes.len() > most;
        bytes.truncate(most);
        Ok((bytes, cut))
    }

    /// Returns what a link in it refers to.
    pub(crate) fn link(&self, name: &str) -> io::Result<OsString> {
        Ok(readlinkat(&self.fd, name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_a_process_that_lives() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let dir = ProcDir::open(Pid(child.id())).unwrap();
        let (stat, cut) = dir.read("stat", 10_000).unwrap();
        assert!(stat.starts_with(format!("{} (", child.id()).as_bytes()) && !cut);
        assert_eq!(dir.read("stat", 3).unwrap(), (stat[..3].to_vec(), true));
        let opened = dir.file("stat").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(dir.read("stat", 100).is_err() && dir.link("exe").is_err());
        assert!({ opened }.read(&mut [0; 10]).is_err());
        assert!(ProcDir::open(Pid(child.id())).is_err());
    }
}
