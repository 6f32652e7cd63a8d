//! `state_wait SECONDS CPU`: three threads that spin on one CPU. Each runs a third of the time and
//! waits for the rest.

use std::thread::spawn;

use anyhow::{Result, anyhow};
use experiment_format::microstate::Microstate;
use tests::workload::thread_times::ThreadTimes;
use tests::workload::truth::{Work, spin_until};

fn main() -> Result<()> {
    let mut work = Work::start("state_wait")?;
    let until_ns = work.until_ns();
    let others = [(); 2].map(|()| {
        spawn(move || {
            let thread_times = ThreadTimes::start()?;
            spin_until(until_ns)?;
            thread_times.end()
        })
    });
    let rounds = spin_until(until_ns)?;
    for thread in others {
        let account = work.blocked(Microstate::UserLock, || thread.join())?;
        work.account(&account.map_err(|_| anyhow!("a spinner panicked"))??);
    }
    work.end(rounds)
}
