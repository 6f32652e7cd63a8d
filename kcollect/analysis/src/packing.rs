//! Packs experiments into files to be carried away (`kcollect pack`) and unpacks them for
//! gprofng (`kcollect unpack`). kcollect itself reads them as they are.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use experiment_format::archive::ARCHIVES;
use experiment_format::copies::has_copy;
use experiment_format::directory::{disk_usage_of, free_bytes};
use experiment_format::error::Error;
use experiment_format::map::MapEvent;
use experiment_format::packed;
use experiment_format::reader::Experiment;
use host::exit::{ExitKind, Failure};
use host::output::Output;
use tempfile::TempDir;

use crate::private_file;

/// What is packed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// The directories of the experiments.
    pub experiments: Vec<PathBuf>,
    /// The file, of one experiment; the default is its name with `.zst`, in the current directory.
    pub file: Option<PathBuf>,
}

/// What is unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnpackOptions {
    /// The files, or the directories in which experiments are packed.
    pub files: Vec<PathBuf>,
    /// Where the experiments' directories are made.
    pub directory: PathBuf,
}

/// Packs each experiment, and prints of how many load objects it has no copy.
///
/// # Errors
/// When one can't be read, or its file can't be written. Those before it are packed.
pub fn pack(options: &PackOptions, output: &mut Output) -> Result<(), Failure> {
    for experiment in &options.experiments {
        pack_one(experiment, options.file.as_deref(), output)?;
    }
    Ok(())
}

fn pack_one(path: &Path, file: Option<&Path>, output: &mut Output) -> Result<(), Failure> {
    // One that is packed next to its load objects is packed again with them.
    let whole = match packed::packed_file(path) {
        Some(_) => Some(unpacked_for_now(path)?),
        None => None,
    };
    let opened = whole.as_ref().map_or(path, |(_, whole)| whole);
    let experiment = Experiment::open(opened).map_err(|error| unreadable(&error))?;
    let directory = experiment.path();
    if !experiment.is_closed() {
        output.say(&format!(
            "{} is not closed: it is still recorded, or the recording was killed. What is there now is packed",
            path.display()
        ));
    }
    say_missing_copies(&experiment, output)?;
    let disk_usage = disk_usage_of(directory).map_err(|error| unreadable(&error))?;
    let whole: u64 = disk_usage.values().sum();
    let file = file.map_or_else(|| default_file(directory), Path::to_owned);
    let mut progress = |bytes: u64| {
        output.progress(|| format!("packed {} of {}", megabytes(bytes), megabytes(whole)));
    };
    let write = |to: &File| {
        let packed = packed::pack(directory, BufWriter::new(to), &mut progress);
        let buffered = packed.map_err(io::Error::other)?;
        buffered
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        Ok(())
    };
    private_file::write(&file, path, write).map_err(|error| {
        Failure::new(
            ExitKind::CantCreate,
            format!("cannot write {}: {error}", file.display()),
            "name a file with -o where there is space: kcollect pack ktest.1.er -o /tmp/ktest.1.er.zst",
        )
    })?;
    output.end_progress();
    let packed = fs::metadata(&file).map_or(0, |file| file.len());
    output.result_line(&format!(
        "{}: {} of {}",
        file.display(),
        megabytes(packed),
        megabytes(whole)
    ));
    Ok(())
}

/// Unpacks an experiment into a directory for temporary files, which is removed with the first
/// value. The second is the experiment's directory.
fn unpacked_for_now(path: &Path) -> Result<(TempDir, PathBuf), Failure> {
    let made = tempfile::tempdir().map_err(|error| Failure::of_system("TMPDIR", &error))?;
    let free = free_bytes(made.path()).map_err(|error| no_place(&error))?;
    let done = packed::unpack_all(path, made.path(), free / 2, &mut |_| {});
    let whole = done.map_err(|error| not_unpacked(&error))?;
    Ok((made, whole))
}

fn default_file(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".zst");
    PathBuf::from(name)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Prints the number of load objects without a copy in the experiment. Their functions have no
/// names on another machine.
fn say_missing_copies(experiment: &Experiment, output: &mut Output) -> Result<(), Failure> {
    let archives = experiment.path().join(ARCHIVES);
    let subexperiments = experiment.subexperiments();
    let subexperiments = subexperiments.map_err(|error| unreadable(&error))?;
    let mut objects = objects_of(experiment);
    for path in subexperiments {
        if let Ok(sub) = experiment.open_subexperiment(&path) {
            objects.extend(objects_of(&sub));
        }
    }
    let missing = objects.iter().filter(|path| !has_copy(&archives, path));
    let missing = missing.count();
    if missing > 0 {
        output.say(&format!(
            "{missing} of its {} load objects have no copy in it, and functions of them no names on other machines",
            objects.len()
        ));
    }
    Ok(())
}

/// Returns the paths of the files that were mapped. What can't be read has none.
fn objects_of(experiment: &Experiment) -> BTreeSet<String> {
    let maps = experiment.maps().unwrap_or_default();
    let paths = maps.into_iter().filter_map(|event| match event {
        MapEvent::Segment { name, .. } if name.starts_with('/') => Some(name),
        _ => None,
    });
    paths.collect()
}

/// Unpacks each experiment.
///
/// # Errors
/// When a file is no packed experiment or is damaged, or its directory can't be made. What could be
/// unpacked of it stays.
pub fn unpack(options: &UnpackOptions, output: &mut Output) -> Result<(), Failure> {
    for file in &options.files {
        let free = free_bytes(&options.directory).map_err(|error| no_place(&error))?;
        let mut progress = |bytes: u64| {
            output.progress(|| format!("unpacked {}", megabytes(bytes)));
        };
        let done = packed::unpack_all(file, &options.directory, free, &mut progress);
        let directory = done.map_err(|error| not_unpacked(&error))?;
        output.end_progress();
        output.result_line(&directory.display().to_string());
    }
    Ok(())
}

fn not_unpacked(error: &Error) -> Failure {
    let exists =
        matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists);
    if exists || error.is_disk_full() {
        no_place(error)
    } else {
        Failure::new(
            ExitKind::NoInput,
            error.to_string(),
            "name a file that kcollect pack made, as it was made, or an experiment that --pack packed; what could be unpacked is there",
        )
    }
}

fn no_place(error: &Error) -> Failure {
    Failure::new(
        ExitKind::CantCreate,
        error.to_string(),
        "name a directory with -d that has space, and no experiment of that name",
    )
}

fn unreadable(error: &impl ToString) -> Failure {
    Failure::new(
        ExitKind::NoInput,
        error.to_string(),
        "name a directory that kcollect or gprofng collect made, such as ktest.1.er",
    )
}
