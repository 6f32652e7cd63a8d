//! The directory under which /proc and /sys are looked for: `/`, or a tree made by a test.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where `/proc`, `/sys` and programs are looked for. Paths given to its methods begin with `/`.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    programs: Vec<PathBuf>,
}

/// Where a distribution puts programs, whatever PATH says: sudo often cuts it short.
const PROGRAMS: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"];

impl Root {
    /// The running machine.
    #[must_use]
    pub fn machine() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Root {
            base: PathBuf::from("/"),
            programs: std::env::split_paths(&path)
                .chain(PROGRAMS.map(PathBuf::from))
                .collect(),
        }
    }

    /// A tree that looks like a machine.
    #[must_use]
    pub fn at(base: impl Into<PathBuf>) -> Self {
        Root {
            base: base.into(),
            programs: PROGRAMS.map(PathBuf::from).into(),
        }
    }

    /// Whether it is the running machine, and not a tree that looks like one.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.base == Path::new("/")
    }

    /// Where a path below it is.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.join(path)
    }

    /// The names in a directory, in order; those that are not text are left out. Empty: not there,
    /// or not readable.
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

    /// A file's text, without white space at its ends. None: not there, not readable, or not text.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.join(path)).ok()?.trim().to_owned())
    }

    /// A file that holds one number.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// The first `most` bytes of a file, or fewer.
    ///
    /// # Errors
    /// Whatever opening or reading it said.
    pub fn head(&self, path: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.join(path))?
            .take(most)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Where a symbolic link points to, as text.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.join(path))
            .ok()?
            .to_str()
            .map(str::to_owned)
    }

    /// Whether there is such a file or directory.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.join(path).exists()
    }

    /// Where a program is found, along PATH and in the usual directories.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs
            .iter()
            .map(|directory| directory.join(name))
            .find(|path| self.join(path).is_file())
    }
}
