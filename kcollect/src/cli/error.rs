//! What is wrong with a command line, and what to type instead.
//!
//! clap's own errors run over several lines and know no cure; here they get the form that every
//! error of kcollect has, one line with the cure at its end.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use host::exit::{ExitKind, Failure};

/// A command line that cannot be carried out. Its exit code is [`ExitKind::Usage`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {cure}")]
pub struct CliError {
    /// The option, what was typed, and what is wrong with it.
    pub message: String,
    /// What to type instead.
    pub cure: String,
}

impl CliError {
    /// An error with its cure.
    pub fn new(message: impl Into<String>, cure: impl Into<String>) -> Self {
        CliError {
            message: message.into(),
            cure: cure.into(),
        }
    }

    /// No argument at all: the usage is the cure.
    pub(super) fn nothing_asked() -> Self {
        CliError::new(
            "nothing was asked for",
            "type one of these\n\
             \x20   kcollect -p on [LOAD [ARGUMENT...]]   profile the machine until Ctrl-C, or while the load runs\n\
             \x20   kcollect doctor                       check whether this machine permits it\n\
             \x20   kcollect --help                       all options",
        )
    }

    /// What clap found wrong, in our words. `command` is the one that was parsed.
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
                format!("{argument} is not an option here"),
                of(ContextKind::SuggestedArg)
                    .map_or(HELP.to_owned(), |near| format!("did you mean {near}?")),
            ),
            // clap says this of a value that is missing or an empty path, and of nothing else:
            // values are plain text here.
            ErrorKind::InvalidValue => {
                let value = argument
                    .split_once(' ')
                    .map_or("VALUE", |(_, value)| value.trim_matches(['<', '>']));
                CliError::new(
                    format!("{option}: its value is missing"),
                    format!("type {option} {value}"),
                )
            }
            ErrorKind::TooManyValues => CliError::new(
                format!(
                    "{option}={}: it takes no value",
                    of(ContextKind::InvalidValue).unwrap_or_default()
                ),
                format!("type {option} alone"),
            ),
            ErrorKind::ArgumentConflict => CliError::new(
                format!("{option} was given more than once"),
                "keep one of them",
            ),
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

/// The letter of an option that clap calls `--interval <INTERVAL>`, since all other messages use
/// letters.
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
        Failure::new(ExitKind::Usage, error.message, error.cure)
    }
}
