//! kcollect's account of microstates, and how it is judged.
//!
//! The times are exact where they come from context switches, so most of the judgement needs no
//! statistics:
//!
//! * **by itself** ([`States::conserve`]): the states of a process add up to the tracked time of
//!   its threads, the CPU time of all processes to the busy time of the CPUs, and a process that
//!   existed during the whole run has the time of the run;
//! * **by a workload's truth** ([`States::agree`]): no state is off by more than a hundredth of the
//!   workload's wall time. What the process did before its work began and after it ended is not in
//!   its truth; that is the difference of its tracked times, and may be in any state. Stolen time
//!   is not CPU time on either side: the account has it as a wait for a CPU, the workload as a part
//!   of whatever it did.
//!
//! Only the division of CPU time into user, system and trap time is a sample, on both sides. It is
//! judged by itself ([`States::agree_on_user_mode`]), of loads that neither sleep nor migrate:
//! those that do can keep step with the scheduler's tick, and then `getrusage` divides their time
//! wrongly.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use serde::Deserialize;

use crate::experiment::summary::{CpuStats, RunSummary};
use crate::machine::disturbance::NoTruth;
use crate::oracle::statistics::{Band, Pair};
use crate::workload::truth::{Truth, accounting_hz};

/// How far the time in a state may be off, as a share of the wall time.
const MAX_STATE_ERROR_SHARE: f64 = 0.01;
/// How far CPU time may be off, as a share of it: both sides count it exactly, but not between the
/// same instants.
const MAX_CPU_ERROR_SHARE: f64 = 0.002;
/// How far CPU time may be off in addition for each thread but the first, seconds: a thread ends a
/// little after its time was added to its process's usage.
const MAX_THREAD_CPU_ERROR_S: f64 = 5e-6;
/// The same as a share of a thread's CPU time, for short-lived threads: of 70 us the end takes 9.
/// The clock of a control group includes the end, so the check that reads that clock is exact.
const MAX_THREAD_CPU_ERROR_SHARE: f64 = 0.2;
/// How long each thread but the first may exist outside of its own account, seconds: before it can
/// run, and after its last look at its clocks.
const MAX_THREAD_OUTSIDE_S: f64 = 2e-5;
/// How far the states of a workload may be from its own wall time, seconds, in addition to half of
/// [`MAX_STATE_ERROR_SHARE`] and what was stolen: usage is counted from the process's start, work
/// is not.
const MAX_UNEXPLAINED_S: f64 = 0.01;
/// How far the tracked time of a thread and the sum of its states may differ, seconds.
const MAX_THREAD_SUM_ERROR_S: f64 = 1e-6;
/// Maximum share of a thread's ticks in off-CPU intervals whose end was not recorded.
const MAX_UNSEEN_SHARE: f64 = 0.01;
/// The last digit of the account, seconds: how far rounding may change each number.
const DIGIT_S: f64 = 1e-9;
/// How far the time may be off for which a quota kept a workload from running, as a share of the
/// wall time: the kernel sums it up from timers of its own, for a group.
const MAX_THROTTLED_ERROR_SHARE: f64 = 0.02;
/// Maximum share of stolen time that may be in ticks of what the thread did, or the reverse: a
/// boundary just before the CPU runs again looks like a punctual timer.
pub const MAX_STOLEN_ERROR_SHARE: f64 = 0.1;
/// How far the time of a thread of the whole run may be from the run's, seconds.
const MAX_RUN_ERROR_S: f64 = 0.05;
/// How far the tracked times of two threads of the whole run may differ, seconds: all begin and end
/// at the same instants, by the scheduler's clock of one CPU or another.
pub const MAX_WHOLE_RUN_ERROR_S: f64 = 3e-4;

/// Returns how exact the kernel's sum of a workload's CPU time is, seconds: the ends of threads are
/// missing from it.
fn cpu_inexact_s(truth: &Truth) -> f64 {
    let cpu = truth.cpu_ns() as f64 / 1e9;
    let end =
        MAX_THREAD_CPU_ERROR_S.max(MAX_THREAD_CPU_ERROR_SHARE * cpu / truth.threads.max(1) as f64);
    MAX_CPU_ERROR_SHARE * cpu + truth.threads.saturating_sub(1) as f64 * end
}

/// How long a workload may take to start and to end outside of its truth, seconds.
#[derive(Clone, Copy, Debug)]
pub struct Edges {
    /// On a CPU, from its last look at its usage to its end. 2.6 ms were measured once, of a
    /// workload that faults on a mapped file on a busy machine; the cause is unknown.
    pub cpu_s: f64,
    /// Outside of its work, in addition to waits for a CPU and for the disk. Loading and exiting
    /// take a few milliseconds, and ten times as long if other programs want the CPU.
    pub outside_s: f64,
}

impl Default for Edges {
    fn default() -> Self {
        Self {
            cpu_s: 0.005,
            outside_s: 0.05,
        }
    }
}

/// The account of microstates.
#[derive(Clone, Debug, Deserialize)]
pub struct States {
    /// The states' names, in the order of their times.
    pub states: Vec<String>,
    /// The clock interval, microseconds.
    pub interval_us: f64,
    /// From the first to the last instant of the run, seconds.
    pub elapsed_s: f64,
    /// All processes that existed during the run.
    pub processes: Vec<ProcessTimes>,
}

/// The account of one process.
#[derive(Clone, Debug, Deserialize)]
pub struct ProcessTimes {
    /// Its process id.
    pub pid: Pid,
    /// Its name.
    pub name: String,
    /// How many of its threads ran or waited during the run.
    pub threads: u64,
    /// Its ticks on a CPU.
    #[serde(default)]
    pub ticks: u64,
    /// The tracked time of these threads, summed, seconds.
    pub tracked_s: f64,
    /// That time by number of the state, seconds.
    pub states_s: [f64; Microstate::PER_THREAD],
    /// Parts of that, by detail. Older experiments have none.
    pub detail_s: Option<Detail>,
    /// The time blocked, by what it was for the threads. Older experiments have none.
    pub waited_s: Option<Waited>,
}

/// The time blocked of a row, seconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Waited {
    /// Its threads needed something in the middle of work.
    pub suffered: f64,
    /// They had nothing to do.
    pub idle: f64,
    /// Neither is known.
    pub undecided: f64,
}

/// Parts of a row's times, seconds. Each is in one of the states as well.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Detail {
    /// Blocked for a block device.
    pub block_io: f64,
    /// Waiting for a CPU after it was preempted, not after a wake-up.
    pub preempted: f64,
    /// Waiting for a CPU because a quota was used up.
    pub throttled: f64,
    /// On a CPU that the hypervisor had stolen.
    #[serde(default)]
    pub stolen: f64,
}

impl ProcessTimes {
    /// Seconds in one state.
    pub fn of(&self, state: Microstate) -> f64 {
        of(&self.states_s, state)
    }

    /// Seconds on CPU.
    pub fn cpu_s(&self) -> f64 {
        on_cpu(&self.states_s)
    }

    /// Seconds off CPU.
    pub fn off_cpu_s(&self) -> f64 {
        self.states_s.iter().sum::<f64>() - self.cpu_s()
    }
}

/// The states on CPU.
const ON_CPU: [Microstate; 3] = [Microstate::User, Microstate::System, Microstate::Trap];

fn of(states_s: &[f64], state: Microstate) -> f64 {
    states_s.get(state as usize).copied().unwrap_or_default()
}

fn on_cpu(states_s: &[f64]) -> f64 {
    ON_CPU.iter().map(|state| of(states_s, *state)).sum()
}

/// The states of a thread, in order.
fn states() -> impl Iterator<Item = Microstate> {
    Microstate::ALL.into_iter().take(Microstate::PER_THREAD)
}

impl States {
    /// Reads the account of an experiment.
    ///
    /// # Errors
    /// No account, or not of this form.
    pub fn of(experiment: &Path) -> Result<Self> {
        let path = experiment.join("kcollect.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let account: Self =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let names: Vec<_> = states().filter_map(Microstate::metric).collect();
        ensure!(
            account.states == names,
            "the states are {:?}",
            account.states
        );
        Ok(account)
    }

    /// Returns the one row of a process.
    ///
    /// # Errors
    /// No row, or more than one.
    pub fn row(&self, pid: Pid) -> Result<&ProcessTimes> {
        let rows: Vec<_> = self.processes.iter().filter(|row| row.pid == pid).collect();
        match rows.as_slice() {
            [row] => Ok(row),
            rows => bail!("{} rows of process {pid}: {rows:?}", rows.len()),
        }
    }

    /// Judges the account by itself and by the CPU statistics. `residents` are processes that
    /// existed before the run and after it.
    ///
    /// # Errors
    /// When time is missing or counted twice; the message has all the numbers.
    pub fn conserve(&self, residents: &BTreeSet<Pid>) -> Result<()> {
        self.conserve_within(residents, MAX_WHOLE_RUN_ERROR_S)
    }

    /// The same if two clocks may differ by `whole_s` seconds, because CPUs stand still now and
    /// then.
    ///
    /// # Errors
    /// As [`States::conserve`].
    pub fn conserve_within(&self, residents: &BTreeSet<Pid>, whole_s: f64) -> Result<()> {
        let mut wrong: Vec<String> = self.processes.iter().filter_map(not_whole).collect();
        wrong.extend(self.processes.iter().filter_map(not_parts));
        wrong.extend(self.processes.iter().filter_map(not_caused));
        wrong.extend(self.not_all_there(residents, whole_s));
        verdict("conservation", &wrong)
    }

    /// CPU time of all processes against the ticks that were neither idle nor stolen.
    ///
    /// Not for a load that wakes and sleeps in step with the ticks: they are no independent samples
    /// of it.
    ///
    /// # Errors
    /// When they differ by more than chance; the message has all the numbers.
    pub fn busy_time(&self, summary: &RunSummary) -> Result<()> {
        let interval = summary.interval_us * 1e3;
        let recorded: f64 = summary.cpus.iter().map(|cpu| cpu.recorded_ns).sum();
        let stolen: u64 = summary.cpus.iter().map(|cpu| cpu.stolen).sum();
        let busy = summary.cpus.iter().map(|cpu| cpu.user + cpu.kernel);
        // Interrupts at work on idle CPUs are no thread's. Where the kernel shows process 1 to no
        // BPF program that iterates over threads, it has ticks and no times.
        let untimed = |row: &&ProcessTimes| row.pid <= Pid(1) && row.tracked_s == 0.0;
        let others = self.processes.iter().filter(untimed);
        let busy = busy.sum::<u64>() - others.map(|row| row.ticks).sum::<u64>();
        let all: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
        let cpu_ns = self.processes.iter().map(ProcessTimes::cpu_s).sum::<f64>() * 1e9;
        ensure!(
            cpu_ns <= recorded * 1.001,
            "the processes were on CPU for {} s, of {} s that the CPUs were recorded",
            cpu_ns / 1e9,
            recorded / 1e9
        );
        Band::time(cpu_ns, all as f64 * interval, interval)
            .with_edges(MAX_STOLEN_ERROR_SHARE * stolen as f64)
            .judge(
                &format!(
                    "busy ticks, where all processes were on CPU for {} s and {stolen} ticks were \
                     stolen",
                    cpu_ns / 1e9,
                ),
                busy as f64,
            )
            .with_context(|| self.largest_difference(interval))
    }

    /// Says which processes have the most ticks too many or too few for their time on CPUs.
    fn largest_difference(&self, interval: f64) -> String {
        let off = |row: &ProcessTimes| row.ticks as f64 - row.cpu_s() * 1e9 / interval;
        let mut rows: Vec<_> = self
            .processes
            .iter()
            .filter(|row| row.pid > Pid(1))
            .collect();
        rows.sort_by(|a, b| off(b).abs().total_cmp(&off(a).abs()));
        let first = rows.iter().take(5);
        let shown = first.map(|row| {
            let (name, seconds) = (&row.name, row.cpu_s());
            format!("{name} ({}) {} in {seconds:.4} s", row.pid, row.ticks)
        });
        format!(
            "ticks of processes: {}",
            shown.collect::<Vec<_>>().join(", ")
        )
    }

    /// Returns what is wrong of processes that existed during the whole run.
    fn not_all_there(&self, residents: &BTreeSet<Pid>, whole_s: f64) -> Vec<String> {
        let mut wrong = Vec::new();
        // Processes with one thread, which is tracked for the whole run.
        let mut whole = Vec::new();
        for pid in residents {
            match self.row(*pid) {
                Ok(row) if row.threads == 1 => whole.push(row),
                Ok(row) if row.threads == 0 => wrong.push(format!("no thread lived in {row:?}")),
                Ok(_) => {}
                Err(error) => wrong.push(error.to_string()),
            }
        }
        let Some(longest) = whole.iter().map(|row| row.tracked_s).max_by(f64::total_cmp) else {
            wrong.push("no process of one thread lived through the run".into());
            return wrong;
        };
        if (longest - self.elapsed_s).abs() > MAX_RUN_ERROR_S.max(whole_s) {
            wrong.push(format!(
                "a thread lived for {longest} s of a run of {} s",
                self.elapsed_s
            ));
        }
        for row in whole {
            if longest - row.tracked_s > whole_s {
                wrong.push(format!(
                    "{} ({}) lived for {} s of the {longest} s that others did",
                    row.name, row.pid, row.tracked_s
                ));
            }
        }
        wrong
    }

    /// Judges the ticks of a process by its exact time: on-CPU and off-CPU ticks tile the tracked
    /// time of each thread, but for one at its beginning and one at its end, and one whenever it
    /// changes its CPU, which a workload does when it pins itself, and the scheduler before that:
    /// the more often, the more others there are. Where a kernel lets no BPF program run on top of
    /// some process, a context switch from it is not seen, and the ticks of the off-CPU interval
    /// that ended with it are missing.
    ///
    /// # Errors
    /// When there are too few or too many.
    pub fn tile(&self, pid: Pid, ticks: u64, company: usize) -> Result<()> {
        let row = self.row(pid)?;
        let expected = row.tracked_s / (self.interval_us / 1e6);
        let allowed = 3.0 + 2.0 * row.threads as f64 + company as f64 + expected * MAX_UNSEEN_SHARE;
        ensure!(
            (ticks as f64 - expected).abs() <= allowed,
            "{ticks} ticks, not {expected:.1} ± {allowed:.1}, in {row:?}"
        );
        Ok(())
    }

    /// Judges the ticks of a process in each state by its exact times there, those on a CPU
    /// together.
    ///
    /// # Errors
    /// When they differ by more than chance; the message has all the numbers.
    pub fn sampled(&self, pid: Pid, ticks: &[u64; Microstate::PER_THREAD]) -> Result<()> {
        let row = self.row(pid)?;
        let interval_s = self.interval_us / 1e6;
        let stolen_s = row.detail_s.as_ref().map_or(0.0, |parts| parts.stolen);
        let judge = |name: &str, exact_s: f64, ticks: u64| {
            Band::time(exact_s, row.tracked_s, interval_s)
                .with_edges(MAX_STOLEN_ERROR_SHARE * stolen_s / interval_s)
                .judge(name, ticks as f64)
                .with_context(|| format!("ticks by state {ticks:?} of {row:?}"))
        };
        let on_cpu = ON_CPU.iter().map(|state| ticks[*state as usize]).sum();
        judge("ticks on a CPU", row.cpu_s(), on_cpu)?;
        states()
            .filter(|state| !ON_CPU.contains(state))
            .try_for_each(|state| judge(state.name(), row.of(state), ticks[state as usize]))
    }

    /// Judges the summed CPU time of processes. `ending_s` of it passed after they last read their
    /// usage: each account includes the end of its process, and no more.
    ///
    /// # Errors
    /// When they were on a CPU for longer, by more than `each_s` for each of them.
    pub fn ended_in(&self, truths: &[Truth], ending_s: f64, each_s: f64) -> Result<()> {
        let (mut own_s, mut here_s, mut inexact_s) = (0.0, 0.0, 0.0);
        for truth in truths {
            own_s += truth.cpu_ns() as f64 / 1e9;
            here_s += self.row(truth.pid)?.cpu_s();
            inexact_s += cpu_inexact_s(truth) + each_s;
        }
        let max_s = own_s + ending_s + inexact_s;
        ensure!(
            here_s <= max_s,
            "{own_s} s on CPU by getrusage and {ending_s} s to end, {here_s} s by the account"
        );
        Ok(())
    }

    /// Judges the row of a workload by its truth. The truth has a thread's waits before its work,
    /// but not its wait for a CPU after it has printed its truth. Its end wakes the thread that
    /// waits for it, so that wait may be long where other processes want the CPU, and the thread's
    /// recorded time is longer by it.
    ///
    /// # Errors
    /// When a number is off by more than it may be; [`NoTruth`] when the workload cannot explain
    /// its own time. The message has all the numbers.
    pub fn agree(&self, truth: &Truth) -> Result<()> {
        self.agree_within(truth, Edges::default())
    }

    /// The same with other allowances for the start and the end.
    ///
    /// # Errors
    /// As [`States::agree`].
    pub fn agree_within(&self, truth: &Truth, edges: Edges) -> Result<()> {
        let row = self.row(truth.pid)?;
        let wall = truth.wall_ns() as f64 / 1e9;
        let cpu = truth.cpu_ns() as f64 / 1e9;
        let explained: f64 = truth.states_s.iter().sum();
        let unexplained = truth.tracked_s - explained;
        let inexact = MAX_STATE_ERROR_SHARE / 2.0 * wall + MAX_UNEXPLAINED_S;
        if !(-inexact..=inexact + truth.stolen_s).contains(&unexplained) {
            bail!(NoTruth(format!(
                "{} explains {explained} s of its {} s, and {} s were stolen: truth {truth:?}, account {row:?}",
                truth.workload, truth.tracked_s, truth.stolen_s,
            )));
        }

        let mut wrong = Vec::new();
        if row.threads != truth.threads {
            wrong.push(format!(
                "{} threads lived, {} by the account",
                truth.threads, row.threads
            ));
        }
        let outside = row.tracked_s - truth.tracked_s;
        let more = truth.threads.saturating_sub(1) as f64;
        let waited = row.of(Microstate::WaitCpu) - of(&truth.states_s, Microstate::WaitCpu);
        // Before its work it may be read from a disk that all want at once, and sleep in its file
        // system until a transaction has ended. One that does not say how long that took waited
        // for the disk.
        let disk = row.detail_s.as_ref().map_or(0.0, |parts| parts.block_io);
        let alone = edges.outside_s + more * MAX_THREAD_OUTSIDE_S + disk.max(truth.before_s);
        if !(-edges.cpu_s..=alone + waited.max(0.0)).contains(&outside) {
            wrong.push(format!(
                "the threads lived {} s by their own clocks, {} s by the account",
                truth.tracked_s, row.tracked_s
            ));
        }
        if (row.cpu_s() - cpu).abs() > edges.cpu_s + cpu_inexact_s(truth) {
            wrong.push(format!(
                "{cpu} s on CPU by getrusage, {} s by the account",
                row.cpu_s()
            ));
        }
        let allowed = MAX_STATE_ERROR_SHARE * wall;
        for state in states().filter(|state| !ON_CPU.contains(state)) {
            let (mine, own) = (row.of(state), of(&truth.states_s, state));
            // What was stolen in a call that blocks is the call's for the workload; for the account
            // it was a wait for a CPU.
            let stolen = truth.stolen_s;
            let (least, most) = match state {
                Microstate::WaitCpu => (own, own + outside.max(0.0) + stolen),
                _ => (own - stolen, own + outside.min(alone).max(0.0)),
            };
            if !(least - allowed..=most + allowed).contains(&mine) {
                wrong.push(format!(
                    "{}: {own} s by the workload, {mine} s by the account",
                    state.name()
                ));
            }
        }
        verdict(
            &format!("{} (process {})", truth.workload, truth.pid),
            &wrong,
        )
        .with_context(|| format!("truth {truth:?}, account {row:?}"))
    }

    /// Judges for how long a workload waited because its group's quota was used up. The kernel's
    /// sum for the group ends when there is quota again; the wait of a thread that was kept from
    /// running for that ends when it has a CPU, and among others that may be long: seconds of
    /// 6.18's scheduler have been seen, with its quota hardly touched.
    ///
    /// # Errors
    /// When it was too short; or too long, where no other process wanted the CPU.
    pub fn throttled(&self, truth: &Truth, company: usize) -> Result<()> {
        let row = self.row(truth.pid)?;
        let Some(parts) = &row.detail_s else {
            return Ok(());
        };
        let allowed = MAX_THROTTLED_ERROR_SHARE * truth.wall_ns() as f64 / 1e9;
        let most = match company {
            0 => truth.throttled_s + truth.stolen_s + allowed,
            _ => f64::INFINITY,
        };
        ensure!(
            (truth.throttled_s - allowed..=most).contains(&parts.throttled),
            "{}: throttled for {} s by its group, {} s by the account: truth {truth:?}, account {row:?}",
            truth.workload,
            truth.throttled_s,
            parts.throttled
        );
        Ok(())
    }

    /// Judges the share of user mode in a workload's CPU time.
    ///
    /// # Errors
    /// When the two samples of it cannot be of the same load, and are more than a hundredth of the
    /// time apart.
    pub fn agree_on_user_mode(&self, truth: &Truth) -> Result<()> {
        let split = user_share(self.row(truth.pid)?, truth, self.interval_us / 1e6);
        let (mine, own) = split.shares();
        ensure!(
            (mine - own).abs() <= MAX_STATE_ERROR_SHARE + split.allowed(),
            "{}, share of user mode in CPU time: {split}",
            truth.workload
        );
        Ok(())
    }
}

/// The share of user mode in CPU time: by kcollect's ticks, and by the scheduler's ticks, which
/// `getrusage` counts.
fn user_share(row: &ProcessTimes, truth: &Truth, interval_s: f64) -> Pair {
    let ticks = row.cpu_s() / interval_s;
    let references = truth.cpu_ns() as f64 / 1e9 * accounting_hz();
    Pair {
        first: (row.of(Microstate::User) / interval_s, ticks),
        second: (
            truth.user_ns as f64 / truth.cpu_ns() as f64 * references,
            references,
        ),
    }
}

/// Returns a message if the sum of a row's states is not its tracked time.
fn not_whole(row: &ProcessTimes) -> Option<String> {
    let sum: f64 = row.states_s.iter().sum();
    let allowed =
        row.threads as f64 * MAX_THREAD_SUM_ERROR_S + (Microstate::PER_THREAD + 1) as f64 * DIGIT_S;
    let whole = (sum - row.tracked_s).abs() <= allowed;
    let possible = row.states_s.iter().all(|seconds| *seconds >= 0.0);
    (!whole || !possible).then(|| format!("the states add up to {sum} s in {row:?}"))
}

/// Says how the kinds of waits of a process do not add up to its blocked states.
fn not_caused(row: &ProcessTimes) -> Option<String> {
    let waited = row.waited_s?;
    let blocked = [
        Microstate::TextFault,
        Microstate::DataFault,
        Microstate::KernelFault,
        Microstate::UserLock,
        Microstate::Sleep,
    ];
    let blocked: f64 = blocked
        .iter()
        .map(|state| row.states_s[state.number() as usize])
        .sum();
    let caused = waited.suffered + waited.idle + waited.undecided;
    // Each of eight numbers is rounded.
    ((caused - blocked).abs() > 8.0 * DIGIT_S * (1.0 + blocked))
        .then(|| format!("{}: blocked for {blocked} s, but {waited:?}", row.name))
}

/// Returns a message if a detail of a row is longer than the states that it is part of.
fn not_parts(row: &ProcessTimes) -> Option<String> {
    let parts = row.detail_s.as_ref()?;
    let waited = row.of(Microstate::WaitCpu);
    let blocked = row.off_cpu_s() - waited - row.of(Microstate::Stopped);
    let limits = [
        (parts.preempted, waited),
        (parts.throttled, waited),
        (parts.stolen, waited),
        (parts.block_io, blocked),
    ];
    let possible = limits.iter().all(|(part, whole)| {
        *part >= 0.0 && *part <= whole + Microstate::PER_THREAD as f64 * DIGIT_S
    });
    (!possible).then(|| format!("a part is more than the whole in {row:?}"))
}

/// Passes if nothing is wrong. The error has the first messages only, since a wrong clock is wrong
/// for all processes of a machine.
fn verdict(what: &str, wrong: &[String]) -> Result<()> {
    const SHOWN: usize = 8;
    let shown: Vec<_> = wrong.iter().take(SHOWN).map(String::as_str).collect();
    ensure!(
        wrong.is_empty(),
        "{what}: {} things are wrong:\n  {}",
        wrong.len(),
        shown.join("\n  ")
    );
    Ok(())
}

#[cfg(test)]
mod tests;
