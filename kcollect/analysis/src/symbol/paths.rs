//! The places where load objects and sources are looked for: below the recorded paths and others.
//!
//! The order is gprofng's (`pathmap`, `setpath`, `addpath`): the copy in the experiment; the path
//! with its prefix replaced; the last part of the path in the search directories; the path itself,
//! unless a replacement applied to it.
//!
//! What is in none of these places may be fetched: see [`DebuginfodClient`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use experiment_format::archive::archive_name;
use experiment_format::copies::open_copy;

use super::debuginfod::DebuginfodClient;
use super::regular_file::open_regular;

/// The places where files are looked for.
#[derive(Clone, Debug)]
pub struct SearchPaths {
    /// The experiment's directory `archives/`.
    pub archives: Option<PathBuf>,
    /// Replacements of path prefixes, in the order in which they are tried.
    pub maps: Vec<PathMap>,
    /// Directories searched for the last part of a path.
    pub directories: Vec<PathBuf>,
    /// Directories in place of `/`, with the files and `usr/lib/debug` in them.
    pub roots: Vec<PathBuf>,
    /// The client that fetches debug files and sources that are not found. None: nothing is
    /// fetched.
    pub debuginfod: Option<Arc<DebuginfodClient>>,
    /// Maximum bytes of debug information to read from a load object. None: as many as can be read.
    pub max_debug_bytes: Option<u64>,
}

impl SearchPaths {
    /// Returns the places in the experiment and on this machine, without replacements.
    #[must_use]
    pub fn new(archives: Option<PathBuf>) -> SearchPaths {
        SearchPaths {
            archives,
            maps: Vec::new(),
            directories: Vec::new(),
            roots: vec!["/".into()],
            debuginfod: None,
            max_debug_bytes: None,
        }
    }

    /// Returns the place of a load object's or source's copy in the experiment.
    fn archived(&self, name: &str) -> Option<PathBuf> {
        let archives = self.archives.as_ref()?;
        Some(archives.join(archive_name(name)))
    }

    /// Opens a load object's or source's copy in the experiment.
    pub(super) fn open_archived(&self, name: &str) -> Option<File> {
        open_copy(self.archives.as_ref()?, name).ok().flatten()
    }

    /// Returns where the file of a path may be on this machine, in order. A relative path is
    /// relative to the working directory.
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

    /// Returns where the source file of a path may be, in order, each with whether it is the
    /// experiment's copy.
    #[must_use]
    pub fn source_places(&self, recorded: &str) -> Vec<(PathBuf, bool)> {
        let archived = self.archived(recorded).map(|path| (path, true));
        let here = self.candidates(Path::new(recorded));
        let here = here.into_iter().map(|path| (path, false));
        archived.into_iter().chain(here).collect()
    }

    /// Opens a source file by its path in the line table of a load object with this build id.
    #[must_use]
    pub fn source(&self, recorded: &str, build_id: &[u8]) -> Option<SourceFile> {
        let mut places = self.source_places(recorded).into_iter();
        let found = places.find_map(|(path, archived)| {
            let file = if archived {
                self.open_archived(recorded)?
            } else {
                open_regular(&path)?
            };
            Some(SourceFile {
                file,
                path,
                as_compiled: archived,
            })
        });
        found.or_else(|| {
            let (file, path) = self.debuginfod.as_ref()?.source(build_id, recorded)?;
            Some(SourceFile {
                file,
                path,
                as_compiled: true,
            })
        })
    }
}

/// `OLD=NEW`: paths below the directory OLD are looked for below NEW.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMap {
    /// The recorded directory.
    pub old: PathBuf,
    /// The directory in its place.
    pub new: PathBuf,
}

/// The error of text that is not of the form OLD=NEW.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form OLD=NEW, as in /build/src=/home/me/src")]
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

/// An open source file.
#[derive(Debug)]
pub struct SourceFile {
    /// The file: a regular one, of any size and content.
    pub file: File,
    /// Where it was found.
    pub path: PathBuf,
    /// Whether it is the text that was compiled: the experiment's copy, or what a server has for
    /// the build id. A file of this machine may have changed since, as its modification time shows.
    pub as_compiled: bool,
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
        // Prefixes are of whole names.
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
        let found = search.source(name, &[]).unwrap();
        assert_eq!((found.path, found.as_compiled), (source.clone(), false));
        let copy = archives.join(archive_name(name));
        fs::write(&copy, "old").unwrap();
        let found = search.source(name, &[]).unwrap();
        assert_eq!((found.path, found.as_compiled), (copy, true));
        assert!(search.source("/dev/null", &[]).is_none());
        assert!(search.source("/no/such/file.c", &[]).is_none());
    }
}
