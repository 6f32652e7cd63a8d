//! Lists the experiments in a directory (`kcollect list`), with their beginnings, lengths and
//! sizes.
//!
//! For each experiment, only the log is read, and its files are counted. Neither gprofng's nor
//! kcollect's subexperiments have rows of their own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, FixedOffset, SecondsFormat};
use experiment_format::directory::{DiskUsage, disk_usage_of};
use host::exit::Failure;
use host::output::Output;
use serde_json::json;

use crate::model::incomplete;
use crate::report::table::{Cell, Column, Table};
use crate::sources::log_summary::{LogSummary, in_directory};

/// What is listed, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// The directories. Empty: the current one.
    pub directories: Vec<PathBuf>,
    /// Whether the list is JSON.
    pub json: bool,
}

/// An experiment of a directory.
#[derive(Debug)]
struct Listed {
    recorded: LogSummary,
    files: DiskUsage,
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
        for path in in_directory(directory)? {
            match Listed::read(&path) {
                Ok(listed) => found.push(listed),
                Err(problem) => problems.push(problem),
            }
        }
    }
    found.sort_by(|Listed { recorded: a, .. }, Listed { recorded: b, .. }| {
        (a.start.wall_ns(), &a.path).cmp(&(b.start.wall_ns(), &b.path))
    });
    let table = table(&found);
    if options.json {
        let mut value = table.json();
        value["warnings"] = json!(problems);
        value["incomplete"] = json!(!problems.is_empty());
        output.json(&format!("{value:#}"));
    } else {
        output.result(table.text(output.width()).trim_end())
    }
    problems.iter().for_each(|problem| output.say(problem));
    if problems.is_empty() {
        Ok(())
    } else {
        Err(incomplete())
    }
}

impl Listed {
    fn read(path: &Path) -> Result<Listed, String> {
        let recorded = LogSummary::read(path)?;
        let files = disk_usage_of(path)
            .map_err(|error| format!("{}: its files: {error}", path.display()))?;
        Ok(Listed { recorded, files })
    }

    /// Returns when it began, in the local time of the machine that was recorded.
    fn began(&self) -> Option<DateTime<FixedOffset>> {
        let start = &self.recorded.start;
        self.recorded.local(start.wall_s, start.wall_subsec_ns)
    }
}

fn table(found: &[Listed]) -> Table {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let row = |listed: &Listed| {
        let (recorded, began) = (&listed.recorded, listed.began());
        let shown = |form: &str| began.map(|began| began.format(form).to_string());
        vec![
            Cell::Text(recorded.path.display().to_string()),
            shown("%F %T").map_or(Cell::Empty, Cell::Text),
            began.map_or(Cell::Empty, |began| {
                Cell::Text(began.to_rfc3339_opts(SecondsFormat::Nanos, true))
            }),
            Cell::Nanoseconds(recorded.length_ns),
            Cell::Text(if recorded.is_closed {
                "complete".to_owned()
            } else {
                "not closed".to_owned()
            }),
            Cell::Count(recorded.subexperiments),
            Cell::Average(megabytes(listed.files.values().sum())),
            Cell::Text(recorded.hostname.clone()),
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
    if found.iter().any(|listed| !listed.recorded.is_closed) {
        notes.push("Not closed: it is still recorded, or the recording was killed".to_owned());
    }
    Table {
        view: "list",
        title: if found.is_empty() {
            "No experiment is here".to_owned()
        } else {
            "Experiments, the oldest first; local times of the recorded machine".to_owned()
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
    use experiment_format::log::StartTime;
    use experiment_format::units::Nanos;

    use super::*;

    #[test]
    fn the_time_is_that_of_the_recorded_machine() {
        let recorded = LogSummary {
            path: PathBuf::from("k.1.er"),
            start: StartTime {
                tstamp_ns: Nanos::ZERO,
                wall_s: 1_767_225_600,
                wall_subsec_ns: 5,
                tm_zone_s: -3600,
            },
            length_ns: Nanos::from_millis(1_500),
            is_closed: false,
            hostname: "alpha".to_owned(),
            subexperiments: 2,
            written_ns: Nanos::ZERO,
        };
        let mut listed = Listed {
            recorded,
            files: DiskUsage::from([((1, 2), 4096)]),
        };
        let shown = table(std::slice::from_ref(&listed)).text(None);
        insta::assert_snapshot!(shown);
        let value = table(std::slice::from_ref(&listed)).json();
        assert_eq!(
            value["rows"][0]["began"],
            "2026-01-01T01:00:00.000000005+01:00"
        );
        listed.recorded.start.tm_zone_s = i64::MAX;
        assert_eq!(table(&[listed]).json()["rows"][0]["began"], json!(null));
        assert!(table(&[]).text(None).starts_with("No experiment"));
    }
}
