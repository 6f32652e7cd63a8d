//! Exports of experiments for other tools (`kcollect export`). They need no privilege and only the
//! experiment's directory.
//!
//! Data flow one way: a [`Model`] → [`selected`], the ticks that pass the filters, by thread → one
//! module for each format → [`mod@file`]. In every format the sums equal `kcollect report`'s with
//! the same filters, to the microsecond.
//!
//! | format | module | unit |
//! |---|---|---|
//! | folded stacks | [`folded`] | microseconds, or bytes |
//! | pprof | [`pprof`] | nanoseconds by state, and ticks, or bytes |
//! | Firefox Profiler | [`firefox`] | ticks, on a time line |
//! | Perfetto | [`perfetto`] | slices of states, samples on CPU |
//! | speedscope | [`speedscope`] | microseconds, in the order of time |
//!
//! Names come from recorded programs and may hold anything. Where a format can quote, it does;
//! where it cannot, names are changed ([`folded::clean`]).

pub mod file;
pub mod firefox;
pub mod folded;
mod json;
#[cfg(test)]
pub(crate) mod made_waits;
pub mod perfetto;
pub mod pprof;
pub mod selected;
pub mod speedscope;

use std::io::{self, Write};
use std::path::PathBuf;

use file::OutputTarget;
use folded::GroupBy;
use host::exit::{ExitKind, Failure};
use host::output::Output;
use selected::Selected;

use crate::filter::{Filter, nothing_passes};
use crate::load::lines::LookupPaths;
use crate::model::{Model, ShownUnit, TracedEvents};
use crate::sources::Sources;

/// The function of a stack without frames, in formats that need one.
const NO_STACK: &str = "<no stack>";

/// A format of another tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// Folded stacks.
    Folded,
    /// pprof's format.
    Pprof,
    /// The Firefox Profiler's format.
    Firefox,
    /// Perfetto's trace format.
    Perfetto,
    /// speedscope's format.
    Speedscope,
}

impl ExportFormat {
    /// All formats with their names, file extensions and readers.
    pub const ALL: [(ExportFormat, &'static str, &'static str, &'static str); 5] = [
        (
            ExportFormat::Folded,
            "folded",
            "folded",
            "inferno, flamegraph.pl and most tools that draw stacks",
        ),
        (ExportFormat::Pprof, "pprof", "pb.gz", "go tool pprof"),
        (
            ExportFormat::Firefox,
            "firefox",
            "firefox.json.gz",
            "https://profiler.firefox.com",
        ),
        (
            ExportFormat::Perfetto,
            "perfetto",
            "perfetto-trace",
            "https://ui.perfetto.dev, trace_processor",
        ),
        (
            ExportFormat::Speedscope,
            "speedscope",
            "speedscope.json",
            "https://www.speedscope.app",
        ),
    ];

    /// Returns the format of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ExportFormat> {
        let mut all = ExportFormat::ALL.iter();
        all.find(|(_, own, ..)| *own == name)
            .map(|(format, ..)| *format)
    }

    /// Returns whether it can have bytes instead of time.
    fn has_bytes(self) -> bool {
        matches!(self, ExportFormat::Folded | ExportFormat::Pprof)
    }

    fn extension(self) -> &'static str {
        let mut all = ExportFormat::ALL.iter();
        all.find(|(format, ..)| *format == self)
            .map_or("", |(_, _, extension, _)| extension)
    }

    /// Writes ticks in this format. `name` is the experiment's name.
    ///
    /// # Errors
    /// When writing fails, or the format cannot hold the number of ticks.
    pub fn write(
        self,
        selected: &Selected<'_>,
        by: GroupBy,
        name: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        match self {
            ExportFormat::Folded => folded::write(selected, by, out),
            ExportFormat::Pprof => pprof::write(selected, out),
            ExportFormat::Firefox => firefox::write(selected, name, out),
            ExportFormat::Perfetto => perfetto::write(selected, out),
            ExportFormat::Speedscope => speedscope::write(selected, name, out),
        }
    }
}

/// What is exported, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// The experiments.
    pub sources: Sources,
    /// The format.
    pub format: ExportFormat,
    /// The frames below each stack, in formats without threads.
    pub by: GroupBy,
    /// The ticks to export.
    pub filter: Filter,
    /// The traced events that are exported instead of ticks.
    pub traced: Option<TracedEvents>,
    /// Where load objects and debug files are looked for.
    pub lookup: LookupPaths,
    /// The output file as typed.
    pub file: Option<PathBuf>,
}

/// Selects the ticks that pass a filter, and reports what is missing from the model.
///
/// # Errors
/// When no tick passes: an empty file would look like an idle machine.
pub fn select<'m>(
    model: &'m Model,
    filter: &Filter,
    output: &mut Output,
) -> Result<Selected<'m>, Failure> {
    model
        .warnings
        .iter()
        .for_each(|warning| output.say(warning));
    let selected = Selected::new(model, filter);
    if selected.refused > 0 {
        output.say(&format!(
            "{} damaged packets with a negative number of ticks were left out",
            selected.refused
        ));
    }
    if selected.total() == 0 {
        return Err(nothing_passes(&[model], filter));
    }
    Ok(selected)
}

/// Writes an export, and says where it is.
///
/// # Errors
/// When there is no experiment, nothing of one can be read, nothing passes the filters, or the file
/// cannot be written. When parts of an experiment cannot be read, after the export of the rest.
pub fn export(options: &ExportOptions, output: &mut Output) -> Result<(), Failure> {
    let sources = &options.sources;
    let loaded = sources.load(&options.filter, &options.lookup, options.traced)?;
    let (path, model) = (&loaded.found.paths[0], &loaded.model);
    let format = options.format;
    if model.unit() == ShownUnit::Bytes && !format.has_bytes() {
        return Err(Failure::new(
            ExitKind::Usage,
            "memory has no place on a time line",
            "type --to folded or --to pprof",
        ));
    }
    let selected = select(model, &loaded.filter, output)?;
    let target = OutputTarget::new(options.file.as_deref(), path, format.extension());
    let name = model.experiments.first().map_or("", |info| &info.name);
    target.write(path, format == ExportFormat::Pprof, |out| {
        format.write(&selected, options.by, name, out)
    })?;
    if let OutputTarget::File(path) = &target {
        output.result_line(&format!(
            "{}: {} of {} threads",
            path.display(),
            model.unit().amount(selected.total()),
            selected.threads().count()
        ));
    }
    selected.require_all()
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod waits_tests;
