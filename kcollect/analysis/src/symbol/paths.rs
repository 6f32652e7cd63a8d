//! Where files are looked for: load objects and sources, under the paths that were recorded and
//! under others.
//!
//! As gprofng does it (`pathmap`, `setpath`, `addpath`): first the copy in the experiment; then the
//! path with its beginning replaced; then the last part of the path in the search directories; then
//! the path itself, unless a replacement applied to it.
//!
//! Nothing is fetched over the network: debuginfod is not asked, even where `DEBUGINFOD_URLS` is
//! set, because a report must not tell a server which programs ran.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use experiment_format::archive::archive_name;

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPaths {
    /// The experiment's directory `archives/`.
    pub archives: Option<PathBuf>,
    /// Replaced beginnings of paths, in the order in which they are tried.
    pub maps: Vec<PathMap>,
    /// Directories in which a file is looked for by the last part of its path.
    pub directories: Vec<PathBuf>,
    /// Directories that stand for `/`, with the files and with `usr/lib/debug` in them.
    pub roots: Vec<PathBuf>,
}

impl SearchPaths {
    /// The experiment and this machine, without replacements.
    #[must_use]
    pub fn new(archives: Option<PathBuf>) -> SearchPaths {
        SearchPaths {
            archives,
            maps: Vec::new(),
            directories: Vec::new(),
            roots: vec!["/".into()],
        }
    }

    /// The copy of a load object or source in the experiment.
    pub(super) fn archived(&self, name: &str) -> Option<PathBuf> {
        let archives = self.archives.as_ref()?;
        Some(archives.join(archive_name(name)))
    }

    /// Where the file of this path may be on this machine, in order. A relative path is one of the
    /// working directory.
    pub(super) fn candidates(&self, path: &Path) -> Vec<PathBuf> {
        let mut mapped = false;
        let mut found = Vec::new();
        for map in &self.maps {
            if let Ok(rest) = path.strip_prefix(&map.old) {
                mapped = true;
                found.push(map.new.join(rest));
            }
        }
        if let Some(base) = path.file_name() {
            found.extend(
                self.directories
                    .iter()
                    .map(|directory| directory.join(base)),
            );
        }
        if !mapped {
            match path.strip_prefix("/") {
                Ok(rest) => found.extend(self.roots.iter().map(|root| root.join(rest))),
                Err(_) => found.push(path.to_owned()),
            }
        }
        found
    }

    /// Where the source file of this path may be, in order, and which of these is the experiment's
    /// copy.
    #[must_use]
    pub fn source_places(&self, recorded: &str) -> Vec<(PathBuf, bool)> {
        let archived = self.archived(recorded).map(|path| (path, true));
        let here = self.candidates(Path::new(recorded));
        let here = here.into_iter().map(|path| (path, false));
        archived.into_iter().chain(here).collect()
    }

    /// Finds a source file by its path as the line table has it.
    #[must_use]
    pub fn source(&self, recorded: &str) -> Option<SourceFile> {
        self.source_places(recorded)
            .into_iter()
            .find_map(|(path, archived)| {
                let file = open_regular(&path)?;
                Some(SourceFile {
                    file,
                    path,
                    archived,
                })
            })
    }
}

/// `OLD=NEW`: paths that begin with the directory OLD are looked for below NEW.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMap {
    /// The directory as it was recorded.
    pub old: PathBuf,
    /// The one in its place.
    pub new: PathBuf,
}

/// It is not of the form OLD=NEW.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form OLD=NEW, such as /build/src=/home/me/src")]
pub struct NotAPathMap(String);

impl FromStr for PathMap {
    type Err = NotAPathMap;

    fn from_str(text: &str) -> Result<PathMap, NotAPathMap> {
        match text.split_once('=') {
            Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok(PathMap {
                old: old.into(),
                new: new.into(),
            }),
            _ => Err(NotAPathMap(text.to_owned())),
        }
    }
}

/// A source file that was found, open.
#[derive(Debug)]
pub struct SourceFile {
    /// The file. It is a regular one, of any size and content.
    pub file: File,
    /// Where it was found.
    pub path: PathBuf,
    /// Is it the copy of the experiment, and so the text that was compiled when it was recorded? A
    /// file of this machine may have been changed since; its time of modification tells.
    pub archived: bool,
}

/// Opens a file, without waiting for whoever writes to a pipe of that name.
pub(super) fn open_regular(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn paths(found: &[&str]) -> Vec<PathBuf> {
        found.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn files_are_looked_for_as_gprofng_does() {
        let mut search = SearchPaths::new(None);
        let path = Path::new("/build/a/x.c");
        assert_eq!(search.candidates(path), paths(&["/build/a/x.c"]));
        search.maps = vec![
            "/build=/src".parse().unwrap(),
            "/build/a=b".parse().unwrap(),
        ];
        search.directories = paths(&["here"]);
        let found = ["/src/a/x.c", "b/x.c", "here/x.c"];
        assert_eq!(search.candidates(path), paths(&found));
        // A beginning is one of whole names.
        let other = Path::new("/builder/x.c");
        assert_eq!(
            search.candidates(other),
            paths(&["here/x.c", "/builder/x.c"])
        );
        search.roots = paths(&["/", "/sysroot"]);
        let found = ["here/x.c", "/builder/x.c", "/sysroot/builder/x.c"];
        assert_eq!(search.candidates(other), paths(&found));
        assert_eq!(
            search.candidates(Path::new("x.c")),
            paths(&["here/x.c", "x.c"])
        );
        for wrong in ["", "/a", "=", "/a=", "=/b"] {
            assert!(wrong.parse::<PathMap>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_experiments_copy_of_a_source_comes_first() {
        let directory = tempfile::tempdir().unwrap();
        let archives = directory.path().join("archives");
        fs::create_dir(&archives).unwrap();
        let source = directory.path().join("x.c");
        fs::write(&source, "new").unwrap();
        let name = source.to_str().unwrap();
        let search = SearchPaths::new(Some(archives.clone()));
        let found = search.source(name).unwrap();
        assert_eq!((found.path, found.archived), (source.clone(), false));
        let copy = archives.join(archive_name(name));
        fs::write(&copy, "old").unwrap();
        let found = search.source(name).unwrap();
        assert_eq!((found.path, found.archived), (copy, true));
        assert!(search.source("/dev/null").is_none());
        assert!(search.source("/no/such/file.c").is_none());
    }
}
