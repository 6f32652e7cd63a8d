//! `state_latency SECONDS CPU`: naps of a millisecond on a CPU that two others spin on. After each
//! nap it is awake and waits for that CPU: the wake-up latency under load. It is a batch process,
//! whose wake-ups preempt no thread; else it would hardly wait. The spinners are children, so that
//! each has its own truth.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tests::workload::truth::{Work, schedule, spin_until};

/// One nap.
const NAP: Duration = Duration::from_millis(1);

fn main() -> Result<()> {
    let mut work = Work::start("state_latency")?;
    let mut children = Vec::new();
    for _ in 0..2 {
        // SAFETY: this process has one thread, so the child may do whatever the parent could.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => return spin(),
            ForkResult::Parent { child } => children.push(child),
        }
    }
    // After the forks: children inherit this.
    schedule(libc::SCHED_BATCH, 0)?;
    let mut naps = 0;
    while !work.over()? {
        work.blocked(Microstate::Sleep, || sleep(NAP))?;
        naps += 1;
    }
    for child in children {
        let end = work.blocked(Microstate::Sleep, || waitpid(child, None))??;
        ensure!(end == WaitStatus::Exited(child, 0), "a spinner: {end:?}");
        work.child(child);
    }
    work.end(naps)
}

fn spin() -> Result<()> {
    let work = Work::start("state_latency_spinner")?;
    let rounds = spin_until(work.until_ns())?;
    work.end(rounds)
}
