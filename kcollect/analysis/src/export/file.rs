//! The output of an export, with its name.
//!
//! A file is as private as the experiment: see `private_file`. A place that is not a regular
//! file, such as a pipe, is written to directly.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use experiment_format::packed::directory_of;
use flate2::Compression;
use flate2::write::GzEncoder;
use host::exit::{ExitKind, Failure};
use host::written;

use crate::private_file;

/// Where the output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputTarget {
    /// To standard output.
    Standard,
    /// To this file, compressed if its name ends in `.gz`.
    File(PathBuf),
}

impl OutputTarget {
    /// Returns the typed target, or else a file named like the experiment, in the current
    /// directory.
    #[must_use]
    pub fn new(typed: Option<&Path>, experiment: &Path, extension: &str) -> OutputTarget {
        match typed {
            Some(path) if path == Path::new("-") => OutputTarget::Standard,
            Some(path) => OutputTarget::File(path.to_owned()),
            None => {
                let experiment = directory_of(experiment);
                let name = experiment.file_stem().unwrap_or("kcollect".as_ref());
                let mut name = name.to_owned();
                name.push(".");
                name.push(extension);
                OutputTarget::File(name.into())
            }
        }
    }

    /// Writes the output, made of an experiment. `packed`: it is compressed already.
    ///
    /// # Errors
    /// When the file cannot be written, or `write` fails.
    #[expect(clippy::disallowed_methods, reason = "a format, not text")]
    pub fn write(
        &self,
        experiment: &Path,
        packed: bool,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let done = match self {
            OutputTarget::Standard => buffered(io::stdout().lock(), false, write),
            OutputTarget::File(path) => {
                let name = path.as_os_str().as_encoded_bytes();
                let pack = !packed && name.ends_with(b".gz");
                match fs::metadata(path) {
                    Ok(there) if !there.is_file() => {
                        written::existing(path).and_then(|file| buffered(file, pack, write))
                    }
                    _ => private_file::write(path, experiment, |file| buffered(file, pack, write)),
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
