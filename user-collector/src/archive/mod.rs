//! Copies of user ELF files in the experiment's `archives/`, so that it can be read on another
//! machine.
//!
//! gprofng takes the names of functions from the file in `archives/`. With a plain copy of what
//! distributions ship most code would have no name: the symbol tables are in debug files of other
//! packages, which gprofng doesn't find, and without them it reads exported functions only. So a
//! file is copied with a better symbol table at its end, see `symbol_table.rs`. The rest stays
//! where it was, with line tables as far as the file itself has them.
//!
//! The files may be of any user. They are never mapped, their tables are read once and within
//! limits, and what can't be parsed is copied as it is. What the invoking user may not read is not
//! copied: see [`InvokingUser`].
//!
//! Limits: only regular files are copied. Compressed `.gnu_debugdata`, Go's own tables and the
//! debug file's line tables are not read. 32-bit files and files without section headers are copied
//! as they are.

mod archiver;
mod function_ranges;
mod image;
mod object_file;
mod plt;
mod sources;
mod stats;
mod symbol_table;
mod vdso;
mod worker;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use experiment_format::directory::{ExperimentDir, PendingFile};
use experiment_format::text::printable;

pub use archiver::Archiver;
pub use sources::{SourceLines, archive_source, source_paths};
pub use stats::{ArchiveStats, LeftOut, Refusal, RefusalCause};
pub use worker::{ArchiveRequest, MAX_ARCHIVE_BYTES, SourceCopies};

use crate::files::InvokingUser;
use object_file::ObjectFile;
use symbol_table::FunctionTable;

/// Largest file that is copied, bytes. Of a larger one only the names are.
pub const MAX_COPIED_FILE_BYTES: u64 = 1 << 30;

/// The result of archiving a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// Whether the copy has the file's content: instructions, and lines where the file has them.
    pub text: bool,
    /// Functions of the new symbol table; `None` if the file was copied as it is.
    pub functions: Option<usize>,
    /// Symbols of the debug file, some of which the file may have too.
    pub debug_symbols: usize,
    /// Why less was archived than possible: the end of a sentence that begins with the object's
    /// name.
    pub note: Option<String>,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Why nothing was archived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// A device, a directory or another file that is not regular.
    #[error("{name} is no regular file")]
    NotRegular {
        /// The load object.
        name: String,
    },

    /// A file that could not be parsed, and that the invoking user may not read or that is too
    /// large.
    #[error("{name} {why}")]
    NothingToKeep {
        /// The load object.
        name: String,
        /// The rest of the sentence.
        why: String,
    },

    /// A failed read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The load object.
        name: String,
        /// The error of the system.
        source: io::Error,
    },

    /// A file that became shorter while it was copied.
    #[error("{name} was changed while it was copied")]
    Changed {
        /// The load object.
        name: String,
    },

    /// A copy that was not whole when archiving was stopped.
    #[error("{name} was being copied when archiving was given up")]
    GivenUp {
        /// The load object.
        name: String,
    },

    /// A failed write, for example on a full disk: see
    /// [`experiment_format::Error::is_disk_full`].
    #[error(transparent)]
    Write(#[from] experiment_format::Error),
}

/// Archives the file that `map.xml` calls `name`, with the symbols of its debug file.
///
/// The file offset of `file` doesn't matter. `debug` must belong to it:
/// see [`find_debug_file`](kcollect_elf::debug_file::find_debug_file).
/// Once `stop` is set nothing more is written.
///
/// # Errors
/// The file can't be read, or the copy can't be written; then none is left in `archives/`.
pub fn archive_object(
    dir: &ExperimentDir,
    name: &str,
    file: &File,
    debug: Option<&File>,
    user: &InvokingUser,
    stop: &AtomicBool,
) -> Result<Archived, ArchiveError> {
    let shown = || printable(name.as_bytes());
    let read = |source| ArchiveError::Read {
        name: shown(),
        source,
    };
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(ArchiveError::NotRegular { name: shown() });
    }
    let length = metadata.len();
    let withheld = if !user.may_read(&metadata) {
        Some("is not readable by the user who asked: its instructions were not copied")
    } else if length > MAX_COPIED_FILE_BYTES {
        Some("is larger than 1 GiB: its instructions were not copied")
    } else {
        None
    };
    let text = withheld.is_none();
    let (elf, problem) = match ObjectFile::read(file, length) {
        Ok(elf) => (Some(elf), None),
        Err(problem) => (None, Some(problem)),
    };
    let note = withheld.map(str::to_owned).or_else(|| {
        problem.map(|problem| format!("has only the names that gprofng finds itself: {problem}"))
    });

    let Some(elf) = elf else {
        if !text {
            let why = note.unwrap_or_default();
            return Err(ArchiveError::NothingToKeep { name: shown(), why });
        }
        let bytes = store(dir, name, stop, |out| image::copy(file, length, out))?;
        return Ok(Archived {
            text,
            functions: None,
            debug_symbols: 0,
            note,
            bytes,
        });
    };
    let debug = debug.and_then(|debug| {
        let length = debug.metadata().ok()?.len();
        ObjectFile::read(debug, length).ok()
    });
    let base = name.rsplit('/').next().unwrap_or(name);
    let functions = FunctionTable::of(&elf, debug.as_ref(), base);
    let bytes = store(dir, name, stop, |out| {
        image::write(&elf, file, length, &functions, text, out)
    })?;
    Ok(Archived {
        text,
        functions: Some(functions.list.len()),
        debug_symbols: functions.of_debug,
        note,
        bytes,
    })
}

/// Writes a file of `archives/`, whole or not at all. Returns its length.
fn store(
    dir: &ExperimentDir,
    name: &str,
    stop: &AtomicBool,
    fill: impl FnOnce(&mut ArchiveWriter<'_>) -> io::Result<()>,
) -> Result<u64, ArchiveError> {
    let shown = || printable(name.as_bytes());
    let mut out = ArchiveWriter {
        file: dir.archive_file(name)?,
        failed: false,
        bytes: 0,
        stop,
    };
    match fill(&mut out) {
        Ok(()) => {
            out.file.commit()?;
            Ok(out.bytes)
        }
        Err(_) if stop.load(Ordering::Relaxed) => Err(ArchiveError::GivenUp { name: shown() }),
        Err(source) if out.failed => Err(ArchiveError::Write(experiment_format::Error::Io {
            action: "write",
            path: dir
                .path()
                .join(experiment_format::archive::ARCHIVES)
                .join(experiment_format::archive::archive_name(name)),
            source,
        })),
        Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            Err(ArchiveError::Changed { name: shown() })
        }
        Err(source) => Err(ArchiveError::Read {
            name: shown(),
            source,
        }),
    }
}

/// A writer that notes whether an error was its own rather than of the file that is read, and that
/// fails once archiving is stopped.
struct ArchiveWriter<'a> {
    file: PendingFile<'a>,
    failed: bool,
    bytes: u64,
    stop: &'a AtomicBool,
}

impl ArchiveWriter<'_> {
    /// Appends at most `most` bytes of a file, from its position on, and returns how many. The
    /// kernel copies them; some file systems share them between both files instead.
    fn append(&mut self, from: &File, most: u64) -> io::Result<u64> {
        self.check_stop()?;
        let copied = io::copy(&mut from.take(most), &mut self.file.file());
        self.bytes += copied.as_ref().map_or(0, |count| *count);
        self.failed |= copied.as_ref().is_err_and(is_of_writing);
        copied
    }

    /// Replaces the beginning of the file.
    fn replace_beginning(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.file().write_all_at(bytes, 0);
        self.failed |= written.is_err();
        written
    }

    fn check_stop(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        }
    }
}

/// Whether a copy failed because of the file that is written.
fn is_of_writing(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let kinds = [StorageFull, QuotaExceeded, FileTooLarge, ReadOnlyFilesystem];
    kinds.contains(&error.kind())
}

impl Write for ArchiveWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check_stop()?;
        let written = self.file.write(bytes);
        self.bytes += written.as_ref().map_or(0, |count| *count as u64);
        self.failed |= written
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.failed |= flushed.is_err();
        flushed
    }
}
