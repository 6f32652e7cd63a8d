//! The cache of unwind tables on disk.
//!
//! A table's key is a strong hash of all its input, so a program with the build id of libc can't
//! replace libc's table. Only large tables are kept: building a small one takes no longer than
//! reading it.
//!
//! The directory belongs to the user who runs kcollect, and no other may write there. It is held
//! open after it was checked, so that a user who may rename it can't redirect what is written. A
//! file is written under another name and renamed, so that several kcollects may run at once. A
//! file that fails a check is ignored and replaced. All files may be deleted at any time. A failure
//! to write a table is not an error of the recording.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::stored_table::{self as stored, MAX_STORED_BYTES, TableKey};
use crate::unwind::{FrameInfo, TableSummary, UnwindRules, UnwindSections, UnwindTable};

/// Max bytes of all tables together.
const MAX_CACHE_BYTES: u64 = 256 << 20;

/// Bytes that are kept when there are more, so that there is space for new tables.
const KEPT_CACHE_BYTES: u64 = MAX_CACHE_BYTES / 4 * 3;

/// Smallest frame information whose table is kept, bytes. Building a table takes about 20 ms for
/// 1 MiB, reading it a tenth of that. Of the 1,424 programs and libraries of a Debian system 124
/// are that large. They have four fifths of all frame information; the tables of the others are
/// built in 0.3 s.
const MIN_FRAME_INFO_BYTES: usize = 64 << 10;

/// Prefix of the names of files that are being written.
const UNFINISHED_PREFIX: &str = ".new-";

/// Age of a file in writing after which its writer must have been killed.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A directory of unwind tables.
#[derive(Debug)]
pub struct TableCache {
    /// The directory that was checked, held open.
    _held: File,
    /// Its path by the descriptor.
    directory: PathBuf,
    /// Bytes that may still be written.
    left_bytes: u64,
}

/// Why a directory is not used as a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableCacheError {
    /// A file instead of the directory.
    #[error("{}: not a directory; remove it, and the cache of unwind tables is made in its place", path.display())]
    NotADirectory {
        /// The directory.
        path: PathBuf,
    },

    /// A directory of another user.
    #[error("{}: belongs to user {owner}; remove it, and it is made anew", path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// The user's id.
        owner: u32,
    },

    /// A directory that other users may write to.
    #[error("{}: others may write there (mode {mode:o}); remove it, for they may have: it is made anew", path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },

    /// An error of the system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl TableCache {
    /// Returns the cache of the user who runs kcollect: `/var/cache/kcollect` for root, else
    /// `kcollect` in `$XDG_CACHE_HOME` or `~/.cache`. `None` for a user without a home.
    ///
    /// # Errors
    /// As [`TableCache::open`].
    pub fn open_default() -> Result<Option<TableCache>, TableCacheError> {
        let absolute = |name: &str| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let parent = if nix::unistd::geteuid().is_root() {
            Some(PathBuf::from("/var/cache"))
        } else {
            absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
        };
        parent
            .map(|parent| TableCache::open(parent.join("kcollect")))
            .transpose()
    }

    /// Returns the cache in a directory, which is created if it does not exist. If its files have
    /// more than `MAX_CACHE_BYTES`, the least recently used ones are deleted.
    ///
    /// # Errors
    /// It can't be made or read, belongs to another user, or other users may write there.
    pub fn open(directory: PathBuf) -> Result<TableCache, TableCacheError> {
        let io = |source| TableCacheError::Io {
            path: directory.clone(),
            source,
        };
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).map_err(io)?;
        }
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
            _ => {}
        }
        let path = directory.clone();
        let held = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&directory);
        let held = match held {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {
                return Err(TableCacheError::NotADirectory { path });
            }
            held => held.map_err(io)?,
        };
        let metadata = held.metadata().map_err(io)?;
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        if owner != nix::unistd::geteuid().as_raw() {
            return Err(TableCacheError::Owner { path, owner });
        }
        if mode & 0o022 != 0 {
            return Err(TableCacheError::Mode { path, mode });
        }
        let directory = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        let used = delete_old(&directory, MAX_CACHE_BYTES, KEPT_CACHE_BYTES).map_err(io)?;
        Ok(TableCache {
            _held: held,
            directory,
            left_bytes: MAX_CACHE_BYTES.saturating_sub(used),
        })
    }

    /// Whether the table of these sections is cached. A table of Go's functions is not: building it
    /// takes less time than hashing its input and reading the file.
    pub(super) fn is_for(sections: &UnwindSections<'_>) -> bool {
        if sections.go.is_some() {
            return false;
        }
        let length = match &sections.frames {
            FrameInfo::Eh { data, .. } => data.len(),
            FrameInfo::Debug { data } => data.len(),
            FrameInfo::None => 0,
        };
        length + sections.debug_frames.len() >= MIN_FRAME_INFO_BYTES
    }

    /// Returns the table with this key, if the cache has it.
    pub(super) fn load(
        &self,
        build_id: &[u8],
        key: TableKey,
        rules: &mut UnwindRules,
    ) -> Option<(UnwindTable, TableSummary)> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path(build_id, key))
            .ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() > MAX_STORED_BYTES {
            return None;
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        (&mut file)
            .take(MAX_STORED_BYTES)
            .read_to_end(&mut bytes)
            .ok()?;
        let found = stored::decode(&bytes, key, rules)?;
        // The time of its last use; if it can't be set, the file may be deleted too early.
        let _ = file.set_modified(SystemTime::now());
        Some(found)
    }

    /// Writes a table. After a failure, and when the cache is full, no more tables are written in
    /// this run.
    pub(super) fn store(
        &mut self,
        build_id: &[u8],
        key: TableKey,
        (table, summary): (&UnwindTable, &TableSummary),
        rules: &UnwindRules,
    ) {
        let Some(bytes) = stored::encode(key, table, summary, rules) else {
            return;
        };
        let left_bytes = self.left_bytes.checked_sub(bytes.len() as u64);
        self.left_bytes = left_bytes.map_or(0, |left_bytes| {
            let written = write(&self.directory, &self.path(build_id, key), &bytes);
            written.map_or(0, |()| left_bytes)
        });
    }

    fn path(&self, build_id: &[u8], key: TableKey) -> PathBuf {
        self.directory.join(name(build_id, key))
    }
}

/// Returns the name of a table's file. The build id is there for human readers.
fn name(build_id: &[u8], key: TableKey) -> String {
    let key = key.hex();
    match build_id {
        [] => format!("none-{key}"),
        id => format!("{}-{key}", hex::encode(&id[..id.len().min(8)])),
    }
}

/// Returns whether a file of the directory has the name of a cached table.
fn is_ours(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.split_once('-')
        .is_some_and(|(id, key)| (id == "none" || hex(id)) && key.len() == 64 && hex(key))
}

/// Writes a file atomically.
fn write(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(UNFINISHED_PREFIX)
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// Deletes abandoned files and, if there are more than `max_bytes`, the oldest ones until
/// `kept_bytes` are left. Returns how many bytes are left.
fn delete_old(directory: &Path, max_bytes: u64, kept_bytes: u64) -> io::Result<u64> {
    let now = SystemTime::now();
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let name = file_name.to_string_lossy();
        // Another kcollect may have deleted it.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let modified = metadata.modified()?;
        let age = now.duration_since(modified).unwrap_or_default();
        if name.starts_with(UNFINISHED_PREFIX) && age > ABANDONED_AFTER {
            let _ = fs::remove_file(entry.path());
        } else if is_ours(&name) && metadata.is_file() {
            files.push((modified, metadata.len(), entry.path()));
        }
    }
    let mut used: u64 = files.iter().map(|(_, length, _)| length).sum();
    if used > max_bytes {
        files.sort();
        for (_, length, path) in files {
            if used <= kept_bytes {
                break;
            }
            if fs::remove_file(path).is_ok() {
                used -= length;
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn open(directory: &Path) -> Result<TableCache, TableCacheError> {
        TableCache::open(directory.to_owned())
    }

    /// Sections of no frame information, which differ in an address.
    fn sections(text: u64) -> UnwindSections<'static> {
        UnwindSections {
            frames: FrameInfo::None,
            text,
            got: 0,
            executable: Vec::new(),
            debug_frames: Cow::default(),
            thread_starts: Vec::new(),
            go: None,
        }
    }

    fn store(cache: &mut TableCache, text: u64) -> PathBuf {
        let key = TableKey::of(&sections(text));
        let made = (&UnwindTable::default(), &TableSummary::default());
        cache.store(&[0xab; 20], key, made, &UnwindRules::new());
        cache.path(&[0xab; 20], key)
    }

    fn load(cache: &TableCache, text: u64) -> bool {
        let key = TableKey::of(&sections(text));
        cache
            .load(&[0xab; 20], key, &mut UnwindRules::new())
            .is_some()
    }

    #[test]
    fn cache_is_private_to_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("not/yet/there");
        let mut cache = open(&directory).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        let file = store(&mut cache, 1);
        assert_eq!(mode(&file), 0o600);
        assert!(load(&cache, 1));
        assert!(!load(&cache, 2));
        // Again, with what is in it.
        let cache = open(&directory).unwrap();
        assert_eq!(
            cache.left_bytes,
            MAX_CACHE_BYTES - file.metadata().unwrap().len()
        );
        assert!(load(&cache, 1));
    }

    #[test]
    fn directories_of_others_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let error = |name: &str| open(&at(name)).unwrap_err();
        let is_no_directory = |name: &str| match error(name) {
            TableCacheError::NotADirectory { path } => path == at(name),
            _ => false,
        };
        fs::write(at("file"), "").unwrap();
        assert!(is_no_directory("file"));
        fs::create_dir(at("good")).unwrap();
        symlink(at("good"), at("link")).unwrap();
        assert!(is_no_directory("link"));
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o775)).unwrap();
        assert!(matches!(
            error("open"),
            TableCacheError::Mode { mode: 0o775, .. }
        ));
        assert!(error("file/below").to_string().contains("file"));
    }

    #[test]
    fn another_directory_in_its_place_is_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        let (directory, other) = (parent.path().join("cache"), parent.path().join("other"));
        fs::create_dir(&other).unwrap();
        let mut cache = open(&directory).unwrap();
        fs::rename(&directory, parent.path().join("moved")).unwrap();
        symlink(&other, &directory).unwrap();
        store(&mut cache, 1);
        assert!(load(&cache, 1));
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
        assert_eq!(
            fs::read_dir(parent.path().join("moved")).unwrap().count(),
            1
        );
    }

    #[test]
    fn root_a_directory_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(
            matches!(error, TableCacheError::Owner { owner: 12345, .. }),
            "{error}"
        );
    }

    #[test]
    fn damaged_files_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = open(directory.path()).unwrap();
        let file = store(&mut cache, 1);
        for damage in [&b""[..], b"kcunwind"] {
            fs::write(&file, damage).unwrap();
            assert!(!load(&cache, 1));
            store(&mut cache, 1);
            assert!(load(&cache, 1));
        }
        // One file under the name of another, and something else than a file.
        let other = store(&mut cache, 2);
        fs::rename(&other, &file).unwrap();
        assert!(!load(&cache, 1));
        symlink(&file, &other).unwrap();
        assert!(!load(&cache, 2));
        fs::remove_file(&other).unwrap();
        nix::unistd::mkfifo(&other, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!load(&cache, 2));
    }

    #[test]
    fn a_failure_ends_the_keeping_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = open(directory.path()).unwrap();
        directory.close().unwrap();
        store(&mut cache, 1);
        assert!(!load(&cache, 1));
        assert_eq!(cache.left_bytes, 0);
    }

    #[test]
    fn a_full_cache_takes_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = open(directory.path()).unwrap();
        store(&mut cache, 1);
        let length = MAX_CACHE_BYTES - cache.left_bytes;
        cache.left_bytes = length;
        store(&mut cache, 2);
        store(&mut cache, 3);
        assert!(load(&cache, 2));
        assert!(!load(&cache, 3));
    }

    #[test]
    fn oldest_files_are_removed_first() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = open(directory.path()).unwrap();
        let files: Vec<PathBuf> = (0..10).map(|text| store(&mut cache, text)).collect();
        let length = files[0].metadata().unwrap().len();
        let age = |path: &Path, seconds: u64| {
            let when = SystemTime::now() - Duration::from_secs(seconds);
            let file = fs::File::options().read(true).open(path).unwrap();
            file.set_modified(when).unwrap();
        };
        for (number, file) in files.iter().enumerate() {
            age(file, 1000 - number as u64);
        }
        // The very oldest is used.
        assert!(load(&cache, 0));
        let foreign = directory.path().join("README");
        fs::write(&foreign, "another's").unwrap();
        let (fresh, old) = (".new-fresh", ".new-old");
        for name in [fresh, old] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        age(&directory.path().join(old), 3601);
        age(&foreign, 1 << 30);
        let left = delete_old(directory.path(), 10 * length, 0).unwrap();
        assert_eq!(left, 10 * length);
        let left = delete_old(directory.path(), 10 * length - 1, 4 * length).unwrap();
        assert_eq!(left, 4 * length);
        let there: Vec<bool> = files.iter().map(|file| file.exists()).collect();
        let expected: Vec<bool> = (0..10).map(|number| number == 0 || number > 6).collect();
        assert_eq!(there, expected);
        assert!(foreign.exists());
        assert!(directory.path().join(fresh).exists());
        assert!(!directory.path().join(old).exists());
    }

    #[test]
    fn file_names_are_recognised() {
        let key = TableKey::of(&sections(0));
        for build_id in [&[][..], &[1], &[0xfe; 20]] {
            assert!(is_ours(&name(build_id, key)));
        }
        assert!(name(&[], key).starts_with("none-"));
        assert!(name(&[0xfe; 20], key).starts_with("fefefefefefefefe-"));
        for other in ["README", "none-", "-", ".new-abc", "none-0123"] {
            assert!(!is_ours(other));
        }
    }
}
