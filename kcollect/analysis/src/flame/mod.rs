//! Flame graphs (`kcollect flame`), drawn by inferno: one SVG, that a browser zooms and searches.
//!
//! Without more, they show time on CPUs. Where states of several kinds are shown, each stack ends
//! in its state, `[lock]`, in a colour of its own. The width is time; the unit is said with it.
//!
//! Of two experiments the picture is that of the second, and colours say what changed in the
//! function itself: red is more, blue is less. What only the first one has is not there; turn them
//! round to see it. The first one is scaled to the length of the second, for a machine that was
//! watched for twice as long is not twice as busy.

mod colors;
mod tree;

use std::io::{self, Write};
use std::path::PathBuf;

use host::exit::Failure;
use host::output::Output;
use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{self, Options, TextTruncateDirection};
use tree::Tree;

use crate::export::file::OutputTarget;
use crate::export::folded::{Folded, GroupBy};
use crate::export::selected::{Selected, state_name};
use crate::export::{experiments, seconds, select};
use crate::filter::Filter;
use crate::metric::BaseMetric;
use crate::model::{Model, STATE_SLOTS};

/// Above this many microseconds numbers are milliseconds.
const LONG: i64 = 10_000_000;

/// Frames below this share of the whole, in percent, are a fraction of a pixel, and not drawn.
const LEAST: f64 = 0.05;

/// A picture, as it is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlameOptions {
    /// The experiments; none: the newest here.
    pub experiments: Vec<PathBuf>,
    /// Compare them with this one, which was before.
    pub before: Option<PathBuf>,
    /// Which ticks. Without states: those on a CPU.
    pub filter: Filter,
    /// Show all states.
    pub all: bool,
    /// What is below stacks.
    pub by: GroupBy,
    /// What the filter is, as it was typed.
    pub only: String,
    /// Where it goes, as it was typed.
    pub file: Option<PathBuf>,
}

/// Draws it, and says where it is.
///
/// # Errors
/// When there is no experiment, or nothing of one can be read, or nothing passes the filters, or it
/// cannot be written.
pub fn flame(options: &FlameOptions, output: &mut Output) -> Result<(), Failure> {
    let paths = experiments(&options.experiments)?;
    let model = Model::load(&paths)?;
    let mut filter = options.filter.clone();
    if filter.states.is_none() && !options.all {
        filter.states = Some(std::array::from_fn(|slot| BaseMetric::TotalCpu.has(slot)));
    }
    let selected = select(&model, &filter, output)?;
    let before = options.before.clone().map(|path| Model::load(&[path]));
    let before = before.transpose()?;
    let selected_before = before
        .as_ref()
        .map(|before| select(before, &filter, output))
        .transpose()?;
    let picture = Picture {
        options,
        filter: &filter,
        selected: &selected,
        before: selected_before.as_ref(),
    };
    let target = OutputTarget::new(options.file.as_deref(), &paths[0], "svg");
    target.write(false, |out| picture.draw(out))?;
    if let OutputTarget::File(path) = &target {
        let what = picture.what();
        let total = seconds(selected.total());
        output.result(&format!("{}: {what}, {total}", path.display()));
    }
    Ok(())
}

struct Picture<'a> {
    options: &'a FlameOptions,
    filter: &'a Filter,
    selected: &'a Selected<'a>,
    before: Option<&'a Selected<'a>>,
}

impl Picture<'_> {
    /// What is shown, in words.
    fn what(&self) -> String {
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

    /// Whether stacks end in their states: where there are several, and not just those on a CPU.
    fn with_states(&self) -> bool {
        let states = self.selected.states;
        let shown = (0..STATE_SLOTS).filter(|slot| states[*slot]);
        shown.clone().count() > 1 && !shown.into_iter().all(|slot| BaseMetric::TotalCpu.has(slot))
    }

    fn draw(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut options = Options::default();
        // Where nothing has changed frames are white.
        let paper = if self.before.is_some() { 222 } else { 250 };
        options.bgcolors = Some(BackgroundColor::Flat(Color::new(paper, paper, paper)));
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.min_width = LEAST;
        options.subtitle = Some(self.subtitle());
        let mut tree = Tree::new();
        if let Some(before) = self.before {
            let folded = Folded::new(before, self.options.by);
            tree.add(0, before.model, &folded, self.with_states());
        }
        let folded = Folded::new(self.selected, self.options.by);
        tree.add(1, self.selected.model, &folded, self.with_states());
        let mut palette = colors::palette(self.selected.model, &folded);
        let what = self.what();
        let mut capital = what[..1].to_uppercase();
        capital.push_str(&what[1..]);
        match self.before {
            None => {
                options.palette_map = Some(&mut palette);
                options.title = format!("{capital}: {}", seconds(self.selected.total()));
                (options.factor, options.count_name) = match self.selected.total() {
                    LONG.. => (1e-3, "ms".to_owned()),
                    _ => (1.0, "\u{b5}s".to_owned()),
                };
            }
            Some(before) => {
                let scale = self.scale(before);
                tree.scale(scale);
                options.title = format!(
                    "{capital}: {}, and before {}",
                    seconds(self.selected.total()),
                    seconds((before.total() as f64 * scale).round() as i64)
                );
                // inferno multiplies the change with no factor.
                options.count_name = "\u{b5}s".to_owned();
            }
        }
        let lines = tree.lines(LEAST, self.before.is_some());
        flamegraph::from_lines(&mut options, lines.lines(), out)
    }

    /// Nanoseconds of the recording that are looked at.
    fn length(&self, model: &Model) -> u64 {
        let end = model.end_ns();
        match &self.filter.time {
            Some(time) => time.end.min(end).saturating_sub(time.start),
            None => end,
        }
    }

    fn scale(&self, before: &Selected<'_>) -> f64 {
        let (was, is) = (self.length(before.model), self.length(self.selected.model));
        if was == 0 || is == 0 {
            return 1.0;
        }
        is as f64 / was as f64
    }

    /// The machine, the experiment, how long it was; what is left of it; what the colours mean.
    fn subtitle(&self) -> String {
        let model = self.selected.model;
        let mut parts = Vec::new();
        if let Some(founder) = model.experiments.first() {
            let system = &founder.source.header().system;
            let cpus = system.cpus.len();
            parts.push(format!("{}, {}, {cpus} CPUs", system.hostname, system.arch));
            let length = model.end_ns() as f64 / 1e9;
            parts.push(format!("{}, {length:.1} s recorded", founder.name));
        }
        if !self.options.only.is_empty() {
            parts.push(format!("only {}", self.options.only));
        }
        match self.before {
            Some(before) => {
                let name = before.model.experiments.first();
                let name = name.map_or("", |info| &info.name);
                let scale = self.scale(before);
                parts.push(format!("before: {name}, times {scale:.3}"));
                parts.push("red more, blue less".to_owned());
            }
            None => {
                let colors = "blue kernel, orange user, green made at run time";
                parts.push(colors.to_owned());
                if self.with_states() {
                    parts.push("the state on top".to_owned());
                }
            }
        }
        crate::export::folded::clean(&parts.join(" \u{b7} "))
    }
}
