//! `thread_starts SECONDS CPU [fifo]`: about a thousand threads a second, each of which starts and
//! exits between two ticks.
//!
//! A thread that does not block runs or waits for a CPU all the time, so the process's CPU time
//! beyond the first thread's, and what each has waited, are the times of all of them, to the last
//! instruction.
//!
//! Where others want the CPU, one of them could preempt a thread between its last look at its
//! clocks and its end. With `fifo` none can: the process has the lowest real-time priority, and its
//! threads do not preempt each other.

use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use experiment_format::microstate::Microstate;
use nix::time::ClockId;
use tests::workload::thread_times::{TimeAccount, waited_ns};
use tests::workload::truth::{Work, clock_ns, process_cpu_ns, schedule, variant};

/// The time between two starts.
const PAUSE: Duration = Duration::from_micros(800);

fn main() -> Result<()> {
    let mut work = Work::start("thread_starts")?;
    match variant().as_deref() {
        Err(_) => {}
        Ok("fifo") => schedule(libc::SCHED_FIFO, 1)?,
        Ok(other) => bail!("no variant {other:?}"),
    }
    // What the first thread used before the work is in both clocks.
    let mut children = TimeAccount::default();
    while !work.over()? {
        let thread = spawn(waited_ns);
        // It runs and ends in this time. A thread that waited for it would wake before its end,
        // preempt it, and make it wait once more after it has read how long it waited.
        work.blocked(Microstate::Sleep, || sleep(PAUSE))?;
        let waited = work
            .blocked(Microstate::UserLock, || thread.join())?
            .map_err(|_| anyhow!("a thread panicked"))??;
        children.threads += 1;
        children.tracked_ns += waited;
        children.credit(Microstate::WaitCpu, waited);
    }
    children.tracked_ns += process_cpu_ns()? - clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    work.account(&children);
    work.end(children.threads)
}
