//! `pid_reuse SECONDS CPU`: two processes, one after the other, under one process id. Needs root:
//! it sets which id the kernel assigns next. Each uses half of the time, as CPU time.

use std::ffi::CString;
use std::fs;

use anyhow::{Context, Result, bail};
use experiment_format::ids;
use nix::sys::prctl::set_name;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use tests::workload::truth::{Named, Work, monotonic_ns, spin_for_cpu};

/// Tries for the second process: another process on the machine may be faster and take the id.
const TRIES: u32 = 200;

fn main() -> Result<()> {
    let mut work = Work::start("pid_reuse")?;
    let half = (work.until_ns() - monotonic_ns()?) / 2;

    let since_ns = monotonic_ns()?;
    let pid = spin_as("first", half, None)?.context("the first child always runs")?;
    work.child(pid);
    work.named(named(pid, "first", since_ns, half)?);

    for _ in 0..TRIES {
        let since_ns = monotonic_ns()?;
        fs::write(
            "/proc/sys/kernel/ns_last_pid",
            (pid.as_raw() - 1).to_string(),
        )
        .context("ns_last_pid")?;
        if let Some(again) = spin_as("second", half, Some(pid))? {
            work.child(again);
            work.named(named(again, "second", since_ns, half)?);
            return work.end(2);
        }
    }
    bail!("the id {pid} could not be had a second time in {TRIES} tries")
}

/// Forks a child that spins under a name. With `only`, a child of another id ends at once and
/// counts for nothing.
fn spin_as(name: &str, span_ns: u64, only: Option<Pid>) -> Result<Option<Pid>> {
    // SAFETY: this process has one thread, so the child may do whatever the parent could.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            if only.is_none_or(|wanted| wanted == Pid::this()) {
                set_name(&CString::new(name)?)?;
                spin_for_cpu(span_ns)?;
            }
            std::process::exit(0)
        }
        ForkResult::Parent { child } => {
            waitpid(child, None)?;
            Ok((only.is_none_or(|wanted| wanted == child)).then_some(child))
        }
    }
}

fn named(pid: Pid, name: &str, since_ns: u64, cpu_ns: u64) -> Result<Named> {
    let until_ns = monotonic_ns()?;
    Ok(Named {
        pid: ids::Pid::from_raw(pid.as_raw()),
        name: name.into(),
        since_ns,
        until_ns,
        cpu_ns,
    })
}
