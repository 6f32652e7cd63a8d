//! Each workload is mostly in one state, and kcollect's time in that state is the workload's own,
//! to a hundredth of the wall time. In every one of these runs, for all processes of the machine,
//! no time is missing and none is counted twice.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use tests::experiment::state_ticks;
use tests::experiment::states::{Edges, MAX_WHOLE_RUN_ERROR_S, ProcessTimes, States};
use tests::experiment::summary::RunSummary;
use tests::kcollect::record;
use tests::machine::cgroup;
use tests::machine::disturbance::{NoTruth, judge_times, not_judged};
use tests::machine::freezer::Freezer;
use tests::machine::{processes, stolen_everywhere, stolen_since, work_cpu};
use tests::workload;
use tests::workload::loads::{self, Load};
use tests::workload::truth::{Reaped, Truth};

/// How long each workload works, seconds.
const WORK_S: &str = "1.5";

#[test]
fn root_alone_user() -> Result<()> {
    judge_times(|| {
        let row = judge_split(workload!("spin_user"))?;
        mostly(&row, Microstate::User, 0.9)
    })
}

#[test]
fn root_alone_system() -> Result<()> {
    judge_times(|| {
        let row = judge_split(workload!("read_zero"))?;
        // The rest is the workload's, not an error of the account: entering the kernel and
        // returning takes 8 to 12 % in user mode, by the machine.
        mostly(&row, Microstate::System, 0.8)
    })
}

#[test]
fn root_alone_trap() -> Result<()> {
    judge_times(|| {
        let row = judge_split(workload!("state_trap"))?;
        // The signal is delivered in the trap; only the return from its handler is a system call.
        mostly(&row, Microstate::Trap, 0.3)?;
        ensure!(
            row.of(Microstate::System) > 0.0 && row.of(Microstate::User) > 0.0,
            "{row:?}"
        );
        Ok(())
    })
}

#[test]
fn root_alone_text_fault() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_tfault"), None)?;
        mostly(&row, Microstate::TextFault, MIN_DISK_SHARE)
    })
}

#[test]
fn root_alone_data_fault() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_dfault"), None)?;
        mostly(&row, Microstate::DataFault, MIN_DISK_SHARE)
    })
}

#[test]
fn root_alone_kernel_fault() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_kfault"), None)?;
        mostly(&row, Microstate::KernelFault, MIN_DISK_SHARE)
    })
}

#[test]
fn root_alone_lock_mutex() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_lock"), Some("mutex"))?;
        mostly(&row, Microstate::UserLock, 0.4)
    })
}

#[test]
fn root_alone_lock_condition() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_lock"), Some("condvar"))?;
        mostly(&row, Microstate::UserLock, 0.4)
    })
}

#[test]
fn root_alone_lock_priority_inheriting() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_lock"), Some("pi"))?;
        mostly(&row, Microstate::UserLock, 0.4)
    })
}

/// Sleeps in all kinds of calls, stops, and locks and sleeps of 32-bit programs, at the same time:
/// each process is in one state, and uses no CPU that another one would miss.
#[test]
fn root_alone_quiet_states() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let (truths, account, _) = witnesses(&[workload!("mixed"), WORK_S, &cpu, "quiet"])?;
        let rows: Vec<_> = truths
            .iter()
            .map(|truth| Ok((truth, account.row(truth.pid)?)))
            .collect::<Result<_>>()?;
        let loads: Vec<_> = loads::possible().filter(Load::is_quiet).collect();
        for load in &loads {
            let state = load.state.context("a state")?;
            let same = |of: &&Load| of.subject == load.subject && of.state == load.state;
            let expected = loads.iter().filter(same).count();
            let in_it = |(truth, row): &&(&Truth, &ProcessTimes)| {
                truth.workload == load.subject && mostly(row, state, 0.9).is_ok()
            };
            let found = rows.iter().filter(in_it).count();
            ensure!(found >= expected, "{load}: {found} of {expected}: {rows:?}");
        }
        for (truth, row) in rows
            .iter()
            .filter(|(truth, _)| truth.workload == "state_sleep")
        {
            waited_for_no_disk(truth, row)?;
        }
        Ok(())
    })
}

#[test]
fn root_alone_sleep_fsync() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_sleep"), Some("fsync"))?;
        mostly(&row, Microstate::Sleep, MIN_DISK_SHARE)?;
        let Some(parts) = &row.detail_s else {
            return Ok(());
        };
        ensure!(
            parts.block_io >= 0.5 * row.of(Microstate::Sleep),
            "less than half of the sleep was for the disk: {row:?}"
        );
        Ok(())
    })
}

#[test]
fn root_alone_wait_cpu() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("state_wait"), None)?;
        mostly(&row, Microstate::WaitCpu, 0.6)
    })
}

/// The naps of one process end while two others spin on its CPU: it waits after each wake-up.
#[test]
fn root_alone_wait_cpu_after_a_sleep() -> Result<()> {
    judge_times(|| {
        let [sleeper, one, other] = judge(workload!("state_latency"), None)?;
        mostly(&sleeper, Microstate::WaitCpu, MIN_LATENCY_SHARE)?;
        ensure!(
            sleeper.of(Microstate::Sleep)
                >= 0.9
                    * (sleeper.off_cpu_s() - sleeper.of(Microstate::WaitCpu) - loading_s(&sleeper)),
            "the rest is no sleep: {sleeper:?}"
        );
        mostly(&one, Microstate::WaitCpu, 0.3)?;
        mostly(&other, Microstate::WaitCpu, 0.3)
    })
}

/// A thread whose quota is used up is runnable, with no other thread on the CPU, and does not run.
#[test]
fn root_alone_wait_cpu_for_a_quota() -> Result<()> {
    judge_times(|| {
        if let Err(error) = cgroup::possible() {
            not_judged(format_args!(
                "no control group with a quota can be made: {error:#}"
            ));
            return Ok(());
        }
        let [row] = judge(workload!("throttled"), None)?;
        mostly(&row, Microstate::WaitCpu, 0.6)
    })
}

/// A thread whose control group is frozen stops in user mode, where others wait for pages.
#[test]
fn root_alone_stopped_by_its_control_group() -> Result<()> {
    judge_times(|| {
        if let Err(error) = Freezer::new() {
            not_judged(format_args!("no control group can be made: {error:#}"));
            return Ok(());
        }
        let [parent, child] = judge(workload!("state_stop"), Some("frozen"))?;
        mostly(&parent, Microstate::Sleep, 0.8)?;
        mostly(&child, Microstate::Stopped, 0.7)
    })
}

/// All threads are counted, with all of their time, though few exist long enough for a tick.
#[test]
fn root_alone_short_lived_threads() -> Result<()> {
    judge_times(|| {
        let [row] = judge(workload!("thread_starts"), None)?;
        ensure!(row.threads > 500, "only {} threads lived", row.threads);
        Ok(())
    })
}

/// The CPU time of short-lived threads equals their control group's, to the last instruction. The
/// account begins a little earlier, with the shell that enters the group.
#[test]
fn root_alone_short_lived_threads_by_the_clock_of_their_cgroup() -> Result<()> {
    judge_times(|| {
        const BEFORE_S: f64 = 0.006;
        if let Err(error) = cgroup::possible() {
            not_judged(format_args!("{error:#}"));
            return Ok(());
        }
        let (clock, cpu) = (cgroup::Clock::new()?, work_cpu()?.to_string());
        let load = clock.around(&[workload!("thread_starts"), WORK_S, &cpu]);
        let load: Vec<_> = load.iter().map(String::as_str).collect();
        let recorded = record(&["-p", "hi"], &load, Duration::from_secs(40))?;
        let account = States::of(&recorded.experiment()?)?;
        let (own, used) = (account.row(recorded.truth()?.pid)?.cpu_s(), clock.used_s()?);
        ensure!(
            (0.0..=BEFORE_S).contains(&(own - used)),
            "{own} s on CPU, {used} s by the group's clock"
        );
        Ok(())
    })
}

#[test]
fn root_alone_migrations() -> Result<()> {
    judge_times(|| judge::<1>(workload!("migrate"), None).map(drop))
}

/// A thread that is woken and preempts another one has the CPU's time from its wake-up on, and the
/// ticks of that time too. Two thirds of them are between the wake-up and the context switch.
///
/// The exact time has what recording costs the thread, and in that no boundary can pass: at `hi`
/// some 15 us after each boundary, a tenth of this load's ticks; a thirtieth here.
#[test]
fn root_alone_ticks_of_a_thread_that_preempts() -> Result<()> {
    judge_times(|| {
        if std::thread::available_parallelism()?.get() < 2 {
            not_judged("there is one CPU, and a load needs two");
            return Ok(());
        }
        let cpu = work_cpu()?.to_string();
        let load = [workload!("state_woken"), "5", &cpu];
        let recorded = record(
            &["-p", "3.001", "-x", "off"],
            &load,
            Duration::from_secs(40),
        )?;
        let (experiment, pid) = (recorded.experiment()?, recorded.truth()?.pid);
        let account = States::of(&experiment)?;
        account.sampled(pid, &state_ticks(&experiment, Some(pid))?)
    })
}

/// All workloads at once, on all CPUs: no wait of one counts for another, and no time is missing.
#[test]
fn root_alone_all_states_at_once() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let (truths, _, _) = witnesses(&[workload!("mixed"), WORK_S, &cpu])?;
        // The one that starts them prints its truth as well.
        let expected = 1 + loads::possible().map(|load| load.truths).sum::<usize>();
        ensure!(
            truths.len() == expected,
            "{} truths, not {expected}",
            truths.len()
        );
        Ok(())
    })
}

/// Minimum share of its time for which a workload that waits for the disk does so. The rest goes
/// into dropping pages from memory. On a disk with less, these checks show nothing.
const MIN_DISK_SHARE: f64 = 0.2;

/// Minimum share of the time that a thread which naps for a millisecond waits for its CPU, where
/// two others spin on it. The scheduler may let it run at once or after a time slice of each; with
/// less than this there was no load.
const MIN_LATENCY_SHARE: f64 = 0.2;

/// Passes if a process that slept in a call which has nothing to do with a disk waited for none,
/// except while its program was read from one. Its pages are read before its work begins, which is
/// the time that the account has and the workload's truth has not, and where it first touches them,
/// which is a state of its own.
fn waited_for_no_disk(truth: &Truth, row: &ProcessTimes) -> Result<()> {
    let Some(parts) = &row.detail_s else {
        return Ok(());
    };
    let before_s = (row.tracked_s - row.cpu_s()) - (truth.tracked_s - truth.cpu_ns() as f64 / 1e9);
    let faults_s: f64 = FAULTS.iter().map(|state| row.of(*state)).sum();
    ensure!(
        parts.block_io <= before_s.max(0.0) + faults_s,
        "a part of its sleep was for a disk, in addition to {before_s} s before its work and \
         {faults_s} s in page faults: {row:?}"
    );
    Ok(())
}

/// The states of a thread that waits for a page.
const FAULTS: [Microstate; 3] = [
    Microstate::TextFault,
    Microstate::DataFault,
    Microstate::KernelFault,
];

/// Returns how long a process waited for pages of its program to be read from a disk, seconds,
/// which is before its work: nothing on a warm machine, half a second while a compiler runs.
fn loading_s(row: &ProcessTimes) -> f64 {
    let faults_s: f64 = FAULTS.iter().map(|state| row.of(*state)).sum();
    let block_io = row.detail_s.as_ref().map_or(0.0, |parts| parts.block_io);
    faults_s.min(block_io)
}

/// Runs a workload that stays on its CPU, and judges also how its CPU time divides.
fn judge_split(program: &str) -> Result<ProcessTimes> {
    let ([truth], account) = run(program, None)?;
    account.agree_on_user_mode(&truth)?;
    Ok(account.row(truth.pid)?.clone())
}

/// Runs a workload, and judges the account. Returns the rows of its `N` processes, in the order of
/// their names.
fn judge<const N: usize>(program: &str, variant: Option<&str>) -> Result<[ProcessTimes; N]> {
    let (truths, account) = run::<N>(program, variant)?;
    let rows: Vec<ProcessTimes> = truths
        .iter()
        .map(|truth| account.row(truth.pid).cloned())
        .collect::<Result<_>>()?;
    rows.try_into().ok().context("as many rows as truths")
}

/// Runs a workload, whose processes print `N` truths, under kcollect, and judges the account by
/// them and by itself.
fn run<const N: usize>(program: &str, variant: Option<&str>) -> Result<([Truth; N], States)> {
    let cpu = work_cpu()?.to_string();
    let mut load = vec![program, WORK_S, &cpu];
    load.extend(variant);
    let (truths, account, summary) = witnesses(&load)?;
    if !in_step_with_ticks(program) {
        account.busy_time(&summary)?;
    }
    let count = truths.len();
    let truths = truths
        .try_into()
        .ok()
        .with_context(|| format!("{count} truths, not {N}"))?;
    Ok((truths, account))
}

/// Returns whether a workload is in step with the ticks. `thread_starts` starts threads at nearly
/// their rate. `migrate` is delayed by a tick, continues from there at an even rate, and is at the
/// same point at the next CPU's tick.
fn in_step_with_ticks(program: &str) -> bool {
    ["thread_starts", "migrate"]
        .iter()
        .any(|load| program.ends_with(load))
}

/// Returns the interval at which a load is recorded. Those that wait for a disk do so thousands of
/// times a second, in a virtual machine in step with its timer at `hi`, and the naps of others are
/// as long as that interval or twice as long: their ticks are then no independent samples
/// (ACCURACY.md).
fn interval_of(load: &[&str]) -> &'static str {
    let in_step = [
        "state_tfault",
        "state_dfault",
        "state_kfault",
        "fsync",
        "state_lock",
    ];
    let is_in_step = |word: &&str| in_step.iter().any(|name| word.ends_with(name));
    if load.iter().any(is_in_step) {
        "on"
    } else {
        "hi"
    }
}

/// How much longer a workload may take to be loaded and to end for each other one that begins and
/// ends with it, seconds. With 26 others, 60 and 70 ms asleep were measured.
const MAX_EDGE_PER_PROCESS_S: f64 = 0.005;

/// Records a load, and judges the account by the truths of its processes and by itself. The truths
/// are in the order of the processes' names.
fn witnesses(load: &[&str]) -> Result<(Vec<Truth>, States, RunSummary)> {
    let (before, stolen) = (processes()?, stolen_everywhere()?);
    let options = ["-p", interval_of(load), "-x", "off"];
    let reaped = [&[workload!("reaped")], load].concat();
    let recorded = record(&options, &reaped, Duration::from_secs(40))?;
    let stolen_s = stolen_since(stolen)? / 1e9;
    let mut residents: BTreeSet<Pid> = before.intersection(&processes()?).copied().collect();
    // Some sandboxes run a control program as process 1, which their kernel shows to no BPF program
    // that iterates over threads.
    residents.remove(&Pid(1));
    let experiment = recorded.experiment()?;
    let summary = RunSummary::of(&experiment)?;
    summary.complete()?;
    let account = States::of(&experiment)?;

    let mut truths = Truth::find_all(&recorded.finished.stdout);
    ensure!(!truths.is_empty(), "no truth: {}", recorded.finished);
    truths.sort_by(|one, other| one.workload.cmp(&other.workload));
    // They are loaded, and end, at the same time, and want the same CPUs and files meanwhile.
    let ending_s = ending_s(&truths, &Reaped::find(&recorded.finished.stdout)?);
    let edges = Edges {
        cpu_s: ending_s.max(0.0) + MAX_REAPED_ERROR_S,
        outside_s: Edges::default().outside_s + MAX_EDGE_PER_PROCESS_S * (truths.len() - 1) as f64,
    };
    let agrees = |truth: &Truth| account.agree_within(truth, edges);
    let mut verdicts: Vec<_> = truths.iter().map(agrees).collect();
    verdicts.push(account.ended_in(&truths, ending_s, MAX_REAPED_ERROR_S));
    // Recording stops on one CPU after the other, so a thread that migrates meanwhile is recorded a
    // little longer; and the time of the CPU that stops them may be stolen.
    verdicts.push(account.conserve_within(&residents, MAX_WHOLE_RUN_ERROR_S + stolen_s));
    for truth in truths.iter().filter(|truth| truth.workload != "migrate") {
        let ticks = state_ticks(&experiment, Some(truth.pid))?;
        let company = company(truth, &truths);
        verdicts.push(account.tile(truth.pid, ticks.iter().sum(), company));
        if truth.workload != "thread_starts" {
            verdicts.push(account.sampled(truth.pid, &ticks));
        }
        verdicts.push(account.throttled(truth, company));
    }
    let no_truth =
        |verdict: &Result<()>| verdict.as_ref().is_err_and(|error| error.is::<NoTruth>());
    if let Some(at) = verdicts.iter().position(no_truth) {
        verdicts.swap_remove(at)?;
    }
    let wrong: Vec<_> = verdicts
        .into_iter()
        .filter_map(|verdict| Some(format!("{:#}", verdict.err()?)))
        .collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok((truths, account, summary))
}

/// How far the kernel's sum of a process's CPU time as it is reaped and the account may differ,
/// seconds.
const MAX_REAPED_ERROR_S: f64 = 0.001;

/// Returns how long these processes were on a CPU after their last look at their usage, together,
/// seconds: 5 to 8 ms each were measured on a machine on which code takes long that runs for the
/// first time. Other children that they have reaped are part of it.
fn ending_s(truths: &[Truth], reaped: &Reaped) -> f64 {
    let known: u64 = truths.iter().map(Truth::cpu_ns).sum();
    (reaped.cpu_ns as f64 - known as f64) / 1e9
}

/// Returns how many other processes want the CPU of a process.
fn company(truth: &Truth, truths: &[Truth]) -> usize {
    // Among others it has a real-time priority, and all of its CPU when it wants it.
    if truth.workload == "thread_starts" {
        return 0;
    }
    let here = truths.iter().filter(|other| other.cpu == truth.cpu);
    here.count() - 1
}

/// Passes if a process spent at least this share of its tracked time in a state: else the workload
/// does not show that state. Waits for a CPU do not count as tracked time here, unless they are the
/// state.
fn mostly(row: &ProcessTimes, state: Microstate, share: f64) -> Result<()> {
    let waited = match state {
        Microstate::WaitCpu => 0.0,
        _ => row.of(Microstate::WaitCpu),
    };
    let loading = if FAULTS.contains(&state) {
        0.0
    } else {
        loading_s(row)
    };
    ensure!(
        row.of(state) >= share * (row.tracked_s - waited - loading),
        "less than {share} of its time in {}: {row:?}",
        state.name()
    );
    Ok(())
}
