//! Flame graphs (`kcollect flame`), drawn by inferno: one SVG that a browser zooms and searches.
//!
//! The root is at the top, so that a picture with deep stacks does not begin with empty space. A
//! function that calls itself is one frame, and frames deeper than 200 belong to their callers; the
//! subtitle says so.
//!
//! By default they show on-CPU time, with `--locks` and `--io` traced events, with `--allocated`
//! and `--live` memory, whose widths are bytes. If states of several kinds are shown, each stack
//! ends in its state, `[lock]`, in its own colour. Widths are times, shown with their unit.
//!
//! With `--waits` they show what threads suffered: a stack that waited, then the cause, then the
//! process and the thread that ended the wait. What that thread did is not recorded.
//!
//! With two experiments, the picture shows the second, and colours show how each function's
//! exclusive time changed: red is more, blue is less. Functions that only the first has are not
//! shown; swap the two to see them. The first is scaled to the length of the second, since a
//! machine recorded for twice as long is not twice as busy.

mod colors;
mod legend;
mod tree;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::slice;

use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use host::output::Output;
use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};
use tree::Tree;

use crate::export::file::OutputTarget;
use crate::export::folded::{Folded, GroupBy};
use crate::export::select;
use crate::export::selected::{Selected, state_name};
use crate::filter::Filter;
use crate::load::lines::LookupPaths;
use crate::metric::BaseMetric;
use crate::model::{Model, STATE_SLOTS, ShownUnit, TickRow, TracedEvents, WAIT_STATES};
use crate::sources::Sources;

/// The total in microseconds from which on numbers are shown in milliseconds.
const MILLISECONDS_FROM_US: i64 = 10_000_000;

/// The share of the whole, in percent, below which frames are not drawn: they are narrower than a
/// pixel.
const MIN_FRAME_PERCENT: f64 = 0.05;

/// What is drawn, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlameOptions {
    /// The experiments.
    pub sources: Sources,
    /// The earlier experiment that they are compared with.
    pub before: Option<PathBuf>,
    /// The ticks to show. Without states: those on a CPU, or waits if only those pass.
    pub filter: Filter,
    /// Whether all states are shown.
    pub all: bool,
    /// Whether suffered waits are shown, with what ended them.
    pub waits: bool,
    /// The traced events that are shown, and no ticks.
    pub traced: Option<TracedEvents>,
    /// The frames below each stack.
    pub by: GroupBy,
    /// The filter as typed.
    pub only: String,
    /// Where load objects and debug files are looked for.
    pub lookup: LookupPaths,
    /// The output file as typed.
    pub file: Option<PathBuf>,
}

/// Draws a flame graph, and says where it is.
///
/// # Errors
/// When there is no experiment, nothing of one can be read, nothing passes the filters, or the file
/// cannot be written. When parts of an experiment cannot be read, after the picture of the rest.
pub fn flame(options: &FlameOptions, output: &mut Output) -> Result<(), Failure> {
    let sources = &options.sources;
    let loaded = sources.load(&options.filter, &options.lookup, options.traced)?;
    let (found, model, mut filter) = (&loaded.found, &loaded.model, loaded.filter);
    if options.traced.is_some() {
        filter.states = None;
    } else if options.waits || (filter.states.is_none() && filter.only_of_waits()) {
        filter.states = Some(std::array::from_fn(|slot| {
            WAIT_STATES.iter().any(|state| *state as usize == slot)
        }));
    } else if filter.states.is_none() && !options.all {
        filter.states = Some(std::array::from_fn(|slot| BaseMetric::TotalCpu.has(slot)));
    }
    let mut selected = select(model, &filter, output)?;
    let not_suffered = options.waits.then(|| selected.keep_suffered());
    if selected.total() == 0 {
        return Err(nothing_suffered());
    }
    let before = options.before.as_ref();
    let before =
        before.map(|before| found.load(slice::from_ref(before), &options.lookup, options.traced));
    let before = before.transpose()?;
    let mut selected_before = before
        .as_ref()
        .map(|before| select(before, &filter, output))
        .transpose()?;
    if let Some(before) = selected_before.as_mut().filter(|_| options.waits) {
        before.keep_suffered();
    }
    let picture = Picture {
        options,
        period: found.text(),
        filter: &filter,
        selected: &selected,
        not_suffered,
        before: selected_before.as_ref(),
    };
    let target = OutputTarget::new(options.file.as_deref(), &found.paths[0], "svg");
    target.write(&found.paths[0], false, |out| picture.draw(out))?;
    if let OutputTarget::File(path) = &target {
        let what = picture.what();
        let total = model.unit().amount(selected.total());
        output.result_line(&format!("{}: {what}, {total}", path.display()));
    }
    let before = selected_before.map_or(Ok(()), |before| before.require_all());
    selected.require_all().and(before)
}

fn nothing_suffered() -> Failure {
    Failure::new(
        ExitKind::Empty,
        "nothing that was suffered passes the filters",
        "record with -W on, which tells apart more waits; --state sleep,lock draws all of them",
    )
}

/// Returns the unit of widths, unless times are long.
fn count_name(unit: ShownUnit) -> String {
    match unit {
        ShownUnit::Time => "\u{b5}s".to_owned(),
        ShownUnit::Bytes => "bytes".to_owned(),
    }
}

struct Picture<'a> {
    options: &'a FlameOptions,
    /// The time by the clock, if one was asked for.
    period: Option<String>,
    filter: &'a Filter,
    selected: &'a Selected<'a>,
    /// Of waits: the microseconds that are not drawn, idle and undecided.
    not_suffered: Option<[i64; 2]>,
    before: Option<&'a Selected<'a>>,
}

impl Picture<'_> {
    /// Returns a description of what is shown.
    fn what(&self) -> String {
        if let Some(events) = self.options.traced {
            return format!("traced {}", events.title());
        }
        if self.options.waits {
            return "suffered waits".to_owned();
        }
        let states = self.selected.states;
        let exactly =
            |base: BaseMetric| (0..STATE_SLOTS).all(|slot| states[slot] == base.has(slot));
        if exactly(BaseMetric::TotalCpu) {
            return "time on CPU".to_owned();
        }
        if self.filter.states.is_none() || exactly(BaseMetric::Total) {
            return "time in all states".to_owned();
        }
        let names = (0..STATE_SLOTS)
            .filter(|slot| states[*slot])
            .map(state_name);
        format!("time in {}", names.collect::<Vec<_>>().join(", "))
    }

    /// Returns whether stacks end in their states, as they do if there are several, and not just
    /// those on a CPU.
    fn with_states(&self) -> bool {
        let states = self.selected.states;
        let shown = (0..STATE_SLOTS).filter(|slot| states[*slot]);
        self.options.traced.is_none()
            && !self.options.waits
            && shown.clone().count() > 1
            && !shown.into_iter().all(|slot| BaseMetric::TotalCpu.has(slot))
    }

    fn folded<'m>(&self, selected: &Selected<'m>) -> Folded<'m> {
        if self.options.waits {
            Folded::of_waits(selected, self.options.by)
        } else {
            Folded::new(selected, self.options.by)
        }
    }

    fn draw(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut options = Options::default();
        // Frames without a change are white.
        let paper = if self.before.is_some() { 222 } else { 250 };
        options.bgcolors = Some(BackgroundColor::Flat(Color::new(paper, paper, paper)));
        options.direction = Direction::Inverted;
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.min_width = MIN_FRAME_PERCENT;
        let mut tree = Tree::new();
        let with_tops = self.options.waits || self.with_states();
        if let Some(before) = self.before {
            tree.add(0, before.model, &self.folded(before), with_tops);
        }
        let folded = self.folded(self.selected);
        tree.add(1, self.selected.model, &folded, with_tops);
        options.subtitle = Some(self.subtitle(&tree));
        let mut palette = colors::palette(self.selected.model, &folded);
        let (what, unit) = (self.what(), self.selected.model.unit());
        let mut capital = what[..1].to_uppercase();
        capital.push_str(&what[1..]);
        match self.before {
            None => {
                options.palette_map = Some(&mut palette);
                options.title = format!("{capital}: {}", unit.amount(self.selected.total()));
                (options.factor, options.count_name) = match (unit, self.selected.total()) {
                    (ShownUnit::Time, MILLISECONDS_FROM_US..) => (1e-3, "ms".to_owned()),
                    _ => (1.0, count_name(unit)),
                };
            }
            Some(before) => {
                let scale = self.scale(before);
                tree.scale(scale);
                options.title = format!(
                    "{capital}: {}, {} before",
                    unit.amount(self.selected.total()),
                    unit.amount((before.total() as f64 * scale).round() as i64)
                );
                // inferno applies no factor to changes.
                options.count_name = count_name(unit);
            }
        }
        let lines = tree.lines(MIN_FRAME_PERCENT, self.before.is_some());
        let mut svg = Vec::new();
        flamegraph::from_lines(&mut options, lines.lines(), &mut svg)?;
        let svg = String::from_utf8_lossy(&svg);
        out.write_all(legend::add(&svg, &self.legend()).as_bytes())
    }

    /// Returns the colours with their meanings.
    fn legend(&self) -> Vec<(Color, &'static str)> {
        if self.before.is_some() {
            let (more, less) = ((255, 120, 120), (120, 120, 255));
            let color = |(r, g, b)| Color { r, g, b };
            return vec![(color(more), "more"), (color(less), "less")];
        }
        let mut entries = colors::of_code().to_vec();
        if self.options.waits {
            let reasons = self.selected.rows().filter_map(TickRow::wait_reason);
            let reasons: HashSet<_> = reasons.collect();
            let shown = colors::suffered().filter(|reason| reasons.contains(reason));
            entries.extend(shown.map(|reason| (colors::of_wait(reason), reason.title())));
        }
        if self.with_states() {
            let states = self.selected.states;
            let shown = (0..Microstate::PER_THREAD).filter(|slot| states[*slot]);
            entries.extend(shown.map(|slot| (colors::of_state(slot), state_name(slot))));
        }
        entries
    }

    /// Returns the length of the selected time.
    fn length_ns(&self, model: &Model) -> Nanos {
        let founders = model.founders().map(|(id, info)| {
            let time = self.filter.time_in(model, info);
            let end = info.offset_ns.saturating_add(model.length_ns(id));
            time.end
                .min(end)
                .saturating_sub(time.start.max(info.offset_ns))
        });
        founders.sum()
    }

    /// Returns the factor by which the times of the earlier experiment are multiplied. What is left
    /// at an end does not depend on the length.
    fn scale(&self, before: &Selected<'_>) -> f64 {
        if self.options.traced == Some(TracedEvents::Live) {
            return 1.0;
        }
        let (was, is) = (
            self.length_ns(before.model),
            self.length_ns(self.selected.model),
        );
        if was == Nanos::ZERO || is == Nanos::ZERO {
            return 1.0;
        }
        is.0 as f64 / was.0 as f64
    }

    /// Returns the subtitle: the machine, the experiment with its length, the filter, and what is
    /// not drawn.
    fn subtitle(&self, tree: &Tree) -> String {
        let model = self.selected.model;
        let mut parts = Vec::new();
        if let Some(founder) = model.experiments.first() {
            let system = &founder.source.header().system;
            let cpus = system.cpus.len();
            parts.push(format!("{}, {}, {cpus} CPUs", system.hostname, system.arch));
            let lengths = model.founders().map(|(id, _)| model.length_ns(id));
            let length = lengths.sum::<Nanos>().as_secs_f64();
            parts.push(format!("{}, {length:.1} s recorded", founder.name));
        }
        parts.extend(self.period.clone());
        if !self.options.only.is_empty() {
            parts.push(format!("only {}", self.options.only));
        }
        match self.before {
            Some(before) => {
                let name = before.model.experiments.first();
                let name = name.map_or("", |info| &info.name);
                let scale = self.scale(before);
                parts.push(format!("before: {name}, times {scale:.3}"));
            }
            None if self.options.waits => {
                parts.push("causes and wakers below the stacks that waited".to_owned());
            }
            None if self.with_states() => parts.push("states below their stacks".to_owned()),
            None => {}
        }
        if let Some([idle, undecided]) = self.not_suffered {
            let unit = model.unit();
            let (idle, undecided) = (unit.amount(idle), unit.amount(undecided));
            parts.push(format!("not drawn: {idle} idle, {undecided} undecided"));
            if model.wakers_watched() == Some(false) {
                parts.push("recorded without -W on: nothing about wakers".to_owned());
            }
        }
        if tree.has_recursion() {
            parts.push("direct recursion is one frame".to_owned());
        }
        if let cut @ 1.. = tree.cut() {
            let most = tree::MAX_DEPTH;
            parts.push(format!(
                "{cut} frames deeper than {most} belong to their callers"
            ));
        }
        crate::export::folded::clean(&parts.join(" \u{b7} "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::made_waits::waits;

    #[test]
    fn suffered_waits_stand_below_their_cause_and_waker() {
        let model = waits();
        let mut selected = Selected::new(&model, &Filter::default());
        assert_eq!(selected.keep_suffered(), [30_000, 20_000]);
        assert_eq!(selected.total(), 100_000);
        let mut tree = Tree::new();
        let folded = Folded::of_waits(&selected, GroupBy::Name);
        tree.add(1, &model, &folded, true);
        let lines = tree.lines(0.0, false);
        let mut lines: Vec<_> = lines.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "client;call;[waits for a CPU] 10000",
                "client;call;[waits for a lock];<not sampled> 40000",
                "client;call;[waits for an answer];server;worker 50000",
            ]
        );
    }
}
