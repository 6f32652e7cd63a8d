//! The directory of fetched files, which elfutils and gdb share.
//!
//! A file has the path `BUILDID/debuginfo` or `BUILDID/source-HASH-NAME`. It is written under
//! another name and renamed, so that it is always whole. An empty file says that no server has it,
//! for some minutes. Old files are removed by elfutils, by the time of the last access.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use super::Wanted;
use super::download::FetchError;
use crate::symbol::regular_file::open_regular;

/// How long a file counts as missing if there is no file [`MISSING_FOR`].
const DEFAULT_MISSING_FOR: Duration = Duration::from_secs(600);
/// The file with the number of seconds for which a file counts as missing, as elfutils names it.
const MISSING_FOR: &str = "cache_miss_s";
/// The longest end of a path that is part of a file name.
const MAX_NAME_BYTES: usize = 110;

/// The directory of fetched files.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
}

/// What the cache has of a file.
#[derive(Debug)]
pub(super) enum Cached {
    File(File),
    /// No server had it a short time ago.
    KnownMissing,
    Nothing,
}

impl Cache {
    pub(super) fn new(path: PathBuf) -> Cache {
        Cache { path }
    }

    /// Returns where a file is or would be.
    pub(super) fn place(&self, id: &[u8], wanted: Wanted<'_>) -> PathBuf {
        self.directory(id).join(file_name(wanted))
    }

    fn directory(&self, id: &[u8]) -> PathBuf {
        self.path.join(hex::encode(id))
    }

    /// Looks for a file.
    pub(super) fn find(&self, id: &[u8], wanted: Wanted<'_>) -> Cached {
        let place = self.place(id, wanted);
        let Ok(metadata) = fs::metadata(&place) else {
            return Cached::Nothing;
        };
        if metadata.len() > 0 {
            return open_regular(&place).map_or(Cached::Nothing, Cached::File);
        }
        let now = SystemTime::now();
        let age = metadata.modified().ok().map(|at| now.duration_since(at));
        match age {
            Some(Ok(age)) if age <= self.missing_for() => Cached::KnownMissing,
            _ => Cached::Nothing,
        }
    }

    fn missing_for(&self) -> Duration {
        let text = open_regular(&self.path.join(MISSING_FOR)).and_then(|file| {
            let short = file.metadata().is_ok_and(|metadata| metadata.len() < 64);
            short.then(|| std::io::read_to_string(file).ok()).flatten()
        });
        let seconds = text.and_then(|text| text.trim().parse().ok());
        seconds.map_or(DEFAULT_MISSING_FOR, Duration::from_secs)
    }

    /// Returns a new file next to the place of a wanted one. It is removed unless it is kept.
    pub(super) fn temporary(
        &self,
        id: &[u8],
        wanted: Wanted<'_>,
    ) -> Result<NamedTempFile, FetchError> {
        let directory = self.directory(id);
        let make = || {
            // As private as elfutils makes it.
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)?;
            // elfutils removes what is left of names like this one.
            tempfile::Builder::new()
                .prefix(&format!("{}.", file_name(wanted)))
                .rand_bytes(6)
                .tempfile_in(&directory)
        };
        make().map_err(|error| FetchError::cache(&directory, &error))
    }

    /// Renames a complete temporary file to its place.
    pub(super) fn keep(
        &self,
        temporary: NamedTempFile,
        id: &[u8],
        wanted: Wanted<'_>,
    ) -> Result<File, FetchError> {
        let place = self.place(id, wanted);
        let failed = |error: &std::io::Error| FetchError::cache(&place, error);
        let file = temporary.as_file();
        file.set_permissions(Permissions::from_mode(0o400))
            .map_err(|error| failed(&error))?;
        temporary
            .persist(&place)
            .map_err(|error| failed(&error.error))?;
        open_regular(&place).ok_or(FetchError::OtherBuild)
    }

    /// Removes the directory of a build id if there is nothing in it.
    pub(super) fn remove_empty_directory(&self, id: &[u8]) {
        let _ = fs::remove_dir(self.directory(id));
    }

    /// Notes in the directory that no server has a file. A failure does not matter.
    pub(super) fn keep_missing(&self, id: &[u8], wanted: Wanted<'_>) {
        if let Ok(temporary) = self.temporary(id, wanted) {
            let _ = temporary.persist(self.place(id, wanted));
        }
    }
}

impl FetchError {
    fn cache(path: &Path, error: &std::io::Error) -> FetchError {
        FetchError::Cache {
            path: path.to_owned(),
            error: error.kind(),
        }
    }
}

/// Returns the name of a file as elfutils 0.192 forms it: of a source, a hash of its path and the
/// end of the path, without special characters.
fn file_name(wanted: Wanted<'_>) -> String {
    let Wanted::Source(path) = wanted else {
        return "debuginfo".to_owned();
    };
    let hash = path.bytes().fold(5381_u32, |hash, byte| {
        // elfutils adds characters, which have a sign.
        let character = i32::from(byte.cast_signed()).cast_unsigned();
        hash.wrapping_mul(33).wrapping_add(character)
    });
    let bytes = path.as_bytes();
    let end = bytes.get(bytes.len().saturating_sub(MAX_NAME_BYTES)..);
    let end = end.unwrap_or_default().iter().map(|byte| match byte {
        b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(*byte),
        _ => '#',
    });
    format!("source-{hash:08x}-{}", end.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 8] = [0xab; 8];

    #[test]
    fn files_have_the_names_of_elfutils() {
        let cache = Cache::new("/c".into());
        let place = |wanted| cache.place(&ID, wanted).to_str().unwrap().to_owned();
        assert_eq!(place(Wanted::DebugFile), "/c/abababababababab/debuginfo");
        let source = place(Wanted::Source("/usr/src/a b/x.c"));
        assert!(
            source.starts_with("/c/abababababababab/source-"),
            "{source}"
        );
        assert!(source.ends_with("-#usr#src#a#b#x.c"), "{source}");
        // The hash of Bernstein.
        let short = place(Wanted::Source("/a"));
        assert!(short.ends_with(&format!("source-{:08x}-#a", (5381 * 33 + 47) * 33 + 97)));
        let long = place(Wanted::Source(&"/../".repeat(2000)));
        assert!(long.len() < 200 && long.matches('/').count() == 3, "{long}");
    }

    #[test]
    fn an_empty_file_says_for_some_time_that_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("new"));
        let wanted = Wanted::DebugFile;
        assert!(matches!(cache.find(&ID, wanted), Cached::Nothing));
        cache.keep_missing(&ID, wanted);
        assert!(matches!(cache.find(&ID, wanted), Cached::KnownMissing));
        let file = File::open(cache.place(&ID, wanted)).unwrap();
        let old = SystemTime::now() - Duration::from_secs(700);
        file.set_modified(old).unwrap();
        assert!(matches!(cache.find(&ID, wanted), Cached::Nothing));
        fs::write(directory.path().join("new/cache_miss_s"), "1000\n").unwrap();
        assert!(matches!(cache.find(&ID, wanted), Cached::KnownMissing));
        // A file takes the place of that.
        let mut temporary = cache.temporary(&ID, wanted).unwrap();
        std::io::Write::write_all(&mut temporary, b"x").unwrap();
        cache.keep(temporary, &ID, wanted).unwrap();
        assert!(matches!(cache.find(&ID, wanted), Cached::File(_)));
        let names = fs::read_dir(cache.directory(&ID)).unwrap().count();
        assert_eq!(names, 1);
    }
}
