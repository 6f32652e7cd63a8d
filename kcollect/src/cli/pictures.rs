//! `kcollect flame` and `kcollect export`: their words and options, and what they mean.

use std::path::PathBuf;

use analysis::export::folded::GroupBy;
use analysis::export::{self, ExportFormat};
use analysis::flame;
use clap::Args;

use super::CliError;
use super::filters::{Filters, experiments, is_experiment};

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = FLAME_EXAMPLES)]
pub(super) struct Flame {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest
    /// ktest.N.er here)
    #[arg(value_name = "EXPERIMENT")]
    words: Vec<PathBuf>,
    /// The picture; - is standard output. The default is the experiment's name with .svg, in the
    /// current directory
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// All states, each stack with its state on top; the default is time on a CPU alone
    #[arg(long, conflicts_with = "state")]
    all: bool,
    /// Colour what has changed: red is more than in BEFORE, blue is less, scaled to the same length
    /// of time
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "words")]
    diff: Option<Vec<PathBuf>>,
    /// What is below stacks: name (of the process, the default), process (with its number), thread,
    /// or nothing
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    by: Option<String>,
    #[command(flatten)]
    filters: Filters,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct Export {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest
    /// ktest.N.er here)
    #[arg(value_name = "EXPERIMENT")]
    words: Vec<PathBuf>,
    /// The format: folded (inferno, flamegraph.pl), pprof (go tool pprof), firefox
    /// (profiler.firefox.com), perfetto (ui.perfetto.dev) or speedscope (speedscope.app)
    #[arg(long, value_name = "FORMAT", allow_hyphen_values = true)]
    to: Option<String>,
    /// The file; - is standard output, and a name in .gz is compressed. The default is the
    /// experiment's name with what files of the format end in, in the current directory
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// What is below stacks that are folded: name (of the process, the default), process (with its
    /// number), thread, or nothing
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    by: Option<String>,
    #[command(flatten)]
    filters: Filters,
}

const FLAME_EXAMPLES: &str = "\
Examples:
  kcollect flame                                time on CPUs
  kcollect flame ktest.1.er --all -o all.svg    all states, each in a colour
  kcollect flame ktest.1.er --state lock,sleep  where threads waited
  kcollect flame --diff ktest.1.er ktest.2.er   what has changed
  kcollect flame --process nginx --time 2-5 --by thread

Frames of the kernel are blue, user code is orange, code made at run time green,
processes are grey. The width is time, in microseconds or milliseconds. With
--diff the colour is that of the change in the function itself. The picture is
one SVG file: in a browser a click zooms, Ctrl-F searches. Frames of less than
a two-thousandth of the whole are not drawn.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  kcollect export --to firefox                  the newest ktest.N.er
  kcollect export ktest.1.er --to perfetto
  kcollect export ktest.1.er --to pprof -o cpu.pb.gz
  kcollect export ktest.1.er --to speedscope --process nginx
  kcollect export ktest.1.er --to folded --state totalcpu -o -

Without --state there are all states of threads. Ticks of CPUs, which say the
same again, are there if they are asked for: --state kcpu. In each format the
sums are those of kcollect report with the same filters.";

impl Flame {
    pub(super) fn resolve(self) -> Result<flame::FlameOptions, CliError> {
        let (before, words) = match self.diff.as_deref() {
            Some([before, after]) => {
                let both = experiments(vec![before.clone(), after.clone()])?;
                (both.first().cloned(), vec![after.clone()])
            }
            _ => (None, experiments(self.words)?),
        };
        Ok(flame::FlameOptions {
            experiments: words,
            before,
            filter: self.filters.resolve()?,
            all: self.all,
            by: by(self.by.as_deref())?,
            only: self.filters.words(),
            file: file(self.output)?,
        })
    }
}

impl Export {
    pub(super) fn resolve(self) -> Result<export::ExportOptions, CliError> {
        let known = || {
            let names: Vec<_> = ExportFormat::ALL
                .iter()
                .map(|(_, name, ..)| *name)
                .collect();
            format!("--to one of {}", names.join(", "))
        };
        let format = self
            .to
            .as_deref()
            .ok_or_else(|| CliError::new("no format is named", known()))?;
        let format = ExportFormat::from_name(format)
            .ok_or_else(|| CliError::new(format!("--to {format}: no such format"), known()))?;
        Ok(export::ExportOptions {
            experiments: experiments(self.words)?,
            format,
            by: by(self.by.as_deref())?,
            filter: self.filters.resolve()?,
            file: file(self.output)?,
        })
    }
}

fn by(text: Option<&str>) -> Result<GroupBy, CliError> {
    let Some(text) = text else {
        return Ok(GroupBy::default());
    };
    let found = GroupBy::ALL.iter().find(|(_, name)| *name == text);
    found.map(|(by, _)| *by).ok_or_else(|| {
        let names: Vec<_> = GroupBy::ALL.iter().map(|(_, name)| *name).collect();
        CliError::new(
            format!("--by {text}: nothing that can be below stacks"),
            format!("type one of {}", names.join(", ")),
        )
    })
}

/// Nobody wants a picture in the place of an experiment.
fn file(path: Option<PathBuf>) -> Result<Option<PathBuf>, CliError> {
    match path {
        Some(path) if is_experiment(&path) => Err(CliError::new(
            format!("-o {}: that is the name of an experiment", path.display()),
            "name the file that is to be written",
        )),
        path => Ok(path),
    }
}
