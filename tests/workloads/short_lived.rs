//! `short_lived SECONDS CPU`: forks children that name themselves, spin for a few milliseconds and
//! exit before `/proc` can be read for them.

use std::ffi::CString;

use anyhow::{Context, Result};
use experiment_format::ids;
use nix::sys::prctl::set_name;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use tests::workload::truth::{Named, Work, monotonic_ns, spin_for_cpu};

/// CPU time of a child under its own name, nanoseconds.
const LIFE_NS: u64 = 3_000_000;

fn main() -> Result<()> {
    let mut work = Work::start("short_lived")?;
    let mut children = 0u64;
    while !work.over()? {
        let name = format!("child{children}");
        let since_ns = monotonic_ns()?;
        // SAFETY: this process has one thread, so the child may do whatever the parent could.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                set_name(&CString::new(name)?)?;
                spin_for_cpu(LIFE_NS)?;
                return Ok(());
            }
            ForkResult::Parent { child } => {
                waitpid(child, None)?;
                work.child(child);
                work.named(named(child, name, since_ns)?);
                children += 1;
            }
        }
    }
    work.end(children)
}

fn named(pid: Pid, name: String, since_ns: u64) -> Result<Named> {
    let until_ns = monotonic_ns()?;
    Ok(Named {
        pid: ids::Pid::from_raw(pid.as_raw()),
        name: name.into_bytes(),
        since_ns,
        until_ns,
        cpu_ns: LIFE_NS,
    })
}
