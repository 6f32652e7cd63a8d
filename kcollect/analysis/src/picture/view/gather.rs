//! From the model of a report to what the page shows.
//!
//! The page shows threads: what CPUs did besides is in the founder too, of the same time, and is
//! left out. A program that `gprofng collect` recorded has but one state, "on a CPU by the timer of
//! Linux"; here that is user time.

use std::collections::HashMap;

use experiment_format::Error;
use experiment_format::losses::counted;
use experiment_format::microstate::Microstate;

use super::payload::{Function, Payload, Process, Stacks, Thread, Tick};
use crate::report::exact::ExactTimes;
use crate::report::model::{ExperimentInfo, Model, ObjectKind, Row};

/// What a recording shows: that of the first experiment, with all that is in it.
///
/// # Errors
/// When the exact times of threads can't be read.
pub fn gather(model: &Model) -> Result<Payload, Error> {
    let Some(founder) = model.experiments.first() else {
        return Ok(Payload::default());
    };
    let (functions, numbers) = functions(model);
    let (stacks, nodes) = stacks(model, &numbers);
    let interval = model
        .experiments
        .iter()
        .map(|experiment| experiment.tick_us)
        .find(|tick_us| *tick_us > 0)
        .unwrap_or(1);
    let mut payload = Payload {
        title: founder.name.clone(),
        start_unix_ms: u64::try_from(founder.source.start().wall_s)
            .unwrap_or(0)
            .saturating_mul(1000),
        duration_ns: model.end_ns(),
        interval_us: interval,
        machine: machine(founder),
        losses: losses(model, founder).join("\n"),
        processes: processes(model),
        threads: threads(model),
        functions,
        stacks,
        ticks: Vec::with_capacity(model.rows.len()),
    };
    for row in &model.rows {
        let ticks = model.microseconds(row) / i64::from(interval);
        if let (Some(state), Ok(ticks @ 1..)) = (state(row), u32::try_from(ticks)) {
            payload.ticks.push(Tick {
                time_ns: row.time,
                thread: row.thread.0,
                cpu: u16::try_from(model.cpus[row.cpu.index()]).unwrap_or(Tick::NO_CPU),
                stack: nodes[row.stack.index()],
                state,
                ticks,
            });
        }
    }
    note_exact_times(founder, &mut payload)?;
    Ok(payload)
}

/// One of the ten states of a thread; none for what a CPU did.
fn state(row: &Row) -> Option<Microstate> {
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

/// What is missing, and each of the recording's own counters of losses that is not 0.
fn losses(model: &Model, founder: &ExperimentInfo) -> Vec<String> {
    let mut lines = model.warnings.clone();
    let summary = founder.summary().unwrap_or_default();
    let counters = summary["losses"].as_object().into_iter().flatten();
    lines.extend(counters.filter_map(|(name, count)| {
        let count = count.as_u64().filter(|count| *count > 0)?;
        Some(format!("{count} {}", counted(name)))
    }));
    lines
}

fn processes(model: &Model) -> Vec<Process> {
    let each = model.processes.iter().map(|process| {
        let own = model.experiments.get(process.experiment as usize);
        let lineage = match own {
            Some(own) if process.followed => own.name.clone(),
            _ => String::new(),
        };
        Process {
            pid: process.pid,
            name: process.name.clone().into_bytes(),
            lineage: lineage.into_bytes(),
        }
    });
    each.collect()
}

fn threads(model: &Model) -> Vec<Thread> {
    let each = model.threads.iter().map(|thread| Thread {
        process: thread.process.0,
        tid: u32::try_from(thread.tid).unwrap_or(u32::MAX),
        name: thread.name.clone().into_bytes(),
        exact_ns: None,
    });
    each.collect()
}

/// The functions, and for each of the model's its number. Copies of one function, as templates and
/// generics make them, are one to the eye.
fn functions(model: &Model) -> (Vec<Function>, Vec<u32>) {
    let mut functions = Vec::new();
    let mut known = HashMap::new();
    let each = model.functions.iter().map(|function| {
        let object = model.object(function.object);
        let shown = Function {
            name: function.name.clone().into_bytes(),
            object: match object.kind {
                ObjectKind::Special => Vec::new(),
                ObjectKind::File | ObjectKind::Dynamic => object.path.clone().into_bytes(),
            },
            kernel: function.kernel,
            inlined: false,
        };
        *known.entry(shown).or_insert_with_key(|shown| {
            functions.push(shown.clone());
            functions.len() as u32 - 1
        })
    });
    let numbers = each.collect();
    (functions, numbers)
}

/// The stacks by function, and for each of the model's its node.
fn stacks(model: &Model, functions: &[u32]) -> (Stacks, Vec<u32>) {
    let mut stacks = Stacks::default();
    let mut nodes = vec![Stacks::ROOT; model.stacks.len()];
    for (stack, caller, leaf) in model.stacks.iter() {
        let function = functions[model.frame(leaf).function.index()];
        nodes[stack.index()] = stacks.child(nodes[caller.index()], function);
    }
    (stacks, nodes)
}

/// Exact times are known by the numbers of process and thread alone: where a number was used again,
/// of none of them.
fn note_exact_times(founder: &ExperimentInfo, payload: &mut Payload) -> Result<(), Error> {
    let Some(exact) = ExactTimes::read(&founder.source)? else {
        return Ok(());
    };
    let mut times = HashMap::new();
    for thread in &exact.threads {
        times
            .entry((thread.pid, thread.tid))
            .and_modify(|known| *known = None)
            .or_insert(Some(thread.states));
    }
    let mut bearers: HashMap<(u32, u32), u32> = HashMap::new();
    let processes = &payload.processes;
    let key = |thread: &Thread| (processes[thread.process as usize].pid, thread.tid);
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
