//! Experiments for other tools (`kcollect export`): by anybody, on any machine, from the directory
//! alone.
//!
//! Data flow one way: a [`Model`] → [`selected`], the ticks that pass the filters, by thread → one
//! module for each format → [`mod@file`]. In every format the sums are those of `kcollect report`
//! with the same filters, to the microsecond.
//!
//! | format | module | unit |
//! |---|---|---|
//! | folded stacks | [`folded`] | microseconds |
//! | pprof | [`pprof`] | nanoseconds by state, and ticks |
//! | Firefox Profiler | [`firefox`] | ticks, on a time line |
//! | Perfetto | [`perfetto`] | slices of states, samples on CPU |
//! | speedscope | [`speedscope`] | microseconds, in the order of time |
//!
//! Names are other people's: whatever is in them, no format breaks. Where a format can quote, it
//! does; where it cannot, they are changed ([`folded::clean`]).

mod build_ids;
pub mod file;
pub mod firefox;
pub mod folded;
pub mod perfetto;
pub mod pprof;
pub mod selected;
pub mod speedscope;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use file::OutputTarget;
use folded::GroupBy;
use host::exit::{Failure, Kind};
use host::output::Output;
use selected::Selected;

use crate::filter::Filter;
use crate::load::open;
use crate::model::Model;

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// Folded stacks.
    Folded,
    /// pprof's.
    Pprof,
    /// The Firefox Profiler's.
    Firefox,
    /// Perfetto's.
    Perfetto,
    /// speedscope's.
    Speedscope,
}

impl ExportFormat {
    /// All of them, with what they are called, what their files end in, and who reads them.
    pub const ALL: [(ExportFormat, &'static str, &'static str, &'static str); 5] = [
        (
            ExportFormat::Folded,
            "folded",
            "folded",
            "inferno, flamegraph.pl, and most that draw stacks",
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

    /// That which is called so.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ExportFormat> {
        let mut all = ExportFormat::ALL.iter();
        all.find(|(_, own, ..)| *own == name)
            .map(|(format, ..)| *format)
    }

    fn extension(self) -> &'static str {
        let mut all = ExportFormat::ALL.iter();
        all.find(|(format, ..)| *format == self)
            .map_or("", |(_, _, extension, _)| extension)
    }

    /// Writes ticks in it. `name` is that of the experiment.
    ///
    /// # Errors
    /// Those of writing, and what the format has no room for.
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

/// An export, as it is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// The experiments; none: the newest here.
    pub experiments: Vec<PathBuf>,
    /// As what.
    pub format: ExportFormat,
    /// What is below stacks, where the format has no threads of its own.
    pub by: GroupBy,
    /// Which ticks.
    pub filter: Filter,
    /// Where it goes, as it was typed.
    pub file: Option<PathBuf>,
}

/// Those that were named, or else the newest one here.
///
/// # Errors
/// When there is none.
pub fn experiments(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    match named {
        [] => open::newest(Path::new(".")).map(|path| vec![path]),
        paths => Ok(paths.to_vec()),
    }
}

/// The ticks that pass a filter. What is missing is told.
///
/// # Errors
/// When there is none of them: an empty file would be taken for an idle machine.
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
            "{} damaged packets have a negative number of ticks, and were left out",
            selected.refused
        ));
    }
    if selected.total() == 0 {
        return Err(Failure::new(
            Kind::Empty,
            "there are no such ticks",
            "ask for fewer conditions; kcollect report overview says what there is",
        ));
    }
    Ok(selected)
}

/// Seconds, as they are said.
#[must_use]
pub fn seconds(microseconds: i64) -> String {
    format!("{:.3} seconds", microseconds as f64 / 1e6)
}

/// Makes it, and says where it is.
///
/// # Errors
/// When there is no experiment, or nothing of one can be read, or nothing passes the filters, or it
/// cannot be written.
pub fn export(options: &ExportOptions, output: &mut Output) -> Result<(), Failure> {
    let paths = experiments(&options.experiments)?;
    let model = Model::load(&paths)?;
    let selected = select(&model, &options.filter, output)?;
    let format = options.format;
    let target = OutputTarget::new(options.file.as_deref(), &paths[0], format.extension());
    let name = model.experiments.first().map_or("", |info| &info.name);
    target.write(format == ExportFormat::Pprof, |out| {
        format.write(&selected, options.by, name, out)
    })?;
    if let OutputTarget::File(path) = &target {
        output.result(&format!(
            "{}: {} of {} threads",
            path.display(),
            seconds(selected.total()),
            selected.threads().count()
        ));
    }
    Ok(())
}
