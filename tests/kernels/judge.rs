//! What holds by construction, whatever the kernel, on a machine whose instructions are slow: time
//! is conserved, workloads and kcollect say the same of each other's time, nothing is lost, user
//! stacks are complete, and stock gprofng opens it all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use experiment_format::microstate::Microstate;
use serde::de::DeserializeOwned;
use tests::experiment::states::{Edges, MAX_WHOLE_RUN_ERROR_S, ProcessTimes, States};
use tests::experiment::summary::{FollowedStats, RunSummary, complete};
use tests::experiment::{array_ticks, io_records, sync_records};
use tests::gprofng;
use tests::kcollect::{experiment_in, experiments_in, sub_experiment};
use tests::workload::io_calls::{Counted, each_file};
use tests::workload::loads;
use tests::workload::locked::{Lock, each_wait};
use tests::workload::truth::Truth;

use crate::counters;
use crate::runs::{
    COUNTED, FOLLOWED, Glances, IO, LoadReport, MOVING, STATES, TRACED, VerifiedProgram,
};
use crate::verifier;

/// What was found on a kernel.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// What is printed also where nothing is wrong.
    pub(crate) notes: Vec<String>,
    /// What is wrong.
    pub(crate) wrong: Vec<anyhow::Error>,
    /// The BPF programs.
    pub(crate) programs: Vec<VerifiedProgram>,
}

/// A recording that was carried out.
#[derive(Debug)]
struct Carried {
    name: &'static str,
    place: PathBuf,
    experiment: PathBuf,
    stdout: String,
}

/// Share of its life that a workload is in its state, at the least: among others that want the CPU,
/// the rest is waiting.
const MIN_STATE_SHARE: f64 = 0.2;
/// To start and to end takes some times as many instants as elsewhere.
const EDGES: Edges = Edges {
    cpu_s: 0.02,
    outside_s: 0.1,
};
/// How long the host may keep a CPU from running, where it has fewer for two than they want,
/// seconds.
const MAX_STANDSTILL_S: f64 = 0.5;
/// How far the life and the sleep of a thread that did not move may be apart, seconds: numbers have
/// nine digits.
const DIGIT_S: f64 = 1e-8;
/// What may not be on every host.
const PYTHON: &str = "python3";
/// Share of the ticks with a user stack that are complete, at the least: of long-running programs,
/// and of those that exit before their mappings can be read. Ticks that came before a
/// table was made are judged apart.
const MIN_COMPLETE_SHARES: [(&str, f64); 4] = [
    ("proctorture", 0.97),
    (PYTHON, 0.93),
    ("sh", 0.97),
    ("true", 0.4),
];

/// Of the ticks so many may come before a table was made, which takes these machines a second or
/// two.
const MAX_SHARE_BEFORE_TABLES: f64 = 0.5;

/// Judges what a machine handed over.
pub(crate) fn judge(carried: &Path) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut notes, mut programs) = (Vec::new(), Vec::new());
    let mut results = vec![doctor(carried).context("doctor")];
    for name in [STATES, FOLLOWED, COUNTED, TRACED, IO, MOVING] {
        // Not every machine has all of them.
        if !carried.join(name).exists() {
            continue;
        }
        let recording = match Carried::of(carried, name) {
            Ok(recording) => recording,
            Err(error) => {
                results.push(Err(error));
                continue;
            }
        };
        results.extend(conserved(&recording));
        match name {
            STATES => {
                results.extend(judge_recording(&recording, &mut notes, &mut programs));
                results.push(verifier::within_budget(&programs));
            }
            FOLLOWED => results.push(stacks(&recording, &mut notes)),
            COUNTED => results.push(counters::judge(&recording.experiment).context(COUNTED)),
            TRACED => results.push(traced(&recording).context(TRACED)),
            IO => results.push(calls(&recording).context(IO)),
            _ => {}
        }
    }
    verdict.wrong = results.into_iter().filter_map(Result::err).collect();
    verdict.notes = notes;
    verdict.programs = programs;
    verdict
}

/// Each wait for a lock is there that the program has counted.
fn traced(carried: &Carried) -> Result<()> {
    let locks = Lock::all(&carried.stdout)?;
    let own = sub_experiment(&carried.experiment, "_locked_PID_")?;
    each_wait(&locks, &sync_records(&own)?).map(drop)
}

/// Each call is there that the program and its child have counted.
fn calls(carried: &Carried) -> Result<()> {
    let counted = Counted::all(&carried.stdout)?;
    let experiments = experiments_in(&carried.experiment)?;
    let records = experiments.iter().map(|experiment| io_records(experiment));
    each_file(&counted, records.collect::<Result<_>>()?).map(drop)
}

impl Carried {
    fn of(carried: &Path, name: &'static str) -> Result<Self> {
        let place = carried.join(name);
        let text = |name| fs::read_to_string(place.join(name));
        let (code, stdout, stderr) = (text("code")?, text("stdout")?, text("stderr")?);
        ensure!(
            code == "0",
            "{name}: kcollect ended with code {code}\n{stdout}{stderr}"
        );
        let experiment = experiment_in(&place)?;
        Ok(Self {
            name,
            place,
            experiment,
            stdout,
        })
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        Ok(serde_json::from_str(&fs::read_to_string(
            self.place.join(name),
        )?)?)
    }
}

fn doctor(carried: &Path) -> Result<()> {
    let place = carried.join("doctor");
    let code = fs::read_to_string(place.join("code"))?;
    ensure!(
        code == "0",
        "it ended with code {code}: {}",
        fs::read_to_string(place.join("stdout"))?
    );
    Ok(())
}

/// Time is conserved, of threads and of CPUs; nothing is lost; gprofng shows as much.
fn conserved(carried: &Carried) -> Vec<Result<()>> {
    let parts: [fn(&Carried) -> Result<()>; 4] = [threads, sleepers, cpus, nothing_lost];
    parts
        .into_iter()
        .map(|part| part(carried).context(carried.name))
        .collect()
}

fn threads(carried: &Carried) -> Result<()> {
    let (before, after): (Glances, Glances) = (carried.json("before")?, carried.json("after")?);
    let residents = before.keys().filter(|pid| after.contains_key(pid));
    let allowed = if carried.name == MOVING {
        MAX_STANDSTILL_S
    } else {
        MAX_WHOLE_RUN_ERROR_S
    };
    States::of(&carried.experiment)?.conserve_within(&residents.copied().collect(), allowed)
}

/// A thread of the kernel that was asleep before and after, and never left a CPU in between, slept.
fn sleepers(carried: &Carried) -> Result<()> {
    let (before, after): (Glances, Glances) = (carried.json("before")?, carried.json("after")?);
    let account = States::of(&carried.experiment)?;
    let mut wrong = Vec::new();
    let mut count = 0;
    for (pid, glance) in &before {
        let Some(glance) = glance.as_ref().filter(|glance| glance.kernel) else {
            continue;
        };
        if after.get(pid) != Some(&Some(glance.clone())) || !"SDI".contains(glance.state) {
            continue;
        }
        count += 1;
        let row = account.row(*pid)?;
        if row.tracked_s - row.of(Microstate::Sleep) > DIGIT_S {
            wrong.push(row);
        }
    }
    ensure!(count > 0, "no thread of the kernel has slept all the time");
    ensure!(
        wrong.is_empty(),
        "{} of {count} threads of the kernel did nothing but sleep, by the kernel: {wrong:?}",
        wrong.len()
    );
    Ok(())
}

fn cpus(carried: &Carried) -> Result<()> {
    let summary = RunSummary::of(&carried.experiment)?;
    let shown = gprofng::objects(&carried.experiment, "cpus")?;
    let header = gprofng::header(&carried.experiment)?;
    ensure!(header.closed, "{}", header.text);
    ensure!(!summary.cpus.is_empty(), "{summary:?}");
    for cpu in &summary.cpus {
        let ticks = cpu.ticks() as f64;
        cpu.elapsed(header.interval_ns, 1)?;
        let shown = shown.get(&format!("CPU {}", cpu.cpu)) * 1e9 / header.interval_ns;
        ensure!(
            (shown - ticks).abs() < 1.0,
            "gprofng shows {shown} of {ticks} ticks of CPU {}",
            cpu.cpu
        );
    }
    Ok(())
}

fn nothing_lost(carried: &Carried) -> Result<()> {
    /// These say how good a stack or a tick is, and take none away.
    const IMPAIRED: [&str; 3] = ["truncated_stacks", "missing_stacks", "late_ticks"];
    let summary = RunSummary::of(&carried.experiment)?;
    summary.complete()?;
    // Where a CPU stands still, memory for what is kept of threads may come too late. It is
    // counted.
    if carried.name == MOVING {
        return Ok(());
    }
    let losses = summary.losses;
    let lost: BTreeMap<_, _> = losses
        .iter()
        .filter(|(what, count)| **count != 0 && !IMPAIRED.contains(&what.as_str()))
        .collect();
    ensure!(lost.is_empty(), "lost: {lost:?} of {losses:?}");
    Ok(())
}

/// Each workload's truth, and the state that it is mostly in.
fn judge_recording(
    carried: &Carried,
    notes: &mut Vec<String>,
    programs: &mut Vec<VerifiedProgram>,
) -> Vec<Result<()>> {
    let mut turns: Vec<(String, Vec<Truth>)> = Vec::new();
    for line in carried.stdout.lines() {
        match serde_json::from_str(line) {
            Ok(LoadReport::Turn(load)) => turns.push((load, Vec::new())),
            Ok(LoadReport::Impossible(why)) => notes.push(format!("not checked: {why}")),
            Ok(LoadReport::Programs(loaded)) => *programs = loaded,
            Err(_) => {
                if let (Ok(truth), Some((_, truths))) =
                    (serde_json::from_str(line), turns.last_mut())
                {
                    truths.push(truth);
                }
            }
        }
    }
    let account = match States::of(&carried.experiment) {
        Ok(account) => account,
        Err(error) => return vec![Err(error)],
    };
    notes.push(format!("{} workloads", turns.len()));
    turns
        .iter()
        .flat_map(|(load, truths)| {
            // Older kernels wait for a completion by a thread of their own, which the workload
            // knows nothing of.
            let workers = |truth: &&Truth| {
                let row = account.row(truth.pid);
                load.ends_with("io_uring") && row.is_ok_and(|row| row.threads > truth.threads)
            };
            let mut results = vec![in_its_state(load, truths, &account)];
            for truth in truths.iter().filter(|truth| !workers(truth)) {
                results.push(account.agree_within(truth, EDGES));
                results.push(tiles(carried, truth, truths, &account));
                results.push(account.throttled(truth, truths.len() - 1));
            }
            results
                .into_iter()
                .map(|result| result.with_context(|| load.clone()))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn tiles(carried: &Carried, truth: &Truth, truths: &[Truth], account: &States) -> Result<()> {
    let ticks = array_ticks(&carried.experiment, Some(truth.pid))?;
    account.tile(truth.pid, ticks, truths.len() - 1)
}

fn in_its_state(name: &str, truths: &[Truth], account: &States) -> Result<()> {
    let load = loads::all()
        .find(|load| load.to_string() == name)
        .ok_or_else(|| anyhow!("no such workload"))?;
    ensure!(
        truths.len() == load.truths,
        "{} truths, not {}",
        truths.len(),
        load.truths
    );
    let Some(state) = load.state else {
        return Ok(());
    };
    let subject = truths.iter().find(|truth| truth.workload == load.subject);
    let row = account.row(subject.context("no truth of its subject")?.pid)?;
    let share = row.of(state) / row.tracked_s;
    // How long the disk takes by this clock is unknown.
    let disk = load.waits_for_the_disk();
    ensure!(
        share >= MIN_STATE_SHARE || disk && share > 0.0,
        "{share:.3} of its life in {}: {row:?}",
        state.name()
    );
    Ok(())
}

/// User stacks of followed programs reach their first function, and gprofng finds the functions.
fn stacks(carried: &Carried, notes: &mut Vec<String>) -> Result<()> {
    let summary = RunSummary::of(&carried.experiment)?;
    let account = States::of(&carried.experiment)?;
    let followed = summary.followed()?;
    let mut wrong = Vec::new();
    for (name, share) in MIN_COMPLETE_SHARES {
        let rows = account.processes.iter().filter(|row| row.name == name);
        let mut ends = BTreeMap::new();
        for process in rows.clone().flat_map(|row| followed.all(row.pid)) {
            for (end, ticks) in &process.user_stacks {
                *ends.entry(end.as_str()).or_default() += ticks;
            }
        }
        let ends = ends.iter().map(|(end, ticks)| ((*end).to_owned(), *ticks));
        let ends: BTreeMap<_, _> = ends.collect();
        let mut settled = ends.clone();
        let early = settled.remove("no_table").unwrap_or_default();
        let is = complete(&settled);
        let output = format!("{name}: user stacks {:.2} % complete, {ends:?}", 100.0 * is);
        let slow = early as f64 > MAX_SHARE_BEFORE_TABLES * ends.values().sum::<u64>() as f64;
        if is < share || slow || ends.is_empty() && (name != PYTHON || rows.count() > 0) {
            wrong.push(output.clone());
        }
        notes.push(output);
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut proctortures = account
        .processes
        .iter()
        .filter(|row| row.name == "proctorture");
    deep(
        carried,
        followed,
        proctortures.next().context("no proctorture")?,
    )
}

/// Below a hundred calls of one function.
fn deep(carried: &Carried, followed: &FollowedStats, proctorture: &ProcessTimes) -> Result<()> {
    let (_, path) = followed.one(&carried.experiment, proctorture.pid)?;
    let commands = ["metrics e.user:i.user:name", "functions"];
    let functions = gprofng::script(&commands, &path)?.content()?.table(2);
    let inclusive = |name: &str| {
        let row = functions.find(name).map(|row| row.values[1]);
        row.unwrap_or_default()
    };
    // How many stacks end early, for want of a table above all, has been judged.
    let total = functions.total()? - inclusive("<Stack-unwind-failed>");
    ensure!(
        total > 0.0 && inclusive("main") >= 0.9 * total && inclusive("dig") >= 0.9 * total,
        "main and dig are below most of {total} s: {functions:?}"
    );
    Ok(())
}
