//! `throttled SECONDS CPU [PERCENT]`: spins in a control group that may use PERCENT (30) percent of
//! a CPU. For the rest of the time it is runnable but throttled, which is a wait for a CPU; the
//! kernel sums it up for the group.

use std::env::args;

use anyhow::{Context, Result};
use experiment_format::microstate::Microstate;
use tests::machine::cgroup::Quota;
use tests::workload::truth::{Work, spin_until};

fn main() -> Result<()> {
    let percent = args().nth(3).map_or(Ok(30), |word| word.parse());
    let mut work = Work::start("throttled")?;
    let percent = percent.context("PERCENT is a number")?;
    let quota = work.blocked(Microstate::Sleep, || Quota::enter(percent))??;
    let rounds = spin_until(work.until_ns())?;
    // First, or it may be throttled once more after the group's sum is read.
    work.blocked(Microstate::Sleep, || quota.leave())??;
    work.throttled(quota.throttled_ns()?);
    work.blocked(Microstate::Sleep, || drop(quota))?;
    work.end(rounds)
}
