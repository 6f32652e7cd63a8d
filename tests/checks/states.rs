//! Where a workload knows what state it is in, kcollect says the same, to a hundredth of the wall
//! time; and in every one of these runs, for all processes of the machine, no time is missing and
//! none is counted twice.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use tests::books::Books;
use tests::cgroup;
use tests::compat32;
use tests::experiment::array_ticks;
use tests::kcollect::record;
use tests::loads;
use tests::machine::{
    Exclusive, io_uring, processes, stolen_everywhere, stolen_meanwhile, stolen_since, work_cpu,
};
use tests::states::{Row, States, WHOLE_S};
use tests::truth::Truth;
use tests::workload;

/// How long each works, seconds.
const SECONDS: &str = "4";
/// How long each of several variants of one state works.
const SECONDS_OF_VARIANTS: &str = "3";

#[test]
fn root_user() -> Result<()> {
    let row = judge_split(workload!("spin_user"))?;
    mostly(&row, Microstate::User, 0.9)
}

#[test]
fn root_system() -> Result<()> {
    let row = judge_split(workload!("read_zero"))?;
    // Of the workload, not of the account: the way into the kernel and back takes 8 to 12 % in user
    // mode, by the machine.
    mostly(&row, Microstate::System, 0.8)
}

#[test]
fn root_trap() -> Result<()> {
    let row = judge_split(workload!("state_trap"))?;
    // The signal is delivered in the trap; only the return from its handler is a system call.
    mostly(&row, Microstate::Trap, 0.3)?;
    ensure!(
        row.of(Microstate::System) > 0.0 && row.of(Microstate::User) > 0.0,
        "{row:?}"
    );
    Ok(())
}

#[test]
fn root_text_fault() -> Result<()> {
    let [row] = judge(workload!("state_tfault"), None)?;
    mostly(&row, Microstate::TextFault, DISK)
}

#[test]
fn root_data_fault() -> Result<()> {
    let [row] = judge(workload!("state_dfault"), None)?;
    mostly(&row, Microstate::DataFault, DISK)
}

#[test]
fn root_kernel_fault() -> Result<()> {
    let [row] = judge(workload!("state_kfault"), None)?;
    mostly(&row, Microstate::KernelFault, DISK)
}

#[test]
fn root_lock_mutex() -> Result<()> {
    let [row] = judge(workload!("state_lock"), Some("mutex"))?;
    mostly(&row, Microstate::UserLock, 0.4)
}

#[test]
fn root_lock_condition() -> Result<()> {
    let [row] = judge(workload!("state_lock"), Some("condvar"))?;
    mostly(&row, Microstate::UserLock, 0.4)
}

#[test]
fn root_lock_priority_inheriting() -> Result<()> {
    let [row] = judge(workload!("state_lock"), Some("pi"))?;
    mostly(&row, Microstate::UserLock, 0.4)
}

#[test]
fn root_sleep_nanosleep() -> Result<()> {
    sleeps("nanosleep")
}

#[test]
fn root_sleep_pipe() -> Result<()> {
    sleeps("pipe")
}

#[test]
fn root_sleep_poll() -> Result<()> {
    sleeps("poll")
}

#[test]
fn root_sleep_epoll() -> Result<()> {
    sleeps("epoll")
}

#[test]
fn root_sleep_io_uring() -> Result<()> {
    if let Err(error) = io_uring() {
        eprintln!("not checked: this kernel permits no io_uring: {error:#}");
        return Ok(());
    }
    // Whether it was for a disk is not asked: the kernel takes any wait for a completion for one.
    sleep("io_uring", 0.9).map(drop)
}

#[test]
fn root_sleep_fsync() -> Result<()> {
    let row = sleep("fsync", DISK)?;
    let Some(parts) = &row.detail_s else {
        return Ok(());
    };
    ensure!(
        parts.block_io >= 0.5 * row.of(Microstate::Sleep),
        "less than half of the sleep was for the disk: {row:?}"
    );
    Ok(())
}

#[test]
fn root_wait_cpu() -> Result<()> {
    let [row] = judge(workload!("state_wait"), None)?;
    mostly(&row, Microstate::WaitCpu, 0.6)
}

/// The latency of wake-ups: the naps of one process end while two others spin on its CPU.
#[test]
fn root_wait_cpu_after_a_sleep() -> Result<()> {
    let [sleeper, one, other] = judge(workload!("state_latency"), None)?;
    mostly(&sleeper, Microstate::WaitCpu, LATENCY)?;
    ensure!(
        sleeper.of(Microstate::Sleep)
            >= 0.9 * (sleeper.off_cpu_s() - sleeper.of(Microstate::WaitCpu)),
        "the rest is no sleep: {sleeper:?}"
    );
    mostly(&one, Microstate::WaitCpu, 0.3)?;
    mostly(&other, Microstate::WaitCpu, 0.3)
}

/// A quota: runnable, with nobody else on the CPU, and kept from running.
#[test]
fn root_wait_cpu_for_a_quota() -> Result<()> {
    if let Err(error) = cgroup::possible() {
        eprintln!("not checked: no control group with a quota can be made: {error:#}");
        return Ok(());
    }
    let [row] = judge(workload!("throttled"), None)?;
    mostly(&row, Microstate::WaitCpu, 0.6)
}

#[test]
fn root_stopped_by_a_signal() -> Result<()> {
    let [parent, child] = judge(workload!("state_stop"), Some("signal"))?;
    mostly(&parent, Microstate::Sleep, 0.9)?;
    mostly(&child, Microstate::Stopped, 0.9)
}

#[test]
fn root_stopped_by_a_tracer() -> Result<()> {
    let [parent, child] = judge(workload!("state_stop"), Some("ptrace"))?;
    mostly(&parent, Microstate::Sleep, 0.9)?;
    mostly(&child, Microstate::Stopped, 0.9)
}

#[test]
fn root_lock_of_a_32_bit_program() -> Result<()> {
    compat32("futex", Microstate::UserLock)
}

#[test]
fn root_lock_of_a_newer_32_bit_program() -> Result<()> {
    compat32("futex_time64", Microstate::UserLock)
}

#[test]
fn root_sleep_of_a_32_bit_program() -> Result<()> {
    compat32("nanosleep", Microstate::Sleep)
}

/// Threads of which hardly any is alive at a tick: all of them are counted, and so is all of their
/// time.
#[test]
fn root_births() -> Result<()> {
    let [row] = judge(workload!("births"), None)?;
    ensure!(row.threads > 500, "only {} threads lived", row.threads);
    Ok(())
}

/// And to the last instruction, as far as the clock of their group tells. The account begins a
/// little before: with the shell that enters the group.
#[test]
fn root_births_by_the_clock_of_their_group() -> Result<()> {
    const BEFORE_S: f64 = 0.006;
    if let Err(error) = cgroup::possible() {
        eprintln!("not checked: {error:#}");
        return Ok(());
    }
    let _machine = Exclusive::take()?;
    let (clock, cpu) = (cgroup::Clock::new()?, work_cpu()?.to_string());
    let load = clock.around(&[workload!("births"), SECONDS, &cpu]);
    let load: Vec<_> = load.iter().map(String::as_str).collect();
    let recorded = record(&["-p", "hi"], &load, Duration::from_secs(40))?;
    let account = States::of(&recorded.experiment()?)?;
    let (own, used) = (account.row(recorded.truth()?.pid)?.cpu_s(), clock.used_s()?);
    ensure!(
        (0.0..=BEFORE_S).contains(&(own - used)),
        "{own} s on CPU, {used} s by the group's clock"
    );
    Ok(())
}

#[test]
fn root_migrations() -> Result<()> {
    judge::<1>(workload!("migrate"), None).map(drop)
}

#[test]
fn root_parent_in_vfork() -> Result<()> {
    let [row] = judge(workload!("vfork_parent"), None)?;
    mostly(&row, Microstate::Sleep, 0.9)
}

/// All of these at once, on all CPUs: no wait of one is taken for another's, and no time is
/// missing.
#[test]
fn root_all_of_them_mixed() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?.to_string();
    let (truths, _, _) = witnesses(&[workload!("mixed"), SECONDS, &cpu])?;
    // The one that starts them tells its truth as well.
    let expected = 1 + loads::possible().map(|load| load.truths).sum::<usize>();
    ensure!(
        truths.len() == expected,
        "{} truths, not {expected}",
        truths.len()
    );
    Ok(())
}

/// Share of the time that a workload which waits for the disk spends so. The rest goes into making
/// the disk necessary. On a disk with less, these checks say nothing.
const DISK: f64 = 0.2;

/// How long a program may wait for the disk before its work, seconds.
const DISK_BEFORE_S: f64 = 0.01;

/// Share of the time that a thread which naps for a millisecond waits for its CPU, where two others
/// spin on it. The scheduler may let it run at once or after a turn of each; with less than this
/// there was no load.
const LATENCY: f64 = 0.2;

/// Sleeps in a call that knows of no disk. Before its work a process may read its program from one.
fn sleeps(variant: &str) -> Result<()> {
    let row = sleep(variant, 0.9)?;
    let Some(parts) = &row.detail_s else {
        return Ok(());
    };
    ensure!(
        parts.block_io <= DISK_BEFORE_S,
        "a part of its sleep was for a disk: {row:?}"
    );
    Ok(())
}

fn sleep(variant: &str, share: f64) -> Result<Row> {
    let [row] = judge(workload!("state_sleep"), Some(variant))?;
    mostly(&row, Microstate::Sleep, share)?;
    Ok(row)
}

/// A 32-bit child, whose system calls have numbers that mean others in its 64-bit parent.
fn compat32(variant: &str, state: Microstate) -> Result<()> {
    if let Err(error) = compat32::supported() {
        eprintln!("not checked: this machine runs no 32-bit programs: {error:#}");
        return Ok(());
    }
    let [parent, child] = judge(workload!("compat32"), Some(variant))?;
    mostly(&parent, Microstate::Sleep, 0.9)?;
    mostly(&child, state, 0.9)
}

/// Runs a workload that stays on its CPU, and judges also how its CPU time divides.
fn judge_split(program: &str) -> Result<Row> {
    let ([truth], account) = run(program, None)?;
    account.agree_on_user_mode(&truth)?;
    Ok(account.row(truth.pid)?.clone())
}

/// Runs a workload, and judges the account. The rows of its `N` processes, in the order of their
/// names.
fn judge<const N: usize>(program: &str, variant: Option<&str>) -> Result<[Row; N]> {
    let (truths, account) = run::<N>(program, variant)?;
    let rows: Vec<Row> = truths
        .iter()
        .map(|truth| account.row(truth.pid).cloned())
        .collect::<Result<_>>()?;
    rows.try_into().ok().context("as many rows as truths")
}

/// Runs a workload, whose processes tell `N` truths, under kcollect, and judges the account by them
/// and by itself.
fn run<const N: usize>(program: &str, variant: Option<&str>) -> Result<([Truth; N], States)> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?.to_string();
    let seconds = variant.map_or(SECONDS, |_| SECONDS_OF_VARIANTS);
    let mut load = vec![program, seconds, &cpu];
    load.extend(variant);
    let (truths, account, books) = witnesses(&load)?;
    if !in_step_with_ticks(program, variant) {
        account.busy_time(&books, stolen_meanwhile()?)?;
    }
    let count = truths.len();
    let truths = truths
        .try_into()
        .ok()
        .with_context(|| format!("{count} truths, not {N}"))?;
    Ok((truths, account))
}

/// Births come at nearly the rate of the ticks, and the disk's work often comes with them. A
/// migration storm is disturbed by a tick, goes on from there like a clock, and is found at the
/// same point by the next CPU's.
fn in_step_with_ticks(program: &str, variant: Option<&str>) -> bool {
    let loads = [
        "births",
        "migrate",
        "state_tfault",
        "state_dfault",
        "state_kfault",
    ];
    variant == Some("fsync") || loads.iter().any(|load| program.ends_with(load))
}

/// Records a load, and judges the account by the truths of its processes and by itself. The truths
/// are in the order of the processes' names.
fn witnesses(load: &[&str]) -> Result<(Vec<Truth>, States, Books)> {
    let (before, stolen) = (processes()?, stolen_everywhere()?);
    let recorded = record(&["-p", "hi", "-x", "off"], load, Duration::from_secs(40))?;
    let stolen_s = stolen_since(stolen)? / 1e9;
    let mut residents: BTreeSet<i32> = before.intersection(&processes()?).copied().collect();
    // Some sandboxes run a control program as process 1, which their kernel shows to no BPF program
    // that walks threads.
    residents.remove(&1);
    let experiment = recorded.experiment()?;
    let books = Books::of(&experiment)?;
    books.complete()?;
    let account = States::of(&experiment)?;

    let mut truths = Truth::find_all(&recorded.finished.stdout);
    ensure!(!truths.is_empty(), "no truth: {}", recorded.finished);
    truths.sort_by(|one, other| one.workload.cmp(&other.workload));
    let mut verdicts: Vec<_> = truths.iter().map(|truth| account.agree(truth)).collect();
    // Who moves while data stop on one CPU after the other lives until then, and the CPU at work on
    // that may be another machine's.
    verdicts.push(account.conserve_within(&residents, WHOLE_S + stolen_s));
    for truth in truths.iter().filter(|truth| truth.workload != "migrate") {
        let ticks = array_ticks(&experiment, Some(truth.pid))?;
        let company = company(truth, &truths);
        verdicts.push(account.tile(truth.pid, ticks, company));
        verdicts.push(account.throttled(truth, company));
    }
    let wrong: Vec<_> = verdicts
        .into_iter()
        .filter_map(|verdict| Some(format!("{:#}", verdict.err()?)))
        .collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok((truths, account, books))
}

/// How many other processes want the CPU of one.
fn company(truth: &Truth, truths: &[Truth]) -> usize {
    // Among others it has a real-time priority, and all of its CPU when it wants it.
    if truth.workload == "births" {
        return 0;
    }
    let here = truths.iter().filter(|other| other.cpu == truth.cpu);
    here.count() - 1
}

/// Passes when a process spent at least so much of its life in a state: else the workload was none
/// of that state. What others made it wait for a CPU is no part of that life, where the state is
/// another.
fn mostly(row: &Row, state: Microstate, share: f64) -> Result<()> {
    let waited = match state {
        Microstate::WaitCpu => 0.0,
        _ => row.of(Microstate::WaitCpu),
    };
    ensure!(
        row.of(state) >= share * (row.tracked_s - waited),
        "less than {share} of its life in {}: {row:?}",
        state.name()
    );
    Ok(())
}
