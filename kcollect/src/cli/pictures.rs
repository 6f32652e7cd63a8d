//! The arguments of `kcollect flame` and `kcollect export`.

use std::path::PathBuf;

use analysis::export::folded::GroupBy;
use analysis::export::{self, ExportFormat};
use analysis::flame;
use analysis::model::TracedEvents;
use clap::Args;

use super::CliError;
use super::filters::{FilterArgs, PeriodArgs, is_experiment, not_an_experiment};
use super::lookup::DebuginfodArgs;

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = FLAME_EXAMPLES)]
pub(super) struct FlameArgs {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest
    /// ktest.N.er here)
    #[arg(value_name = "EXPERIMENT")]
    words: Vec<PathBuf>,
    /// The picture's file; - is standard output. The default is the experiment's name with .svg, in
    /// the current directory
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// All states, each stack with its state on top; the default is only the time on a CPU
    #[arg(long, conflicts_with = "state")]
    all: bool,
    /// What threads suffered: waits for locks, disks, answers, CPUs and so on, each stack with the
    /// cause on top, and with what woke the thread (-W of a recording)
    #[arg(long, conflicts_with_all = ["state", "all"])]
    waits: bool,
    /// The waits for locks that were traced (-s of a recording), to the microsecond, and no ticks
    #[arg(long, conflicts_with_all = ["state", "all", "waits"])]
    locks: bool,
    /// The system calls that do I/O (-i of a recording), in the same way
    #[arg(long, conflicts_with_all = ["state", "all", "waits", "locks"])]
    io: bool,
    /// The memory that was allocated (-H of a recording), by its bytes, and no ticks
    #[arg(long, conflicts_with_all = ["state", "all", "waits", "locks", "io"])]
    allocated: bool,
    /// The part of it that was not freed by the end, by its bytes. With --diff: how that grew
    #[arg(long, conflicts_with_all = ["state", "all", "waits", "locks", "io", "allocated"])]
    live: bool,
    /// Colour the changes: red is more than in BEFORE, blue is less, scaled to the same length of
    /// time
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["words", "last", "at"])]
    diff: Option<Vec<PathBuf>>,
    /// What the stacks stand on: name (the process's name, the default), process (name and number),
    /// thread, unit, container, pod, cgroup, user, or nothing
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    by: Option<String>,
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    debuginfod: DebuginfodArgs,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct ExportArgs {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest
    /// ktest.N.er here)
    #[arg(value_name = "EXPERIMENT")]
    words: Vec<PathBuf>,
    /// The format: folded (inferno, flamegraph.pl), pprof (go tool pprof), firefox
    /// (profiler.firefox.com), perfetto (ui.perfetto.dev) or speedscope (speedscope.app)
    #[arg(long, value_name = "FORMAT", allow_hyphen_values = true)]
    to: Option<String>,
    /// The file; - is standard output, and a file whose name ends in .gz is compressed. The default
    /// is the experiment's name with the extension of the format, in the current directory
    #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<PathBuf>,
    /// The waits for locks that were traced (-s of a recording), to the microsecond, and no ticks
    #[arg(long, conflicts_with = "state")]
    locks: bool,
    /// The system calls that do I/O (-i of a recording), in the same way
    #[arg(long, conflicts_with_all = ["state", "locks"])]
    io: bool,
    /// The memory that was allocated (-H of a recording), by its bytes, to folded or pprof
    #[arg(long, conflicts_with_all = ["state", "locks", "io"])]
    allocated: bool,
    /// The part of it that was not freed by the end, in the same way
    #[arg(long, conflicts_with_all = ["state", "locks", "io", "allocated"])]
    live: bool,
    /// What folded stacks stand on: name (the process's name, the default), process (name and
    /// number), thread, unit, container, pod, cgroup, user, or nothing
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    by: Option<String>,
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    filters: FilterArgs,
    #[command(flatten)]
    debuginfod: DebuginfodArgs,
}

const FLAME_EXAMPLES: &str = "\
Examples:
  kcollect flame                                time on CPUs
  kcollect flame ktest.1.er --all -o all.svg    all states, each in a colour
  kcollect flame ktest.1.er --state lock,sleep  where threads waited
  kcollect flame --waits                        what was suffered, and who ended it
  kcollect flame --locks                        waits for locks, recorded with -s
  kcollect flame --live                         memory that is not freed, with -H on
  kcollect flame --diff ktest.1.er ktest.2.er   what has changed
  kcollect flame --process nginx --time 2-5 --by thread

Frames of the kernel are blue, user code is orange, JIT code is pink, processes
are grey. The width is time, in microseconds or milliseconds, or bytes. With
--diff the colour shows the change in the function itself. The picture is one
SVG file: in a browser a click zooms, Ctrl-F searches. Frames below 0.05 % of
the whole are not drawn.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  kcollect export --to firefox                  the newest ktest.N.er
  kcollect export ktest.1.er --to perfetto
  kcollect export ktest.1.er --to pprof -o cpu.pb.gz
  kcollect export ktest.1.er --to speedscope --process nginx
  kcollect export ktest.1.er --to folded --state totalcpu -o -

Without --state, all states of threads are exported. Ticks of CPUs, which show
the same time again, are exported with --state kcpu. In each format the sums
equal those in kcollect report with the same filters.";

impl FlameArgs {
    pub(super) fn resolve(self) -> Result<flame::FlameOptions, CliError> {
        let (before, words) = match self.diff.as_deref() {
            Some([before, after]) => {
                let both = vec![before.clone(), after.clone()];
                self.period.sources(both, not_an_experiment)?;
                (Some(before.clone()), vec![after.clone()])
            }
            _ => (None, self.words),
        };
        Ok(flame::FlameOptions {
            sources: self.period.sources(words, not_an_experiment)?,
            before,
            filter: self.filters.resolve()?,
            all: self.all,
            waits: self.waits,
            traced: traced(&[
                (self.locks, TracedEvents::Locks),
                (self.io, TracedEvents::Io),
                (self.allocated, TracedEvents::Allocated),
                (self.live, TracedEvents::Live),
            ]),
            by: by(self.by.as_deref())?,
            only: self.filters.title(),
            lookup: self.debuginfod.resolve(),
            file: file(self.output)?,
        })
    }
}

impl ExportArgs {
    pub(super) fn resolve(self) -> Result<export::ExportOptions, CliError> {
        let known = || {
            let names: Vec<_> = ExportFormat::ALL
                .iter()
                .map(|(_, name, ..)| *name)
                .collect();
            format!("type --to with one of {}", names.join(", "))
        };
        let format = self
            .to
            .as_deref()
            .ok_or_else(|| CliError::new("--to is missing", known()))?;
        let format = ExportFormat::from_name(format)
            .ok_or_else(|| CliError::new(format!("--to {format}: no such format"), known()))?;
        Ok(export::ExportOptions {
            sources: self.period.sources(self.words, not_an_experiment)?,
            format,
            by: by(self.by.as_deref())?,
            traced: traced(&[
                (self.locks, TracedEvents::Locks),
                (self.io, TracedEvents::Io),
                (self.allocated, TracedEvents::Allocated),
                (self.live, TracedEvents::Live),
            ]),
            filter: self.filters.resolve()?,
            lookup: self.debuginfod.resolve(),
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
            format!("--by {text}: stacks cannot stand on that"),
            format!("type one of {}", names.join(", ")),
        )
    })
}

/// Returns the output file, if it does not have the name of an experiment.
fn file(path: Option<PathBuf>) -> Result<Option<PathBuf>, CliError> {
    match path {
        Some(path) if is_experiment(&path) => Err(CliError::new(
            format!("-o {}: that is the name of an experiment", path.display()),
            "type the name of another file",
        )),
        path => Ok(path),
    }
}

/// Returns the events that are shown in place of ticks: those whose option is typed.
pub(super) fn traced(typed: &[(bool, TracedEvents)]) -> Option<TracedEvents> {
    let mut typed = typed.iter();
    typed.find_map(|(typed, events)| typed.then_some(*events))
}
