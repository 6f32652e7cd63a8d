//! `mixed SECONDS CPU [quiet]`: all workloads of known microstate at once, or those that use nearly
//! no CPU, distributed over the CPUs in turn. Each prints its truth, and so does this process,
//! which waits for them.

use std::env::{args, current_exe};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use nix::unistd::Pid;
use tests::machine::online_cpus;
use tests::workload::loads;
use tests::workload::truth::{Work, pin};

fn main() -> Result<()> {
    let only_quiet = args().nth(3).is_some_and(|variant| variant == "quiet");
    let loads: Vec<_> = loads::possible()
        .filter(|load| load.is_quiet() || !only_quiet)
        .collect();
    let mut work = Work::start("mixed")?;
    let seconds = args().nth(1).context("SECONDS")?;
    let own = current_exe()?;
    let cpus = online_cpus()?;
    let mut children = Vec::new();
    for (load, cpu) in loads.iter().zip(cpus.iter().copied().cycle()) {
        let args = load.args(&own, &seconds, cpu);
        // A child starts where it will work.
        work.blocked(Microstate::Sleep, || pin(cpu))??;
        let child = work.blocked(Microstate::Sleep, || {
            Command::new(&args[0]).args(&args[1..]).spawn()
        })?;
        let child = child.with_context(|| load.to_string())?;
        work.child(Pid::from_raw(child.id().cast_signed()));
        children.push((load, child));
    }
    for (load, mut child) in children {
        let status = work.blocked(Microstate::Sleep, || child.wait())??;
        ensure!(status.success(), "{load}: {status}");
    }
    work.end(loads.len() as u64)
}
