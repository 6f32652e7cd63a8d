//! The source of a function's file with the time of each line in front of it, as gprofng's view
//! `source`.

use std::fs::File;
use std::io::{self, Read};

use host::exit::{Failure, Kind};

use super::chosen_function::chosen_function;
use super::{Context, Entity, metric_cells, metric_columns};
use crate::aggregate::{self, Measures, Shares, Totals};
use crate::load;
use crate::load::lines::{self, SymbolFiles};
use crate::metric::{Metric, Metrics};
use crate::model::{FrameId, FunctionId, Model, ObjectId, ZERO_SUMS};
use crate::report::table::{Cell, Column, Table};

/// A line is hot if it has so much of what the hottest one has of any metric: gprofng's threshold.
const HOT: f64 = 0.75;
/// Of a larger source file only so much is shown, bytes.
const LARGEST: u64 = 64 << 20;
/// Blanks that a tab stands for.
const TAB: usize = 8;

pub(super) fn source(context: &Context<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let chosen = chosen_function(context, &totals)?;
    let function = model.function(chosen.function);
    let mut notes = chosen.notes;
    let Some(file) = file_of(model, &totals, chosen.function) else {
        let object = model.object(function.object);
        let lack = model.lines.lacks.get(function.object.index());
        let why = match lack.and_then(Option::as_ref) {
            Some(lack) => format!("{} {lack}", object.path),
            None => format!("{} has none for it", object.path),
        };
        return Err(Failure::new(
            Kind::NoInput,
            format!("no source lines of {} are known: {why}", function.name),
            "install its debug information, or say where a file with it is: --search-path DIRECTORY",
        ));
    };
    let path = &model.lines.files[file as usize];
    let (text, told) = text_of(context, function.object, path);
    notes.extend(told);

    // All of the file's lines that have time, of whichever function.
    let of_line = |line: u32| {
        let line = &model.lines.lines[line as usize];
        line.at.filter(|at| at.0 == file).map(|at| at.1)
    };
    let numbers = (0..model.lines.lines.len() as u32).filter_map(of_line);
    let count = numbers.max().unwrap_or(0) as usize + 1;
    let [shares] = aggregate::shares(model, &totals, [count], |frame| {
        [of_line(model.lines.of_frames[frame.index()])]
    });
    let rows = Annotated::new(&metrics.list, &totals, &shares);
    let numbers: Vec<usize> = match &text {
        Some(text) => (1..=text.len().max(count - 1)).collect(),
        None => (1..count).filter(|line| rows.has(*line)).collect(),
    };
    if let Some(text) = text.as_ref().filter(|text| text.len() < count - 1) {
        notes.push(format!(
            "the source has only {} lines: it is not the one that was compiled",
            text.len()
        ));
    }
    let rows = numbers.into_iter().map(|number| {
        let text = text.as_ref().and_then(|text| text.get(number - 1));
        let own = [
            Cell::Count(number as u64),
            text.map_or(Cell::Empty, |text| Cell::Text(text.clone())),
        ];
        rows.row(Some(number), own)
    });
    Ok(Table {
        view: "source",
        title: format!("Source of {}, {path}", function.name),
        rows: rows.collect(),
        columns: annotated_columns(
            &metrics.list,
            [
                Column::number("line", "Line"),
                Column::text("source", "Source"),
            ],
        ),
        notes,
        verbatim: true,
    })
}

/// The file in which a function has most time.
fn file_of(model: &Model, totals: &Totals, function: FunctionId) -> Option<u32> {
    let of_frame = |frame: FrameId| {
        let line = &model.lines.lines[model.lines.of_frames[frame.index()] as usize];
        let own = line.function == function;
        line.at.filter(|_| own).map(|at| at.0)
    };
    let count = model.lines.files.len();
    let [shares] = aggregate::shares(model, totals, [count], |frame| [of_frame(frame)]);
    let time = |file: &u32| shares.inclusive[*file as usize].iter().sum::<i64>();
    let own = model
        .lines
        .lines
        .iter()
        .filter(|line| line.function == function);
    let files = own.filter_map(|line| line.at).map(|at| at.0);
    files.max_by_key(|file| (time(file), std::cmp::Reverse(*file)))
}

/// The lines of a source file; and what is to be said of it.
fn text_of(
    context: &Context<'_>,
    object: ObjectId,
    path: &str,
) -> (Option<Vec<String>>, Vec<String>) {
    let files = SymbolFiles::new(context.model, &context.options.lookup);
    let Some((symboliser, _, experiment)) = files.of(object) else {
        return (None, Vec::new());
    };
    let search = symboliser.search();
    let Some(found) = search.source(path) else {
        let places = search.source_places(path).into_iter();
        let places: Vec<_> = places.map(|(path, _)| path.display().to_string()).collect();
        let told = format!(
            "the source is not there, looked for as {}; --path-map and --search-path say where else it may be",
            places.join(" and ")
        );
        return (None, vec![told]);
    };
    match read(found.file) {
        Ok(text) => {
            let recorded = load::recorded_here(experiment);
            let sure = found.archived || lines::unchanged(&found.path, recorded);
            let doubt = format!(
                "{} is a file of this machine, and may not be what was compiled",
                found.path.display()
            );
            (Some(text), if sure { Vec::new() } else { vec![doubt] })
        }
        Err(error) => {
            let told = format!("cannot read {}: {error}", found.path.display());
            (None, vec![told])
        }
    }
}

/// Lines as they can be printed: without what would move a terminal's cursor.
pub(super) fn read(file: File) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(printable).collect())
}

fn printable(line: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for character in line.chars() {
        match character {
            '\t' => {
                let blanks = TAB - width % TAB;
                out.extend(std::iter::repeat_n(' ', blanks));
                width += blanks;
                continue;
            }
            control if control.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            other => out.push(other),
        }
        width += 1;
    }
    out
}

/// The columns of [`Annotated::row`].
pub(super) fn annotated_columns(
    metrics: &[Metric],
    own: impl IntoIterator<Item = Column>,
) -> Vec<Column> {
    let mark = Column::text("hot", "");
    let metrics = metrics.iter().flat_map(metric_columns);
    [mark].into_iter().chain(metrics).chain(own).collect()
}

/// Places by number with their metrics, and which of them are hot.
pub(super) struct Annotated<'a> {
    metrics: &'a [Metric],
    whole: Entity,
    shares: &'a Shares,
    /// From what on a place is hot, for each of the metrics.
    hot: Vec<f64>,
}

impl<'a> Annotated<'a> {
    pub(super) fn new(metrics: &'a [Metric], totals: &Totals, shares: &'a Shares) -> Annotated<'a> {
        let mut annotated = Annotated {
            metrics,
            whole: Entity::new(Vec::new(), totals.whole()),
            shares,
            hot: Vec::new(),
        };
        let hottest = |metric: &Metric| {
            let places = 0..shares.exclusive.len();
            let values =
                places.map(|place| annotated.entity(place).value(metric.base, metric.flavor));
            values.max().unwrap_or(0) as f64 * HOT
        };
        annotated.hot = metrics.iter().map(hottest).collect();
        annotated
    }

    fn entity(&self, place: usize) -> Entity {
        let sums = match place < self.shares.exclusive.len() {
            true => self.shares.of(place),
            false => Measures::alone(&ZERO_SUMS, None),
        };
        Entity::new(Vec::new(), sums)
    }

    /// Whether a place has anything of what is shown.
    pub(super) fn has(&self, place: usize) -> bool {
        let entity = self.entity(place);
        let mut metrics = self.metrics.iter();
        metrics.any(|metric| entity.value(metric.base, metric.flavor) != 0)
    }

    /// The mark and the metrics of a place, and what is behind them. Nothing where there is no time
    /// at all.
    pub(super) fn row(
        &self,
        place: Option<usize>,
        own: impl IntoIterator<Item = Cell>,
    ) -> Vec<Cell> {
        let place = place.filter(|place| self.has(*place));
        let entity = place.map(|place| self.entity(place));
        let is_hot = entity.as_ref().is_some_and(|entity| {
            let values = self.metrics.iter().zip(&self.hot);
            values.into_iter().any(|(metric, hot)| {
                let value = entity.value(metric.base, metric.flavor);
                value > 0 && value as f64 >= *hot
            })
        });
        let mark = if is_hot {
            Cell::Text("##".to_owned())
        } else {
            Cell::Empty
        };
        let cells = self.metrics.iter().flat_map(|metric| {
            let cells = metric_cells(metric, entity.as_ref().unwrap_or(&self.whole), &self.whole);
            match entity {
                Some(_) => cells,
                None => vec![Cell::Empty; cells.len()],
            }
        });
        [mark].into_iter().chain(cells).chain(own).collect()
    }
}
