//! The command that a command line stands for, with every value parsed, checked and given its unit.
//!
//! [`resolve`] is a pure function of the arguments and of [`HostFacts`]. A value that it adjusts is
//! reported in the plan's notices; a value that it cannot use is an error.

use analysis::list::ListOptions;
use analysis::packing::{PackOptions, UnpackOptions};
use analysis::report::ReportOptions;
use analysis::view::ViewOptions;
use analysis::{export, flame};
use counters::stat::StatOptions;
use counters::track::TrackOptions;

use super::args::{Arguments, Sub};
use super::record::record;
use super::{CliError, HostFacts, packing, report, view};
use crate::plan::Plan;

/// What kcollect is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Profile the machine.
    Record(Box<Plan>),
    /// Check what this machine permits (`kcollect doctor`).
    Doctor {
        /// As JSON.
        json: bool,
    },
    /// Report experiments (`kcollect report`).
    Report(Box<ReportOptions>),
    /// Draw a page of an experiment (`kcollect view`).
    View(ViewOptions),
    /// Draw a flame graph (`kcollect flame`).
    Flame(Box<flame::FlameOptions>),
    /// Write an experiment in another format (`kcollect export`).
    Export(Box<export::ExportOptions>),
    /// List experiments (`kcollect list`).
    List(ListOptions),
    /// Pack experiments (`kcollect pack`).
    Pack(PackOptions),
    /// Unpack them (`kcollect unpack`).
    Unpack(UnpackOptions),
    /// Count by thread (`kcollect track`).
    Track(Box<TrackOptions>),
    /// Count by CPU (`kcollect stat`).
    Stat(Box<StatOptions>),
    /// List what can be counted (`-h` alone).
    Counters {
        /// As JSON.
        json: bool,
    },
    /// Print the version (`-V`).
    Version,
    /// Print this help (`--help`).
    Help(String),
}

/// Returns the command that the arguments stand for.
///
/// # Errors
/// The first value that cannot be parsed, or that contradicts another.
pub fn resolve(mut typed: Arguments, facts: &HostFacts) -> Result<Command, CliError> {
    match typed.sub.take() {
        Some(Sub::Doctor { json }) => return Ok(Command::Doctor { json }),
        Some(Sub::Report(typed)) => {
            return Ok(Command::Report(Box::new(report::resolve(*typed)?)));
        }
        Some(Sub::View(typed)) => return view::resolve(typed).map(Command::View),
        Some(Sub::Flame(typed)) => return Ok(Command::Flame(Box::new(typed.resolve()?))),
        Some(Sub::Export(typed)) => return Ok(Command::Export(Box::new(typed.resolve()?))),
        Some(Sub::List { directories, json }) => {
            return Ok(Command::List(ListOptions { directories, json }));
        }
        Some(Sub::Pack {
            experiments,
            output,
        }) => return packing::pack(experiments, output).map(Command::Pack),
        Some(Sub::Unpack { files, directory }) => {
            return packing::unpack(files, directory).map(Command::Unpack);
        }
        Some(Sub::Track(typed)) => return Ok(Command::Track(Box::new(typed.resolve()?))),
        Some(Sub::Stat(typed)) => return Ok(Command::Stat(Box::new(typed.resolve()?))),
        None => {}
    }
    if typed.output.version {
        return Ok(Command::Version);
    }
    if typed.data.counters.as_ref().is_some_and(Vec::is_empty) {
        return counters(typed);
    }
    record(typed, facts).map(|plan| Command::Record(Box::new(plan)))
}

/// Returns the command of `-h` alone, with or without `--json`: it lists what can be counted.
fn counters(mut typed: Arguments) -> Result<Command, CliError> {
    typed.data.counters = None;
    let json = std::mem::take(&mut typed.output.json);
    if typed == Arguments::default() {
        return Ok(Command::Counters { json });
    }
    Err(CliError::new(
        "-h: no counter is named",
        "type kcollect -h alone to list the counters, or kcollect --help for the help",
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::time::Duration;

    use counters::names::grammar::OverflowSpec;
    use experiment_format::directory::NameRequest;

    use super::*;
    use crate::cli;

    const FACTS: HostFacts = HostFacts {
        max_sample_rate: Some(100_000),
        terminal_columns: None,
        free_lock_time: Duration::from_micros(3),
    };

    fn parse(line: &str) -> Result<Command, CliError> {
        cli::parse(line.split(' ').map(OsString::from), &FACTS)
    }

    fn plan(line: &str) -> Plan {
        match parse(line) {
            Ok(Command::Record(plan)) => *plan,
            other => unreachable!("{line}: {other:?}"),
        }
    }

    fn series(stem: &str) -> NameRequest {
        NameRequest::Series {
            stem: stem.to_owned(),
        }
    }

    #[test]
    fn defaults_of_a_recording() {
        let plan = plan("kcollect -p on");
        assert_eq!(plan.tick_interval.micros(), 10_007);
        assert_eq!(
            (plan.place.name, plan.place.directory),
            (series("ktest"), PathBuf::from("."))
        );
        assert_eq!(plan.timing.sample_period, Some(Duration::from_secs(1)));
        assert_eq!(plan.notices, Vec::<String>::new());
    }

    #[test]
    fn experiment_directory_and_name() {
        let where_to = |line: &str| {
            let plan = plan(line);
            (
                plan.place.directory.to_str().unwrap().to_owned(),
                plan.place.name,
                plan.notices.len(),
            )
        };
        let exactly = |name: &str| NameRequest::Exactly(name.to_owned());
        for (line, expected) in [
            ("kcollect -o x.er", (".", exactly("x.er"), 0)),
            ("kcollect -o x.5.er", (".", exactly("x.5.er"), 0)),
            ("kcollect -o sub/x.er", ("sub", exactly("x.er"), 0)),
            ("kcollect -o x.er/", (".", exactly("x.er"), 0)),
            (
                "kcollect -d /tmp -o sub/x.er",
                ("/tmp/sub", exactly("x.er"), 0),
            ),
            (
                "kcollect -d /tmp -o /var/x.er",
                ("/var", exactly("x.er"), 1),
            ),
            ("kcollect -o /x.er", ("/", exactly("x.er"), 0)),
            ("kcollect -d sub", ("sub", series("ktest"), 0)),
            ("kcollect -g runs.erg", (".", series("runs"), 0)),
            ("kcollect -g a/runs.erg -o x.er", (".", exactly("x.er"), 0)),
        ] {
            assert_eq!(
                where_to(line),
                (expected.0.to_owned(), expected.1, expected.2),
                "{line}"
            );
        }
        assert_eq!(
            plan("kcollect -d /tmp -g runs.erg").place.group,
            Some(PathBuf::from("/tmp/runs.erg"))
        );
        assert_eq!(
            plan("kcollect -d /tmp -g /a/runs.erg").place.group,
            Some(PathBuf::from("/a/runs.erg"))
        );
        assert_eq!(
            plan("kcollect -g runs.erg").place.group,
            Some(PathBuf::from("runs.erg"))
        );
    }

    #[test]
    fn the_load_keeps_its_options() {
        let load = |line: &str| plan(line).load.join(" ".as_ref()).into_string().unwrap();
        assert_eq!(
            load("kcollect -p hi make -j4 -p off --json"),
            "make -j4 -p off --json"
        );
        assert_eq!(load("kcollect -- -x y"), "-x y");
        assert_eq!(load("kcollect -- doctor --json"), "doctor --json");
        assert_eq!(load("kcollect make doctor"), "make doctor");
        assert_eq!(load("kcollect make -- x"), "make -- x");
        assert!(plan("kcollect -p on --").load.is_empty());
    }

    #[test]
    fn other_commands_are_parsed() {
        assert_eq!(parse("kcollect -h"), Ok(Command::Counters { json: false }));
        assert_eq!(
            parse("kcollect --json --counters"),
            Ok(Command::Counters { json: true })
        );
        assert_eq!(parse("kcollect -V -p on"), Ok(Command::Version));
        assert_eq!(
            parse("kcollect doctor"),
            Ok(Command::Doctor { json: false })
        );
        assert_eq!(
            parse("kcollect doctor --json"),
            Ok(Command::Doctor { json: true })
        );
        assert_eq!(parse("kcollect --help"), Ok(Command::Help(cli::help(None))));
        assert!(matches!(
            parse("kcollect doctor --help"),
            Ok(Command::Help(_))
        ));
    }

    #[test]
    fn counters_are_taken_apart_and_not_looked_up() {
        let counters = |line: &str| {
            let counters = plan(line).counters;
            counters
                .iter()
                .map(OverflowSpec::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            counters("kcollect -h cycles,hi,nonsense -h cpu/event=1,umask=2/u"),
            ["cycles,hi", "nonsense,on", "cpu/event=1,umask=2/u,on"]
        );
        assert_eq!(counters("kcollect -h lo make -h x"), ["lo"]);
        assert_eq!(counters("kcollect -p on"), Vec::<String>::new());
        for (line, interval_us) in [("kcollect -h hi", 997), ("kcollect -h lo -p on", 10_007)] {
            assert_eq!(plan(line).tick_interval.micros(), interval_us, "{line}");
        }
    }

    #[test]
    fn options_are_combined() {
        let plan = plan("kcollect -n -q 3 -C one -C two true");
        assert!(plan.printing.verbose && plan.dry_run);
        assert_eq!(
            (plan.timing.quiet, plan.comments.len()),
            (Duration::from_secs(3), 2)
        );
    }
}
