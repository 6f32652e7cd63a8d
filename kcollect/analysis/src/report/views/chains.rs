//! Chains: the suffered time, by what the threads did meanwhile that ended the waits.

use std::cmp::Reverse;

use experiment_format::cause::{Cause, WaitKind};
use host::exit::Failure;
use rustc_hash::FxHashMap;

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{Model, ThreadId};
use crate::report::table::{Cell, Column, Table, left_out};
use crate::waits_for::chains::{ChainNode, Chains, MAX_STEPS};
use crate::waits_for::timeline::{Doing, Interval, Reason};
use crate::waits_for::{Activities, Place, doing};

/// Branches with less than this share are left out without `--percent`, in millionths.
const DEFAULT_MIN_PPM: u32 = 10_000;

/// The name of a process and that of a thread, if that is another.
type ThreadName<'a> = (&'a str, Option<&'a str>);

pub(super) fn chains(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let (model, options) = (context.model, context.options);
    let activities = Activities::new(model);
    let (names, numbers) = thread_names(model);
    let chains = suffered(context, &activities, &numbers);
    let nodes = chains.nodes();
    let whole = chains.roots().iter().map(|root| nodes[*root].micros).sum();
    let min_ppm = options.min_ppm.unwrap_or(DEFAULT_MIN_PPM);
    let is_small = |micros: i64| micros as f64 * 1e6 < whole as f64 * f64::from(min_ppm);
    let sorted = |positions: &[usize]| {
        let mut positions = positions.to_vec();
        positions.sort_by_key(|at| (nodes[*at].micros, Reverse(nodes[*at].link)));
        positions
    };
    let mut rows = vec![total_row(whole)];
    let mut pending: Vec<_> = sorted(chains.roots())
        .into_iter()
        .map(|root| (1, root))
        .collect();
    let (mut small, mut more) = (0, 0);
    while let Some((depth, at)) = pending.pop() {
        let node = &nodes[at];
        if is_small(node.micros) || depth > options.depth.unwrap_or(usize::MAX) {
            small += 1;
            continue;
        }
        if rows.len() > options.limit.unwrap_or(usize::MAX) {
            more += 1;
            continue;
        }
        let place = activities.places[node.link.place as usize];
        let name = names[node.link.who as usize];
        rows.push(row(model, node, depth, name, place, whole));
        let is_end = |doing| {
            let ends = [Reason::NoWaker, Reason::Circle].map(Doing::NotFollowed);
            ends.contains(&doing)
        };
        // That no thread ended a wait is worth a line only next to those that threads ended.
        if !matches!(node.children[..], [only] if is_end(nodes[only].link.doing)) {
            let children = sorted(&node.children);
            pending.extend(children.into_iter().map(|child| (depth + 1, child)));
        }
    }
    let mut notes: Vec<_> = left_out(more).into_iter().collect();
    if small > 0 {
        notes.push(format!(
            "branches left out, below {} %{}: {small}",
            f64::from(min_ppm) / 1e4,
            options.depth.map_or("", |_| " or --depth")
        ));
    }
    if !activities.has_wakers {
        notes.push("no wakers were recorded; -W on records them".to_owned());
    }
    if chains.is_cut() {
        notes.push(format!(
            "after {MAX_STEPS} steps, waits were no longer followed to their wakers"
        ));
    }
    Ok(Table {
        view: View::Chains.name(),
        title: "Suffered time, by what the threads did that ended it; seconds by ticks".to_owned(),
        columns: vec![
            Column::number("s", "Seconds"),
            Column::number("percent", "%"),
            Column::number("depth", "Depth").hidden(),
            Column::text("chain", "Chain"),
            Column::text("process", "Process").hidden(),
            Column::text("thread", "Thread").hidden(),
            Column::text("doing", "Doing").hidden(),
            Column::text("function", "Function").hidden(),
            Column::text("caller", "On behalf of").hidden(),
        ],
        rows,
        notes,
        verbatim: false,
    })
}

/// Numbers the names of threads. Returns the names, and the number of each thread's name.
fn thread_names(model: &Model) -> (Vec<ThreadName<'_>>, Vec<u32>) {
    let mut names = Vec::new();
    let mut known: FxHashMap<ThreadName<'_>, u32> = FxHashMap::default();
    let numbers = model.threads.iter().map(|thread| {
        let process = match &*model.process(thread.process).name {
            "" => "(no name)",
            name => name,
        };
        let own = Some(&*thread.name).filter(|name| !name.is_empty() && *name != process);
        *known.entry((process, own)).or_insert_with(|| {
            names.push((process, own));
            names.len() as u32 - 1
        })
    });
    let numbers = numbers.collect();
    (names, numbers)
}

/// Makes the tree of the suffered waits that pass the filter.
fn suffered<'a>(
    context: &ViewContext<'_>,
    activities: &'a Activities,
    names: &'a [u32],
) -> Chains<'a> {
    let model = context.model;
    let selection = Selection::new(model, &context.options.filter);
    let is_suffered = |doing: Doing| match doing {
        Doing::WaitsForCpu => true,
        Doing::Blocked(cause) => cause.kind() == WaitKind::Suffered,
        _ => false,
    };
    let mut chains = Chains::new(&activities.timelines, names, MAX_STEPS);
    let timelines = activities.timelines.threads.iter();
    for (thread, timeline) in (0..).map(ThreadId).zip(timelines) {
        for interval in timeline.intervals() {
            let row = &model.rows[interval.row as usize];
            if is_suffered(interval.doing) && row.micros > 0 && selection.passes(row) {
                chains.add(thread, interval, row.micros);
            }
        }
    }
    // Exact time without a tick is in no timeline.
    for (at, row) in (0..).zip(&model.rows) {
        let unsampled = row.ticks <= 0 && row.micros > 0 && selection.passes(row);
        if let Some(doing) = doing(row)
            && unsampled
            && is_suffered(doing)
        {
            let wait = Interval {
                start_ns: row.time_ns.0,
                end_ns: row.time_ns.0,
                doing,
                waker: None,
                place: 0,
                row: at,
            };
            chains.add(row.thread, &wait, row.micros);
        }
    }
    chains
}

fn total_row(whole: i64) -> Vec<Cell> {
    vec![
        Cell::Microseconds(whole),
        Cell::share_of(whole, whole),
        Cell::Count(0),
        Cell::Text("<Total>".to_owned()),
        Cell::Empty,
        Cell::Empty,
        Cell::Empty,
        Cell::Empty,
        Cell::Empty,
    ]
}

fn row(
    model: &Model,
    node: &ChainNode,
    depth: usize,
    (process, thread): ThreadName<'_>,
    place: Place,
    whole: i64,
) -> Vec<Cell> {
    let ChainNode { link, micros, .. } = *node;
    let who = match thread {
        None => process.to_owned(),
        Some(thread) => format!("{process}/{thread}"),
    };
    let did = did(model, link.doing, place);
    let text = match (depth, link.doing) {
        (1, _) => format!("{who} {did}"),
        (_, Doing::NotFollowed(_)) => did,
        _ => format!("for {who}, which {did}"),
    };
    let function = |id| model.function(id).name.clone();
    vec![
        Cell::Microseconds(micros),
        Cell::share_of(micros, whole),
        Cell::Count(depth as u64),
        Cell::Text(format!("{}{text}", "  ".repeat(depth - 1))),
        Cell::Text(process.to_owned()),
        thread.map_or(Cell::Empty, |thread| Cell::Text(thread.to_owned())),
        Cell::Text(keyword(link.doing).to_owned()),
        place
            .function
            .map_or(Cell::Empty, |id| Cell::Text(function(id))),
        place
            .caller
            .map_or(Cell::Empty, |id| Cell::Text(function(id))),
    ]
}

/// Returns the keyword of JSON: of a blocked thread, that of the cause.
pub(super) fn keyword(doing: Doing) -> &'static str {
    match doing {
        Doing::OnCpu => "on-cpu",
        Doing::WaitsForCpu => "waits-for-cpu",
        Doing::Blocked(cause) => cause.keyword(),
        Doing::Stopped => "stopped",
        Doing::NotSampled => "not-sampled",
        Doing::NotFollowed(_) => "not-followed",
    }
}

/// Says what a thread did, with the place.
fn did(model: &Model, doing: Doing, place: Place) -> String {
    let what = match doing {
        Doing::OnCpu => "was on a CPU".to_owned(),
        Doing::WaitsForCpu => "waited for a CPU".to_owned(),
        Doing::Stopped => "was stopped".to_owned(),
        Doing::NotSampled => return "has no tick then: <not sampled>".to_owned(),
        Doing::Blocked(Cause::Undecided) => "was blocked, it is not known why".to_owned(),
        Doing::Blocked(Cause::NotEnded) => "was blocked until the end".to_owned(),
        Doing::Blocked(cause) => format!("waited for {}", cause.title()),
        Doing::NotFollowed(reason) => {
            let words = match reason {
                Reason::NoWaker => "(no thread ended it, or it is not known)",
                Reason::Circle => "(in a circle: for a thread above)",
                Reason::Depth => "(longer chains are not followed)",
                Reason::Steps => "(not followed: too many steps)",
            };
            return words.to_owned();
        }
    };
    let name = |id| &*model.function(id).name;
    match (place.caller, place.function) {
        (Some(caller), Some(function)) if caller != function => {
            format!("{what} in {} ({})", name(caller), name(function))
        }
        (Some(function), _) | (None, Some(function)) => format!("{what} in {}", name(function)),
        (None, None) => what,
    }
}
