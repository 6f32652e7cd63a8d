//! The directory that contains /proc and /sys: `/`, or a tree made by a test.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The directory that contains `/proc`, `/sys` and programs. Its methods take paths that begin with
/// `/`.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    programs: Vec<PathBuf>,
}

/// Directories that are searched in addition to PATH, which sudo often shortens.
const PROGRAM_DIRECTORIES: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"];

impl Root {
    /// Returns the root of the running machine.
    #[must_use]
    pub fn machine() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Root {
            base: PathBuf::from("/"),
            programs: std::env::split_paths(&path)
                .chain(PROGRAM_DIRECTORIES.map(PathBuf::from))
                .collect(),
        }
    }

    /// Returns a root of a tree that imitates a machine.
    #[must_use]
    pub fn at(base: impl Into<PathBuf>) -> Self {
        Root {
            base: base.into(),
            programs: PROGRAM_DIRECTORIES.map(PathBuf::from).into(),
        }
    }

    /// Returns whether this is the running machine, and not a tree that imitates one.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.base == Path::new("/")
    }

    /// Returns the path below this root.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.join(path)
    }

    /// Returns the names in a directory, sorted, without those that are not valid UTF-8. Empty if
    /// the directory does not exist or cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.join(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns a file's text, without white space at its ends. None if the file does not exist,
    /// cannot be read, or is not valid UTF-8.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.join(path)).ok()?.trim().to_owned())
    }

    /// Returns the number that a file contains.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// Returns the first bytes of a file, at most `max_bytes`.
    ///
    /// # Errors
    /// Errors of opening and reading the file.
    pub fn head(&self, path: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.join(path))?
            .take(max_bytes)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the target of a symbolic link, as text.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.join(path))
            .ok()?
            .to_str()
            .map(str::to_owned)
    }

    /// Returns whether a file or directory exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.join(path).exists()
    }

    /// Returns the path of a program, found in PATH and the usual directories.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs
            .iter()
            .map(|directory| directory.join(name))
            .find(|path| self.join(path).is_file())
    }
}
