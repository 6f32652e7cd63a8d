//! The README and the help cannot go stale: their commands are understood, and the README's tables
//! are those of the code.

use std::collections::BTreeSet;
use std::ffi::OsString;

use counters::rows::What;
use host::exit::ExitKind;
use kcollect::cli::{self, Command, HostFacts};

const README: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"));

const FACTS: HostFacts = HostFacts {
    max_sample_rate: Some(100_000),
    terminal_columns: Some(100),
};

/// Takes the command apart as a shell does, as far as the examples need it, and makes sure that it
/// means something.
fn understand(line: &str) -> Result<Command, String> {
    let line = line.split(" #").next().unwrap_or(line).trim();
    assert!(
        !line.contains(['"', '\'', '$', '\\']),
        "more than words: {line}"
    );
    let words = line
        .trim_start_matches("sudo ")
        .split_whitespace()
        .map(OsString::from);
    cli::parse(words, &FACTS).map_err(|error| format!("{line}: {error}"))
}

/// The lines typed at a prompt in fenced blocks.
fn typed() -> impl Iterator<Item = &'static str> {
    let mut fenced = false;
    README
        .lines()
        .filter(move |line| {
            fenced ^= line.starts_with("```");
            fenced
        })
        .filter_map(|line| line.strip_prefix("$ "))
}

#[test]
fn the_commands_of_the_readme_are_understood() {
    let commands: Vec<Command> = typed()
        .filter(|line| line.trim_start_matches("sudo ").starts_with("kcollect"))
        .map(understand)
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(commands.len() > 8, "{commands:#?}");
    for command in commands {
        if let Command::Record(plan) = command {
            assert_eq!(
                plan.notices,
                Vec::<String>::new(),
                "an example that has to be adjusted"
            );
        }
    }
}

#[test]
fn the_examples_of_the_help_are_understood() {
    let help = cli::help(Some(100));
    let examples = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let commands: Vec<Command> = examples
        .take_while(|line| !line.is_empty())
        .map(|line| understand(line.trim().split("  ").next().unwrap()))
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(commands.len() > 4, "{commands:#?}");
}

/// The cells of a table's rows, found by its heading row.
fn table(heading: &str) -> Vec<[&'static str; 2]> {
    README
        .lines()
        .skip_while(|line| *line != heading)
        .skip(2)
        .map_while(|line| {
            line.strip_prefix("| ")?
                .strip_suffix(" |")?
                .split_once(" | ")
        })
        .map(|(left, right)| [left, right])
        .collect()
}

#[test]
fn the_options_are_those_of_the_code() {
    let documented: Vec<String> = table("| option | meaning |")
        .iter()
        .map(|[option, _]| option.trim_matches('`').replace("\\|", "|"))
        .collect();
    let known = options(&cli::args::command(None));
    assert_eq!(documented, known);
}

#[test]
fn the_options_of_counting_are_those_of_the_code() {
    let documented = table("| option of `track` and `stat` | meaning |");
    let documented: BTreeSet<String> = documented
        .iter()
        .map(|[option, _]| option.trim_matches('`').to_owned())
        .collect();
    let command = cli::args::command(None);
    let known: BTreeSet<_> = ["track", "stat"]
        .iter()
        .flat_map(|name| options(command.find_subcommand(name).unwrap()))
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn the_rows_of_counting_are_those_of_the_code() {
    let documented = table("| row | is |");
    let documented: BTreeSet<&str> = documented
        .iter()
        .flat_map(|[rows, _]| rows.split(", ").map(|row| row.trim_matches('`')))
        .collect();
    let known = What::ALL_WORDS.into_iter().collect();
    assert_eq!(documented, known);
}

/// As the README writes them.
fn options(command: &clap::Command) -> Vec<String> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_positional())
        .map(|argument| {
            let short = argument
                .get_short()
                .map_or(String::new(), |short| format!("-{short}, "));
            let long = argument.get_long().unwrap_or_default();
            let value = match argument.get_value_names() {
                Some(names) if argument.get_action().takes_values() => {
                    match argument.get_num_args() {
                        Some(count) if count.min_values() == 0 => format!(" [{}]", names.join(" ")),
                        _ => format!(" {}", names.join(" ")),
                    }
                }
                _ => String::new(),
            };
            format!("{short}--{long}{value}")
        })
        .collect()
}

#[test]
fn the_exit_codes_are_those_of_the_code() {
    let documented: Vec<_> = table("| status | meaning |")
        .iter()
        .map(|[code, meaning]| format!("{code} {meaning}"))
        .collect();
    let known: Vec<_> = ExitKind::ALL
        .iter()
        .map(|kind| format!("{} {}", kind.code(), kind.meaning()))
        .collect();
    assert_eq!(documented, known);
}

#[test]
fn the_targets_of_make_exist() {
    let makefile = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../Makefile"));
    let targets: Vec<_> = typed()
        .filter_map(|line| line.strip_prefix("make "))
        .collect();
    assert_eq!(targets, ["run", "test"]);
    for target in targets {
        assert!(
            makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:"))),
            "{target}"
        );
    }
}

#[test]
fn the_views_of_reports_are_those_of_the_code() {
    let views = analysis::report::views::View::ALL.map(|(_, name, shows)| (name, shows));
    let told = table("| view | shows |");
    assert_eq!(told.len(), views.len());
    for ([name, _], (view, _)) in told.into_iter().zip(views) {
        // Some have a function behind them.
        let word = name.trim_matches('`').split(' ').next();
        assert_eq!(word, Some(view));
    }
}

#[test]
fn the_formats_of_exports_are_those_of_the_code() {
    let told: Vec<_> = table("| format | for |")
        .iter()
        .map(|[name, readers]| format!("{name} {readers}"))
        .collect();
    let formats = analysis::export::Format::ALL;
    let known = formats.map(|(_, name, _, readers)| format!("`{name}` {readers}"));
    assert_eq!(told, known);
}
