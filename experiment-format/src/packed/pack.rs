//! Packs an experiment. Its directory may belong to a hostile user and change meanwhile: nothing is
//! opened by its path, and links are neither followed nor packed.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use tar::{EntryType, Header};

use crate::Result;
use crate::archive::ARCHIVES;
use crate::directory::{INCOMPLETE, MAX_DEPTH, PACKED, entries};
use crate::error::Error;

/// The level of compression; zstd's default is 3.
const ZSTD_LEVEL: i32 = 6;
const LOG: &[u8] = b"log.xml";

type Tar<W> = tar::Builder<zstd::Encoder<'static, W>>;

/// The entries that a walk over the directory adds; there is a walk for each, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    DirectoriesAndLog,
    Files,
}

/// What of an experiment is packed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    All,
    AllButArchives,
}

/// Packs the experiment in `directory` and returns `to`. `progress` is called with the bytes that
/// are packed so far, after each file.
///
/// # Errors
/// The directory or a file in it can't be read, or became shorter while it was read; `to` can't be
/// written.
pub fn pack<W: Write>(directory: &Path, to: W, progress: &mut dyn FnMut(u64)) -> Result<W> {
    let failed = |error: io::Error| Error::io("pack", directory, error);
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let top = open(directory, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let name = directory.canonicalize().map_err(failed)?;
    let name = Path::new(name.file_name().unwrap_or_default());
    pack_open(top.as_fd(), name, Content::All, to, progress).map_err(failed)
}

/// Packs the experiment in an open directory, which is called `name`.
pub(super) fn pack_open<W: Write>(
    directory: BorrowedFd<'_>,
    name: &Path,
    content: Content,
    to: W,
    progress: &mut dyn FnMut(u64),
) -> io::Result<W> {
    let mut packer = Packer {
        tar: tar::Builder::new(zstd::Encoder::new(to, ZSTD_LEVEL)?),
        content,
        bytes: 0,
        progress,
    };
    for pass in [Pass::DirectoriesAndLog, Pass::Files] {
        packer.walk(directory, name, pass, 0)?;
    }
    packer.tar.into_inner()?.finish()
}

struct Packer<'a, W: Write> {
    tar: Tar<W>,
    content: Content,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<W: Write> Packer<'_, W> {
    fn walk(&mut self, dir: BorrowedFd<'_>, path: &Path, pass: Pass, depth: u32) -> io::Result<()> {
        if pass == Pass::DirectoriesAndLog {
            let header = header(&fstat(dir)?, EntryType::Directory, 0);
            self.append(header, path, io::empty())?;
        }
        let mut names = entries(dir)?;
        names.sort();
        for name in names {
            if depth == 0 && self.is_left_out(name.to_bytes()) {
                continue;
            }
            let is_log = depth == 0 && name.to_bytes() == LOG;
            if pass == Pass::DirectoriesAndLog && !is_log && !is_directory(dir, &name) {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            let Some((file, stat)) = open_entry(dir, &name)? else {
                continue;
            };
            match kind_of(&stat) {
                SFlag::S_IFDIR if depth < MAX_DEPTH => {
                    self.walk(file.as_fd(), &path, pass, depth + 1)?;
                }
                SFlag::S_IFREG if is_log == (pass == Pass::DirectoriesAndLog) => {
                    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                    let header = header(&stat, EntryType::Regular, bytes);
                    let content = Exactly {
                        file: File::from(file).take(bytes),
                    };
                    self.append(header, &path, content)?;
                    self.bytes += bytes;
                    (self.progress)(self.bytes);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a name in the experiment is not part of its data, or stays where it is.
    fn is_left_out(&self, name: &[u8]) -> bool {
        name.starts_with(INCOMPLETE.as_bytes())
            || name == PACKED.as_bytes()
            || self.content == Content::AllButArchives && name == ARCHIVES.as_bytes()
    }

    fn append(&mut self, mut header: Header, path: &Path, content: impl Read) -> io::Result<()> {
        self.tar.append_data(&mut header, path, content)
    }
}

fn is_directory(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| kind_of(&stat) == SFlag::S_IFDIR)
}

/// Returns the kind of a file.
pub(super) fn kind_of(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Opens a file or directory. None of what is gone or is a link.
pub(super) fn open_entry(
    dir: BorrowedFd<'_>,
    name: &CStr,
) -> io::Result<Option<(OwnedFd, FileStat)>> {
    use nix::errno::Errno;
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(file) => {
            let stat = fstat(&file)?;
            Ok(Some((file, stat)))
        }
        // A link, a socket, or a device without a driver.
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO | Errno::ENODEV) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

/// Returns the header of an entry. It names no owner: what is unpacked belongs to the user who
/// unpacks it.
fn header(stat: &FileStat, kind: EntryType, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(bytes);
    header
}

/// A file as long as its entry says. One that grows is cut, one that becomes shorter is an error.
struct Exactly {
    file: io::Take<File>,
}

impl Read for Exactly {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.file.read(to)? {
            0 if self.file.limit() > 0 && !to.is_empty() => {
                let what = "a file became shorter while it was read";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
            read => Ok(read),
        }
    }
}
