//! `state_stop SECONDS CPU VARIANT`: a child stops itself again and again, and its parent lets it
//! go on after a while. With `signal` it is stopped as a shell's job is, with `ptrace` as a
//! debugger's. Both print their truth, one line each.

use std::thread::sleep;

use anyhow::{Context, Result, bail, ensure};
use experiment_format::microstate::Microstate;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tests::workload::naps::Naps;
use tests::workload::truth::{Work, variant};

fn main() -> Result<()> {
    let traced = match variant()?.as_str() {
        "signal" => false,
        "ptrace" => true,
        other => bail!("no variant {other:?}"),
    };
    let mut work = Work::start("state_stop")?;
    // SAFETY: this process has one thread, so the child may do whatever the parent could.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => stop_again_and_again(traced),
        ForkResult::Parent { child } => {
            work.child(child);
            let stops = let_go_on(&mut work, child, traced)?;
            work.end(stops)
        }
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
