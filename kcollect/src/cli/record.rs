//! The plan of a recording, from the options that are typed.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use counters::names::grammar::{OverflowInterval, OverflowSpec};
use experiment_format::directory::NameRequest;
use user_collector::follow::{Follow, FollowRule};

use super::args::{Arguments, DataArgs, ExperimentArgs, TimeArgs};
use super::{CliError, HostFacts, signals, values};
use crate::plan::{
    Archive, HeapTracing, Interval, MAX_COMMENTS, PauseSignal, Place, Plan, Printing, SeriesPlan,
    Target, Timing, Tracing,
};

/// The stem of experiments without a name of their own.
const DEFAULT_STEM: &str = "ktest";

/// Returns the plan of a recording.
///
/// # Errors
/// The first value that cannot be parsed, or that contradicts another.
pub(super) fn record(typed: Arguments, facts: &HostFacts) -> Result<Plan, CliError> {
    let Arguments {
        sub: _,
        data,
        time,
        experiment,
        output,
        load,
    } = typed;
    let mut notices = Vec::new();

    let tracing = Tracing::resolve(&data, facts)?;
    let default_follow = tracing.option().map_or("on", |_| "load");
    let follow = values::follow(data.follow.as_deref().unwrap_or(default_follow))?;
    let counters = values::counters(data.counters.as_deref().unwrap_or_default())?;
    let interval = interval(&data, &counters, facts, &mut notices)?;
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
    let (sample_signal, pause_signal) = signals(&data, &time)?;
    if experiment.comment.len() > MAX_COMMENTS {
        return Err(CliError::new(
            format!("-C: there are {} comments", experiment.comment.len()),
            format!("an experiment takes up to {MAX_COMMENTS} comments"),
        ));
    }
    let place = Place::resolve(&experiment, &mut notices)?;
    let targets: Vec<Target> = data
        .target
        .iter()
        .map(|target| values::target(target))
        .collect::<Result<_, _>>()?;
    if let Some(option) = tracing.option() {
        traced(option, &follow, !load.is_empty(), !targets.is_empty())?;
    }
    let series = series(&time, &place.name)?;

    Ok(Plan {
        tick_interval: interval,
        counters,
        record_idle: data
            .skip_idle
            .as_deref()
            .map_or(Ok(false), values::record_idle)?,
        watch_wakers: data
            .wakers
            .as_deref()
            .map_or(Ok(false), values::watch_wakers)?,
        limit: time.limit.as_deref().map_or(Ok(None), values::limit)?,
        budget: time.budget.as_deref().map(values::budget).transpose()?,
        archive: experiment
            .archive
            .as_deref()
            .map_or(Ok(Archive::LoadObjects), values::archive)?,
        comments: experiment.comment,
        timing: Timing {
            start,
            end,
            quiet,
            sample_period: values::sample_period(data.sample.as_deref().unwrap_or("on"))?,
        },
        sample_signal,
        pause_signal,
        follow: FollowRule {
            follow,
            pids: targets.iter().map(|target| target.pid).collect(),
            descendants: data.descendants,
        },
        tracing,
        series,
        place,
        targets,
        load,
        dry_run: output.dry_run,
        printing: Printing {
            file: output.outfile,
            verbose: output.verbose || output.dry_run,
            json: output.json,
        },
        notices,
    })
}

impl Tracing {
    fn resolve(data: &DataArgs, facts: &HostFacts) -> Result<Tracing, CliError> {
        let off = "off";
        let heap = values::heap_tracing(data.heap.as_deref().unwrap_or(off))?;
        Ok(Tracing {
            lock_threshold: values::lock_threshold(data.sync.as_deref().unwrap_or(off), facts)?,
            io: values::trace_io(data.io.as_deref().unwrap_or(off))?,
            heap,
            budget: values::trace_budget(data.trace_budget.as_deref(), heap)?,
        })
    }

    /// Returns the first option that traces. None: nothing is traced.
    fn option(&self) -> Option<&'static str> {
        let options = [
            ("-s", self.lock_threshold.is_some()),
            ("-i", self.io),
            ("-H", self.heap != HeapTracing::Off),
        ];
        options
            .into_iter()
            .find_map(|(option, on)| on.then_some(option))
    }
}

/// Returns the interval of the clock: of `-p`, or else of the usual counters.
fn interval(
    data: &DataArgs,
    counters: &[OverflowSpec],
    facts: &HostFacts,
    notices: &mut Vec<String>,
) -> Result<Interval, CliError> {
    let usual = counters.iter().find_map(|spec| match spec {
        OverflowSpec::Default(OverflowInterval::Hi) => Some("hi"),
        OverflowSpec::Default(OverflowInterval::Lo) => Some("lo"),
        _ => None,
    });
    let typed = data.interval.as_deref();
    let interval = values::interval(typed.or(usual).unwrap_or("on"), facts, notices)?;
    interval.ok_or_else(|| {
        CliError::new(
            format!("-p {}: nothing to record", typed.unwrap_or("off")),
            "ticks of the clock are always recorded, also with counters: type -p on, or leave -p out",
        )
    })
}

/// Returns the signals of `-l` and `-y`, which differ.
fn signals(
    data: &DataArgs,
    time: &TimeArgs,
) -> Result<(Option<i32>, Option<PauseSignal>), CliError> {
    let sample = data.sample_signal.as_deref();
    let sample = sample.map(signals::sample_signal).transpose()?;
    let pause = time.pause_signal.as_deref();
    let pause = pause.map(signals::pause_signal).transpose()?;
    match (sample, pause) {
        (Some(sample), Some(pause)) if sample == pause.signal => Err(CliError::new(
            format!(
                "-l and -y: signal {} cannot be used for both",
                host::signals::name_of(sample)
            ),
            "type two signals, such as SIGUSR1 and SIGUSR2",
        )),
        both => Ok(both),
    }
}

impl Place {
    fn resolve(typed: &ExperimentArgs, notices: &mut Vec<String>) -> Result<Place, CliError> {
        let group = typed.group.as_deref();
        let stem = group.map_or(Ok(DEFAULT_STEM.to_owned()), group_stem)?;
        let typed_directory = typed.directory.as_deref();
        let base = typed_directory.unwrap_or(Path::new("."));
        let group = group.map(|group| inside(base, group));
        let Some(path) = typed.experiment.as_deref() else {
            return Ok(Place {
                directory: base.to_owned(),
                name: NameRequest::Series { stem },
                group,
            });
        };
        if let Some(ignored) = typed_directory.filter(|_| path.is_absolute()) {
            notices.push(format!(
                "-d {} is ignored: the experiment's name is an absolute path",
                ignored.display()
            ));
        }
        let name = named("-o", path, ".er", "experiment")?.to_owned();
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok(Place {
            directory: inside(base, parent),
            name: NameRequest::Exactly(name),
            group,
        })
    }
}

/// Returns the values of `--rotate`, `--keep` and `--pack`, checked with the name of the
/// experiment.
fn series(time: &TimeArgs, name: &NameRequest) -> Result<SeriesPlan, CliError> {
    let rotate = time.rotate.as_deref().map(values::rotate).transpose()?;
    let keep = time.keep.as_deref().map(values::keep).transpose()?;
    if rotate.is_none() && keep.is_some() {
        return Err(CliError::new(
            "--keep is for a series of experiments",
            "type --rotate TIME too",
        ));
    }
    if rotate.is_none() && time.pack {
        return Err(CliError::new(
            "--pack is for a series of experiments",
            "type --rotate TIME too, or kcollect pack EXPERIMENT after the recording",
        ));
    }
    if rotate.is_some() && name.series().is_none() {
        return Err(CliError::new(
            "--rotate: the name of -o has no number for the next experiment",
            "type a name like night.1.er",
        ));
    }
    Ok(SeriesPlan {
        rotate,
        keep,
        pack: time.pack,
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
    let wrong = |what: &str, hint: &str| Err(CliError::new(format!("{option}: {what}"), hint));
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
