//! The command that a command line stands for, with every value parsed, checked and given its unit.
//!
//! [`resolve`] is a pure function of the arguments and of [`HostFacts`]. A value that it adjusts is
//! reported in the plan's notices; a value that it cannot use is an error.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use analysis::list::ListOptions;
use analysis::packing::{ArchiveOptions, UnpackOptions};
use analysis::report::ReportOptions;
use analysis::view::ViewOptions;
use analysis::{export, flame};
use counters::names::grammar::{OverflowInterval, OverflowSpec};
use counters::stat::StatOptions;
use counters::track::TrackOptions;
use experiment_format::directory::NameRequest;
use user_collector::follow::{Follow, FollowRule};

use super::args::{Arguments, Sub};
use super::{CliError, HostFacts, packing, report, signals, values, view};
use crate::plan::{Archive, MAX_COMMENTS, Plan, Target};

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
    /// Pack experiments (`kcollect archive`).
    Archive(ArchiveOptions),
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

/// The stem of experiments without a name of their own.
const DEFAULT_STEM: &str = "ktest";

/// Returns the command that the arguments stand for.
///
/// # Errors
/// The first value that cannot be parsed, or that contradicts another.
pub fn resolve(mut typed: Arguments, facts: &HostFacts) -> Result<Command, CliError> {
    match typed.sub.take() {
        Some(Sub::Doctor { json }) => return Ok(Command::Doctor { json }),
        Some(Sub::Report(typed)) => {
            return report::resolve(*typed).map(|request| Command::Report(Box::new(request)));
        }
        Some(Sub::View(typed)) => return view::resolve(typed).map(Command::View),
        Some(Sub::Flame(typed)) => {
            return typed
                .resolve()
                .map(|request| Command::Flame(Box::new(request)));
        }
        Some(Sub::Export(typed)) => {
            return typed
                .resolve()
                .map(|request| Command::Export(Box::new(request)));
        }
        Some(Sub::List { directories, json }) => {
            return Ok(Command::List(ListOptions { directories, json }));
        }
        Some(Sub::Archive {
            experiments,
            output,
        }) => return packing::archive(experiments, output).map(Command::Archive),
        Some(Sub::Unpack { files, directory }) => {
            return packing::unpack(files, directory).map(Command::Unpack);
        }
        Some(Sub::Track(typed)) => {
            return typed
                .resolve()
                .map(|request| Command::Track(Box::new(request)));
        }
        Some(Sub::Stat(typed)) => {
            return typed.resolve().map(|wish| Command::Stat(Box::new(wish)));
        }
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

fn record(typed: Arguments, facts: &HostFacts) -> Result<Plan, CliError> {
    let Arguments {
        sub: _,
        data,
        time,
        experiment,
        output,
        load,
    } = typed;
    let mut notices = Vec::new();

    let lock_threshold = values::lock_threshold(data.sync.as_deref().unwrap_or("off"), facts)?;
    let trace_io = values::trace_io(data.io.as_deref().unwrap_or("off"))?;
    let trace_memory = values::trace_memory(data.heap.as_deref().unwrap_or("off"))?;
    let tracing = [
        ("-s", lock_threshold.is_some()),
        ("-i", trace_io),
        ("-H", trace_memory),
    ];
    let tracing = tracing
        .into_iter()
        .find_map(|(option, on)| on.then_some(option));
    let default_follow = if tracing.is_some() { "load" } else { "on" };
    let follow = values::follow(data.follow.as_deref().unwrap_or(default_follow))?;
    let counters = values::counters(data.counters.as_deref().unwrap_or_default())?;
    // The usual counters set the interval of the clock too.
    let usual = counters.iter().find_map(|wish| match wish {
        OverflowSpec::Default(OverflowInterval::Hi) => Some("hi"),
        OverflowSpec::Default(OverflowInterval::Lo) => Some("lo"),
        _ => None,
    });
    let interval = values::interval(
        data.interval.as_deref().or(usual).unwrap_or("on"),
        facts,
        &mut notices,
    )?
    .ok_or_else(|| {
        CliError::new(
            format!(
                "-p {}: nothing to record",
                data.interval.as_deref().unwrap_or("off")
            ),
            "ticks of the clock are always recorded, also with counters: type -p on, or leave -p out",
        )
    })?;
    let (start, end) = time
        .time
        .as_deref()
        .map_or(Ok((Duration::ZERO, None)), values::time)?;
    let mut quiet = time
        .quiet_time
        .as_deref()
        .map_or(Ok(Duration::ZERO), values::quiet)?;
    if load.is_empty() && !quiet.is_zero() {
        notices.push("-q is ignored: there is no load".to_owned());
        quiet = Duration::ZERO;
    }

    let sample_signal = data
        .sample_signal
        .as_deref()
        .map(signals::sample_signal)
        .transpose()?;
    let pause_signal = time
        .pause_signal
        .as_deref()
        .map(signals::pause_signal)
        .transpose()?;
    if let (Some(sample), Some(pause)) = (sample_signal, pause_signal)
        && sample == pause.signal
    {
        return Err(CliError::new(
            format!(
                "-l and -y: signal {} cannot be used for both",
                host::signals::name_of(sample)
            ),
            "type two signals, such as SIGUSR1 and SIGUSR2",
        ));
    }
    if experiment.comment.len() > MAX_COMMENTS {
        return Err(CliError::new(
            format!("-C: there are {} comments", experiment.comment.len()),
            format!("an experiment takes up to {MAX_COMMENTS} comments"),
        ));
    }

    let group = experiment.group.as_deref();
    let stem = group.map_or(Ok(DEFAULT_STEM.to_owned()), group_stem)?;
    let typed_directory = experiment.directory.as_deref();
    let base = typed_directory.unwrap_or(Path::new("."));
    let group = group.map(|group| inside(base, group));
    let (directory, name) = match experiment.experiment.as_deref() {
        None => (base.to_owned(), NameRequest::Series { stem }),
        Some(path) => {
            if let Some(ignored) = typed_directory.filter(|_| path.is_absolute()) {
                notices.push(format!(
                    "-d {} is ignored: the experiment's name is an absolute path",
                    ignored.display()
                ));
            }
            let name = named("-o", path, ".er", "experiment")?.to_owned();
            let parent = path.parent().unwrap_or(Path::new(""));
            (inside(base, parent), NameRequest::Exactly(name))
        }
    };

    let targets: Vec<Target> = data
        .target
        .iter()
        .map(|target| values::target(target))
        .collect::<Result<_, _>>()?;

    if let Some(option) = tracing {
        traced(option, &follow, !load.is_empty(), !targets.is_empty())?;
    }

    let rotate = time.rotate.as_deref().map(values::rotate).transpose()?;
    let keep = time.keep.as_deref().map(values::keep).transpose()?;
    if rotate.is_none() && keep.is_some() {
        return Err(CliError::new(
            "--keep is for a series of experiments".to_owned(),
            "type --rotate TIME too",
        ));
    }
    if rotate.is_some() && name.series().is_none() {
        return Err(CliError::new(
            "--rotate: the name of -o has no number for the next experiment",
            "type a name like night.1.er",
        ));
    }

    Ok(Plan {
        interval,
        counters,
        start,
        end,
        quiet,
        record_idle: data
            .skip_idle
            .as_deref()
            .map_or(Ok(false), values::record_idle)?,
        name,
        directory,
        group,
        output: output.outfile,
        limit: time.limit.as_deref().map_or(Ok(None), values::limit)?,
        rotate,
        keep,
        budget: time.budget.as_deref().map(values::budget).transpose()?,
        archive: experiment
            .archive
            .as_deref()
            .map_or(Ok(Archive::LoadObjects), values::archive)?,
        comments: experiment.comment,
        sample_period: values::sample_period(data.sample.as_deref().unwrap_or("on"))?,
        sample_signal,
        pause_signal,
        follow: FollowRule {
            follow,
            pids: targets.iter().map(|target| target.pid).collect(),
            descendants: data.descendants,
        },
        lock_threshold,
        trace_io,
        trace_memory,
        targets,
        load,
        verbose: output.verbose || output.dry_run,
        dry_run: output.dry_run,
        json: output.json,
        notices,
    })
}

/// Checks that the processes to be traced (`-s`, `-i`, `-H`) are named: to trace all would be
/// costly by accident.
fn traced(
    option: &str,
    follow: &Follow,
    has_load: bool,
    has_targets: bool,
) -> Result<(), CliError> {
    let wrong = |what: &str, cure: &str| Err(CliError::new(format!("{option}: {what}"), cure));
    let traces = format!("{option} traces named processes only");
    const NAME_THEM: &str = "use -T PID, -F =REGEXP, -F unit:NAME and the like, or type a load";
    match follow {
        Follow::On | Follow::All => Err(CliError::new(traces, NAME_THEM)),
        Follow::Off if has_load && !has_targets => wrong(
            "-F off follows no process",
            "leave it out to trace the load, or type -F load",
        ),
        Follow::Off | Follow::Load if !has_load && !has_targets => {
            wrong("no process is followed", NAME_THEM)
        }
        _ => Ok(()),
    }
}

/// Returns `path` relative to `base`, without a leading `./`.
fn inside(base: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() {
        base.to_owned()
    } else if base == Path::new(".") {
        path.to_owned()
    } else {
        base.join(path)
    }
}

/// Returns the last part of a path as text, if it ends in `ending` and is longer than that.
fn named<'a>(option: &str, path: &'a Path, ending: &str, what: &str) -> Result<&'a str, CliError> {
    let bad = |why: &str| {
        CliError::new(
            format!("{option} {}: {why}", path.display()),
            format!("type {option} NAME{ending}"),
        )
    };
    let name = path.file_name().unwrap_or_default();
    if name.as_bytes().len() <= ending.len() || !name.as_bytes().ends_with(ending.as_bytes()) {
        return Err(bad(&format!("the name of an {what} ends in {ending}")));
    }
    name.to_str()
        .ok_or_else(|| bad("the name is not valid UTF-8"))
}

/// `-g`: returns the stem of the experiments of a group.
fn group_stem(path: &Path) -> Result<String, CliError> {
    let name = named("-g", path, ".erg", "experiment group")?;
    Ok(name.strip_suffix(".erg").unwrap_or(name).to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

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
    fn defaults() {
        let plan = plan("kcollect -p on");
        assert_eq!(plan.interval.micros(), 10_007);
        assert_eq!(
            (plan.name, plan.directory),
            (series("ktest"), PathBuf::from("."))
        );
        assert_eq!(plan.sample_period, Some(Duration::from_secs(1)));
        assert_eq!(plan.notices, Vec::<String>::new());
    }

    #[test]
    fn where_the_experiment_goes() {
        let where_to = |line: &str| {
            let plan = plan(line);
            (
                plan.directory.to_str().unwrap().to_owned(),
                plan.name,
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
            plan("kcollect -d /tmp -g runs.erg").group,
            Some(PathBuf::from("/tmp/runs.erg"))
        );
        assert_eq!(
            plan("kcollect -d /tmp -g /a/runs.erg").group,
            Some(PathBuf::from("/a/runs.erg"))
        );
        assert_eq!(
            plan("kcollect -g runs.erg").group,
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
    fn what_is_no_recording() {
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
            assert_eq!(plan(line).interval.micros(), interval_us, "{line}");
        }
    }

    #[test]
    fn what_goes_together() {
        let plan = plan("kcollect -n -q 3 -C one -C two true");
        assert!(plan.verbose && plan.dry_run);
        assert_eq!(
            (plan.quiet, plan.comments.len()),
            (Duration::from_secs(3), 2)
        );
    }
}
