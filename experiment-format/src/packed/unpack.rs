//! Unpacks an experiment. No entry is trusted: see [`super`].

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag};
use tar::{Archive, Entry, EntryType};

use super::pack::{kind_of, open_entry};
use super::{MAX_ENTRIES, MAX_PATH_BYTES, packed_file};
use crate::Result;
use crate::archive::ARCHIVES;
use crate::directory::{INCOMPLETE, entries};
use crate::error::Error;
use crate::file::open_regular;

/// The mode of files and directories without the bits of others; the umask takes away the rest.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;
const LOG: &str = "log.xml";

/// Unpacks the experiment in `file` into `parent`, as files of the caller: at most `max_bytes`
/// bytes. Returns its directory. `progress` is called with the bytes that are unpacked so far,
/// after each file.
///
/// # Errors
/// A file that is no packed experiment, is damaged or ends too early, or holds what the module
/// refuses; the directory exists; a system error. What was unpacked until then stays.
pub fn unpack(
    file: &Path,
    parent: &Path,
    max_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf> {
    let failed = |error: io::Error| Error::io("unpack", file, error);
    let missing = || failed(io::ErrorKind::NotFound.into());
    let opened = open_regular(file)?.ok_or_else(missing)?;
    let mut unpacking = Unpacking {
        parent,
        has_begun: false,
        max_bytes,
        bytes: 0,
        progress,
    };
    let top = each_entry(opened, |kind, path, entry| {
        unpacking.entry(kind, path, entry)
    });
    Ok(parent.join(top.map_err(failed)?))
}

/// What is read of a packed experiment without the rest.
#[derive(Debug)]
pub(crate) struct PackedLog {
    /// The founder's log.
    pub(crate) bytes: Vec<u8>,
    /// The names of the directories in it.
    pub(crate) directories: Vec<OsString>,
}

/// Reads the log of the experiment in `file`, of at most `max_bytes` bytes. Nothing after it is
/// read, and nothing is written.
///
/// # Errors
/// As [`unpack`], and if there is no log.
pub(crate) fn read_log(file: &Path, max_bytes: u64) -> Result<PackedLog> {
    let failed = |error: io::Error| Error::io("read", file, error);
    let missing = || failed(io::ErrorKind::NotFound.into());
    let opened = open_regular(file)?.ok_or_else(missing)?;
    let mut log = PackedLog {
        bytes: Vec::new(),
        directories: Vec::new(),
    };
    let mut is_whole = false;
    let visit = |kind: EntryType, path: &Path, entry: &mut dyn Content| {
        let name = path.file_name().unwrap_or_default();
        if path.components().count() != 2 {
            return Ok(ControlFlow::Continue(()));
        }
        match kind {
            EntryType::Directory => log.directories.push(name.to_owned()),
            _ if name == LOG => {
                let bytes = entry.size()?;
                if bytes > max_bytes {
                    return Err(damage("its log is too large"));
                }
                entry.read_to_end(&mut log.bytes)?;
                is_whole = log.bytes.len() as u64 == bytes;
                return Ok(ControlFlow::Break(()));
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    };
    each_entry(opened, visit).map_err(failed)?;
    if is_whole {
        Ok(log)
    } else {
        Err(failed(damage("there is no whole log in it")))
    }
}

/// Unpacks the experiment at `path`, a file or a directory ([`packed_file`]), into `parent`, with
/// copies of the load objects in the `archives/` of the directory: at most `max_bytes` bytes. See
/// [`unpack`].
///
/// # Errors
/// As [`unpack`], and if there is no packed experiment.
pub fn unpack_all(
    path: &Path,
    parent: &Path,
    max_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<PathBuf> {
    let failed = |error: io::Error| Error::io("unpack", path, error);
    let file = packed_file(path).ok_or_else(|| failed(damage("it is not packed")))?;
    let mut unpacked = 0;
    let mut count = |bytes| {
        unpacked = bytes;
        progress(bytes);
    };
    let directory = unpack(&file, parent, max_bytes, &mut count)?;
    if file != path {
        let (from, to) = (path.join(ARCHIVES), directory.join(ARCHIVES));
        copy_archives(&from, &to, max_bytes - unpacked).map_err(failed)?;
    }
    Ok(directory)
}

/// Copies the files of `archives/` into a new directory, at most `max_bytes` bytes. Links and
/// everything else that is not a file are skipped.
fn copy_archives(from: &Path, to: &Path, max_bytes: u64) -> io::Result<()> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let dir = match open(from, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        dir => dir?,
    };
    make_dir(to)?;
    let mut left = max_bytes;
    for name in entries(dir.as_fd())? {
        let Some((file, stat)) = open_entry(dir.as_fd(), &name)? else {
            continue;
        };
        let name = OsStr::from_bytes(name.to_bytes());
        if kind_of(&stat) != SFlag::S_IFREG || name.as_bytes().starts_with(INCOMPLETE.as_bytes()) {
            continue;
        }
        let mut copy = new_file(&to.join(name))?;
        let mut content = File::from(file).take(left.saturating_add(1));
        let bytes = io::copy(&mut content, &mut copy)?;
        left = left.checked_sub(bytes).ok_or(Errno::ENOSPC)?;
    }
    Ok(())
}

/// The content of an entry.
trait Content: Read {
    /// Returns its bytes, as the entry says.
    fn size(&self) -> io::Result<u64>;
    /// Returns when the file was last written; None if the entry has no such time.
    fn written(&self) -> Option<SystemTime>;
}

impl<R: Read> Content for Entry<'_, R> {
    fn size(&self) -> io::Result<u64> {
        self.header().entry_size()
    }

    fn written(&self) -> Option<SystemTime> {
        let since = Duration::from_secs(self.header().mtime().ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

/// Calls `visit` with each entry, a regular file or a directory, and its path, which lies in one
/// experiment, until it breaks. Returns the experiment's name.
fn each_entry(
    file: File,
    mut visit: impl FnMut(EntryType, &Path, &mut dyn Content) -> io::Result<ControlFlow<()>>,
) -> io::Result<PathBuf> {
    let mut archive = Archive::new(zstd::Decoder::new(file)?);
    let (mut top, mut long_name) = (None, None);
    // As they are: a long name, which is an entry of its own, may be endless.
    for (number, entry) in archive.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        if number as u64 >= MAX_ENTRIES {
            return Err(damage(&format!("it has more than {MAX_ENTRIES} entries")));
        }
        let kind = entry.header().entry_type();
        if kind == EntryType::GNULongName {
            long_name = Some(read_name(&mut entry)?);
            continue;
        }
        let name = match long_name.take() {
            Some(name) => name,
            None => entry.path_bytes().into_owned(),
        };
        let path = checked(&name, &mut top)?;
        if !matches!(kind, EntryType::Directory | EntryType::Regular) {
            let what = format!("{} is neither a file nor a directory", path.display());
            return Err(damage(&what));
        }
        if visit(kind, &path, &mut entry)?.is_break() {
            break;
        }
    }
    top.ok_or_else(|| damage("there is no experiment in it"))
}

/// Returns the path of an entry, if it lies in the experiment `top`, or in the first one.
fn checked(name: &[u8], top: &mut Option<PathBuf>) -> io::Result<PathBuf> {
    let path = Path::new(OsStr::from_bytes(name));
    let outside = || damage(&format!("{} is no path in it", path.display()));
    let mut parts = path.components();
    let Some(Component::Normal(first)) = parts.next() else {
        return Err(outside());
    };
    let is_name = first.len() > 3 && first.as_bytes().ends_with(b".er");
    let is_top = top.as_deref().is_none_or(|top| top == first);
    let is_inside = parts
        .clone()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_name || !is_top || !is_inside || name.len() as u64 > MAX_PATH_BYTES {
        return Err(outside());
    }
    top.get_or_insert_with(|| first.into());
    Ok([Component::Normal(first)]
        .into_iter()
        .chain(parts)
        .collect())
}

struct Unpacking<'a> {
    parent: &'a Path,
    /// Whether the experiment's directory is made.
    has_begun: bool,
    /// The most bytes that may be written.
    max_bytes: u64,
    /// The bytes that are written.
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Unpacking<'_> {
    fn entry(
        &mut self,
        kind: EntryType,
        path: &Path,
        entry: &mut dyn Content,
    ) -> io::Result<ControlFlow<()>> {
        if !self.has_begun {
            let top = path.components().next();
            make_dir(&self.parent.join(top.unwrap_or(Component::CurDir)))?;
            self.has_begun = true;
        }
        match kind {
            EntryType::Directory => self.directory(path)?,
            _ => self.file(path, entry)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes a directory and those that it is in, as far as they do not exist. All of them are new,
    /// and none is a link.
    fn directory(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.parent.to_owned();
        for part in path.components() {
            inner.push(part);
            match make_dir(&inner) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, entry: &mut dyn Content) -> io::Result<()> {
        let bytes = entry.size()?;
        if bytes > self.max_bytes - self.bytes {
            return Err(Errno::ENOSPC.into());
        }
        self.directory(path.parent().unwrap_or(Path::new("")))?;
        let mut file = new_file(&self.parent.join(path))?;
        if io::copy(entry, &mut file)? < bytes {
            return Err(damage(&format!("it ends in {}", path.display())));
        }
        if let Some(time) = entry.written() {
            let _ = file.set_modified(time);
        }
        self.bytes += bytes;
        (self.progress)(self.bytes);
        Ok(())
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(FILE_MODE);
    options.open(path)
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

/// Returns the name of the next entry, which ends with a NUL.
fn read_name(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut name = Vec::new();
    entry.take(MAX_PATH_BYTES + 2).read_to_end(&mut name)?;
    if name.pop() != Some(0) {
        return Err(damage("a name in it is too long"));
    }
    Ok(name)
}

fn damage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
