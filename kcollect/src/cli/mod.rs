//! The command line, in two steps: [`args`] holds the arguments as typed, [`command`] resolves them
//! to a [`Command`].
//!
//! The letters and their values are the same as in er_kernel and collect; each also has a long
//! name.
//! Only a [`Plan`](crate::plan::Plan) reaches the recording. The facts of the machine that
//! resolution depends on are an argument, [`HostFacts`], so that the same command line has the same
//! plan in a test as on a server.
//!
//! Nothing here reads the disk or looks at processes: whether a directory or a process exists is
//! checked when the recording starts.

pub mod args;
pub mod command;
mod error;
mod filters;
mod host_facts;
mod lookup;
mod packing;
mod pictures;
mod record;
mod report;
mod settings;
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

/// Returns the command of a command line, which includes `argv[0]`.
///
/// # Errors
/// [`CliError`] names the option, its value and the hint.
pub fn parse(
    argv: impl IntoIterator<Item = OsString>,
    facts: &HostFacts,
) -> Result<Command, CliError> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    if argv.len() < 2 {
        return Err(CliError::no_arguments());
    }
    let subcommand = argv[1].to_string_lossy().into_owned();
    let mut command = args::command(facts.terminal_columns);
    let parse = |command: &mut clap::Command, argv: &[OsString]| {
        let matches = command.try_get_matches_from_mut(argv)?;
        args::Arguments::from_arg_matches(&matches).map(|typed| (matches, typed))
    };
    match parse(&mut command, &argv) {
        Ok((matches, typed)) => {
            let Some(file) = &typed.output.config else {
                return command::resolve(typed, facts);
            };
            let settings = settings::read(file, &command, &matches)?;
            let both = [&argv[..1], &settings, &argv[1..]].concat();
            let with_settings = match parse(&mut command, &both) {
                Ok((_, typed)) => command::resolve(typed, facts),
                Err(error) => Err(CliError::from_clap(&error, &command)),
            };
            with_settings.map_err(|error| error.with_settings(file))
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            Ok(Command::Help(error.to_string()))
        }
        Err(error) => {
            let typed = command.find_subcommand(&subcommand).unwrap_or(&command);
            Err(CliError::from_clap(&error, typed))
        }
    }
}

/// Returns the help as `--help` prints it, for a terminal of `width` columns (None: not a
/// terminal).
#[must_use]
pub fn help(width: Option<u16>) -> String {
    args::command(width).render_help().to_string()
}
