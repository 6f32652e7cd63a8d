//! The command line, in two steps: [`args`] is what was typed, [`command`] makes of it what
//! will be done.
//!
//! The letters and their values are er_kernel's and collect's, each with a long name beside it.
//! Only a [`Plan`](crate::plan::Plan) reaches the session: it holds no text that still has to be understood. What
//! resolution needs to know of the machine comes in as a [`HostFacts`], so that the same words give
//! the same plan in a test as on a server.
//!
//! What this refuses: to look at the disk or at processes. Whether a directory exists or a process
//! lives is known only when the run starts, and is the session's to check .

pub mod args;
pub mod command;
mod error;
mod filters;
mod host_facts;
mod pictures;
mod report;
mod signals;
mod track;
mod values;
mod view;

use std::ffi::OsString;

use clap::FromArgMatches;
use clap::error::ErrorKind;

pub use command::Command;
pub use error::CliError;
pub use host_facts::HostFacts;

/// Reads the command line, `argv[0]` included, and says what will be done.
///
/// # Errors
/// [`CliError`] names the option, what was typed and the cure. Nothing was touched or started.
pub fn parse(
    argv: impl IntoIterator<Item = OsString>,
    facts: &HostFacts,
) -> Result<Command, CliError> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    if argv.len() < 2 {
        return Err(CliError::nothing_asked());
    }
    let mut command = args::command(facts.terminal_columns);
    let typed = command
        .try_get_matches_from_mut(argv)
        .and_then(|matches| args::Typed::from_arg_matches(&matches));
    match typed {
        Ok(typed) => command::resolve(typed, facts),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            Ok(Command::Help(error.to_string()))
        }
        Err(error) => Err(CliError::from_clap(&error, &command)),
    }
}

/// The help as `--help` prints it, for a terminal of `width` columns (None: not a terminal).
#[must_use]
pub fn help(width: Option<u16>) -> String {
    args::command(width).render_help().to_string()
}
