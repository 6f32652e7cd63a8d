//! The output of an export: its name, and how it is written.
//!
//! A file is written beside its place and moved there when complete, so no partial file is ever
//! seen, an existing file survives a failure, and no link is followed. A place that is not a
//! regular file, such as a pipe, is written to directly.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use host::exit::{ExitKind, Failure};

/// Where the output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputTarget {
    /// To standard output.
    Standard,
    /// To this file, compressed if its name ends in `.gz`.
    File(PathBuf),
}

impl OutputTarget {
    /// What was typed, or else a name made from the experiment's, in the current directory.
    #[must_use]
    pub fn new(typed: Option<&Path>, experiment: &Path, extension: &str) -> OutputTarget {
        match typed {
            Some(path) if path == Path::new("-") => OutputTarget::Standard,
            Some(path) => OutputTarget::File(path.to_owned()),
            None => {
                let name = experiment.file_stem().unwrap_or("kcollect".as_ref());
                let mut name = name.to_owned();
                name.push(".");
                name.push(extension);
                OutputTarget::File(name.into())
            }
        }
    }

    /// Writes the output. `packed`: it is compressed already.
    ///
    /// # Errors
    /// When the file cannot be written, or `write` fails.
    pub fn write(
        &self,
        packed: bool,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let done = match self {
            OutputTarget::Standard => buffered(io::stdout().lock(), false, write),
            OutputTarget::File(path) => {
                let name = path.as_os_str().as_encoded_bytes();
                let pack = !packed && name.ends_with(b".gz");
                match fs::metadata(path) {
                    Ok(there) if !there.is_file() => OpenOptions::new()
                        .write(true)
                        .open(path)
                        .and_then(|file| buffered(file, pack, write)),
                    _ => replaced(path, pack, write),
                }
            }
        };
        done.map_err(|error| match (error.kind(), self) {
            (io::ErrorKind::InvalidInput, _) => Failure::new(
                ExitKind::Usage,
                error.to_string(),
                "kcollect export --help lists the filters",
            ),
            (_, OutputTarget::Standard) => Failure::new(
                ExitKind::IoErr,
                format!("cannot write to standard output: {error}"),
                "name a file with -o",
            ),
            (_, OutputTarget::File(path)) => Failure::new(
                ExitKind::CantCreate,
                format!("cannot write {}: {error}", path.display()),
                "name a file that can be written with -o",
            ),
        })
    }
}

fn buffered(
    out: impl Write,
    pack: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    if pack {
        let mut packing =
            BufWriter::with_capacity(1 << 16, GzEncoder::new(out, Compression::fast()));
        write(&mut packing)?;
        let packing = packing
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        return packing.finish()?.flush();
    }
    write(&mut out)?;
    out.flush()
}

fn replaced(
    path: &Path,
    pack: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // The umask decides, as for any program's file.
    let file = tempfile::Builder::new()
        .prefix(".kcollect-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)?;
    buffered(file.as_file(), pack, write)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
