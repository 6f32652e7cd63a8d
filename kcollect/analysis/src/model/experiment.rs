//! The experiments of a model, with their losses.

use std::sync::Arc;

use experiment_format::losses::{self, RecordedTotals};
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;

use super::ids::{ExperimentId, ProcessId};

/// The summary's name in the founder's directory.
const SUMMARY_FILE: &str = "kcollect.json";

/// An experiment or subexperiment.
#[derive(Debug)]
pub struct ExperimentInfo {
    /// The experiment's reader.
    pub source: Arc<Experiment>,
    /// The name of its directory.
    pub name: String,
    /// Its founder; itself, if its founder was not opened.
    pub founder: ExperimentId,
    /// The first experiment of its recording: its founder, or in a series (`--rotate`) the first
    /// founder of those that are opened and follow each other without a gap.
    pub first: ExperimentId,
    /// Its start, in nanoseconds after the start of [`ExperimentInfo::first`]; 0 if it started
    /// before.
    pub offset_ns: Nanos,
    /// Length of a tick in microseconds, from its last clock profile, as for gprofng. 0: it has
    /// none.
    pub tick_us: u32,
    /// The process whose ticks it holds. None: it holds the ticks of all processes of a machine.
    pub process: Option<ProcessId>,
    /// The latest time in it, in nanoseconds since the start of the recording.
    pub end_ns: Nanos,
}

impl ExperimentInfo {
    /// Returns `kcollect.json`, the summary that kcollect writes at the end. None in experiments of
    /// other collectors, in subexperiments, and where kcollect was killed.
    #[must_use]
    pub fn summary(&self) -> Option<serde_json::Value> {
        self.read_summary().ok()?
    }

    /// Returns the summary, or why its file cannot be read.
    pub(crate) fn read_summary(&self) -> Result<Option<serde_json::Value>, String> {
        let file = self.source.side_file(SUMMARY_FILE);
        let bytes = file.map_err(|error| error.to_string())?;
        let summary = bytes
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose();
        summary.map_err(|error| {
            let path = self.source.path().join(SUMMARY_FILE);
            format!("{}: {error}; losses are not known", path.display())
        })
    }

    /// Returns what makes the recording wrong or leaves a whole part of it out: what was found and
    /// the effect, by `kcollect.json`. None: nothing.
    #[must_use]
    pub fn problems(&self) -> Option<String> {
        let summary = self.summary()?;
        let lines = summary["problems"]
            .as_array()?
            .iter()
            .filter_map(|problem| {
                let text = |key: &str| problem[key].as_str();
                Some(format!("{}: {}", text("found")?, text("effect")?))
            });
        let lines: Vec<_> = lines.collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// Returns the loss counts of `kcollect.json`.
    #[must_use]
    pub fn losses(&self) -> Option<LossCounts> {
        let summary = self.summary()?;
        let counts = summary["losses"].as_object()?.iter();
        let number = |key: &str| summary[key].as_u64().unwrap_or(0);
        Some(LossCounts {
            counts: counts
                .filter_map(|(name, count)| Some((name.clone(), count.as_i64()?)))
                .collect(),
            recorded: RecordedTotals {
                ticks: number("ticks"),
                thread_ticks: number("thread_ticks"),
                thread_packets: number("thread_packets"),
            },
        })
    }
}

/// What a recording lost, by cause, and how much it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossCounts {
    /// The counts by their keys in `kcollect.json`, zeros included.
    pub counts: Vec<(String, i64)>,
    /// What was recorded; losses are shown as a share of it.
    pub recorded: RecordedTotals,
}

impl LossCounts {
    /// Returns the sum of the losses of several experiments. None: one of them has no loss counts.
    pub(crate) fn of_all<'a>(
        experiments: impl IntoIterator<Item = &'a ExperimentInfo>,
    ) -> Option<LossCounts> {
        let mut all: Option<LossCounts> = None;
        for info in experiments {
            let losses = info.losses()?;
            match &mut all {
                None => all = Some(losses),
                Some(all) => all.add(&losses),
            }
        }
        all
    }

    /// Adds the losses of another experiment.
    fn add(&mut self, other: &LossCounts) {
        for (name, count) in &other.counts {
            match self.counts.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = own.saturating_add(*count),
                None => self.counts.push((name.clone(), *count)),
            }
        }
        for (own, other) in [
            (&mut self.recorded.ticks, other.recorded.ticks),
            (&mut self.recorded.thread_ticks, other.recorded.thread_ticks),
            (
                &mut self.recorded.thread_packets,
                other.recorded.thread_packets,
            ),
        ] {
            *own = own.saturating_add(other);
        }
    }

    /// Returns a description on one line: see [`losses::describe`].
    #[must_use]
    pub fn line(&self) -> String {
        let counts = self.counts.iter();
        losses::describe(
            counts.map(|(name, count)| (name.as_str(), *count)),
            &self.recorded,
        )
    }
}
