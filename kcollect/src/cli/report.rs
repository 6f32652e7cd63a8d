//! The arguments of `kcollect report`.

use std::ffi::OsString;
use std::path::PathBuf;

use analysis::load::lines::LookupPaths;
use analysis::model::GroupKind;
use analysis::report::views::{TableOptions, View};
use analysis::report::{ReportFormat, ReportOptions};
use analysis::sources::Sources;
use analysis::symbol::{NotAPathMap, PathMap};
use clap::Args;

use super::CliError;
use super::filters::{FilterArgs, PeriodArgs, number};
use super::lookup::DebuginfodArgs;

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct ReportArgs {
    /// Experiments (NAME.er, a subexperiment, or a group NAME.erg; the default is the newest
    /// ktest.N.er here), then the view: triage (the default; with -m or -s it is functions),
    /// functions, callers-callees FUNCTION, calltree, objects, lines, source FUNCTION, disasm
    /// FUNCTION, threads, processes, cpus, overview, waits, chains, critical-path, samples,
    /// statistics, header or experiments
    #[arg(value_name = "EXPERIMENT... [VIEW]")]
    words: Vec<OsString>,
    /// The metrics, as in gprofng: e. (exclusive) or i. (inclusive), with % for a share of the
    /// whole, and total, totalcpu, user, system, trap, textpfault, datapfault, kernelpfault, lock,
    /// sleep, wait, stop or kcpu; for example e.user:i.%total:name
    #[arg(
        short = 'm',
        long,
        value_name = "METRIC:...",
        allow_hyphen_values = true
    )]
    metrics: Option<String>,
    /// Sort by this metric, or by name; a leading - reverses the order
    #[arg(short = 's', long, value_name = "METRIC", allow_hyphen_values = true)]
    sort: Option<String>,
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    filters: FilterArgs,
    /// Print at most N rows
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    limit: Option<String>,
    /// Show inlined functions as if they were called. lines, source and disasm always show them
    #[arg(long)]
    inline: bool,
    /// Look in NEW for sources and debug files whose paths begin with OLD. May be repeated
    #[arg(long, value_name = "OLD=NEW")]
    path_map: Vec<String>,
    /// Look in this directory for sources and load objects, by the last part of their paths. May be
    /// repeated
    #[arg(long, value_name = "DIR")]
    search_path: Vec<PathBuf>,
    #[command(flatten)]
    debuginfod: DebuginfodArgs,
    /// Print the call tree or the chains down to this depth; 1 is the first function of each thread
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    depth: Option<String>,
    /// Leave out branches of the call tree, or of the chains, that have less than this percentage
    /// of the whole. The default is 0; for chains it is 1
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    percent: Option<String>,
    /// functions: list the load objects whose functions have no names, and the packages that would
    /// name them
    #[arg(long, conflicts_with = "compare")]
    unnamed: bool,
    /// waits: show idle and undecided waits too
    #[arg(long)]
    all: bool,
    /// processes: a row for each unit, container, pod, cgroup or user instead of each process
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true)]
    by: Option<String>,
    /// Compare two experiments, the second with the first, or two times (--at twice): their
    /// functions, processes or overview, or all three
    #[arg(long, conflicts_with = "last")]
    compare: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
}

/// Returns the request that the arguments stand for.
pub(super) fn resolve(mut typed: ReportArgs) -> Result<ReportOptions, CliError> {
    let (before, words) = if typed.compare {
        before(&mut typed)?
    } else {
        (None, std::mem::take(&mut typed.words))
    };
    let (sources, view, subject) = positional(words, &typed.period)?;
    // Metrics and the order of rows apply to functions.
    let of_functions = typed.metrics.is_some() || typed.sort.is_some() || typed.unnamed;
    let default_view = if typed.by.is_some() {
        View::Processes
    } else if of_functions && !typed.compare {
        View::Functions
    } else {
        View::Triage
    };
    let view = view.unwrap_or(default_view);
    let of_tree = [("--depth", &typed.depth), ("--percent", &typed.percent)];
    for (option, value) in of_tree {
        if value.is_some() && !matches!(view, View::CallTree | View::Chains) {
            return Err(CliError::new(
                format!("{option}: the view {} has no such option", view.name()),
                "leave it out, or choose the view calltree or chains",
            ));
        }
    }
    if typed.unnamed && view != View::Functions {
        return Err(CliError::new(
            format!("--unnamed: the view {} has no such option", view.name()),
            "leave it out, or choose the view functions",
        ));
    }
    if typed.all && view != View::Waits {
        return Err(CliError::new(
            format!("--all: the view {} has no such option", view.name()),
            "leave it out, or choose the view waits",
        ));
    }
    let by = typed.by.as_deref().map(|text| group_kind(text, view));
    let depth = typed.depth.as_deref();
    let depth = depth.map(|text| number("--depth", text)).transpose()?;
    let min_ppm = typed.percent.as_deref().map(percent).transpose()?;
    let limit = typed
        .limit
        .as_deref()
        .map(|text| number("--limit", text))
        .transpose()?;
    Ok(ReportOptions {
        sources,
        view,
        inline: typed.inline,
        format: match (typed.json, typed.csv) {
            (true, _) => ReportFormat::Json,
            (_, true) => ReportFormat::Csv,
            _ => ReportFormat::Text,
        },
        table: TableOptions {
            filter: typed.filters.resolve()?,
            metrics: typed.metrics,
            sort: typed.sort,
            limit,
            function: subject,
            by: by.transpose()?,
            unnamed: typed.unnamed,
            all: typed.all,
            lookup: LookupPaths {
                maps: typed
                    .path_map
                    .iter()
                    .map(|text| path_map(text))
                    .collect::<Result<_, _>>()?,
                directories: typed.search_path,
                ..typed.debuginfod.resolve()
            },
            depth,
            min_ppm,
        },
        before,
    })
}

/// Takes what is compared with the rest out of the arguments: the first of two experiments or of
/// two times. Returns it, and the words of the rest.
fn before(typed: &mut ReportArgs) -> Result<(Option<Sources>, Vec<OsString>), CliError> {
    let mut words = std::mem::take(&mut typed.words);
    let first = match typed.period.times() {
        0 => {
            let (sources, ..) = positional(words.clone(), &typed.period)?;
            if sources.named.len() != 2 {
                return Err(CliError::new(
                    format!(
                        "--compare takes two experiments, and there are {}",
                        sources.named.len()
                    ),
                    "name two: kcollect report --compare before.er after.er",
                ));
            }
            vec![words.remove(0)]
        }
        2 => words.clone(),
        times => {
            return Err(CliError::new(
                format!("--compare takes two times, and there are {times}"),
                "type --at twice: kcollect report --compare --at 03:10-03:15 --at 04:10-04:15",
            ));
        }
    };
    let (sources, ..) = positional(first, &typed.period.take_first())?;
    Ok((Some(sources), words))
}

/// Experiments, a view, and the function that the view shows.
type Positional = (Sources, Option<View>, Option<String>);

/// Separates the experiments from the view and its function: the first argument that names a view
/// ends the experiments.
fn positional(words: Vec<OsString>, period: &PeriodArgs) -> Result<Positional, CliError> {
    let view_of = |word: &OsString| word.to_str().and_then(View::from_name);
    let at = words.iter().position(|word| view_of(word).is_some());
    let view = at.and_then(|at| view_of(&words[at]));
    let end = at.unwrap_or(words.len());
    let takes = usize::from(view.is_some_and(View::wants_function));
    let subject = words.get(end + 1).filter(|_| takes == 1);
    let subject = subject.map(|name| name.to_string_lossy().into_owned());
    if let (Some(view), 1, None) = (view, takes, &subject) {
        return Err(CliError::new(
            format!("{}: the function is missing", view.name()),
            format!("type its name: kcollect report {} main", view.name()),
        ));
    }
    if let (Some(extra), Some(view)) = (words.get(end + 1 + takes), view) {
        return Err(CliError::new(
            format!(
                "{}: {} takes no {}argument",
                extra.to_string_lossy(),
                view.name(),
                if takes == 1 { "further " } else { "" }
            ),
            "type the experiments first, then the view; ./functions is an experiment of that name",
        ));
    }
    let experiments: Vec<_> = words.into_iter().take(end).map(PathBuf::from).collect();
    let sources = period.sources(experiments, |other| {
        let views: Vec<_> = View::ALL.iter().map(|(_, name, _)| *name).collect();
        CliError::new(
            format!(
                "{} is neither an experiment, whose name ends in .er, nor a view",
                other.display()
            ),
            format!("the views are {}", views.join(", ")),
        )
    })?;
    Ok((sources, view, subject))
}

fn group_kind(text: &str, view: View) -> Result<GroupKind, CliError> {
    if view != View::Processes {
        return Err(CliError::new(
            format!("--by: the view {} has no such option", view.name()),
            "leave it out, or choose the view processes",
        ));
    }
    GroupKind::from_name(text).ok_or_else(|| {
        let names: Vec<_> = GroupKind::ALL.iter().map(|(_, name)| *name).collect();
        CliError::new(
            format!("--by {text}: processes do not belong to that"),
            format!("type one of {}", names.join(", ")),
        )
    })
}

fn path_map(text: &str) -> Result<PathMap, CliError> {
    text.parse().map_err(|error: NotAPathMap| {
        CliError::new(
            format!("--path-map: {error}"),
            "type the recorded directory and its replacement: --path-map /build=/home/me/src",
        )
    })
}

/// Returns a percentage in parts of a million.
fn percent(text: &str) -> Result<u32, CliError> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    let number = number.filter(|number| (0.0..=100.0).contains(number));
    number
        .map(|number| (number * 1e4).round() as u32)
        .ok_or_else(|| {
            CliError::new(
                format!("--percent {text}: not a percentage"),
                "type a number from 0 to 100",
            )
        })
}
