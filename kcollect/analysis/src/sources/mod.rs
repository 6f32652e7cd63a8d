//! Finds the experiments of a result: those that were named, or those in a directory that were
//! recorded at a time (`--last`, `--at`).
//!
//! Only the log is read of an experiment from another time.

pub mod clock;
pub(crate) mod log_summary;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::SecondsFormat;
use experiment_format::packed::is_packed;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use serde_json::{Value, json};

use self::clock::ClockRange;
use self::log_summary::{LogSummary, in_directory};
use crate::filter::{Filter, TimeRange};
use crate::load::lines::LookupPaths;
use crate::model::{Model, TracedEvents};

const SECOND: Nanos = Nanos::from_secs(1);
/// The latest time that a clock shows, in nanoseconds since 1970: the year 2262. An experiment with
/// a later one would be the last, from which `--last` counts.
const MAX_WALL_NS: Nanos = Nanos(i64::MAX as u64);

/// The experiments of a result, as typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Experiments, and with a period also directories that hold some. Empty: the newest experiment
    /// in the current directory, and with a period all in it.
    pub named: Vec<PathBuf>,
    /// The time, by the clock of the recorded machine.
    pub period: Option<Period>,
    /// Whether ticks count as they are, and not as the exact times that they stand for.
    pub ticks: bool,
}

/// A time by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// The last part of what was recorded.
    Last(Duration),
    /// From one time to another.
    At(ClockRange),
}

/// The experiments that were found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Their paths. With a period the oldest first.
    pub(crate) paths: Vec<PathBuf>,
    /// The period.
    time: Option<FoundTime>,
    /// What can't be read and may be missing, one sentence each.
    problems: Vec<String>,
    /// Whether ticks count as they are.
    ticks: bool,
}

#[derive(Debug)]
struct FoundTime {
    wall_ns: Range<Nanos>,
    /// The same in RFC 3339, in the time zone of the newest experiment.
    shown: [String; 2],
    /// Nanoseconds of it in which nothing was recorded.
    missing_ns: Nanos,
    /// The first two experiments of the period that were recorded at the same time.
    overlap: Option<[PathBuf; 2]>,
}

/// The experiments of a result, loaded.
pub(crate) struct Loaded {
    pub(crate) found: Found,
    pub(crate) model: Model,
    /// The filter, with the period.
    pub(crate) filter: Filter,
}

impl Sources {
    /// Finds and loads the experiments. With traced events, these are shown instead of ticks.
    ///
    /// # Errors
    /// As [`Sources::find`], [`Model::load`] and [`Model::show`].
    pub(crate) fn load(
        &self,
        filter: &Filter,
        lookup: &LookupPaths,
        traced: Option<TracedEvents>,
    ) -> Result<Loaded, Failure> {
        let found = self.find()?;
        let mut model = found.load(&found.paths, lookup, traced)?;
        found.note(&mut model);
        let mut filter = filter.clone();
        if let Some(time) = &found.time {
            filter.time = Some(TimeRange::Wall(time.wall_ns.clone()));
        }
        Ok(Loaded {
            found,
            model,
            filter,
        })
    }

    /// Finds the experiments.
    ///
    /// # Errors
    /// No experiment, no experiment in the period, or a directory that can't be read.
    fn find(&self) -> Result<Found, Failure> {
        let here = Path::new(".");
        let Some(period) = self.period else {
            let paths = match &self.named[..] {
                [] => vec![newest(here)?],
                named => named.to_vec(),
            };
            return Ok(Found {
                paths,
                time: None,
                problems: Vec::new(),
                ticks: self.ticks,
            });
        };
        let mut paths = Vec::new();
        match &self.named[..] {
            [] => paths = in_directory(here)?,
            named => {
                for path in named {
                    if path.extension().is_some_and(|extension| extension == "er")
                        || is_packed(path)
                    {
                        paths.push(path.clone())
                    } else {
                        paths.extend(in_directory(path)?)
                    }
                }
            }
        }
        let (mut all, mut problems) = (Vec::new(), Vec::new());
        for path in &paths {
            match LogSummary::read(path) {
                Ok(recorded) => match recorded.wall_ns() {
                    time if time.end > MAX_WALL_NS => {
                        problems.push(format!("{}: its time is damaged", path.display()));
                    }
                    time => all.push((time, recorded)),
                },
                Err(problem) => problems.push(problem),
            }
        }
        all.sort_by(|(a, a_of), (b, b_of)| (a.start, &a_of.path).cmp(&(b.start, &b_of.path)));
        let Some(last) = all.iter().max_by_key(|(time, _)| time.end) else {
            let named = self.named.iter().map(|path| path.display().to_string());
            let place = match &named.collect::<Vec<_>>()[..] {
                [] => "here".to_owned(),
                named => format!("in {}", named.join(", ")),
            };
            problems.push(format!("there is no readable experiment {place}"));
            return Err(Failure::new(
                ExitKind::NoInput,
                problems.join("; "),
                "name a directory that kcollect recorded into: kcollect list DIRECTORY",
            ));
        };
        let (wall_ns, shown) = resolve(period, last)?;
        let recorded = |time: &Range<Nanos>| {
            time.start.max(wall_ns.start)..time.end.min(wall_ns.end).max(wall_ns.start)
        };
        let of_period = |time: &Range<Nanos>| !recorded(time).is_empty();
        let begin = all.first().map_or(Nanos::ZERO, |(time, _)| time.start);
        let recorded_all = [begin, last.0.end].map(|ns| text_of(&last.1, ns));
        let chosen: Vec<_> = all.iter().filter(|(time, _)| of_period(time)).collect();
        if chosen.is_empty() {
            let [from, to] = &shown;
            let [begin, end] = recorded_all;
            return Err(Failure::new(
                ExitKind::Empty,
                format!("nothing was recorded from {from} to {to}"),
                format!(
                    "choose a time between {begin} and {end}; kcollect list shows which there is"
                ),
            ));
        }
        let mut missing_ns = wall_ns.end - wall_ns.start;
        let (mut covered, mut overlap) = (wall_ns.start, None);
        for (index, (time, own)) in chosen.iter().enumerate() {
            let part = recorded(time);
            // The wall clock may be set while a series is recorded, by less than this.
            if index > 0 && part.start + SECOND < covered.min(part.end) {
                let before = chosen[index - 1].1.path.clone();
                overlap.get_or_insert([before, own.path.clone()]);
            }
            missing_ns -= part.end.saturating_sub(part.start.max(covered));
            covered = covered.max(part.end);
        }
        Ok(Found {
            paths: chosen.iter().map(|(_, own)| own.path.clone()).collect(),
            time: Some(FoundTime {
                wall_ns,
                shown,
                missing_ns,
                overlap,
            }),
            problems,
            ticks: self.ticks,
        })
    }
}

/// Returns the newest experiment named by kcollect itself, `ktest.N.er` or packed, in a directory.
///
/// # Errors
/// The directory has no experiment.
pub fn newest(directory: &Path) -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| -> Option<u64> {
        let name = name.strip_suffix(".zst").unwrap_or(name);
        let number = name.strip_prefix("ktest.")?.strip_suffix(".er")?;
        number.parse().ok()
    };
    let numbered = entries.filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry)));
    // Of a directory and its packed file, take the directory.
    let newest = numbered.max_by_key(|(number, entry)| {
        let packed = is_packed(entry.file_name().as_ref());
        (*number, !packed)
    });
    match newest {
        Some((_, entry)) => Ok(PathBuf::from(entry.file_name())),
        None => Err(Failure::new(
            ExitKind::NoInput,
            "no experiment is named, and there is no ktest.N.er here",
            "type kcollect report EXPERIMENT, or record one: sudo kcollect -t 10",
        )),
    }
}

/// Returns a period in nanoseconds since 1970, and the same as text. `last` is the experiment that
/// ended last.
fn resolve(
    period: Period,
    (time, last): &(Range<Nanos>, LogSummary),
) -> Result<(Range<Nanos>, [String; 2]), Failure> {
    let range = match period {
        Period::Last(length) => Some(time.end.saturating_sub(length.into())..time.end),
        Period::At(clock) => local(last, time.end).and_then(|end| clock.before(end)),
    };
    let range = range.filter(|range| !range.is_empty()).ok_or_else(|| {
        Failure::new(
            ExitKind::Empty,
            format!("the time cannot be found in {}", last.path.display()),
            "kcollect list shows when each experiment was recorded",
        )
    })?;
    let shown = [range.start, range.end].map(|ns| text_of(last, ns));
    Ok((range, shown))
}

fn local(recorded: &LogSummary, ns: Nanos) -> Option<chrono::DateTime<chrono::FixedOffset>> {
    let seconds = i64::try_from(ns / SECOND).ok()?;
    recorded.local(seconds, (ns % SECOND).0 as u32)
}

fn text_of(recorded: &LogSummary, ns: Nanos) -> String {
    let time = local(recorded, ns);
    time.map_or_else(String::new, |time| {
        time.to_rfc3339_opts(SecondsFormat::Secs, false)
    })
}

impl Found {
    /// Loads experiments: these ones, or others that are shown in the same way.
    ///
    /// # Errors
    /// As [`Model::load`] and [`Model::show`].
    pub(crate) fn load(
        &self,
        paths: &[PathBuf],
        lookup: &LookupPaths,
        traced: Option<TracedEvents>,
    ) -> Result<Model, Failure> {
        let mut model = Model::load_named(paths, lookup)?;
        if self.ticks {
            model.show_ticks();
        }
        if let Some(events) = traced {
            model.show(events)?;
        }
        Ok(model)
    }

    /// Notes what may be missing in a model of these experiments.
    fn note(&self, model: &mut Model) {
        for problem in &self.problems {
            model.leave_out(problem.clone());
        }
        let Some(time) = &self.time else {
            return;
        };
        let whole = time.wall_ns.end - time.wall_ns.start;
        // Between the last sample of a running recording and its end is less than that.
        if time.missing_ns >= SECOND {
            model.warnings.push(format!(
                "of {:.3} seconds, nothing was recorded in {:.3}",
                whole.as_secs_f64(),
                time.missing_ns.as_secs_f64()
            ));
        }
        if let Some([a, b]) = &time.overlap {
            model.warnings.push(format!(
                "{} and {} were recorded at the same time; what both hold is counted twice",
                a.display(),
                b.display()
            ));
        }
    }

    /// Returns the recorded nanoseconds of the period; none without one.
    pub(crate) fn length_ns(&self) -> Option<Nanos> {
        let time = self.time.as_ref()?;
        Some(time.wall_ns.end - time.wall_ns.start - time.missing_ns)
    }

    /// Returns the period, for a title; none without one.
    pub(crate) fn text(&self) -> Option<String> {
        let time = self.time.as_ref()?;
        let [from, to] = &time.shown;
        Some(format!("{from} to {to}"))
    }

    /// Returns the period and the experiments in JSON; none without a period.
    pub(crate) fn json(&self) -> Option<Value> {
        let time = self.time.as_ref()?;
        let paths = self.paths.iter().map(|path| path.display().to_string());
        Some(json!({
            "from": time.shown[0],
            "to": time.shown[1],
            "missing_s": time.missing_ns.as_secs_f64(),
            "experiments": paths.collect::<Vec<_>>(),
        }))
    }
}
