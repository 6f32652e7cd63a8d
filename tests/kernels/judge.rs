//! The judge of recordings of a slow machine with any kernel: time is conserved, workloads and
//! kcollect agree on their times, nothing is lost, user stacks are complete, and stock gprofng
//! opens all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use experiment_format::microstate::Microstate;
use serde::de::DeserializeOwned;
use tests::experiment::states::{Edges, MAX_WHOLE_RUN_ERROR_S, ProcessTimes, States};
use tests::experiment::summary::{FollowedStats, RunSummary, complete};
use tests::experiment::{io_records, sync_records, thread_ticks};
use tests::gprofng;
use tests::kcollect::{experiment_in, experiments_in, sub_experiment};
use tests::workload::io_calls::{
    Counted, OVERFLOW_FILES, REGISTERED_FILES, RING_FILES, each_file, each_operation, reads_itself,
};
use tests::workload::loads;
use tests::workload::locked::{Lock, each_wait};
use tests::workload::memory::{has_blocks, has_own_samples};
use tests::workload::truth::Truth;

use crate::counters;
use crate::cpus::Taken;
use crate::runs::{
    ALLOCATED, COUNTED, DESCRIPTORS, FOLLOWED, Glances, IO, IO_CALLS, LoadReport, MANY_CPUS,
    MOVING, OWN_SAMPLES, RING, RING_OVERFLOW, RING_REGISTERED, ROTATED, SCHED_EXT, STATES, TRACED,
    VerifiedProgram,
};
use crate::verifier;

/// What an emulated machine loses, and kcollect says so: calls, since a program takes a hundred
/// times as long there and is preempted as much more often, two at a time ten thousand times as
/// often; blocks, since writing the experiment falls behind their records.
const LOST_IN_EMULATION: [&str; 2] = ["unseen_calls", "blocks"];

/// The verdict on a kernel.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Lines that are printed also if nothing is wrong.
    pub(crate) notes: Vec<String>,
    /// The errors.
    pub(crate) wrong: Vec<anyhow::Error>,
    /// The BPF programs.
    pub(crate) programs: Vec<VerifiedProgram>,
    /// What kcollect took on a machine of many CPUs.
    pub(crate) taken: Option<Taken>,
}

/// The results of a recording.
#[derive(Debug)]
struct RunResults {
    name: &'static str,
    place: PathBuf,
    experiment: PathBuf,
    stdout: String,
}

/// Minimum share of its time that a workload is in its state: if others want the CPU, the rest is
/// waiting.
const MIN_STATE_SHARE: f64 = 0.2;
/// Likewise, of a workload that waits only from its wake-ups on: how soon a thread that was woken
/// preempts another is up to the scheduler, and newer ones are quicker.
const MIN_LATENCY_SHARE: f64 = 0.1;
/// The allowances for start and end, which take longer here.
const EDGES: Edges = Edges {
    cpu_s: 0.02,
    outside_s: 0.1,
};
/// Maximum time that the host may keep a CPU from running, if two CPUs share one of the host,
/// seconds.
const MAX_STANDSTILL_S: f64 = 0.5;
/// How far the tracked time and the sleep of a thread that never ran may differ, seconds: numbers
/// have nine digits.
const DIGIT_S: f64 = 1e-8;
/// The program that is not on every host.
const PYTHON: &str = "python3";
/// Minimum shares of ticks with a user stack that are complete: of long-running programs, and of
/// those that exit before their mappings can be read. Ticks that came before a table was made are
/// judged apart.
const MIN_COMPLETE_SHARES: [(&str, f64); 4] = [
    ("proctorture", 0.97),
    (PYTHON, 0.93),
    ("sh", 0.97),
    ("true", 0.4),
];

/// Maximum share of the ticks that come before a table was made, which takes these machines a
/// second or two.
const MAX_SHARE_BEFORE_TABLES: f64 = 0.5;

/// Judges the results of a machine.
pub(crate) fn judge(results: &Path, real_time: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut notes, mut programs) = (Vec::new(), Vec::new());
    let mut verdicts = vec![doctor(results).context("doctor")];
    if results.join(ROTATED).exists() {
        verdicts.push(rotated(&results.join(ROTATED)).context(ROTATED));
    }
    for name in [
        STATES,
        SCHED_EXT,
        FOLLOWED,
        COUNTED,
        TRACED,
        IO,
        DESCRIPTORS,
        RING,
        RING_REGISTERED,
        RING_OVERFLOW,
        ALLOCATED,
        OWN_SAMPLES,
        MOVING,
        MANY_CPUS,
    ] {
        // Not every machine has all of them.
        if !results.join(name).exists() {
            continue;
        }
        let recording = match RunResults::of(results, name) {
            Ok(recording) => recording,
            Err(error) => {
                verdicts.push(Err(error));
                continue;
            }
        };
        verdicts.extend(conserved(&recording, real_time));
        match name {
            STATES => {
                verdicts.extend(judge_recording(
                    &recording,
                    real_time,
                    &mut notes,
                    &mut programs,
                ));
                verdicts.push(verifier::within_budget(&programs));
            }
            SCHED_EXT => {
                notes.push("sched_ext: scheduled by a BPF program".to_owned());
                let mut none = Vec::new();
                verdicts.extend(judge_recording(
                    &recording, real_time, &mut notes, &mut none,
                ));
            }
            FOLLOWED => verdicts.push(stacks(&recording, &mut notes)),
            COUNTED => verdicts.push(counters::judge(&recording.experiment).context(COUNTED)),
            TRACED => verdicts.push(traced(&recording).context(TRACED)),
            IO => verdicts.push(recording.unless_lost(calls(&recording), &mut notes)),
            DESCRIPTORS => verdicts.push(descriptors(&recording).context(DESCRIPTORS)),
            RING | RING_REGISTERED | RING_OVERFLOW => {
                let files = match name {
                    RING => RING_FILES,
                    RING_REGISTERED => REGISTERED_FILES,
                    _ => OVERFLOW_FILES,
                };
                let judged = operations(&recording, files);
                verdicts.push(recording.unless_lost(judged, &mut notes));
            }
            ALLOCATED => {
                let own = sub_experiment(&recording.experiment, "_allocations_PID_");
                let judged = own.and_then(|own| has_blocks(&own));
                verdicts.push(recording.unless_lost(judged, &mut notes));
            }
            OWN_SAMPLES => {
                let own = sub_experiment(&recording.experiment, "_sampled_PID_");
                let judged = own.and_then(|own| has_own_samples(&own, &recording.stdout));
                verdicts.push(judged.context(OWN_SAMPLES));
            }
            _ => {}
        }
    }
    match Taken::of(results) {
        Ok(taken) => verdict.taken = taken,
        Err(error) => verdicts.push(Err(error)),
    }
    verdict.wrong = verdicts.into_iter().filter_map(Result::err).collect();
    verdict.notes = notes;
    verdict.programs = programs;
    verdict
}

/// Checks that the experiments of a recording have all of a program's time together.
fn rotated(place: &Path) -> Result<()> {
    let text = |name| fs::read_to_string(place.join(name));
    let (code, stdout) = (text("code")?, text("stdout")?);
    ensure!(code == "0", "kcollect ended with code {code}\n{stdout}");
    let truth = Truth::find(&stdout)?;
    let experiments = experiments_in(place)?;
    ensure!(experiments.len() > 2, "{experiments:?}");
    let (mut tracked_s, mut cpu_s) = (0.0, 0.0);
    for experiment in &experiments {
        RunSummary::of(experiment)?.complete()?;
        if let Ok(row) = States::of(experiment)?.row(truth.pid) {
            tracked_s += row.tracked_s;
            cpu_s += row.cpu_s();
        }
    }
    let used_s = (truth.user_ns + truth.system_ns) as f64 / 1e9;
    ensure!(
        (tracked_s - truth.tracked_s).abs() < EDGES.outside_s
            && (cpu_s - used_s).abs() < EDGES.cpu_s,
        "{tracked_s} s, of which {cpu_s} s on a CPU, in {experiments:?}; {truth:?}"
    );
    Ok(())
}

/// Checks that each wait for a lock that the program has counted is recorded.
fn traced(results: &RunResults) -> Result<()> {
    let locks = Lock::all(&results.stdout)?;
    let own = sub_experiment(&results.experiment, "_locked_PID_")?;
    each_wait(&locks, &sync_records(&own)?).map(drop)
}

/// Checks that each call that the program and its child have counted is recorded.
fn calls(results: &RunResults) -> Result<()> {
    let counted = Counted::all(&results.stdout)?;
    let experiments = experiments_in(&results.experiment)?;
    let records = experiments.iter().map(|experiment| io_records(experiment));
    each_file(&counted, records.collect::<Result<_>>()?).map(drop)
}

/// Checks that the last of a million descriptors has its name.
fn descriptors(results: &RunResults) -> Result<()> {
    let own = sub_experiment(&results.experiment, "_io_calls_PID_")?;
    reads_itself(io_records(&own)?, IO_CALLS, 10)
}

/// Checks that each operation that the program has handed to `io_uring` is recorded.
fn operations(results: &RunResults, of_files: usize) -> Result<()> {
    let own = sub_experiment(&results.experiment, "_ring_io_PID_")?;
    each_operation(&results.stdout, io_records(&own)?, of_files).map(drop)
}

impl RunResults {
    fn of(results: &Path, name: &'static str) -> Result<Self> {
        let place = results.join(name);
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

    /// Returns the verdict on calls or blocks. An error is only a note if kcollect itself reports
    /// that it has lost some.
    fn unless_lost(&self, verdict: Result<()>, notes: &mut Vec<String>) -> Result<()> {
        let Err(error) = verdict else {
            return Ok(());
        };
        let losses = RunSummary::of(&self.experiment)?.losses;
        for what in LOST_IN_EMULATION {
            let count = losses.get(what).copied().unwrap_or_default();
            if count > 0 {
                notes.push(format!("not judged: {}: {what} are {count}", self.name));
                return Ok(());
            }
        }
        Err(error.context(self.name))
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        Ok(serde_json::from_str(&fs::read_to_string(
            self.place.join(name),
        )?)?)
    }
}

fn doctor(results: &Path) -> Result<()> {
    let place = results.join("doctor");
    let code = fs::read_to_string(place.join("code"))?;
    ensure!(
        code == "0",
        "it ended with code {code}: {}",
        fs::read_to_string(place.join("stdout"))?
    );
    Ok(())
}

/// Checks that the time of threads and CPUs is conserved, that nothing is lost, and that gprofng
/// shows the same.
fn conserved(results: &RunResults, real_time: bool) -> Vec<Result<()>> {
    let parts: [fn(&RunResults) -> Result<()>; 3] = [threads, sleepers, cpus];
    let mut verdicts: Vec<_> = parts.into_iter().map(|part| part(results)).collect();
    verdicts.push(nothing_lost(results, real_time));
    let named = verdicts.into_iter();
    named.map(|verdict| verdict.context(results.name)).collect()
}

fn threads(results: &RunResults) -> Result<()> {
    let (before, after): (Glances, Glances) = (results.json("before")?, results.json("after")?);
    let residents = before.keys().filter(|pid| after.contains_key(pid));
    let allowed = match results.name {
        MOVING => MAX_STANDSTILL_S,
        // One of the host's CPUs serves all.
        MANY_CPUS => {
            let summary = RunSummary::of(&results.experiment)?;
            MAX_STANDSTILL_S * summary.cpus.len() as f64 / 2.0
        }
        _ => MAX_WHOLE_RUN_ERROR_S,
    };
    States::of(&results.experiment)?.conserve_within(&residents.copied().collect(), allowed)
}

/// Checks that a thread of the kernel slept which was asleep before and after, and never ran in
/// between.
fn sleepers(results: &RunResults) -> Result<()> {
    let (before, after): (Glances, Glances) = (results.json("before")?, results.json("after")?);
    let account = States::of(&results.experiment)?;
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

fn cpus(results: &RunResults) -> Result<()> {
    let summary = RunSummary::of(&results.experiment)?;
    let shown = gprofng::objects(&results.experiment, "cpus")?;
    let header = gprofng::header(&results.experiment)?;
    ensure!(header.closed, "{}", header.text);
    ensure!(!summary.cpus.is_empty(), "{summary:?}");
    for cpu in &summary.cpus {
        let unrecorded = if summary.idle_recorded { 0 } else { cpu.idle };
        let ticks = (cpu.ticks() - unrecorded) as f64;
        cpu.elapsed(header.interval_ns, 1)?;
        let shown = shown.get(&format!("CPU {}", cpu.cpu)) * 1e9 / header.interval_ns;
        ensure!(
            (shown - ticks).abs() < 1.0,
            "gprofng shows {shown} of {ticks} ticks of CPU {}; {cpu:?}, {:?}",
            cpu.cpu,
            summary.losses
        );
    }
    Ok(())
}

fn nothing_lost(results: &RunResults, real_time: bool) -> Result<()> {
    /// These say how good a stack or a tick is, and take none away.
    const IMPAIRED: [&str; 3] = ["truncated_stacks", "missing_stacks", "late_ticks"];
    /// With PREEMPT_RT the scheduler has no memory for a callback, now and then. Without it, Linux
    /// 7.2 and 7.3 refuse one in some thousands; the reason is not known.
    const WITHOUT_MEMORY: &str = "user_returns";
    const MAX_WITHOUT_MEMORY: i64 = 2;
    let summary = RunSummary::of(&results.experiment)?;
    summary.complete()?;
    // Where a CPU stands still, memory for what is kept of threads may come too late. It is
    // counted.
    if [MOVING, MANY_CPUS].contains(&results.name) {
        return Ok(());
    }
    let losses = summary.losses;
    let lost: BTreeMap<_, _> = losses
        .iter()
        .filter(|(what, count)| **count != 0 && !IMPAIRED.contains(&what.as_str()))
        .filter(|(what, count)| {
            what.as_str() != WITHOUT_MEMORY || !(real_time || **count <= MAX_WITHOUT_MEMORY)
        })
        .filter(|(what, _)| !LOST_IN_EMULATION.contains(&what.as_str()))
        .collect();
    ensure!(lost.is_empty(), "lost: {lost:?} of {losses:?}");
    Ok(())
}

/// Judges each workload's truth, and the state that it is mostly in.
fn judge_recording(
    results: &RunResults,
    real_time: bool,
    notes: &mut Vec<String>,
    programs: &mut Vec<VerifiedProgram>,
) -> Vec<Result<()>> {
    let mut turns: Vec<(String, Vec<Truth>)> = Vec::new();
    for line in results.stdout.lines() {
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
    let account = match States::of(&results.experiment) {
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
            let mut verdicts = vec![in_its_state(load, truths, &account)];
            // An exit or a signal takes several context switches there, which the clocks of the
            // workload do not see.
            let unseen =
                |load: &str| load.starts_with("thread_starts") || load.starts_with("state_stop");
            if real_time && unseen(load) {
                return verdicts;
            }
            for truth in truths.iter().filter(|truth| !workers(truth)) {
                verdicts.push(account.agree_within(truth, EDGES));
                verdicts.push(tiles(results, truth, truths, &account));
                verdicts.push(account.throttled(truth, truths.len() - 1));
            }
            verdicts
                .into_iter()
                .map(|result| result.with_context(|| load.clone()))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn tiles(results: &RunResults, truth: &Truth, truths: &[Truth], account: &States) -> Result<()> {
    let ticks = thread_ticks(&results.experiment, Some(truth.pid))?;
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
    let min_share = if load.subject == "state_latency" {
        MIN_LATENCY_SHARE
    } else {
        MIN_STATE_SHARE
    };
    // How long the disk takes by this clock is unknown.
    let disk = load.waits_for_the_disk();
    ensure!(
        share >= min_share || disk && share > 0.0,
        "{share:.3} of its life in {}: {row:?}",
        state.name()
    );
    Ok(())
}

/// Checks that user stacks of followed programs reach their first function, and that gprofng finds
/// the functions.
fn stacks(results: &RunResults, notes: &mut Vec<String>) -> Result<()> {
    let summary = RunSummary::of(&results.experiment)?;
    let account = States::of(&results.experiment)?;
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
        results,
        followed,
        proctortures.next().context("no proctorture")?,
    )
}

/// Judges stacks of a hundred calls of one function.
fn deep(results: &RunResults, followed: &FollowedStats, proctorture: &ProcessTimes) -> Result<()> {
    let (_, path) = followed.one(&results.experiment, proctorture.pid)?;
    let commands = ["metrics e.user:i.user:name", "functions"];
    let functions = gprofng::script(&commands, &path)?.content()?.table(2);
    let inclusive = |name: &str| {
        let row = functions.find(name).map(|row| row.values[1]);
        row.unwrap_or_default()
    };
    // How many stacks end early, mostly because a table is missing, has been judged.
    let total = functions.total()? - inclusive("<Stack-unwind-failed>");
    ensure!(
        total > 0.0 && inclusive("main") >= 0.9 * total && inclusive("dig") >= 0.9 * total,
        "main and dig are below most of {total} s: {functions:?}"
    );
    Ok(())
}
