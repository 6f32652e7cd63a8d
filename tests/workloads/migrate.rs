//! `migrate SECONDS CPU`: moves to the next CPU as soon as it has arrived. Where the kernel's
//! migration thread is waited for, that is a sleep.

use anyhow::{Result, ensure};
use experiment_format::microstate::Microstate;
use tests::machine::online_cpus;
use tests::workload::truth::{Work, pin};

fn main() -> Result<()> {
    let mut work = Work::start("migrate")?;
    let cpus = online_cpus()?;
    ensure!(cpus.len() > 1, "there is no other CPU to go to");
    let mut moves = 0;
    for cpu in cpus.iter().copied().cycle() {
        if work.over()? {
            break;
        }
        work.blocked(Microstate::Sleep, || pin(cpu))??;
        moves += 1;
    }
    work.end(moves)
}
