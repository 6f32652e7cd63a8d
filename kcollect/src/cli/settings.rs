//! The settings of `--config`: a file in TOML whose keys are the long names of options.
//!
//! It becomes options of the command line, so that each value has one parser and one error. An
//! option that is typed is not taken from the file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use analysis::filter::nearest;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::{Table, Value};

use super::CliError;

/// Settings are a few lines.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the options of a settings file that are not typed, as a command line has them.
pub(super) fn read(
    file: &Path,
    command: &Command,
    typed: &ArgMatches,
) -> Result<Vec<OsString>, CliError> {
    let text = text_of(file).map_err(|error| {
        CliError::new(
            format!("--config {}: {error}", file.display()),
            "name a file with lines like rotate = \"10m\"",
        )
    })?;
    let wrong = |message: String, hint: String| {
        CliError::new(format!("{}: {message}", file.display()), hint)
    };
    let settings: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error
            .span()
            .map_or("", |span| text.get(..span.start).unwrap_or(""));
        let line = before.matches('\n').count() + 1;
        let reason = error.message().replace('\n', "; ");
        let hint = "write lines like rotate = \"10m\"; # begins a comment";
        wrong(format!("line {line}: {reason}"), hint.to_owned())
    })?;
    let mut options = Vec::new();
    for (key, value) in &settings {
        let known: Vec<_> = command
            .get_arguments()
            .filter(|arg| is_setting(arg))
            .collect();
        let names = || known.iter().filter_map(|arg| arg.get_long());
        let Some(arg) = known.iter().find(|arg| arg.get_long() == Some(key)) else {
            let near = nearest(names(), key);
            let hint = match near.first() {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the keys are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(wrong(format!("{key} is not the name of an option"), hint));
        };
        if typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
            continue;
        }
        let of_key = values(arg, value).ok_or_else(|| {
            let hint = match arg.get_action() {
                ArgAction::SetTrue => format!("write {key} = true"),
                ArgAction::Append => format!("write {key} = [\"VALUE\", \"VALUE\"]"),
                _ => format!("write {key} = \"VALUE\""),
            };
            wrong(format!("{key} takes no {}", value.type_str()), hint)
        })?;
        options.extend(of_key.into_iter().map(|value| match value {
            Some(value) => OsString::from(format!("--{key}={value}")),
            None => OsString::from(format!("--{key}")),
        }));
    }
    Ok(options)
}

fn text_of(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(file)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        Err(io::Error::other("it is larger than 1 MiB"))
    } else {
        Ok(text)
    }
}

/// Returns whether an option may be in a file: not those that ask for something else than to
/// record.
fn is_setting(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    arg.get_long().is_some() && !["config", "help", "version"].contains(&id)
}

/// The values of an option, one for each time that it is repeated; a flag has no value. None: the
/// option does not take such a value.
fn values(arg: &Arg, value: &Value) -> Option<Vec<Option<String>>> {
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Some(vec![None]),
        (ArgAction::SetTrue, Value::Boolean(false)) => Some(Vec::new()),
        (ArgAction::SetTrue, _) => None,
        (ArgAction::Append, Value::Array(list)) => {
            list.iter().map(|value| word(value).map(Some)).collect()
        }
        (_, value) => word(value).map(|word| vec![Some(word)]),
    }
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(true) => Some("on".to_owned()),
        Value::Boolean(false) => Some("off".to_owned()),
        Value::Array(_) | Value::Table(_) | Value::Datetime(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{Command, HostFacts, parse};
    use crate::plan::{Keep, Plan};

    /// Parses a command line with settings in a file, which is called FILE in errors.
    fn parsed(settings: &str, typed: &[&str]) -> Result<Box<Plan>, String> {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("kcollect.toml");
        std::fs::write(&file, settings).unwrap();
        let file = file.to_str().unwrap();
        let argv = [&["kcollect", "--config", file], typed].concat();
        let facts = HostFacts {
            max_sample_rate: None,
            terminal_columns: None,
            free_lock_time: std::time::Duration::from_micros(3),
        };
        match parse(argv.into_iter().map(Into::into), &facts) {
            Ok(Command::Record(plan)) => Ok(plan),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string().replace(file, "FILE")),
        }
    }

    #[test]
    fn each_key_is_an_option_and_what_is_typed_has_precedence() {
        let settings = r#"
            # The service's.
            interval = "hi"
            directory = "/var/lib/kcollect"
            rotate = "10m"
            keep = "20G"
            limit = 500
            skip-idle = false
            descendants = true
            json = false
            comment = ["one", "two, three"]
        "#;
        let plan = parsed(settings, &[]).unwrap();
        assert_eq!(plan.tick_interval.micros(), 997);
        assert_eq!(plan.place.directory, PathBuf::from("/var/lib/kcollect"));
        assert_eq!(plan.series.keep, Some(Keep::Bytes(20 << 30)));
        assert_eq!(plan.limit, Some(500 << 20));
        assert!(plan.record_idle && !plan.printing.json);
        assert_eq!(plan.comments, ["one", "two, three"]);
        let typed = ["-p", "lo", "-C", "mine", "sleep", "1"];
        let plan = parsed(settings, &typed).unwrap();
        assert_eq!(plan.tick_interval.micros(), 100_003);
        assert_eq!(plan.comments, ["mine"]);
        assert_eq!(plan.load, ["sleep", "1"]);
    }

    #[test]
    fn a_file_that_cannot_be_settings_is_refused() {
        let long = "#".repeat(1 << 20);
        assert!(parsed(&long, &[]).is_ok());
        let error = parsed(&(long + "#"), &[]).unwrap_err();
        assert!(
            error.starts_with("--config FILE: it is larger than 1 MiB"),
            "{error}"
        );
    }

    #[test]
    fn errors_in_the_file_are_named() {
        let mut text = String::new();
        for settings in [
            "rotat = \"10m\"",
            "rotate = \"often\"",
            "rotate = 10m",
            "rotate = [\"10m\"]",
            "comment = \"one\"\n\nkeep",
            "comment = [[1]]",
            "json = \"yes\"",
            "help = true",
            "config = \"FILE\"",
            "rotate = \"10m\"\nrotate = \"10m\"",
            "[service]\nrotate = \"10m\"",
        ] {
            let error = parsed(settings, &[]).unwrap_err();
            text += &format!("{settings}\n    {error}\n");
        }
        insta::assert_snapshot!(text);
    }
}
