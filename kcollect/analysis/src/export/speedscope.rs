//! Exports to speedscope's own format, with a profile of type `sampled` for each thread:
//! <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>, with a JSON schema
//! in the npm package.
//!
//! Samples are in the order of time and weigh microseconds. speedscope draws each profile from its
//! own `startValue` on, so all begin at 0, the start of the recording, and time without ticks is a
//! sample with an empty stack: positions are clock times, the same in all threads. The leaf is the
//! state. Nothing is kept in memory: it is written as it is made.

use std::io::{self, Write};

use experiment_format::units::Nanos;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::json;

use super::folded::state_frame;
use super::selected::{Selected, SelectedThread};
use crate::model::{Model, ObjectKind, STATE_SLOTS, StackId};

/// Writes the profile.
///
/// # Errors
/// When writing fails.
pub fn write(selected: &Selected<'_>, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let file = SpeedscopeFile { selected, name };
    super::json::write(&file, out)
}

struct SpeedscopeFile<'a> {
    selected: &'a Selected<'a>,
    name: &'a str,
}

impl Serialize for SpeedscopeFile<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let model = self.selected.model;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(
            "$schema",
            "https://www.speedscope.app/file-format-schema.json",
        )?;
        map.serialize_entry("exporter", concat!("kcollect ", env!("CARGO_PKG_VERSION")))?;
        map.serialize_entry("name", self.name)?;
        map.serialize_entry("activeProfileIndex", &busiest(self.selected))?;
        map.serialize_entry("shared", &SpeedscopeFrames(model))?;
        map.serialize_entry("profiles", &ThreadProfiles(self.selected))?;
        map.end()
    }
}

/// Returns the position of the thread with the most time, so that the viewer does not open on an
/// idle one.
fn busiest(selected: &Selected<'_>) -> usize {
    let of = |thread: SelectedThread<'_, '_>| -> i64 { thread.rows().map(|row| row.micros).sum() };
    let threads = selected.threads().map(of).enumerate();
    threads
        .max_by_key(|(index, sum)| (*sum, std::cmp::Reverse(*index)))
        .map_or(0, |(index, _)| index)
}

/// The frames that all profiles share: the functions, by their positions in the model, followed by
/// the states.
struct SpeedscopeFrames<'a>(&'a Model);

impl Serialize for SpeedscopeFrames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("frames", &FrameList(self.0))?;
        map.end()
    }
}

struct FrameList<'a>(&'a Model);

impl Serialize for FrameList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        for function in &self.0.functions {
            let object = self.0.object(function.object);
            match object.kind {
                ObjectKind::File => {
                    seq.serialize_element(&json!({"name": function.name, "file": object.path}))?;
                }
                _ => seq.serialize_element(&json!({"name": function.name}))?,
            }
        }
        for slot in 0..STATE_SLOTS {
            seq.serialize_element(&json!({"name": state_frame(slot)}))?;
        }
        seq.end()
    }
}

struct ThreadProfiles<'a>(&'a Selected<'a>);

impl Serialize for ThreadProfiles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(None)?;
        for thread in self.0.threads() {
            seq.serialize_element(&ThreadProfile(self.0.model, thread))?;
        }
        seq.end()
    }
}

/// A stack and a state, none where there are no ticks, with its microseconds.
type WeightedStack = (Option<(StackId, usize)>, u64);

struct ThreadProfile<'a>(&'a Model, SelectedThread<'a, 'a>);

impl ThreadProfile<'_> {
    /// Returns the stacks in the order of time. Neighbours that are equal are merged.
    fn runs(&self) -> impl Iterator<Item = WeightedStack> {
        let ThreadProfile(model, thread) = *self;
        let mut end_us = 0;
        let parts = thread.slices().flat_map(move |slice| {
            let length = slice.row.micros as u64;
            let gap = (slice.start_ns / Nanos::from_micros(1)).saturating_sub(end_us);
            // Ticks that stand for less time than their length leave no gap between them.
            let tick_us = model.experiment(slice.row.experiment).tick_us;
            let gap = (gap >= u64::from(tick_us)).then_some((None, gap));
            end_us += gap.map_or(0, |(_, gap)| gap) + length;
            let ticks = (Some((slice.row.stack, slice.row.slot())), length);
            gap.into_iter().chain([ticks])
        });
        let mut parts = parts.peekable();
        std::iter::from_fn(move || {
            let (what, mut sum) = parts.next()?;
            while let Some((_, length)) = parts.next_if(|(next, _)| *next == what) {
                sum += length;
            }
            Some((what, sum))
        })
    }
}

impl Serialize for ThreadProfile<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ThreadProfile(model, of) = *self;
        let thread = of.thread();
        let name = format!(
            "{} ({}), {} ({})",
            model.process_name(thread),
            model.process(thread.process).pid,
            model.thread_name(thread),
            thread.tid,
        );
        let end: u64 = self.runs().map(|(_, sum)| sum).sum();
        let functions = model.functions.len();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", "sampled")?;
        map.serialize_entry("name", &name)?;
        map.serialize_entry("unit", "microseconds")?;
        map.serialize_entry("startValue", &0)?;
        map.serialize_entry("endValue", &end)?;
        let samples = Seq(|| {
            self.runs().map(|(what, _)| {
                let Some((stack, slot)) = what else {
                    return Vec::new();
                };
                let leaf = std::iter::once(functions + slot);
                let frames = model.stack(stack).map(|frame| frame.function.index());
                let mut path: Vec<_> = leaf.chain(frames).collect();
                path.reverse();
                path
            })
        });
        map.serialize_entry("samples", &samples)?;
        map.serialize_entry("weights", &Seq(|| self.runs().map(|(_, sum)| sum)))?;
        map.end()
    }
}

/// A list that is made while it is written.
struct Seq<F>(F);

impl<F, I> Serialize for Seq<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}
