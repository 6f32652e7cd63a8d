//! Errors of the command line, each with what to type instead.
//!
//! clap's own errors have several lines and no hint. They are rewritten here into the form of all
//! errors of kcollect: one line that ends with the hint.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use host::exit::{ExitKind, Failure};

/// An error of the command line. Its exit code is [`ExitKind::Usage`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {hint}")]
pub struct CliError {
    /// The option, its value, and what is wrong with it.
    pub message: String,
    /// What to type instead.
    pub hint: String,
}

impl CliError {
    /// Creates an error.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        CliError {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// Returns the error of a command line without arguments. Its hint is the usage.
    pub(super) fn no_arguments() -> Self {
        CliError::new(
            "there are no arguments",
            "type one of these\n\
             \x20   kcollect -p on [LOAD [ARGUMENT...]]   profile the machine until Ctrl-C, or while the load runs\n\
             \x20   kcollect doctor                       check whether this machine permits it\n\
             \x20   kcollect --help                       all options",
        )
    }

    /// The error of a command line with the settings of a file: the wrong option may come from the
    /// file.
    pub(super) fn with_settings(self, file: &Path) -> Self {
        CliError {
            message: format!("{} (with the settings in {})", self.message, file.display()),
            ..self
        }
    }

    /// Rewrites an error of clap. `command` is the one that was parsed.
    pub(super) fn from_clap(error: &clap::Error, command: &clap::Command) -> Self {
        const HELP: &str = "kcollect --help lists the options";
        let of = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
            _ => None,
        };
        let argument = of(ContextKind::InvalidArg).unwrap_or("an argument");
        let option = letter(argument, command);
        match error.kind() {
            ErrorKind::UnknownArgument => CliError::new(
                format!("{argument} is not an option of this command"),
                of(ContextKind::SuggestedArg)
                    .map_or(HELP.to_owned(), |near| format!("did you mean {near}?")),
            ),
            // For text values and paths clap returns this only if the value is missing or empty.
            ErrorKind::InvalidValue => {
                let value = argument
                    .split_once(' ')
                    .map_or("VALUE", |(_, value)| value.trim_matches(['<', '>']));
                CliError::new(
                    format!("{option}: the value is missing"),
                    format!("type {option} {value}"),
                )
            }
            ErrorKind::TooManyValues => CliError::new(
                format!(
                    "{option}={}: the option takes no value",
                    of(ContextKind::InvalidValue).unwrap_or_default()
                ),
                format!("type {option} without a value"),
            ),
            ErrorKind::ArgumentConflict => {
                let other = of(ContextKind::PriorArg).map(|other| letter(other, command));
                let message = match other.filter(|other| *other != option) {
                    Some(other) => format!("{option} cannot be used with {other}"),
                    None => format!("{option} was given more than once"),
                };
                CliError::new(message, "keep one of them")
            }
            ErrorKind::MissingRequiredArgument => {
                let what = argument.trim_end_matches('.').trim_matches(['<', '>']);
                let name = command.get_name();
                CliError::new(
                    format!("{what} is missing"),
                    format!("type kcollect {name} {what}"),
                )
            }
            ErrorKind::InvalidUtf8 => CliError::new(
                "an option's value is not valid UTF-8",
                "type it as plain text",
            ),
            _ => {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                CliError::new(line.strip_prefix("error: ").unwrap_or(line), HELP)
            }
        }
    }
}

/// Returns the letter of an option that clap calls `--interval <INTERVAL>`, since all other
/// messages use letters.
fn letter(argument: &str, command: &clap::Command) -> String {
    let long = argument.split(' ').next().unwrap_or(argument);
    command
        .get_arguments()
        .find(|known| {
            known
                .get_long()
                .is_some_and(|name| long.strip_prefix("--") == Some(name))
        })
        .and_then(clap::Arg::get_short)
        .map_or(long.to_owned(), |short| format!("-{short}"))
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Failure::new(ExitKind::Usage, error.message, error.hint)
    }
}
