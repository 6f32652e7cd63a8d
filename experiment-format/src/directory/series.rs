//! The earlier experiments of a series, `STEM.N.er`: their list, their disk usage, and their
//! removal.
//!
//! Whatever writes or reads an experiment holds a shared lock on its directory (`flock(2)`). One
//! that is in use is not removed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc::{S_IFMT, S_IFREG};
use nix::sys::stat::{Mode, fstat, fstatat};

use super::ExperimentDir;
use super::create::entries;
use super::disk_usage::{DiskUsage, disk_usage};
use super::name::series_of;
use super::sibling::archives_in;
use crate::Result;
use crate::archive::ARCHIVES;
use crate::error::Error;

/// The name of the file into which an experiment's directory is packed, except its `archives/`.
pub(crate) const PACKED: &str = "kcollect.tar.zst";
const LOG: &str = "log.xml";
/// How the element of a log begins that says that the experiment is packed when it is complete.
pub const TO_BE_PACKED: &str = "<process pack=\"1\"";
/// The bytes of a log in which that is.
const MAX_BEGINNING_BYTES: u64 = 64 << 10;

/// An experiment of a series.
#[derive(Debug)]
pub struct OlderExperiment {
    dir: ExperimentDir,
    number: u64,
    /// The time at which its log was last written.
    pub written: SystemTime,
    /// The disk usage of its files.
    pub files: DiskUsage,
    /// Whether it still has to be packed, or the original files of a packed one have to be removed.
    pub is_to_be_packed: bool,
}

impl OlderExperiment {
    /// Returns its name, for instance `ktest.1.er`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.dir.name()
    }

    /// Returns its number in the series.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn dir(&self) -> &ExperimentDir {
        &self.dir
    }

    /// Locks it if it is neither written nor read. Returns whether it is locked; then only this
    /// uses it, until this is dropped or [shared](OlderExperiment::share).
    pub(crate) fn is_alone(&self) -> bool {
        same_file(self.dir.as_fd())
            .and_then(|dir| Ok(dir.try_lock()?))
            .is_ok()
    }

    /// Notes that it is in use, and lets others use it too.
    pub(crate) fn share(&self) {
        note_use(self.dir.as_fd());
    }

    /// Returns whether its directory was removed since it was found.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        fstat(&self.dir.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Removes it, unless it is being written or read. Returns whether it is gone.
    ///
    /// # Errors
    /// A system error: a part of it may be left.
    pub fn remove(self) -> Result<bool> {
        if !self.is_alone() {
            return Ok(false);
        }
        self.dir.remove_all().map(|()| true)
    }
}

/// Notes that an experiment's directory is in use, as long as it is open. Not every file system has
/// locks: then nothing is noted.
pub(crate) fn note_use(dir: BorrowedFd<'_>) {
    let _ = same_file(dir).and_then(|dir| Ok(dir.try_lock_shared()?));
}

/// Returns another descriptor of an open directory. A lock belongs to what is open, and so stays
/// until both are closed.
fn same_file(dir: BorrowedFd<'_>) -> io::Result<File> {
    dir.try_clone_to_owned().map(File::from)
}

impl ExperimentDir {
    /// The experiments of the same series with smaller numbers, the oldest first: only experiments
    /// that have a log of kcollect's or that it packed, in a directory of the same owner. Empty if
    /// this one's name has no number.
    ///
    /// # Errors
    /// The directory can't be listed.
    pub fn older_experiments(&self) -> Result<Vec<OlderExperiment>> {
        let Some((stem, ours)) = series_of(&self.name) else {
            return Ok(Vec::new());
        };
        let list = |errno| Error::io("list", &self.path, errno);
        let owner = fstat(&self.fd).map_err(list)?.st_uid;
        let mut older_experiments = Vec::new();
        for entry in entries(self.parent.as_fd()).map_err(list)? {
            let name = entry.to_str().unwrap_or_default();
            match series_of(name) {
                Some((of, number)) if of == stem && number < ours => {
                    // What can't be opened is no experiment of ours.
                    older_experiments.extend(self.older(name, number, owner).ok().flatten());
                }
                _ => {}
            }
        }
        older_experiments.sort_by_key(|older| older.number);
        Ok(older_experiments)
    }

    fn older(&self, name: &str, number: u64, owner: u32) -> nix::Result<Option<OlderExperiment>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.parent, name, flags, Mode::empty())?;
        let file = |name| {
            let stat = fstatat(&fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok();
            stat.filter(|stat| stat.st_mode & S_IFMT == S_IFREG)
        };
        let packed = file(PACKED);
        let Some(main) = packed.or_else(|| file(LOG).filter(|_| is_ours(&fd))) else {
            return Ok(None);
        };
        if fstat(&fd)?.st_uid != owner {
            return Ok(None);
        }
        let files = disk_usage(fd.as_fd())?;
        let seconds = Duration::from_secs(main.st_mtime.try_into().unwrap_or(0));
        let is_to_be_packed = match packed {
            Some(_) => has_more_than_packed(fd.as_fd())?,
            None => log_has(&fd, TO_BE_PACKED, MAX_BEGINNING_BYTES),
        };
        let archives = archives_in(fd.as_fd());
        Ok(Some(OlderExperiment {
            is_to_be_packed,
            number,
            written: SystemTime::UNIX_EPOCH + seconds,
            files,
            dir: ExperimentDir {
                parent: self.parent.try_clone().map_err(|_| Errno::EMFILE)?,
                fd,
                name: name.to_owned(),
                path: self.path.parent().unwrap_or(Path::new("")).join(name),
                owner: self.owner,
                archives: archives.map_or_else(OnceLock::new, OnceLock::from),
                temporary: self.temporary,
            },
        }))
    }
}

/// Whether the log in a directory begins as kcollect's logs do.
pub(super) fn is_ours(dir: &OwnedFd) -> bool {
    log_has(dir, "<collector>kcollect ", 4096)
}

/// Whether a text is in the first bytes of the log in a directory. False if the log can't be read.
fn log_has(dir: &OwnedFd, text: &str, bytes: u64) -> bool {
    use std::io::Read as _;
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let Ok(log) = openat(dir, LOG, flags, Mode::empty()) else {
        return false;
    };
    let mut head = Vec::new();
    let _ = File::from(log).take(bytes).read_to_end(&mut head);
    String::from_utf8_lossy(&head).contains(text)
}

/// Returns whether there is more in a directory than the packed file and the copies of load
/// objects.
fn has_more_than_packed(dir: BorrowedFd<'_>) -> nix::Result<bool> {
    let kept = [ARCHIVES, PACKED].map(str::as_bytes);
    let mut names = entries(dir)?.into_iter();
    Ok(names.any(|name| !kept.contains(&name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::super::NameRequest;
    use super::*;

    fn experiment(parent: &Path, name: &str, log: &str) -> ExperimentDir {
        let request = NameRequest::Exactly(name.to_owned());
        let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
        fs::write(dir.path().join("log.xml"), log).unwrap();
        dir
    }

    const OURS: &str = "<experiment>\n<collector>kcollect 0.1.0</collector>\n";

    #[test]
    fn own_unused_experiments_of_the_series_are_found() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path();
        for name in ["k.1.er", "k.3.er", "other.1.er", "k.er"] {
            drop(experiment(path, name, OURS));
        }
        drop(experiment(path, "k.2.er", "<collector>gprofng</collector>"));
        std::os::unix::fs::symlink(path.join("other.1.er"), path.join("k.4.er")).unwrap();
        fs::write(path.join("k.5.er"), OURS).unwrap();
        fs::create_dir(path.join("k.1.er/archives")).unwrap();
        fs::write(path.join("k.1.er/archives/a"), vec![1; 100_000]).unwrap();
        fs::hard_link(path.join("k.1.er/archives/a"), path.join("k.3.er/a")).unwrap();
        let ours = experiment(path, "k.10.er", OURS);
        drop(experiment(path, "k.11.er", OURS));

        let older_experiments = ours.older_experiments().unwrap();
        let names: Vec<_> = older_experiments
            .iter()
            .map(OlderExperiment::name)
            .collect();
        assert_eq!(names, ["k.1.er", "k.3.er"]);
        let shared = |older: &OlderExperiment| {
            older
                .files
                .values()
                .any(|disk_usage| *disk_usage >= 100_000)
        };
        assert!(older_experiments.iter().all(shared));
        let all: HashMap<_, _> = older_experiments
            .iter()
            .flat_map(|older| &older.files)
            .collect();
        assert!(all.values().map(|disk_usage| **disk_usage).sum::<u64>() < 200_000);

        assert!(!older_experiments[0].is_removed());
        let again = ours.older_experiments().unwrap();
        let read = File::open(path.join("k.3.er")).unwrap();
        note_use(read.as_fd());
        let gone: Vec<_> = older_experiments
            .into_iter()
            .map(|older| older.remove().unwrap())
            .collect();
        assert_eq!(gone, [true, false]);
        let removed: Vec<_> = again.iter().map(OlderExperiment::is_removed).collect();
        assert_eq!(removed, [true, false]);
        assert!(!path.join("k.1.er").exists() && path.join("k.3.er").exists());
        drop(read);
        let left = ours.older_experiments().unwrap().pop().unwrap();
        assert!(left.remove().unwrap());
        assert!(ours.older_experiments().unwrap().is_empty());
    }
}
