//! The source of a function's file with the time of each line, as gprofng's view `source`.

use std::fs::File;
use std::io::{self, Read};

use host::exit::{ExitKind, Failure};

use super::chosen_function::chosen_function;
use super::context::{Entity, ViewContext, metric_cells, metric_columns};
use crate::aggregate::{self, Measures, Shares, Totals};
use crate::load;
use crate::load::lines::{self, SymbolFiles};
use crate::metric::{Metric, Metrics};
use crate::model::{FrameId, FunctionId, Model, ObjectId, ZERO_SUMS};
use crate::report::table::{Cell, Column, Table, printable};

/// The share of the hottest line's value, in any metric, from which a line is marked as hot, as in
/// gprofng.
const HOT_SHARE: f64 = 0.75;
/// Maximum bytes to read from a source file.
const MAX_SOURCE_BYTES: u64 = 64 << 20;

pub(super) fn source(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let chosen = chosen_function(context, &totals)?;
    let function = model.function(chosen.function);
    let mut notes = chosen.notes;
    let Some(file) = file_of(model, &totals, chosen.function) else {
        let object = model.object(function.object);
        let error = model.lines.errors.get(function.object.index());
        let why = match error.and_then(Option::as_ref) {
            Some(error) => format!("{} {error}", object.path),
            None => format!("{} has no lines for it", object.path),
        };
        return Err(Failure::new(
            ExitKind::NoInput,
            format!("no source lines of {} can be shown: {why}", function.name),
            "install its debug information, or name a directory that has it: --search-path DIRECTORY",
        ));
    };
    let path = &model.lines.files[file as usize];
    let (text, text_notes) = text_of(context, function.object, path);
    notes.extend(text_notes);

    // All lines of the file with time, whatever their function.
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
            "the source has only {} lines, and so differs from what was compiled",
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

/// Returns the file in which a function has most time.
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

/// Returns the lines of a source file, and notes about it.
fn text_of(
    context: &ViewContext<'_>,
    object: ObjectId,
    path: &str,
) -> (Option<Vec<String>>, Vec<String>) {
    let files = SymbolFiles::new(context.model, &context.options.lookup);
    let Some((symboliser, reference, experiment)) = files.of(object) else {
        return (None, Vec::new());
    };
    let search = symboliser.search();
    let Some(found) = symboliser.source(&reference, path) else {
        let places = search.source_places(path).into_iter();
        let places: Vec<_> = places.map(|(path, _)| path.display().to_string()).collect();
        let note = format!(
            "the source was not found as {}; name other places with --path-map and --search-path",
            places.join(" and ")
        );
        return (None, vec![note]);
    };
    match read(found.file) {
        Ok(text) => {
            let recorded = load::recorded_here(experiment);
            let sure = found.as_compiled || lines::unchanged(&found.path, recorded);
            let doubt = format!(
                "{} is a file of this machine, and may differ from what was compiled",
                found.path.display()
            );
            (Some(text), if sure { Vec::new() } else { vec![doubt] })
        }
        Err(error) => {
            let note = format!("cannot read {}: {error}", found.path.display());
            (None, vec![note])
        }
    }
}

/// Returns the lines of a file, without characters that would move a terminal's cursor.
pub(super) fn read(file: File) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    file.take(MAX_SOURCE_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(printable).collect())
}

/// Returns the columns of [`Annotated::row`].
pub(super) fn annotated_columns(
    metrics: &[Metric],
    own: impl IntoIterator<Item = Column>,
) -> Vec<Column> {
    let mark = Column::text("hot", "");
    let metrics = metrics.iter().flat_map(metric_columns);
    [mark].into_iter().chain(metrics).chain(own).collect()
}

/// Values of lines or instructions by number, with a mark for the hot ones.
pub(super) struct Annotated<'a> {
    metrics: &'a [Metric],
    whole: Entity,
    shares: &'a Shares,
    /// For each metric, the value from which a line is hot.
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
            values.max().unwrap_or(0) as f64 * HOT_SHARE
        };
        annotated.hot = metrics.iter().map(hottest).collect();
        annotated
    }

    fn entity(&self, place: usize) -> Entity {
        let sums = if place < self.shares.exclusive.len() {
            self.shares.of(place)
        } else {
            Measures::alone(&ZERO_SUMS, None)
        };
        Entity::new(Vec::new(), sums)
    }

    /// Returns whether a line has any of the shown metrics.
    pub(super) fn has(&self, place: usize) -> bool {
        let entity = self.entity(place);
        let mut metrics = self.metrics.iter();
        metrics.any(|metric| entity.value(metric.base, metric.flavor) != 0)
    }

    /// Returns the mark and metrics of a line, followed by `own`. Without time they are empty.
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
            let shown = entity.is_some();
            cells.map(move |cell| if shown { cell } else { Cell::Empty })
        });
        [mark].into_iter().chain(cells).chain(own).collect()
    }
}
