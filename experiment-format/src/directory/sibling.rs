//! Copies of load objects that other experiments in the same directory have: an experiment links
//! to them, so that a directory holds each once. A copy is gone when no experiment links to it.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc::{S_IFDIR, S_IFMT};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::linkat;

use super::ExperimentDir;
use super::create::{PendingFile, entries};
use super::name::SUFFIX;
use super::series::{PACKED, is_ours};
use crate::Result;
use crate::archive::{ARCHIVES, archive_name};
use kcollect_elf::section_build_id;

/// Max experiments that are searched for copies. Most objects are in the newest one.
const MAX_SIBLINGS: usize = 8;
/// Bytes that are compared at a time.
const COMPARED_BYTES: usize = 64 << 10;

/// The build that a copy has to be of.
#[derive(Debug)]
pub struct Build<'a> {
    /// The build id of the load object.
    pub id: &'a [u8],
    /// The bytes of its file.
    pub bytes: u64,
    /// When the file, or one that names were taken from, was last changed: seconds and nanoseconds.
    /// An older copy does not match.
    pub changed: (i64, i64),
}

/// Opens the `archives/` of an experiment.
pub(super) fn archives_in(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, ARCHIVES, flags, Mode::empty()).ok()
}

impl ExperimentDir {
    /// Returns the `archives/` of other experiments in the same directory, the newest first, 8 at
    /// most: of those that kcollect wrote and that belong to the same user. What can't be read is
    /// passed over.
    #[must_use]
    pub fn sibling_archives(&self) -> Vec<OwnedFd> {
        let Ok(owner) = fstat(&self.fd).map(|stat| stat.st_uid) else {
            return Vec::new();
        };
        let names = entries(self.parent.as_fd()).unwrap_or_default();
        let mut found = Vec::new();
        for name in names {
            let bytes = name.to_bytes();
            if !bytes.ends_with(SUFFIX.as_bytes()) || bytes == self.name.as_bytes() {
                continue;
            }
            let stat = fstatat(&self.parent, &*name, AtFlags::AT_SYMLINK_NOFOLLOW);
            if let Ok(stat) = stat
                && stat.st_mode & S_IFMT == S_IFDIR
                && stat.st_uid == owner
            {
                found.push(((stat.st_mtime, stat.st_mtime_nsec), name));
            }
        }
        found.sort();
        let archives = found.iter().rev().filter_map(|(_, name)| {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let dir = openat(&self.parent, &**name, flags, Mode::empty()).ok()?;
            let is_packed = fstatat(&dir, PACKED, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
            let archives = archives_in(dir.as_fd())?;
            (is_packed || is_ours(&dir)).then_some(archives)
        });
        archives.take(MAX_SIBLINGS).collect()
    }

    /// Archives a load object by a link to the copy that `from` has, one of
    /// [`ExperimentDir::sibling_archives`], if that belongs to the same user, is of the same build
    /// and has its instructions. Returns whether it is archived now.
    #[must_use]
    pub fn link_same_build(
        &self,
        from: BorrowedFd<'_>,
        load_object: &str,
        build: &Build<'_>,
    ) -> bool {
        let Some((file, metadata)) = self.copy_in(from, &archive_name(load_object)) else {
            return false;
        };
        let written = (metadata.mtime(), metadata.mtime_nsec());
        // A copy with only names is shorter.
        metadata.len() >= build.bytes
            && written > build.changed
            && *section_build_id(&file) == *build.id
            && self.link_archive(from, load_object).is_ok()
    }

    /// Gives a copy of a load object its name, or takes the same bytes that one of `others` has
    /// under that name, by a link.
    ///
    /// # Errors
    /// A system error.
    pub fn commit_or_link(&self, file: PendingFile<'_>, others: &[OwnedFd]) -> Result<()> {
        let linked = others.iter().any(|other| {
            let Some((found, metadata)) = self.copy_in(other.as_fd(), file.name()) else {
                return false;
            };
            has_same_bytes(file.file(), &found, metadata.len())
                && linkat(
                    other,
                    file.name(),
                    file.dir(),
                    file.name(),
                    AtFlags::empty(),
                )
                .is_ok()
        });
        if linked { Ok(()) } else { file.commit() }
    }

    /// Opens a regular file of this experiment's owner.
    fn copy_in(&self, archives: BorrowedFd<'_>, name: &str) -> Option<(File, Metadata)> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(archives, name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        let owner = fstat(&self.fd).ok()?.st_uid;
        (metadata.is_file() && metadata.uid() == owner).then_some((file, metadata))
    }
}

/// Returns whether a file has `length` bytes, the same ones as another.
fn has_same_bytes(file: &File, other: &File, length: u64) -> bool {
    if file.metadata().map_or(0, |metadata| metadata.len()) != length {
        return false;
    }
    let [mut ours, mut theirs] = [[0; COMPARED_BYTES]; 2];
    let mut at = 0;
    while at < length {
        let bytes = (length - at).min(COMPARED_BYTES as u64) as usize;
        let (ours, theirs) = (&mut ours[..bytes], &mut theirs[..bytes]);
        let read = file.read_exact_at(ours, at).is_ok() && other.read_exact_at(theirs, at).is_ok();
        if !read || ours != theirs {
            return false;
        }
        at += bytes as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::NameRequest;
    use super::*;

    const LOG: &str = "<experiment>\n<collector>kcollect 0.1.0</collector>\n";

    fn experiment(parent: &Path, name: &str, log: &str) -> ExperimentDir {
        let request = NameRequest::Exactly(name.to_owned());
        let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
        fs::write(dir.path().join("log.xml"), log).unwrap();
        dir
    }

    fn links(dir: &ExperimentDir, object: &str) -> u64 {
        let path = dir.path().join(ARCHIVES).join(archive_name(object));
        fs::metadata(path).map_or(0, |metadata| metadata.nlink())
    }

    #[test]
    fn sibling_copies_belong_to_the_same_user() {
        let tmp = tempfile::tempdir().unwrap();
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let other = experiment(tmp.path(), "a.1.er", LOG);
        other.archive("/lib/x", &program).unwrap();
        let foreign = experiment(tmp.path(), "b.1.er", "<collector>gprofng</collector>");
        foreign.archive("/lib/x", &program).unwrap();
        drop(experiment(tmp.path(), "without.er", LOG));
        symlink(other.path(), tmp.path().join("link.er")).unwrap();
        let ours = experiment(tmp.path(), "c.1.er", LOG);
        let siblings = ours.sibling_archives();
        assert_eq!(siblings.len(), 1);
        let siblings = siblings[0].as_fd();
        let id = section_build_id(File::open(std::env::current_exe().unwrap()).unwrap());
        let build = |id, bytes, seconds| Build {
            id,
            bytes,
            changed: (seconds, 0),
        };
        let length = program.len() as u64;
        for refused in [
            build(&b"other"[..], length, 0),
            build(&id, length + 1, 0),
            build(&id, length, i64::MAX),
        ] {
            assert!(!ours.link_same_build(siblings, "/lib/x", &refused));
        }
        let same = build(&id, length, 0);
        assert!(!ours.link_same_build(siblings, "/lib/y", &same));
        assert_eq!(links(&ours, "/lib/x"), 0);
        assert!(ours.link_same_build(siblings, "/lib/x", &same));
        assert_eq!((links(&ours, "/lib/x"), links(&other, "/lib/x")), (2, 2));
        // A symbolic link is not a copy.
        let archives = other.path().join(ARCHIVES);
        let program = std::env::current_exe().unwrap();
        symlink(program, archives.join(archive_name("/lib/z"))).unwrap();
        assert!(!ours.link_same_build(siblings, "/lib/z", &same));
    }

    #[test]
    fn equal_bytes_are_linked_and_others_are_not() {
        let tmp = tempfile::tempdir().unwrap();
        let other = experiment(tmp.path(), "a.1.er", LOG);
        let mut bytes = vec![7; 2 * COMPARED_BYTES + 1];
        other.archive("vmlinux", &bytes).unwrap();
        let write = |dir: &ExperimentDir, bytes: &[u8]| {
            let siblings = dir.sibling_archives();
            let mut file = dir.archive_file("vmlinux").unwrap();
            file.write_all(bytes).unwrap();
            dir.commit_or_link(file, &siblings).unwrap();
        };
        let same = experiment(tmp.path(), "b.1.er", LOG);
        write(&same, &bytes);
        assert_eq!(links(&same, "vmlinux"), 2);
        bytes[2 * COMPARED_BYTES] = 8;
        let different = experiment(tmp.path(), "c.1.er", LOG);
        write(&different, &bytes);
        assert_eq!(links(&different, "vmlinux"), 1);
        // No temporary file is left.
        for dir in [&same, &different] {
            assert_eq!(fs::read_dir(dir.path().join(ARCHIVES)).unwrap().count(), 1);
        }
    }
}
