//! Opens the experiments that were named, with their subexperiments, and groups of experiments.
//!
//! What cannot be opened becomes a warning, and the rest is reported, unless nothing is left.

use std::path::{Path, PathBuf};

use experiment_format::packed::{is_packed, packed_file};
use experiment_format::reader::Experiment;
use host::exit::{ExitKind, Failure};

use crate::model::Model;

/// The first character of a group of experiments, by which gprofng recognises it.
const GROUP_HEADING: char = '#';

/// An open experiment.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) source: Experiment,
    /// Position of its founder among the opened ones: its own if it is a founder.
    pub(super) founder: usize,
}

/// Opens experiments with their subexperiments, in gprofng's order. What cannot be opened becomes a
/// warning of the model.
///
/// # Errors
/// When nothing of a path can be opened.
pub(super) fn open(paths: &[PathBuf], model: &mut Model) -> Result<Vec<Opened>, Failure> {
    let mut opened = Vec::new();
    for path in paths {
        if path.extension().is_some_and(|extension| extension == "erg") {
            for member in members(path)? {
                family(&member, &mut opened, model)?;
            }
        } else {
            family(path, &mut opened, model)?;
        }
    }
    Ok(opened)
}

/// Returns the experiments of a group, a file with one path a line.
fn members(group: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = std::fs::read_to_string(group).map_err(|error| {
        failure(format!(
            "cannot read the group {}: {error}",
            group.display()
        ))
    })?;
    let base = group.parent().unwrap_or(Path::new(""));
    let lines = text.lines().map(str::trim);
    let members: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with(GROUP_HEADING))
        .map(|line| {
            let sibling = base.join(line);
            if sibling.exists() {
                sibling
            } else {
                PathBuf::from(line)
            }
        })
        .collect();
    if members.is_empty() {
        return Err(failure(format!(
            "the group {} names no experiment",
            group.display()
        )));
    }
    Ok(members)
}

/// Opens an experiment and its subexperiments.
fn family(path: &Path, opened: &mut Vec<Opened>, model: &mut Model) -> Result<(), Failure> {
    if !(path.is_dir() || is_packed(path) && path.is_file()) {
        return Err(failure(format!(
            "there is no experiment {}",
            path.display()
        )));
    }
    let founder = opened.len();
    match Experiment::open(path) {
        Ok(source) => {
            match source.subexperiments() {
                Ok(paths) => {
                    let open = |path: &Path| source.open_subexperiment(path);
                    let subs = subexperiments(&paths, founder, open, model);
                    opened.push(Opened { source, founder });
                    opened.extend(subs);
                }
                Err(error) => {
                    model.leave_out(error.to_string());
                    opened.push(Opened { source, founder });
                }
            }
            Ok(())
        }
        Err(error) => {
            // The founder is unreadable: each subexperiment is opened by itself.
            let before = opened.len();
            let mut left = directories(path);
            left.sort();
            for path in left {
                let founder = opened.len();
                let alone = subexperiments(&[path], founder, Experiment::open, model);
                opened.extend(alone);
            }
            if opened.len() == before {
                return Err(failure(format!("cannot read the experiment: {error}")));
            }
            model.leave_out(format!(
                "the founder cannot be read, and only its subexperiments are reported: {error}"
            ));
            Ok(())
        }
    }
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_sub = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.as_encoded_bytes());
        name.is_some_and(|name| name.starts_with(b"_") && name.ends_with(b".er"))
    };
    entries.map(|entry| entry.path()).filter(is_sub).collect()
}

fn subexperiments(
    paths: &[PathBuf],
    founder: usize,
    open: impl Fn(&Path) -> experiment_format::Result<Experiment>,
    model: &mut Model,
) -> Vec<Opened> {
    let mut opened = Vec::new();
    for path in paths {
        match open(path) {
            Ok(source) => opened.push(Opened { source, founder }),
            // The collector may be making it at this moment, or was killed then.
            Err(_) if is_empty(path) => {}
            Err(error) => model.leave_out(format!(
                "a subexperiment is left out, since it cannot be read: {error}"
            )),
        }
    }
    opened
}

/// Returns whether nothing has been written into an experiment yet.
pub(crate) fn is_empty(path: &Path) -> bool {
    if packed_file(path).is_some() {
        return false;
    }
    let length = |name: &str| {
        path.join(name)
            .symlink_metadata()
            .map_or(0, |file| file.len())
    };
    ["log.xml", "profile", "data.frameinfo"].map(length) == [0; 3]
}

fn failure(message: String) -> Failure {
    Failure::new(
        ExitKind::NoInput,
        message,
        "name a directory that kcollect or gprofng collect made, such as ktest.1.er, or a file that kcollect pack made",
    )
}
