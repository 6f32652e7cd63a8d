//! `spin_user SECONDS CPU`: arithmetic, nothing else. All of its time is user time: even the clock
//! is read in user mode.

use anyhow::Result;
use tests::workload::truth::{Work, spin_until};

fn main() -> Result<()> {
    let work = Work::start("spin_user")?;
    let rounds = spin_until(work.until_ns())?;
    work.end(rounds)
}
