//! The critical path of a process, by function.

use std::ops::Range;

use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use rustc_hash::FxHashMap;

use super::View;
use super::chains::keyword;
use super::context::ViewContext;
use crate::filter::nothing_passes;
use crate::model::{ExperimentId, FunctionId, NOT_SAMPLED, ProcessId, ProcessInfo, ThreadId};
use crate::report::table::{Cell, Column, Table, TablePage};
use crate::waits_for::critical_path::{MAX_STEPS, Segment, critical_path};
use crate::waits_for::timeline::{Doing, Reason, Timelines};
use crate::waits_for::{Activities, Place};

/// The rows of the table without `-n`.
const DEFAULT_ROWS: usize = 25;

pub(super) fn page(context: &ViewContext<'_>) -> Result<TablePage, Failure> {
    let (model, options) = (context.model, context.options);
    let filter = &options.filter;
    if !(filter.cpus.is_empty() && filter.states.is_none() && filter.functions.is_empty()) {
        return Err(Failure::new(
            ExitKind::Usage,
            "critical-path: with filters of states, CPUs or functions it would have holes",
            "use only filters of processes, threads and time",
        ));
    }
    let process = chosen_process(context)?;
    let activities = Activities::new(model);
    let threads: Vec<_> = (0..)
        .map(ThreadId)
        .zip(&model.threads)
        .filter(|(_, thread)| {
            let among = filter.threads.is_empty() || filter.threads.contains(&thread.tid);
            thread.process == process && among
        })
        .map(|(id, _)| id)
        .collect();
    let timelines = &activities.timelines;
    let info = model.process(process);
    let experiment = model.experiment(ExperimentId(info.experiment));
    let chosen = filter.time_in(model, experiment);
    let lives = || threads.iter().filter_map(|id| timelines.of(*id).range());
    let start_ns = lives().map(|life| life.start).min().unwrap_or(0);
    let end_ns = lives().map(|life| life.end).max().unwrap_or(0);
    let range = start_ns.max(chosen.start.0)..end_ns.min(chosen.end.0);
    let main = |id: &&ThreadId| model.thread(**id).tid == u64::from(info.pid.0);
    let last = (threads.iter().find(main).copied())
        .filter(|id| timelines.of(*id).before(range.end).is_some())
        .or_else(|| last_on_cpu(timelines, &threads, range.end));
    let Some(last) = last.filter(|_| !range.is_empty()) else {
        return Err(nothing_passes(&[model], filter));
    };
    let segments = critical_path(timelines, last, range.clone(), MAX_STEPS);
    let mut notes = Vec::new();
    if !activities.has_wakers {
        notes.push("no wakers were recorded; -W on records them".to_owned());
    }
    if segments
        .iter()
        .any(|it| it.doing == Doing::NotFollowed(Reason::Steps))
    {
        notes.push(format!(
            "the path is not followed for more than {MAX_STEPS} steps"
        ));
    }
    let title = format!(
        "Critical path of {} (PID {}) from {:.3} s to {:.3} s",
        info.name,
        info.pid.0,
        Nanos(range.start).as_secs_f64(),
        Nanos(range.end).as_secs_f64(),
    );
    Ok(TablePage {
        view: View::CriticalPath.name(),
        headline: Vec::new(),
        runs: Vec::new(),
        tables: vec![functions(context, &activities, &segments, title, notes)],
        data: vec![segment_table(context, &activities, &segments)],
    })
}

/// Returns the process that the filter selects, or the load.
fn chosen_process(context: &ViewContext<'_>) -> Result<ProcessId, Failure> {
    let (model, filter) = (context.model, &context.options.filter);
    let all = || (0..).map(ProcessId).zip(&model.processes);
    let is_load = |process: &ProcessInfo| {
        let experiment = model.experiment(ExperimentId(process.experiment));
        let recorder = model.experiment(experiment.founder).source.header().pid;
        process.followed && experiment.source.header().ppid == Some(recorder)
    };
    let selected: Vec<_> = if filter.chooses_processes() {
        all().filter(|(_, process)| filter.takes(process)).collect()
    } else if filter.threads.is_empty() {
        all().filter(|(_, process)| is_load(process)).collect()
    } else {
        let mut threads = model.threads.iter();
        let thread = threads.find(|thread| filter.threads.contains(&thread.tid));
        all()
            .filter(|(id, _)| thread.is_some_and(|thread| thread.process == *id))
            .collect()
    };
    match &selected[..] {
        [(id, _)] => Ok(*id),
        [] if filter.chooses_processes() => Err(nothing_passes(&[model], filter)),
        [] => Err(Failure::new(
            ExitKind::Usage,
            "critical-path: the experiment has no load",
            "choose a process: kcollect report critical-path --process PID",
        )),
        several => {
            let pids = several
                .iter()
                .take(10)
                .map(|(_, process)| process.pid.0.to_string());
            Err(Failure::new(
                ExitKind::Usage,
                format!(
                    "critical-path: {} processes are selected, and it shows one",
                    several.len()
                ),
                format!(
                    "choose one by its PID: {}",
                    pids.collect::<Vec<_>>().join(", ")
                ),
            ))
        }
    }
}

/// Returns the thread that was the last on a CPU before an instant.
fn last_on_cpu(timelines: &Timelines, threads: &[ThreadId], at_ns: u64) -> Option<ThreadId> {
    let last_ns = |id: &ThreadId| {
        let intervals = timelines.of(*id).intervals().iter().rev();
        let mut before = intervals.filter(|it| it.start_ns < at_ns && it.doing == Doing::OnCpu);
        before.next().map(|interval| interval.end_ns)
    };
    let known = threads
        .iter()
        .filter(|id| timelines.of(**id).before(at_ns).is_some());
    known.copied().max_by_key(last_ns)
}

/// Makes the table of functions on the path.
fn functions(
    context: &ViewContext<'_>,
    activities: &Activities,
    segments: &[Segment],
    title: String,
    notes: Vec<String>,
) -> Table {
    let model = context.model;
    let mut sums: FxHashMap<(&str, Doing, u32), u64> = FxHashMap::default();
    for segment in segments {
        let process = &*model.process(model.thread(segment.thread).process).name;
        *sums
            .entry((process, segment.doing, segment.place))
            .or_default() += length_ns(&segment.range);
    }
    let whole: u64 = sums.values().sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, a_ns), (b, b_ns)| b_ns.cmp(a_ns).then_with(|| a.cmp(b)));
    let share = |ns: u64| Cell::share_of(ns as i64, whole as i64);
    let total = [
        Cell::Nanoseconds(Nanos(whole)),
        share(whole),
        Cell::Text("<Total>".to_owned()),
    ];
    let empty = std::iter::repeat_n(Cell::Empty, 3);
    let mut rows = vec![total.into_iter().chain(empty).collect::<Vec<_>>()];
    rows.extend(sums.into_iter().map(|((process, doing, place), ns)| {
        let start = [
            Cell::Nanoseconds(Nanos(ns)),
            share(ns),
            Cell::Text(process.to_owned()),
        ];
        start
            .into_iter()
            .chain(place_cells(context, activities, doing, place))
            .collect()
    }));
    let mut table = Table {
        view: "path",
        title,
        columns: vec![
            Column::number("s", "Seconds"),
            Column::number("percent", "%"),
            Column::text("process", "Process"),
            Column::text("doing", "Doing"),
            Column::text("function", "Function"),
            Column::text("caller", "On behalf of"),
        ],
        rows,
        notes,
        verbatim: false,
    };
    table.cut_after_total(Some(context.options.limit.unwrap_or(DEFAULT_ROWS)));
    table
}

/// Makes the table of all segments, in the order of time.
fn segment_table(
    context: &ViewContext<'_>,
    activities: &Activities,
    segments: &[Segment],
) -> Table {
    let model = context.model;
    let rows = segments.iter().map(|segment| {
        let thread = model.thread(segment.thread);
        let process = model.process(thread.process);
        let start = [
            Cell::Nanoseconds(Nanos(segment.range.start)),
            Cell::Nanoseconds(Nanos(length_ns(&segment.range))),
            Cell::Count(process.pid.0.into()),
            Cell::Count(thread.tid),
            Cell::Text(process.name.clone()),
            Cell::Text(thread.name.clone()),
        ];
        let place = place_cells(context, activities, segment.doing, segment.place);
        start.into_iter().chain(place).collect()
    });
    Table {
        view: "segments",
        title: "Segments of the path, in the order of time".to_owned(),
        columns: vec![
            Column::number("start_s", "Start"),
            Column::number("s", "Seconds"),
            Column::number("pid", "PID"),
            Column::number("tid", "TID"),
            Column::text("process", "Process"),
            Column::text("thread", "Thread"),
            Column::text("doing", "Doing"),
            Column::text("function", "Function"),
            Column::text("caller", "On behalf of"),
        ],
        rows: rows.collect(),
        notes: Vec::new(),
        verbatim: false,
    }
}

/// What was done, the function, and on whose behalf.
fn place_cells(
    context: &ViewContext<'_>,
    activities: &Activities,
    doing: Doing,
    place: u32,
) -> [Cell; 3] {
    let name = |id: Option<FunctionId>| {
        id.map_or(Cell::Empty, |id| {
            Cell::Text(context.model.function(id).name.clone())
        })
    };
    let Place { function, caller } = activities.places[place as usize];
    let doing_cell = Cell::Text(keyword(doing).to_owned());
    if doing == Doing::NotSampled {
        return [doing_cell, Cell::Text(NOT_SAMPLED.to_owned()), Cell::Empty];
    }
    match (function, caller) {
        // The place of a thread on a CPU is one function.
        (None, own) => [doing_cell, name(own), Cell::Empty],
        (function, caller) => [doing_cell, name(function), name(caller)],
    }
}

fn length_ns(range: &Range<u64>) -> u64 {
    range.end - range.start
}
