//! Makes the payload of the page from a model.
//!
//! The page shows threads. CPU ticks in the founder cover the same time and are left out.
//! Experiments of `gprofng collect` have a single state, "Linux CPU timer", which counts as user
//! time here.

use std::collections::HashMap;

use experiment_format::Error;
use experiment_format::ids::{Pid, Tid};
use experiment_format::losses::phrase;
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;

use super::payload::{PageFunction, PageProcess, PageStacks, PageThread, PageTick, Payload};
use super::traced::add_events;
use crate::filter::{Filter, Selection};
use crate::load::exact::{ExactSums, ExactTimes};
use crate::model::{ExperimentInfo, GroupKind, LossCounts, Model, ObjectKind, TickRow};

/// Returns the payload of a recording: of a founder or of a series, with all that passes a filter.
/// Times are since the beginning of its first experiment.
///
/// # Errors
/// When the exact times of threads can't be read.
pub fn gather(model: &Model, filter: &Filter) -> Result<Payload, Error> {
    let mut founders: Vec<_> = model.founders().map(|(_, info)| info).collect();
    founders.sort_by_key(|info| info.offset_ns);
    let ([founder, ..], Some(last)) = (&founders[..], founders.last()) else {
        return Ok(Payload::default());
    };
    let selection = Selection::new(model, filter);
    let (functions, numbers) = functions(model);
    let (stacks, nodes) = stacks(model, &numbers);
    let interval = model
        .experiments
        .iter()
        .map(|experiment| experiment.tick_us)
        .find(|tick_us| *tick_us > 0)
        .unwrap_or(1);
    let kinds = group_kinds(model);
    let title = match founders.len() {
        1 => founder.name.clone(),
        _ => format!("{} to {}", founder.name, last.name),
    };
    let mut payload = Payload {
        title: match model.shows {
            Some(events) => format!("{title}: {}", events.title()),
            None => title,
        },
        start_unix_ms: u64::try_from(founder.source.start().wall_s)
            .unwrap_or(0)
            .saturating_mul(1000),
        duration_ns: model.end_ns(),
        interval_us: interval,
        weighed: model.weighed,
        machine: machine(founder),
        stolen: stolen(&founders),
        losses: losses(model, &founders).join("\n"),
        groupings: kinds.iter().map(|kind| kind.name()).collect(),
        processes: processes(model, &kinds),
        threads: threads(model),
        functions,
        stacks,
        ticks: Vec::with_capacity(model.rows.len()),
        subjects: Vec::new(),
        events: Vec::new(),
    };
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        // If experiments have different intervals, the first one's counts.
        let interval = Nanos::from_micros(interval.into());
        let ticks = u32::try_from(model.length_of_ticks(row) / interval);
        let micros = u64::try_from(row.micros);
        if let (Some(state), Ok(ticks), Ok(micros @ 1..)) = (state(row), ticks, micros) {
            payload.ticks.push(PageTick {
                time_ns: row.time_ns,
                thread: row.thread.0,
                cpu: u16::try_from(model.cpus[row.cpu.index()]).unwrap_or(PageTick::NO_CPU),
                stack: nodes[row.stack.index()],
                state,
                ticks,
                micros,
                cause: model.cause(row),
                waker: Tid(row.waker),
            });
        }
    }
    add_events(model, &selection, &mut payload);
    // They are of one whole experiment, and of all states.
    if founders.len() == 1 && model.shows.is_none() && *filter == Filter::default() {
        note_exact_times(founder, &mut payload)?;
    }
    Ok(payload)
}

/// Returns which of the ten states of a thread a row has. None: it is a tick of a CPU.
fn state(row: &TickRow) -> Option<Microstate> {
    let all = &Microstate::ALL[..Microstate::PER_THREAD];
    match all.get(usize::from(row.state)) {
        Some(state) => Some(*state),
        None if u32::from(row.state) == Microstate::LinuxCpu.number() => Some(Microstate::User),
        None => None,
    }
}

fn machine(founder: &ExperimentInfo) -> String {
    let header = founder.source.header();
    let cpus = match header.system.cpus.len() {
        1 => "1 CPU".to_owned(),
        count => format!("{count} CPUs"),
    };
    [&header.system.hostname, &header.system.arch, &cpus]
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" · ")
}

/// Returns the share of the time of all CPUs that was stolen.
fn stolen(founders: &[&ExperimentInfo]) -> f64 {
    let summaries: Vec<_> = founders.iter().map(|info| info.summary()).collect();
    let seconds = |part: &str| -> f64 {
        let each = summaries.iter().flatten();
        each.map(|summary| summary["cpu_time"][part].as_f64().unwrap_or(0.0))
            .sum()
    };
    let all: f64 = ["user", "kernel", "idle", "stolen"]
        .into_iter()
        .map(seconds)
        .sum();
    if all > 0.0 {
        seconds("stolen") / all
    } else {
        0.0
    }
}

/// Returns what is missing from the model, and each loss count that is not 0.
fn losses(model: &Model, founders: &[&ExperimentInfo]) -> Vec<String> {
    let problems = founders.iter().filter_map(|info| info.problems());
    let mut lines: Vec<_> = problems.map(|text| format!("PROBLEM: {text}")).collect();
    lines.extend(model.warnings.clone());
    if let Some(losses) = LossCounts::of_all(founders.iter().copied()) {
        let counts = losses.counts.iter().filter(|(_, count)| *count > 0);
        lines.extend(counts.map(|(name, count)| phrase(name, *count, &losses.recorded)));
    }
    lines
}

/// Returns the kinds of what any process belongs to.
fn group_kinds(model: &Model) -> Vec<GroupKind> {
    let kinds = GroupKind::ALL.iter().map(|(kind, _)| *kind);
    let is_known = |kind: &GroupKind| {
        let mut processes = model.processes.iter();
        processes.any(|process| process.groups.get(*kind).is_some())
    };
    kinds.filter(is_known).collect()
}

fn processes(model: &Model, kinds: &[GroupKind]) -> Vec<PageProcess> {
    let each = model.processes.iter().map(|process| {
        let own = model.experiments.get(process.experiment as usize);
        let lineage = match own {
            Some(own) if process.followed => own.name.clone(),
            _ => String::new(),
        };
        PageProcess {
            pid: process.pid,
            name: process.name.clone().into_bytes(),
            lineage: lineage.into_bytes(),
            held_up: Vec::new(),
            groups: kinds
                .iter()
                .map(|kind| process.group(*kind).into_bytes())
                .collect(),
        }
    });
    each.collect()
}

fn threads(model: &Model) -> Vec<PageThread> {
    let each = model.threads.iter().map(|thread| PageThread {
        process: thread.process.0,
        tid: Tid(u32::try_from(thread.tid).unwrap_or(u32::MAX)),
        name: thread.name.clone().into_bytes(),
        exact_ns: None,
    });
    each.collect()
}

/// Returns the functions, and the new number of each of the model's. Instances of a template or
/// generic have equal names and become one function.
fn functions(model: &Model) -> (Vec<PageFunction>, Vec<u32>) {
    let mut functions = Vec::new();
    let mut known = HashMap::new();
    let each = model.functions.iter().map(|function| {
        let object = model.object(function.object);
        let shown = PageFunction {
            name: function.name.clone().into_bytes(),
            object: match object.kind {
                ObjectKind::Special => Vec::new(),
                ObjectKind::File | ObjectKind::Dynamic => object.path.clone().into_bytes(),
            },
            kernel: function.kernel,
            jit: model.is_jit_code(function),
        };
        *known.entry(shown).or_insert_with_key(|shown| {
            functions.push(shown.clone());
            functions.len() as u32 - 1
        })
    });
    let numbers = each.collect();
    (functions, numbers)
}

/// Returns the stacks by function, and the node of each of the model's stacks.
fn stacks(model: &Model, functions: &[u32]) -> (PageStacks, Vec<u32>) {
    let mut stacks = PageStacks::default();
    let mut nodes = vec![PageStacks::ROOT; model.stacks.len()];
    for (stack, caller, leaf) in model.stacks.iter() {
        let function = functions[model.frame(leaf).function.index()];
        nodes[stack.index()] = stacks.child(nodes[caller.index()], function);
    }
    (stacks, nodes)
}

/// Adds exact times. They are known by pid and tid alone, so threads with reused ids have none.
fn note_exact_times(founder: &ExperimentInfo, payload: &mut Payload) -> Result<(), Error> {
    let Some(exact) = ExactTimes::read(&founder.source)? else {
        return Ok(());
    };
    let mut times = HashMap::new();
    for thread in &exact.threads {
        times
            .entry((thread.pid, thread.tid))
            .and_modify(|known| *known = None)
            .or_insert(Some(thread.times.states));
    }
    note_held_up(&exact, payload);
    let mut bearers: HashMap<(Pid, Tid), u32> = HashMap::new();
    let processes = &payload.processes;
    let key = |thread: &PageThread| (processes[thread.process as usize].pid, thread.tid);
    for thread in &payload.threads {
        *bearers.entry(key(thread)).or_default() += 1;
    }
    for thread in &mut payload.threads {
        let key = key(thread);
        if bearers.get(&key) == Some(&1) {
            thread.exact_ns = times.get(&key).copied().flatten();
        }
    }
    Ok(())
}

/// Adds what held up each process whose pid no other had.
fn note_held_up(exact: &ExactTimes, payload: &mut Payload) {
    let mut times: HashMap<Pid, ExactSums> = HashMap::new();
    for thread in &exact.threads {
        times.entry(thread.pid).or_default().add(&thread.times);
    }
    let mut bearers: HashMap<Pid, u32> = HashMap::new();
    for process in &payload.processes {
        *bearers.entry(process.pid).or_default() += 1;
    }
    for process in &mut payload.processes {
        if bearers.get(&process.pid) == Some(&1)
            && let Some(times) = times.get(&process.pid)
        {
            process.held_up = times.held_up().into_bytes();
        }
    }
}
