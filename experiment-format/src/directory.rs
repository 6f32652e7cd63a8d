//! The directory of an experiment: how it is made, filled and removed safely.
//!
//! The writer often runs as root and the directory belongs to the user who asked for it. That user
//! may be hostile: at any moment a name inside may become a link to somewhere else. Hence nothing
//! is opened by path. The directory's descriptor is held from its creation on. Each file is
//! created relative to it, never through a link and never over an existing file, and gets its owner
//! through its descriptor (`create`). Subexperiments are not held open; each is opened again only
//! if it is still what was made (`reopen`).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::Result;
use crate::archive::{ARCHIVES, archive_name};
use crate::error::Error;

mod create;
mod disk_usage;
mod name;
mod reopen;
mod series;
mod sibling;
mod state;

pub use create::PendingFile;
pub(crate) use create::entries;
use create::{make_dir, make_file, remove_content};
pub(crate) use disk_usage::MAX_DEPTH;
pub use disk_usage::{DiskUsage, disk_usage_of, free_bytes};
pub use name::{NameRequest, Renamed};
use name::{SUFFIX, check_name, largest_in_use, numbered, series_of};
pub(crate) use reopen::Identity;
pub use series::{OlderExperiment, TO_BE_PACKED};
pub(crate) use series::{PACKED, note_use};
pub use sibling::Build;
use sibling::archives_in;
pub use state::DirectoryState;
pub use types::Owner;

/// Prefix of the names of files and directories that are not complete yet. Readers ignore them.
pub(crate) const INCOMPLETE: &str = ".incomplete";
/// The temporary name of files of [`ExperimentDir::for_archiver`].
const INCOMPLETE_COPY: &str = ".incomplete-copy";
/// Max numbers that are tried while other processes take them.
const MAX_NAME_ATTEMPTS: u32 = 4095;

/// The directory of an experiment that is being written.
#[derive(Debug)]
pub struct ExperimentDir {
    parent: OwnedFd,
    fd: OwnedFd,
    name: String,
    path: PathBuf,
    owner: Option<Owner>,
    /// `archives/`, once something is in it.
    archives: OnceLock<OwnedFd>,
    /// The name of a file until it is complete. It is the same for all files, since only one is
    /// pending at a time and a name of 255 bytes has no space for a suffix.
    temporary: &'static str,
}

impl ExperimentDir {
    /// Makes a new experiment directory in `parent`, which must exist.
    ///
    /// It has mode 0700 and belongs to `owner`, or to the caller.
    ///
    /// # Errors
    ///
    /// A name without `.er` at its end or with nothing before it; a name in use that has no series
    /// number; a parent that is no directory; a system error.
    pub fn create(
        parent: &Path,
        request: &NameRequest,
        owner: Option<Owner>,
    ) -> Result<(ExperimentDir, Option<Renamed>)> {
        let (mut name, series) = match request {
            NameRequest::Series { stem } => (None, Some((stem.as_str(), 0))),
            NameRequest::Exactly(name) => (Some(name.clone()), series_of(name)),
        };
        match request {
            NameRequest::Series { stem } if stem.is_empty() => check_name(SUFFIX)?,
            NameRequest::Series { stem } => check_name(&numbered(stem, 1))?,
            NameRequest::Exactly(name) => check_name(name)?,
        }
        let directory = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let parent_fd = nix::fcntl::open(parent, directory, Mode::empty())
            .map_err(|errno| Error::io("open directory", parent, errno))?;

        let mut tried = 0;
        for _ in 0..MAX_NAME_ATTEMPTS {
            let candidate = match (name.take(), series) {
                (Some(name), _) => name,
                (None, Some((stem, number))) => {
                    let largest = largest_in_use(&parent_fd, stem)
                        .map_err(|errno| Error::io("list", parent, errno))?;
                    // A number that was tried is not tried again, even if it is not listed.
                    tried = largest.max(tried).max(number).saturating_add(1);
                    numbered(stem, tried)
                }
                // A name in use that is not of a series was refused below.
                (None, None) => break,
            };
            let path = parent.join(&candidate);
            let fd = match make_dir(parent_fd.as_fd(), &candidate, &path, owner) {
                Ok(fd) => fd,
                Err(Error::Io { source, .. })
                    if source.raw_os_error() == Some(Errno::EEXIST as i32) =>
                {
                    if series.is_none() {
                        return Err(Error::NameInUse { name: candidate });
                    }
                    continue;
                }
                Err(other) => return Err(other),
            };
            note_use(fd.as_fd());
            let renamed = match request {
                NameRequest::Exactly(wanted) if *wanted != candidate => Some(Renamed {
                    wanted: wanted.clone(),
                    used: candidate.clone(),
                }),
                _ => None,
            };
            let dir = ExperimentDir {
                parent: parent_fd,
                fd,
                name: candidate,
                path,
                owner,
                archives: OnceLock::new(),
                temporary: INCOMPLETE,
            };
            return Ok((dir, renamed));
        }
        Err(Error::NoFreeName {
            stem: series.map_or("", |(stem, _)| stem).to_owned(),
            attempts: MAX_NAME_ATTEMPTS,
        })
    }

    /// Returns its name, for instance `ktest.1.er`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its path: the parent as given, and the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new file in it, mode 0600, with the directory's owner. Never opens an existing file.
    pub fn create_file(&self, name: &str) -> Result<File> {
        make_file(self.fd.as_fd(), name, &self.path.join(name), self.owner)
    }

    /// Makes a new directory in it, mode 0700, with the same owner.
    pub(crate) fn create_dir(&self, name: &str) -> Result<OwnedFd> {
        make_dir(self.fd.as_fd(), name, &self.path.join(name), self.owner)
    }

    /// Begins a file that appears under `name` once it is complete.
    pub(crate) fn pending(&self, name: &str) -> Result<PendingFile<'_>> {
        PendingFile::begin(
            self.fd.as_fd(),
            &self.path,
            name,
            self.temporary,
            self.owner,
        )
    }

    /// Stores a copy of a load object in `archives/`, where reports look for the load objects that
    /// the maps name. The copy may be stored before the map.
    ///
    /// # Errors
    ///
    /// A system error; `archives/` then holds no part of it.
    pub fn archive(&self, load_object: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.archive_file(load_object)?;
        file.fill(bytes)?;
        file.commit()
    }

    /// Begins a copy of a load object that is not in memory as a whole: write to the result, then
    /// commit it.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn archive_file(&self, load_object: &str) -> Result<PendingFile<'_>> {
        PendingFile::begin(
            self.archives()?.as_fd(),
            &self.path.join(ARCHIVES),
            &archive_name(load_object),
            self.temporary,
            self.owner,
        )
    }

    /// Archives a load object as another experiment has it archived: by a link to the same file.
    /// `from` is of [`ExperimentDir::archives_of`].
    ///
    /// # Errors
    ///
    /// It is not archived there, or it is here already; a system error.
    pub fn link_archive(&self, from: BorrowedFd<'_>, load_object: &str) -> Result<()> {
        let name = archive_name(load_object);
        nix::unistd::linkat(from, &*name, self.archives()?, &*name, AtFlags::empty())
            .map_err(|errno| Error::io("link", &self.path.join(ARCHIVES).join(&name), errno))
    }

    /// Returns a descriptor of `archives/`. It does not count as a use of the experiment.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn archives_of(&self) -> Result<OwnedFd> {
        let copy = self.archives()?.try_clone();
        copy.map_err(|error| Error::io("open", &self.path.join(ARCHIVES), error))
    }

    /// Returns another handle of the same directory, for a thread that fills `archives/` while this
    /// one writes the experiment. Both may have a file of `archives/` pending at the same time.
    /// Make one such handle at most.
    ///
    /// # Errors
    ///
    /// A system error.
    pub fn for_archiver(&self) -> Result<ExperimentDir> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| Error::io("open", &self.path, error))
        };
        Ok(ExperimentDir {
            parent: copy(&self.parent)?,
            fd: copy(&self.fd)?,
            name: self.name.clone(),
            path: self.path.clone(),
            owner: self.owner,
            archives: OnceLock::from(copy(self.archives()?)?),
            temporary: INCOMPLETE_COPY,
        })
    }

    fn archives(&self) -> Result<&OwnedFd> {
        match self.archives.get() {
            Some(archives) => Ok(archives),
            None => {
                let made = self.create_dir(ARCHIVES)?;
                Ok(self.archives.get_or_init(|| made))
            }
        }
    }

    /// Removes the directory with its content. Follows no link.
    ///
    /// # Errors
    ///
    /// A system error; and [`Error::Replaced`] if the name now means another directory, which is
    /// left alone. The content of this one is removed in that case too.
    pub fn remove_all(&self) -> Result<()> {
        let failed = |errno| Error::io("remove", &self.path, errno);
        // What is empty can be removed even if it could not be listed, for want of a descriptor.
        let emptied = remove_content(self.fd.as_fd(), &[], 0);
        let ours = fstat(&self.fd).map_err(failed)?;
        let named = fstatat(
            &self.parent,
            self.name.as_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(failed)?;
        if Identity::from(&ours) != Identity::from(&named) {
            let path = self.path.clone();
            return Err(Error::Replaced { path });
        }
        // If the name changes its meaning at this point, only another empty directory can be
        // removed.
        let removed = unlinkat(&self.parent, self.name.as_str(), UnlinkatFlags::RemoveDir);
        removed.map_err(|errno| failed(emptied.err().unwrap_or(errno)))
    }
}

impl ExperimentDir {
    /// Returns whether it has a file of this name.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes incomplete files of a process that ended early.
    pub(crate) fn remove_incomplete(&self) {
        let _ = unlinkat(&self.fd, INCOMPLETE, UnlinkatFlags::NoRemoveDir);
        if let Some(archives) = archives_in(self.fd.as_fd()) {
            for name in [INCOMPLETE, INCOMPLETE_COPY] {
                let _ = unlinkat(&archives, name, UnlinkatFlags::NoRemoveDir);
            }
        }
    }

    /// Removes its content, except entries named in `kept`. Follows no link.
    pub(crate) fn remove_all_but(&self, kept: &[&str]) -> Result<()> {
        remove_content(self.fd.as_fd(), kept, 0)
            .map_err(|errno| Error::io("remove files of", &self.path, errno))
    }
}

impl AsFd for ExperimentDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn exactly(name: &str) -> NameRequest {
        NameRequest::Exactly(name.to_owned())
    }

    fn series() -> NameRequest {
        NameRequest::Series {
            stem: "ktest".to_owned(),
        }
    }

    fn create(parent: &Path, request: &NameRequest) -> Result<(String, Option<Renamed>)> {
        ExperimentDir::create(parent, request, None).map(|(dir, renamed)| (dir.name, renamed))
    }

    #[test]
    fn a_series_continues_after_its_largest_number() {
        let tmp = tempfile::tempdir().unwrap();
        assert_eq!(
            create(tmp.path(), &series()).unwrap(),
            ("ktest.1.er".into(), None)
        );
        std::fs::create_dir(tmp.path().join("ktest.7.er")).unwrap();
        std::fs::create_dir(tmp.path().join("other.9.er")).unwrap();
        std::fs::create_dir(tmp.path().join("ktest.x.er")).unwrap();
        assert_eq!(
            create(tmp.path(), &series()).unwrap(),
            ("ktest.8.er".into(), None)
        );
    }

    #[test]
    fn a_name_in_use_with_a_number_gets_the_next_number() {
        let tmp = tempfile::tempdir().unwrap();
        let request = exactly("foo.3.er");
        assert_eq!(
            create(tmp.path(), &request).unwrap(),
            ("foo.3.er".into(), None)
        );
        let renamed = Renamed {
            wanted: "foo.3.er".into(),
            used: "foo.4.er".into(),
        };
        assert_eq!(
            create(tmp.path(), &request).unwrap(),
            ("foo.4.er".into(), Some(renamed))
        );
        // A dangling link is in use too.
        symlink("/nowhere", tmp.path().join("bar.1.er")).unwrap();
        assert_eq!(
            create(tmp.path(), &exactly("bar.1.er")).unwrap().0,
            "bar.2.er"
        );
    }

    #[test]
    fn a_name_in_use_without_a_number_is_an_error() {
        let tmp = tempfile::tempdir().unwrap();
        for name in ["foo.er", "123.er", "foo123.er", "foo..er", ".5.er"] {
            assert_eq!(create(tmp.path(), &exactly(name)).unwrap().0, name);
            assert_eq!(
                create(tmp.path(), &exactly(name)).unwrap_err().to_string(),
                format!("name {name} is in use and cannot be updated")
            );
        }
    }

    #[test]
    fn names_must_end_in_er_and_stay_in_the_directory() {
        let tmp = tempfile::tempdir().unwrap();
        for name in ["foo", "foo.er.x", ".er", "", "a/b.er", "a\0.er", "foo.er/"] {
            let error = create(tmp.path(), &exactly(name)).unwrap_err();
            assert!(matches!(error, Error::BadName { .. }), "{name:?}: {error}");
        }
        for stem in ["../x", ""] {
            let stem = NameRequest::Series { stem: stem.into() };
            let error = create(tmp.path(), &stem).unwrap_err();
            assert!(matches!(error, Error::BadName { .. }), "{error}");
        }
    }

    #[test]
    fn a_missing_parent_is_named() {
        let error = create(Path::new("/nonexistent/x"), &series()).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x"), "{error}");
    }

    #[test]
    fn directory_and_files_are_private() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), None).unwrap();
        dir.create_file("log.xml").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(dir.path()), 0o700);
        assert_eq!(mode(&dir.path().join("log.xml")), 0o600);
    }

    #[test]
    fn root_everything_belongs_to_the_owner() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, _) = ExperimentDir::create(
            tmp.path(),
            &series(),
            Some(Owner {
                uid: 1234,
                gid: 4321,
            }),
        )
        .unwrap();
        dir.create_file("log.xml").unwrap();
        dir.archive("x", b"").unwrap();
        let copy = format!("{ARCHIVES}/{}", archive_name("x"));
        for name in ["", "log.xml", ARCHIVES, &copy] {
            let stat = std::fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!((stat.uid(), stat.gid()), (1234, 4321), "{name}");
        }
    }

    #[test]
    fn nothing_is_created_through_a_link_or_over_a_file() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), None).unwrap();
        let target = tmp.path().join("target");
        symlink(&target, dir.path().join("log.xml")).unwrap();
        symlink(tmp.path(), dir.path().join("archives")).unwrap();
        assert!(dir.create_file("log.xml").is_err());
        assert!(dir.create_dir("archives").is_err());
        assert!(!target.exists());
        // If the name comes to mean another directory, files still go to this one.
        let moved = tmp.path().join("moved");
        std::fs::rename(dir.path(), &moved).unwrap();
        symlink(tmp.path(), dir.path()).unwrap();
        dir.create_file("profile").unwrap();
        assert!(moved.join("profile").exists());
        assert!(!tmp.path().join("profile").exists());
    }

    #[test]
    fn removal_removes_the_content_and_follows_no_link() {
        let tmp = tempfile::tempdir().unwrap();
        let outside = tmp.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), None).unwrap();
        dir.create_file("log.xml").unwrap();
        dir.archive("x", b"").unwrap();
        symlink(&outside, dir.path().join("link")).unwrap();
        let path = dir.path().to_owned();
        dir.remove_all().unwrap();
        assert!(!path.exists());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn removal_leaves_another_directory_of_the_same_name_alone() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), None).unwrap();
        let path = dir.path().to_owned();
        std::fs::rename(&path, tmp.path().join("moved")).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(dir.remove_all(), Err(Error::Replaced { .. })));
        assert!(path.exists());
    }

    #[test]
    fn a_pending_file_appears_whole_or_not_at_all() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), None).unwrap();
        let path = dir.path().join("kcollect.json");
        let mut file = dir.pending("kcollect.json").unwrap();
        file.fill(b"{}").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        for content in ["1", "22"] {
            let mut file = dir.pending("kcollect.json").unwrap();
            file.fill(content.as_bytes()).unwrap();
            file.commit().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
