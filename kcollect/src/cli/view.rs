//! The arguments of `kcollect view`.

use std::path::PathBuf;

use analysis::model::TracedEvents;
use analysis::view::{ViewOptions, ViewOutput};
use clap::Args;

use super::CliError;
use super::filters::{PeriodArgs, not_an_experiment};
use super::lookup::DebuginfodArgs;
use super::pictures::traced;

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct ViewArgs {
    /// The experiment (NAME.er, or a subexperiment in it), or several of a series; the default is
    /// the newest ktest.N.er here
    #[arg(value_name = "EXPERIMENT")]
    words: Vec<PathBuf>,
    #[command(flatten)]
    period: PeriodArgs,
    /// The waits for locks that were traced (-s of a recording), to the microsecond, and no ticks
    #[arg(long)]
    locks: bool,
    /// The system calls that do I/O (-i of a recording), in the same way
    #[arg(long, conflicts_with = "locks")]
    io: bool,
    /// Write the page to this file; the default is the experiment's name with .html, here
    #[arg(short = 'o', long, value_name = "FILE", conflicts_with = "serve")]
    output: Option<PathBuf>,
    /// Serve the page to browsers of this machine, at this port of 127.0.0.1 or at a free port,
    /// until Ctrl-C, and write no file
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0")]
    serve: Option<String>,
    #[command(flatten)]
    debuginfod: DebuginfodArgs,
}

/// Returns the request that the arguments stand for.
pub(super) fn resolve(typed: ViewArgs) -> Result<ViewOptions, CliError> {
    let output = match typed.serve {
        None => ViewOutput::File(typed.output),
        Some(text) => ViewOutput::Serve(text.parse().map_err(|_| {
            CliError::new(
                format!("--serve {text}: not a port"),
                "type a number up to 65535, or no number: kcollect view ktest.1.er --serve",
            )
        })?),
    };
    Ok(ViewOptions {
        sources: typed.period.sources(typed.words, not_an_experiment)?,
        traced: traced(&[
            (typed.locks, TracedEvents::Locks),
            (typed.io, TracedEvents::Io),
        ]),
        lookup: typed.debuginfod.resolve(),
        output,
    })
}
