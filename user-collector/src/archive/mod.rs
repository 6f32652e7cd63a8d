//! User ELF files in the experiment's `archives/`, so that it is understood on another machine.
//!
//! gprofng takes the names of functions from the file that it finds there. A plain copy of what
//! distributions ship would leave most code nameless: the symbol tables are in debug files of other
//! packages, which gprofng doesn't find, and of what is left it takes exported functions only. So a
//! file is copied with a better symbol table behind it, see `functions.rs`; all else stays where it
//! was, with line tables as far as the file itself has them.
//!
//! The files may be of any user. They are never mapped, their tables are read once and within
//! limits, and what can't be understood is copied as it is. What the invoking user may not read is
//! not copied: see [`InvokingUser`].
//!
//! What it refuses: files that are not regular. What it doesn't do: compressed `.gnu_debugdata`,
//! Go's own tables, 32-bit files and files without section headers, which are copied as they are;
//! the debug file's line tables.

mod archiver;
mod debug_file;
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
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use experiment_format::directory::{ExperimentDir, PendingFile};
use experiment_format::text::printable;

pub use archiver::{ArchiveRequest, Archiver, SourceCopies};
pub use debug_file::{find_by_build_id, find_debug_file};
pub use sources::{SourceLines, archive_source, source_paths};
pub use stats::{ArchiveStats, LeftOut};
pub use worker::MAX_ARCHIVE_BYTES;

use crate::files::InvokingUser;
use object_file::ObjectFile;
use symbol_table::FunctionTable;

/// Largest file that is copied, bytes. Of a larger one the names are kept.
pub const MAX_COPIED_FILE_BYTES: u64 = 1 << 30;

/// What was archived of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// The file's content is there: disassembly, and lines where the file has them.
    pub text: bool,
    /// Functions of the new symbol table. None if the file was copied as it is.
    pub functions: Option<usize>,
    /// Symbols that were taken from the debug file, some of which the file may have had too.
    pub debug_symbols: usize,
    /// Why less was archived than there could be: the end of a sentence that begins with the
    /// object's name.
    pub note: Option<String>,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Why nothing was archived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// A device, a directory or the like.
    #[error("{name} is no regular file")]
    NotRegular {
        /// The load object.
        name: String,
    },

    /// The invoking user may not read it, or it is too large, and nothing in it could be
    /// understood.
    #[error("{name} {why}")]
    NothingToKeep {
        /// The load object.
        name: String,
        /// The rest of the sentence.
        why: String,
    },

    /// It could not be read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The load object.
        name: String,
        /// The error of the system.
        source: io::Error,
    },

    /// It became shorter while it was copied.
    #[error("{name} was changed while it was copied")]
    Changed {
        /// The load object.
        name: String,
    },

    /// Archiving was stopped before the copy was whole.
    #[error("{name} was being copied when archiving was given up")]
    GivenUp {
        /// The load object.
        name: String,
    },

    /// It could not be written, for example on a full disk: see
    /// [`experiment_format::Error::is_disk_full`].
    #[error(transparent)]
    Write(#[from] experiment_format::Error),
}

/// Archives the file that `map.xml` calls `name`, with the symbols of its debug file.
///
/// `file` is read at positions, its own position doesn't matter. `debug` must belong to it: see
/// [`find_debug_file`]. Once `stop` is set nothing more is written.
///
/// # Errors
/// Nothing is left in `archives/` then, unless it was there before.
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
        let bytes = store(dir, name, stop, |out| image::copy(file, length, &[], out))?;
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
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
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

/// A writer that distinguishes errors of the experiment's disk from those of the file that is read,
/// and fails once archiving is stopped.
struct ArchiveWriter<'a> {
    file: PendingFile<'a>,
    failed: bool,
    bytes: u64,
    stop: &'a AtomicBool,
}

impl Write for ArchiveWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Other.into());
        }
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
