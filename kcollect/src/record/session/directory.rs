//! The experiment's directory: its name, its group, and what can go wrong with it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use experiment_format::directory::ExperimentDir;
use host::exit::{ExitKind, Failure};
use host::machine;
use host::output::Output;
use host::written::append;

use crate::plan::Place;
use crate::record::summary::Summary;

/// Creates the experiment's directory. It belongs to the user who called sudo.
///
/// # Errors
/// When it can't be created.
pub(super) fn create(place: &Place, output: &mut Output) -> Result<ExperimentDir, Failure> {
    let user = machine::sudo_user();
    let (dir, renamed) = ExperimentDir::create(&place.directory, &place.name, user)
        .map_err(|error| creation_failure(&error))?;
    if let Some(renamed) = renamed {
        output.say(&format!(
            "name {} is in use; changed to {}",
            renamed.wanted, renamed.used
        ));
    }
    if let Some(kind) = machine::remote_file_system(&place.directory) {
        output.say(&format!(
            "{} is on {kind}, which is slow to write: results may be distorted; -d names a local directory",
            place.directory.display()
        ));
    }
    Ok(dir)
}

/// Returns the experiment's path as it would be typed: without the `./` of the current directory.
pub(super) fn shown_path(place: &Place, dir: &ExperimentDir) -> PathBuf {
    if place.directory == Path::new(".") {
        PathBuf::from(dir.name())
    } else {
        dir.path().to_owned()
    }
}

/// Returns the failure of an experiment that can't be created.
pub(super) fn creation_failure(error: &experiment_format::Error) -> Failure {
    let hint = match error {
        _ if error.is_disk_full() => "free some space, or name another directory with -d",
        experiment_format::Error::NameInUse { .. } => "choose another name with -o, or remove it",
        experiment_format::Error::BadName { .. } => "give -o a name like ktest.1.er",
        _ => "name a directory that can be written with -d",
    };
    Failure::new(ExitKind::CantCreate, error.to_string(), hint)
}

/// Returns the failure of an experiment that could not be written to its end.
pub(super) fn writing_failure(error: &experiment_format::Error) -> Failure {
    let hint = match error {
        experiment_format::Error::Deleted { .. } => "nothing is left of it; record again",
        _ if error.is_disk_full() => {
            "the experiment is valid up to there; free some space, or limit the data with -L"
        }
        _ => "the experiment is valid up to there",
    };
    Failure::new(ExitKind::IoErr, error.to_string(), hint)
}

/// Returns the failure of an experiment that is whole, but not where it was to be.
pub(super) fn moved_failure(was: &Path, path: &Path) -> Failure {
    Failure::new(
        ExitKind::IoErr,
        format!("{} was renamed while it was written", was.display()),
        format!("it is {} now", path.display()),
    )
}

/// Adds the experiment to a group file: `#analyzer experiment group`, then a path a line.
///
/// # Errors
/// When the file can't be written.
pub(super) fn add_to_group(group: &Path, experiment: &Path) -> Result<(), Failure> {
    let add = || {
        let mut file = append(group)?;
        let line = match file.metadata()?.len() {
            0 => format!("#analyzer experiment group\n{}\n", experiment.display()),
            _ => format!("{}\n", experiment.display()),
        };
        file.write_all(line.as_bytes())
    };
    add().map_err(|error| {
        Failure::new(
            ExitKind::CantCreate,
            format!("cannot add the experiment to {}: {error}", group.display()),
            "name a group that can be written with -g",
        )
    })
}

/// Returns the failure of a recording without a tick.
pub(super) fn empty_failure(summary: &Summary) -> Failure {
    Failure::new(
        ExitKind::Empty,
        format!(
            "no tick was recorded in {:.3} s, on a CPU or away from it",
            summary.elapsed_s
        ),
        "run longer, or with -p hi",
    )
}
