//! A summary of an experiment, by its log alone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use chrono::{DateTime, FixedOffset, TimeZone as _};
use experiment_format::log::{LogEvent, StartTime};
use experiment_format::packed::is_packed;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};

use crate::load::open;

/// A summary of an experiment by its log. Nothing else of it is read.
#[derive(Debug)]
pub(crate) struct LogSummary {
    pub(crate) path: PathBuf,
    pub(crate) start: StartTime,
    /// Nanoseconds from its start to its end, or to its last event so far.
    pub(crate) length_ns: Nanos,
    pub(crate) is_closed: bool,
    pub(crate) hostname: String,
    pub(crate) subexperiments: u64,
    /// When something was last written, nanoseconds since 1970, of one that is not closed.
    pub(crate) written_ns: Nanos,
}

impl LogSummary {
    pub(crate) fn read(path: &Path) -> Result<LogSummary, String> {
        let experiment = Experiment::open_log(path).map_err(|error| error.to_string())?;
        let subexperiments = experiment.subexperiments();
        let subexperiments = subexperiments.map_err(|error| error.to_string())?;
        Ok(LogSummary {
            path: path.to_owned(),
            start: experiment.start(),
            length_ns: length_ns(experiment.events()),
            is_closed: experiment.is_closed(),
            hostname: experiment.header().system.hostname.clone(),
            subexperiments: subexperiments.len() as u64,
            written_ns: written_ns(experiment.path()),
        })
    }

    /// Returns a time in the time zone of the recorded machine. None: the log's time is invalid.
    pub(crate) fn local(&self, wall_s: i64, subsec_ns: u32) -> Option<DateTime<FixedOffset>> {
        let zone = FixedOffset::west_opt(self.start.tm_zone_s.try_into().ok()?)?;
        zone.timestamp_opt(wall_s, subsec_ns).single()
    }

    /// Returns when it was recorded, in nanoseconds since 1970. What is not closed was recorded
    /// until a file was last written.
    pub(crate) fn wall_ns(&self) -> Range<Nanos> {
        let start = self.start.wall_ns();
        let end = start.saturating_add(self.length_ns);
        if self.is_closed {
            return start..end;
        }
        start..end.max(self.written_ns)
    }
}

fn written_ns(directory: &Path) -> Nanos {
    let written = ["log.xml", "profile", "data.frameinfo"].map(|name| {
        let time = fs::symlink_metadata(directory.join(name)).and_then(|file| file.modified());
        let since = time.ok()?.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos()).ok().map(Nanos)
    });
    written.into_iter().flatten().max().unwrap_or_default()
}

/// Returns the experiments in a directory by their names, except for those that are being made, and
/// for packed ones whose directory is there too.
///
/// # Errors
/// When the directory can't be read.
pub(crate) fn in_directory(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            ExitKind::NoInput,
            format!("cannot list {}: {error}", directory.display()),
            "name a directory that experiments are in",
        )
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let path = if directory == Path::new(".") {
            PathBuf::from(&name)
        } else {
            directory.join(&name)
        };
        let is_named = Path::new(&name).extension() == Some(OsStr::new("er"));
        let is_founder = !name.as_encoded_bytes().starts_with(b"_");
        let is_directory = is_named && path.is_dir() && !open::is_empty(&path);
        let is_file = is_packed(&path) && path.is_file() && !path.with_extension("").is_dir();
        if is_founder && (is_directory || is_file) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the time of the end, or else of the last sample, pause or change.
fn length_ns(events: &[LogEvent]) -> Nanos {
    let at = |event: &LogEvent| match event {
        LogEvent::Exit { at_ns } => Some((true, *at_ns)),
        LogEvent::Sample { at_ns, .. }
        | LogEvent::Pause { at_ns, .. }
        | LogEvent::Resume { at_ns } => Some((false, *at_ns)),
        _ => None,
    };
    events
        .iter()
        .filter_map(at)
        .max()
        .map_or(Nanos::ZERO, |(_, at_ns)| at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_ends_with_its_exit_or_its_last_sample() {
        let sample = |at_ns| LogEvent::Sample {
            at_ns,
            id: 0,
            label: String::new(),
        };
        assert_eq!(length_ns(&[]), Nanos::ZERO);
        assert_eq!(length_ns(&[sample(Nanos(5)), sample(Nanos(9))]), Nanos(9));
        assert_eq!(
            length_ns(&[sample(Nanos(9)), LogEvent::Exit { at_ns: Nanos(8) }]),
            Nanos(8)
        );
    }
}
