//! The disk usage of an experiment's files, and the space that is left for more.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::libc::{S_IFDIR, S_IFMT};
use nix::sys::stat::{FileStat, Mode, fstatat, stat};
use nix::sys::statvfs::statvfs;

use super::create::entries;
use crate::Result;
use crate::error::Error;

/// The directories of an experiment are no deeper than this: a subexperiment, and `archives/`.
pub(crate) const MAX_DEPTH: u32 = 3;
/// A block of `stat(2)`, bytes.
const BLOCK_BYTES: u64 = 512;

/// Disk usage of files, bytes, by device and inode: experiments may share files.
pub type DiskUsage = HashMap<(u64, u64), u64>;

/// The disk usage of the files in an experiment's directory, or of the file that it is packed into;
/// empty if there is no such directory. Links are counted themselves and not followed. What
/// disappears meanwhile is skipped.
///
/// # Errors
/// A directory can't be read.
pub fn disk_usage_of(path: &Path) -> io::Result<DiskUsage> {
    match open(path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(dir) => Ok(disk_usage(dir.as_fd())?),
        Err(Errno::ENOENT) => Ok(DiskUsage::new()),
        Err(Errno::ENOTDIR) => {
            let stat = stat(path)?;
            Ok(DiskUsage::from([(
                (stat.st_dev, stat.st_ino),
                usage_of_file(&stat),
            )]))
        }
        Err(other) => Err(other.into()),
    }
}

/// Returns the bytes that are free where `directory` is.
///
/// # Errors
/// A system error.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let stat = statvfs(directory).map_err(|errno| Error::io("examine", directory, errno))?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

pub(super) fn disk_usage(dir: BorrowedFd<'_>) -> nix::Result<DiskUsage> {
    let mut files = DiskUsage::new();
    add_files(dir, 0, &mut files)?;
    Ok(files)
}

fn usage_of_file(stat: &FileStat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    blocks.saturating_mul(BLOCK_BYTES)
}

fn add_files(dir: BorrowedFd<'_>, depth: u32, files: &mut DiskUsage) -> nix::Result<()> {
    for name in entries(dir)? {
        let stat = match fstatat(dir, &*name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => continue,
            Err(other) => return Err(other),
        };
        files.insert((stat.st_dev, stat.st_ino), usage_of_file(&stat));
        if stat.st_mode & S_IFMT == S_IFDIR && depth < MAX_DEPTH {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            match openat(dir, &*name, flags, Mode::empty()) {
                Ok(inner) => add_files(inner.as_fd(), depth + 1, files)?,
                // It is gone, or something else has its name now.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn linked_files_count_once_and_links_are_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir_all(a.join("archives")).unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(a.join("archives/f"), vec![1; 100_000]).unwrap();
        fs::hard_link(a.join("archives/f"), b.join("f")).unwrap();
        std::os::unix::fs::symlink("/usr", b.join("link")).unwrap();
        let mut files = disk_usage_of(&a).unwrap();
        files.extend(disk_usage_of(&b).unwrap());
        let disk_usage: u64 = files.values().sum();
        assert!((100_000..150_000).contains(&disk_usage), "{disk_usage}");
        assert_eq!(
            disk_usage_of(&tmp.path().join("none")).unwrap(),
            DiskUsage::new()
        );
    }
}
