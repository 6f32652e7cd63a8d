//! Opens the file of a mapping.
//!
//! A path is only the file's name when it was mapped. By now the file may be deleted, replaced by
//! an update, or only be visible inside a container. So it is looked for in three ways, and the
//! first that leads to the same file is used:
//!
//! 1. `/proc/PID/map_files/START-END`: the mapped file itself, whatever its name is now. It is
//!    found by the exact addresses of the current mapping, which may have been split or joined
//!    since.
//! 2. The path under `/proc/PID/root`, for a process in a container, or one whose `map_files` may
//!    not be read.
//! 3. The path itself, for a process that has exited.
//!
//! A file is the same if it has the build id that the kernel read when it was mapped, or, if the
//! kernel reported device and inode instead, if it has these. A file without a build id that was
//! found in the first way is not compared: on overlay and btrfs file systems the kernel's device
//! numbers differ from `stat`'s, so that the file would not be found at all.
//!
//! The owner of the files may be hostile. So a path is resolved inside its root (`openat2`), and
//! the file at its end is first held without being opened (`O_PATH`): a pipe or a device is not
//! touched. Paths are resolved only in the kernel's cache (`RESOLVE_CACHED`), which has all that
//! runs or ran a moment ago: no automounter or file server has to look for a path that a container
//! invented.

use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use experiment_format::ids::Pid;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;
use object::read::ReadCache;

use super::backing::{Backing, backing, paths};
use crate::files::{openat2, reopen};
use crate::process::process_directory;
use crate::space::{FileIdentity, MappedFile, Mapping};
use kcollect_elf::build_id;

/// Largest file that is opened, bytes.
pub const MAX_OBJECT_FILE_BYTES: u64 = 1 << 30;

/// Max bytes that are read of a vDSO. It has 4 to 16 KiB.
pub const MAX_VDSO_BYTES: u64 = 64 << 10;

/// The way in which a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FoundBy {
    /// By the mapping's addresses.
    MapFiles,
    /// By its path in the process's own root.
    Root,
    /// By its path in the host's root.
    Path,
}

/// The file of a mapping.
#[derive(Debug)]
pub struct OpenedFile {
    /// Open for reading.
    pub file: File,
    /// The file's own build id; empty when it has none.
    pub build_id: Box<[u8]>,
    /// The way in which it was found.
    pub way: FoundBy,
}

/// Why a file can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A mapping without a file.
    #[error("{}: not a file but {backing:?}", path.display())]
    NotAFile {
        /// The name of the mapping.
        path: PathBuf,
        /// What is mapped.
        backing: Backing,
    },

    /// A file that has been moved or deleted, and whose mapping has ended or changed.
    #[error("{}: can't be found any more", path.display())]
    Gone {
        /// Its path when it was mapped.
        path: PathBuf,
    },

    /// Another file with the same path.
    #[error("{}: replaced by another file since it was mapped", path.display())]
    Replaced {
        /// Its path when it was mapped.
        path: PathBuf,
    },

    /// A file with the same path. It is not known whether it is the mapped file.
    #[error("{}: the kernel reported nothing of the mapped file to identify it by", path.display())]
    Unknown {
        /// Its path when it was mapped.
        path: PathBuf,
    },

    /// A file that is not regular.
    #[error("{}: {what}, not a regular file", path.display())]
    NotRegular {
        /// Its path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },

    /// A file larger than [`MAX_OBJECT_FILE_BYTES`].
    #[error("{}: {size} bytes, more than {MAX_OBJECT_FILE_BYTES}", path.display())]
    TooLarge {
        /// Its path.
        path: PathBuf,
        /// Its size, bytes.
        size: u64,
    },

    /// Missing permission.
    #[error(
        "{}: not allowed; run as root, or with CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        path.display()
    )]
    Denied {
        /// What was to be opened.
        path: PathBuf,
    },

    /// An error of the system.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl OpenError {
    fn of(path: &Path, errno: Errno) -> OpenError {
        let path = path.to_owned();
        match errno {
            // The last one: not in the kernel's cache.
            Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH | Errno::EAGAIN => {
                OpenError::Gone { path }
            }
            Errno::EPERM | Errno::EACCES => OpenError::Denied { path },
            errno => OpenError::Io {
                path,
                source: errno.into(),
            },
        }
    }

    /// Returns the more specific of two failures; of equal ones the first.
    fn or(self, later: OpenError) -> OpenError {
        let rank = |error: &OpenError| match error {
            OpenError::Gone { .. } => 0,
            OpenError::Io { .. } => 1,
            OpenError::Denied { .. } => 2,
            OpenError::Unknown { .. } => 3,
            _ => 4,
        };
        if rank(&later) > rank(&self) {
            later
        } else {
            self
        }
    }
}

/// Opens the file of a process's mapping. `proc` is where procfs is mounted: `/proc`.
///
/// Reads only what is needed to find the file's build id. The device of [`MappedFile::identity`] is
/// `st_dev`'s (`makedev`); the generation is not compared.
///
/// # Errors
/// The mapping has no file, or the file can't be found, is not the one that was mapped, or must not
/// be read.
pub fn open(proc: &Path, pid: Pid, mapping: &Mapping) -> Result<OpenedFile, OpenError> {
    let path = &*mapping.file.path;
    match backing(path) {
        Backing::File => {}
        backing => {
            let path = shown(path);
            return Err(OpenError::NotAFile { path, backing });
        }
    }
    let process = process_directory(proc, pid);
    let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    let mut failed = OpenError::Gone { path: shown(path) };
    let held = Held::at(process.join(range), OFlag::empty());
    match held.and_then(|held| held.open(mapping, FoundBy::MapFiles)) {
        Ok(opened) => return Ok(opened),
        Err(error) => failed = failed.or(error),
    }
    let roots = [
        (process.join("root"), FoundBy::Root),
        (PathBuf::from("/"), FoundBy::Path),
    ];
    for (root, way) in roots {
        let root = match Held::at(root, OFlag::O_DIRECTORY) {
            Ok(root) => root,
            Err(error) => {
                failed = failed.or(error);
                continue;
            }
        };
        for path in paths(path) {
            let held = root.inside(path);
            match held.and_then(|held| held.open(mapping, way)) {
                Ok(opened) => return Ok(opened),
                Err(error) => failed = failed.or(error),
            }
        }
    }
    Err(failed)
}

/// Returns the bytes of a process's vDSO, which is in no file; at most [`MAX_VDSO_BYTES`].
///
/// All processes have the same one, except 32-bit processes.
///
/// # Errors
/// The process has exited, its memory must not be read, or nothing is mapped at these addresses.
pub fn vdso(proc: &Path, pid: Pid, mapping: &Mapping) -> io::Result<Vec<u8>> {
    let memory = File::open(process_directory(proc, pid).join("mem"))?;
    let length = mapping
        .end
        .saturating_sub(mapping.start)
        .min(MAX_VDSO_BYTES);
    let mut bytes = vec![0; length as usize];
    memory.read_exact_at(&mut bytes, mapping.start)?;
    Ok(bytes)
}

/// The bytes of this process's vDSO, in place of the vDSO of a process that has exited. A 32-bit
/// process had another vDSO, and is recognised by its addresses.
///
/// # Errors
/// The mapping may be of a 32-bit process, or this process's memory can't be read.
pub fn own_vdso(proc: &Path, mapping: &Mapping) -> io::Result<Vec<u8>> {
    if u32::try_from(mapping.start).is_ok() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: it only returns a number.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let own = Mapping {
        start,
        end: start.saturating_add(mapping.end.saturating_sub(mapping.start)),
        ..mapping.clone()
    };
    vdso(proc, Pid(std::process::id()), &own)
}

fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path))
}

/// A file that is held without being open (`O_PATH`): neither read nor disturbed.
struct Held {
    fd: OwnedFd,
    path: PathBuf,
}

impl Held {
    /// Holds the file at a path in `/proc`, following a link at its end.
    fn at(path: PathBuf, flags: OFlag) -> Result<Held, OpenError> {
        let flags = flags | OFlag::O_PATH | OFlag::O_CLOEXEC;
        match nix::fcntl::open(&path, flags, Mode::empty()) {
            Ok(fd) => Ok(Held { fd, path }),
            Err(errno) => Err(OpenError::of(&path, errno)),
        }
    }

    /// Holds the file at a process's path, with this directory as the root.
    fn inside(&self, path: &[u8]) -> Result<Held, OpenError> {
        let resolve = ResolveFlag::RESOLVE_IN_ROOT
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::from_bits_retain(libc::RESOLVE_CACHED);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let how = OpenHow::new().flags(flags).resolve(resolve);
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        let whole = self.path.join(OsStr::from_bytes(relative));
        match openat2(&self.fd, path, how) {
            Ok(fd) => Ok(Held { fd, path: whole }),
            Err(errno) => Err(OpenError::of(&whole, errno)),
        }
    }

    /// Opens it if it is a regular file, and the one that was mapped.
    fn open(self, mapping: &Mapping, way: FoundBy) -> Result<OpenedFile, OpenError> {
        let Held { fd, path } = self;
        let io = |source| OpenError::Io {
            path: path.clone(),
            source,
        };
        let held = File::from(fd);
        let metadata = held.metadata().map_err(io)?;
        if !metadata.is_file() {
            let what = kind(metadata.file_type());
            return Err(OpenError::NotRegular { path, what });
        }
        if metadata.len() > MAX_OBJECT_FILE_BYTES {
            let size = metadata.len();
            return Err(OpenError::TooLarge { path, size });
        }
        let mut file = reopen(&held).map_err(|errno| OpenError::of(&path, errno))?;
        let build_id = build_id(&ReadCache::new(&file));
        file.rewind().map_err(io)?;
        let mapped = || shown(&mapping.file.path);
        match is_same(&mapping.file, &build_id, &metadata) {
            Some(true) => {}
            // The addresses are better evidence than device numbers. With a build id there is no
            // need for them, and they may be another program's by now.
            _ if way == FoundBy::MapFiles && mapping.file.build_id.is_empty() => {}
            Some(false) => return Err(OpenError::Replaced { path: mapped() }),
            None => return Err(OpenError::Unknown { path: mapped() }),
        }
        Ok(OpenedFile {
            file,
            build_id,
            way,
        })
    }
}

/// Returns whether a file is the one that was mapped; `None` if the kernel reported neither a build
/// id nor device and inode.
fn is_same(mapped: &MappedFile, build_id: &[u8], metadata: &Metadata) -> Option<bool> {
    let FileIdentity { device, inode, .. } = mapped.identity;
    if !mapped.build_id.is_empty() {
        Some(*mapped.build_id == *build_id)
    } else if (device, inode) != (0, 0) {
        Some((device, inode) == (metadata.dev(), metadata.ino()))
    } else {
        None
    }
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
