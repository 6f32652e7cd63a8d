//! Names and directories: how an experiment is called, and how it is made safely.
//!
//! The writer often runs as root and the directory belongs to the user who asked for it, so that
//! user has to be taken for hostile: at any moment a name inside may become a link to somewhere
//! else. Hence nothing is opened by path. The directory is held by its descriptor from the moment
//! it is made, everything in it is created anew relative to that, never through a link and never
//! over what is there, and gets its owner through the descriptor. What is not held open, the
//! subexperiments, is opened again only if it is still what was made.
//!
//! The names follow er_kernel: the next number of a series is one more than the largest in use,
//! not the first gap.

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

mod place;
mod sub;

pub use place::PendingFile;
use place::{entries, make_dir, make_file, remove_content};
pub(crate) use sub::Identity;

/// How often a directory is tried under a new number when others take the numbers meanwhile.
const ATTEMPTS: u32 = 4095;
/// Ending of an experiment's name.
const SUFFIX: &str = ".er";

/// Text that is safe on a terminal, from bytes that anybody chose.
///
/// Printable UTF-8 stays. Control characters, newlines, DEL, invalid bytes and the invisible
/// characters that reorder or hide text become `\xHH`, byte by byte.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let hex = |out: &mut String, bytes: &[u8]| {
        for byte in bytes {
            out.push_str(&format!("\\x{byte:02X}"));
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || is_invisible(character) {
                hex(&mut out, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(character);
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

/// Characters that reorder text, join or split it without a trace, or break the line.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
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
    parent: OwnedFd,
    fd: OwnedFd,
    name: String,
    path: PathBuf,
    owner: Option<(u32, u32)>,
    /// `archives/`, once something is in it.
    archives: OnceLock<OwnedFd>,
    /// What a file is called until it is complete. One is pending at a time, and names of 255 bytes
    /// are too long for a suffix.
    temporary: &'static str,
}

impl ExperimentDir {
    /// Makes a new experiment directory in `parent`, which must exist.
    ///
    /// It has mode 0700 and belongs to `owner`, (uid, gid), or to the caller.
    ///
    /// # Errors
    ///
    /// A name without `.er` at its end or with nothing before it, a name in use without a series
    /// number, a parent that is no directory, and what the system refuses.
    pub fn create(
        parent: &Path,
        request: &NameRequest,
        owner: Option<(u32, u32)>,
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
        for _ in 0..ATTEMPTS {
            let candidate = match (name.take(), series) {
                (Some(name), _) => name,
                (None, Some((stem, number))) => {
                    let largest = largest_in_use(&parent_fd, stem)
                        .map_err(|errno| Error::io("list", parent, errno))?;
                    // A number that was tried and is not listed is not tried again.
                    tried = largest.max(tried).max(number).saturating_add(1);
                    numbered(stem, tried)
                }
                // A taken name outside of a series was refused below.
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
                temporary: ".incomplete",
            };
            return Ok((dir, renamed));
        }
        Err(Error::NoFreeName {
            stem: series.map_or("", |(stem, _)| stem).to_owned(),
            attempts: ATTEMPTS,
        })
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
        make_file(self.fd.as_fd(), name, &self.path.join(name), self.owner)
    }

    /// Makes a new directory in it, mode 0700, of the same owner.
    pub(crate) fn create_dir(&self, name: &str) -> Result<OwnedFd> {
        make_dir(self.fd.as_fd(), name, &self.path.join(name), self.owner)
    }

    /// Begins a file of this directory that appears under `name` once it is complete.
    pub(crate) fn pending(&self, name: &str) -> Result<PendingFile<'_>> {
        PendingFile::begin(
            self.fd.as_fd(),
            &self.path,
            name,
            self.temporary,
            self.owner,
        )
    }

    /// Stores a copy of a load object in `archives/`. That may come before all else: reports look
    /// there for whatever the maps name.
    ///
    /// # Errors
    ///
    /// What the system refuses; `archives/` then holds no part of it.
    pub fn archive(&self, load_object: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.archive_file(load_object)?;
        file.fill(bytes)?;
        file.commit()
    }

    /// Like [`ExperimentDir::archive`] for what is not in memory as a whole: write to the result,
    /// then commit it.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub fn archive_file(&self, load_object: &str) -> Result<PendingFile<'_>> {
        PendingFile::begin(
            self.archives()?.as_fd(),
            &self.path.join(ARCHIVES),
            &archive_name(load_object),
            self.temporary,
            self.owner,
        )
    }

    /// Another handle of the same directory, for a thread that fills `archives/` while this one
    /// writes the experiment. Both may have a file of `archives/` pending at the same time. There
    /// is one such handle at most.
    ///
    /// # Errors
    ///
    /// What the system refuses.
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
            temporary: ".incomplete-copy",
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

    /// Removes the directory with all that is in it. Follows no link.
    ///
    /// # Errors
    ///
    /// What the system refuses; and [`Error::Replaced`] if the name now means another directory,
    /// which is left alone. The content is gone then too.
    pub fn remove_all(self) -> Result<()> {
        let failed = |errno| Error::io("remove", &self.path, errno);
        remove_content(self.fd.as_fd(), 0).map_err(failed)?;
        let ours = fstat(&self.fd).map_err(failed)?;
        let named = fstatat(
            &self.parent,
            self.name.as_str(),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(failed)?;
        if Identity::from(&ours) != Identity::from(&named) {
            return Err(Error::Replaced { path: self.path });
        }
        // Should the name change its meaning just now, only another empty directory can go.
        unlinkat(&self.parent, self.name.as_str(), UnlinkatFlags::RemoveDir).map_err(failed)
    }
}

impl AsFd for ExperimentDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check_name(name: &str) -> Result<()> {
    let problem = match name.strip_suffix(SUFFIX) {
        None => "does not end in .er",
        Some("") => "has nothing before .er",
        Some(_) if name.contains('/') => "must not contain a /",
        Some(_) if name.contains('\0') => "must not contain a NUL character",
        Some(_) => return Ok(()),
    };
    Err(Error::BadName {
        name: printable(name.as_bytes()),
        problem,
    })
}

/// Stem and number of a name of the form `STEM.N.er`.
fn series_of(name: &str) -> Option<(&str, u64)> {
    let (stem, number) = name.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let number = number.parse().ok().filter(|n| *n < u64::MAX)?;
    (digits && !stem.is_empty()).then_some((stem, number))
}

fn numbered(stem: &str, number: u64) -> String {
    format!("{stem}.{number}{SUFFIX}")
}

/// The largest number that something in `parent` uses, 0 if none does.
fn largest_in_use(parent: &OwnedFd, stem: &str) -> nix::Result<u64> {
    let mut largest = 0;
    for entry in entries(parent.as_fd())? {
        let entry = entry.to_str().unwrap_or_default();
        match series_of(entry) {
            Some((of, number)) if of == stem => largest = largest.max(number),
            _ => {}
        }
    }
    Ok(largest)
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
    fn printable_text_stays_and_the_rest_is_spelled_out() {
        assert_eq!(printable("naïve ☂ 🦀 \"x\"".as_bytes()), "naïve ☂ 🦀 \"x\"");
        assert_eq!(
            printable(b"a\nb\x7f\xffc\t\0"),
            "a\\x0Ab\\x7F\\xFFc\\x09\\x00"
        );
        assert_eq!(
            printable("a\u{202e}b\u{200b}".as_bytes()),
            "a\\xE2\\x80\\xAEb\\xE2\\x80\\x8B"
        );
        assert_eq!(printable("\u{85}".as_bytes()), "\\xC2\\x85");
    }

    #[test]
    fn a_series_goes_on_after_its_largest_number() {
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
    fn a_taken_name_with_a_number_is_raised() {
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
        // A link that leads nowhere is in use too.
        symlink("/nowhere", tmp.path().join("bar.1.er")).unwrap();
        assert_eq!(
            create(tmp.path(), &exactly("bar.1.er")).unwrap().0,
            "bar.2.er"
        );
    }

    #[test]
    fn a_taken_name_without_a_number_is_an_error() {
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
        let (dir, _) = ExperimentDir::create(tmp.path(), &series(), Some((1234, 4321))).unwrap();
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
        // The name of the directory may come to mean something else: files go where it is.
        let moved = tmp.path().join("moved");
        std::fs::rename(dir.path(), &moved).unwrap();
        symlink(tmp.path(), dir.path()).unwrap();
        dir.create_file("profile").unwrap();
        assert!(moved.join("profile").exists());
        assert!(!tmp.path().join("profile").exists());
    }

    #[test]
    fn removal_takes_all_and_follows_nothing() {
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
    fn removal_leaves_a_directory_alone_that_took_the_name() {
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
