//! Which experiments there are in a directory (`kcollect list`): when each began, how long it is
//! and how much room it takes.
//!
//! Of each only the log is read, and its files are counted. Neither gprofng's nor kcollect's
//! subexperiments have rows of their own.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, FixedOffset, SecondsFormat, TimeZone as _};
use experiment_format::log::{LogEvent, StartTime};
use experiment_format::reader::Experiment;
use host::exit::{ExitKind, Failure};
use host::output::Output;
use serde_json::json;

use crate::model::incomplete;
use crate::report::table::{Cell, Column, Table};

/// The directories of an experiment are no deeper than this: a subexperiment, and `archives/`.
const MAX_DEPTH: u32 = 3;
/// A block of `stat(2)`, bytes.
const BLOCK_BYTES: u64 = 512;

/// What to list, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// The directories. Empty: the current one.
    pub directories: Vec<PathBuf>,
    /// As JSON.
    pub json: bool,
}

/// The room of files by device and inode, bytes. Experiments may share files.
type Room = HashMap<(u64, u64), u64>;

/// An experiment of a directory.
#[derive(Debug)]
struct Listed {
    path: PathBuf,
    start: StartTime,
    /// Nanoseconds from its start to its end, or to its last event so far.
    length_ns: u64,
    is_closed: bool,
    hostname: String,
    subexperiments: u64,
    files: Room,
}

/// Lists experiments, the oldest first. A directory that is no readable experiment, although it is
/// named like one, is reported on standard error.
///
/// # Errors
/// When a directory can't be read. When an experiment can't be read, after the list of the rest.
pub fn list(options: &ListOptions, output: &mut Output) -> Result<(), Failure> {
    let here = [PathBuf::from(".")];
    let directories = match &options.directories[..] {
        [] => &here[..],
        named => named,
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for directory in directories {
        for path in named_like_experiments(directory)? {
            match Listed::read(path) {
                Ok(listed) => found.push(listed),
                Err(problem) => problems.push(problem),
            }
        }
    }
    found.sort_by(|a, b| (a.start.wall_ns(), &a.path).cmp(&(b.start.wall_ns(), &b.path)));
    let table = table(&found);
    match options.json {
        true => {
            let mut value = table.json();
            value["warnings"] = json!(problems);
            value["incomplete"] = json!(!problems.is_empty());
            output.json(&format!("{value:#}"));
        }
        false => output.result(table.text(output.width()).trim_end()),
    }
    problems.iter().for_each(|problem| output.say(problem));
    match problems.is_empty() {
        true => Ok(()),
        false => Err(incomplete()),
    }
}

/// Returns the directories in a directory whose names are those of experiments.
fn named_like_experiments(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            ExitKind::NoInput,
            format!("cannot list {}: {error}", directory.display()),
            "name a directory that experiments are in: kcollect list DIRECTORY",
        )
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let path = match directory == Path::new(".") {
            true => PathBuf::from(&name),
            false => directory.join(&name),
        };
        let is_named = Path::new(&name).extension() == Some(OsStr::new("er"));
        if is_named && !name.as_encoded_bytes().starts_with(b"_") && path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

impl Listed {
    fn read(path: PathBuf) -> Result<Listed, String> {
        let experiment = Experiment::open(&path).map_err(|error| error.to_string())?;
        let subexperiments = experiment
            .subexperiments()
            .map_err(|error| error.to_string())?;
        let mut files = Room::new();
        add_files(&path, 0, &mut files)
            .map_err(|error| format!("{}: its files: {error}", path.display()))?;
        Ok(Listed {
            start: experiment.start(),
            length_ns: length_ns(experiment.events()),
            is_closed: experiment.is_closed(),
            hostname: experiment.header().system.hostname.clone(),
            subexperiments: subexperiments.len() as u64,
            files,
            path,
        })
    }

    /// Returns when it began, in the local time of the machine that was recorded; none where the
    /// log has a time that is none.
    fn began(&self) -> Option<DateTime<FixedOffset>> {
        let zone = FixedOffset::west_opt(self.start.tm_zone_s.try_into().ok()?)?;
        zone.timestamp_opt(self.start.wall_s, self.start.wall_subsec_ns)
            .single()
    }
}

/// Returns the time of the end, or else of the last sample, pause or change.
fn length_ns(events: &[LogEvent]) -> u64 {
    let at = |event: &LogEvent| match event {
        LogEvent::Exit { at } => Some((true, *at)),
        LogEvent::Sample { at, .. } | LogEvent::Pause { at, .. } | LogEvent::Resume { at } => {
            Some((false, *at))
        }
        _ => None,
    };
    events.iter().filter_map(at).max().map_or(0, |(_, at)| at)
}

/// Adds the files of a directory; links are counted themselves and not followed. What goes away
/// meanwhile is passed over.
fn add_files(directory: &Path, depth: u32, files: &mut Room) -> io::Result<()> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(error) if gone(&error) => continue,
            metadata => metadata?,
        };
        let room = metadata.blocks().saturating_mul(BLOCK_BYTES);
        files.insert((metadata.dev(), metadata.ino()), room);
        if metadata.is_dir() && depth < MAX_DEPTH {
            add_files(&entry.path(), depth + 1, files)?;
        }
    }
    Ok(())
}

fn table(found: &[Listed]) -> Table {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let row = |listed: &Listed| {
        let began = listed.began();
        let shown = |form: &str| began.map(|began| began.format(form).to_string());
        vec![
            Cell::Text(listed.path.display().to_string()),
            shown("%F %T").map_or(Cell::Empty, Cell::Text),
            began.map_or(Cell::Empty, |began| {
                Cell::Text(began.to_rfc3339_opts(SecondsFormat::Nanos, true))
            }),
            Cell::Nanoseconds(listed.length_ns),
            Cell::Text(match listed.is_closed {
                true => "complete".to_owned(),
                false => "not closed".to_owned(),
            }),
            Cell::Count(listed.subexperiments),
            Cell::Average(megabytes(listed.files.values().sum())),
            Cell::Text(listed.hostname.clone()),
        ]
    };
    let mut notes = Vec::new();
    if !found.is_empty() {
        let all: HashMap<_, _> = found.iter().flat_map(|listed| &listed.files).collect();
        notes.push(format!(
            "Together {:.3} MB: what several of them link to counts once",
            megabytes(all.values().copied().sum())
        ));
    }
    if found.iter().any(|listed| !listed.is_closed) {
        notes.push("Not closed: it is still recorded, or the recording was killed".to_owned());
    }
    Table {
        view: "list",
        title: match found.is_empty() {
            true => "No experiment is here".to_owned(),
            false => {
                "Experiments, the oldest first; local times of the recorded machine".to_owned()
            }
        },
        columns: vec![
            Column::text("experiment", "Experiment"),
            Column::text("began_local", "Began"),
            Column::text("began", "Began, with its time zone").hidden(),
            Column::number("length_s", "Length, s"),
            Column::text("state", "State"),
            Column::number("followed", "Followed"),
            Column::number("size_mb", "MB"),
            Column::text("host", "Host"),
        ],
        rows: found.iter().map(row).collect(),
        notes,
        verbatim: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_ends_with_its_exit_or_its_last_sample() {
        let sample = |at| LogEvent::Sample {
            at,
            id: 0,
            label: String::new(),
        };
        assert_eq!(length_ns(&[]), 0);
        assert_eq!(length_ns(&[sample(5), sample(9)]), 9);
        assert_eq!(length_ns(&[sample(9), LogEvent::Exit { at: 8 }]), 8);
    }

    #[test]
    fn the_time_is_that_of_the_recorded_machine() {
        let mut listed = Listed {
            path: PathBuf::from("k.1.er"),
            start: StartTime {
                tstamp_ns: 0,
                wall_s: 1_767_225_600,
                wall_subsec_ns: 5,
                tm_zone_s: -3600,
            },
            length_ns: 1_500_000_000,
            is_closed: false,
            hostname: "alpha".to_owned(),
            subexperiments: 2,
            files: Room::from([((1, 2), 4096)]),
        };
        let shown = table(std::slice::from_ref(&listed)).text(None);
        assert!(
            shown.contains("k.1.er      2026-01-01 01:00:00      1.500  not closed"),
            "{shown}"
        );
        let value = table(std::slice::from_ref(&listed)).json();
        assert_eq!(
            value["rows"][0]["began"],
            "2026-01-01T01:00:00.000000005+01:00"
        );
        listed.start.tm_zone_s = i64::MAX;
        assert_eq!(table(&[listed]).json()["rows"][0]["began"], json!(null));
        assert!(table(&[]).text(None).starts_with("No experiment"));
    }

    #[test]
    fn what_is_linked_twice_is_counted_once_and_links_are_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir_all(a.join("archives")).unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(a.join("archives/f"), vec![1; 100_000]).unwrap();
        fs::hard_link(a.join("archives/f"), b.join("f")).unwrap();
        std::os::unix::fs::symlink("/usr", b.join("link")).unwrap();
        let mut files = Room::new();
        add_files(&a, 0, &mut files).unwrap();
        add_files(&b, 0, &mut files).unwrap();
        let room: u64 = files.values().sum();
        assert!((100_000..150_000).contains(&room), "{room}");
        add_files(&tmp.path().join("none"), 0, &mut files).unwrap();
    }
}
