//! `state_stop SECONDS CPU VARIANT`: a child stops itself again and again, and its parent lets it
//! continue after a while. With `signal` it is stopped as a shell's job is, with `ptrace` as a
//! debugger's. With `frozen` it spins, and its parent freezes its control group, as a container's.
//! Both print their truth, one line each.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use experiment_format::ids;
use experiment_format::microstate::Microstate;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tests::machine::freezer::Freezer;
use tests::workload::naps::Naps;
use tests::workload::truth::{Work, monotonic_ns, variant};

/// A pause of the child's that is no preemption by its parent: the shortest nap is longer.
const FROZEN_NS: u64 = 800_000;
/// For how long the child spins between two pauses.
const SPIN: Duration = Duration::from_micros(200);

fn main() -> Result<()> {
    let variant = variant()?;
    let traced = match variant.as_str() {
        "signal" | "frozen" => false,
        "ptrace" => true,
        other => bail!("no variant {other:?}"),
    };
    let freezer = match variant.as_str() {
        "frozen" => Some(Freezer::new()?),
        _ => None,
    };
    let mut work = Work::start("state_stop")?;
    // SAFETY: this process has one thread, so the child may do whatever the parent could.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child if freezer.is_some() => spin_through_pauses(),
        ForkResult::Child => stop_again_and_again(traced),
        ForkResult::Parent { child } => {
            work.child(child);
            let stops = match freezer {
                Some(freezer) => freeze_again_and_again(&mut work, child, &freezer)?,
                None => let_go_on(&mut work, child, traced)?,
            };
            work.end(stops)
        }
    }
}

fn spin_through_pauses() -> Result<()> {
    let mut work = Work::start("state_stop_child")?;
    let mut stops = 0;
    while !work.over()? {
        let until_ns = work.until_ns();
        work.blocked(Microstate::Stopped, || spin_until_paused(until_ns))??;
        stops += 1;
    }
    work.end(stops)
}

/// Spins until there was a pause, or the work is over.
fn spin_until_paused(until_ns: u64) -> Result<()> {
    let mut before_ns = monotonic_ns()?;
    loop {
        let now_ns = monotonic_ns()?;
        if now_ns - before_ns > FROZEN_NS || now_ns >= until_ns {
            return Ok(());
        }
        before_ns = now_ns;
    }
}

fn freeze_again_and_again(work: &mut Work, child: Pid, freezer: &Freezer) -> Result<u64> {
    let (mut naps, mut stops) = (Naps::new()?, 0);
    // To move a process, and now and then to freeze a group, the kernel waits for all CPUs to have
    // passed a quiescent state: some 20 ms.
    let pid = ids::Pid::from_raw(child.as_raw());
    work.blocked(Microstate::Sleep, || freezer.take(pid))??;
    loop {
        let status = waitpid(child, Some(WaitPidFlag::WNOHANG))?;
        if status == WaitStatus::Exited(child, 0) {
            return Ok(stops);
        }
        ensure!(status == WaitStatus::StillAlive, "the child: {status:?}");
        work.blocked(Microstate::Sleep, || freezer.freeze(true))??;
        work.blocked(Microstate::Sleep, || sleep(naps.next_length()))?;
        work.blocked(Microstate::Sleep, || freezer.freeze(false))??;
        work.blocked(Microstate::Sleep, || sleep(SPIN))?;
        stops += 1;
    }
}

fn stop_again_and_again(traced: bool) -> Result<()> {
    let mut work = Work::start("state_stop_child")?;
    if traced {
        ptrace::traceme()?;
    }
    let mut stops = 0;
    while !work.over()? {
        work.blocked(Microstate::Stopped, || raise(Signal::SIGSTOP))??;
        stops += 1;
    }
    work.end(stops)
}

fn let_go_on(work: &mut Work, child: Pid, traced: bool) -> Result<u64> {
    let (mut naps, mut stops) = (Naps::new()?, 0);
    loop {
        let status = work.blocked(Microstate::Sleep, || {
            waitpid(child, Some(WaitPidFlag::WUNTRACED))
        })??;
        if status == WaitStatus::Exited(child, 0) {
            return Ok(stops);
        }
        ensure!(
            status == WaitStatus::Stopped(child, Signal::SIGSTOP),
            "the child: {status:?}"
        );
        work.blocked(Microstate::Sleep, || sleep(naps.next_length()))?;
        if traced {
            ptrace::cont(child, None)?;
        } else {
            kill(child, Signal::SIGCONT)?;
        }
        stops += 1;
    }
}
