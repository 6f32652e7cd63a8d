//! `state_woken SECONDS CPU`: a process that another CPU wakes some ten thousand times a second, at
//! random times, while a third process spins on its CPU. Each wake-up preempts the spinner, and the
//! process blocks again at once: most of its time on a CPU is between its wake-up and its context
//! switch. It sets no timer, so it cannot go in step with the ticks.

use std::io::{Read, Write, pipe};

use anyhow::{Context, Result, ensure};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tests::workload::truth::{Work, monotonic_ns, pin, spin_until};

/// Minimum time between two wake-ups.
const MIN_GAP_NS: u64 = 50_000;
/// The random part of it is shorter than this.
const RANDOM_GAP_NS: u64 = 100_000;

fn main() -> Result<()> {
    let work = Work::start("state_woken")?;
    let (until_ns, here) = (work.until_ns(), work.cpu());
    let (mut woken, wakes) = pipe().context("a pipe")?;
    let spinner = child(|| spin_until(until_ns).map(drop))?;
    let waker = child(|| {
        pin(usize::from(here == 0))?;
        wake(&wakes, until_ns)
    })?;
    // So that the end of the waker is the end of the pipe.
    drop(wakes);
    let mut wake_ups = 0;
    while woken.read(&mut [0])? > 0 {
        wake_ups += 1;
    }
    for pid in [spinner, waker] {
        let end = waitpid(pid, None)?;
        ensure!(end == WaitStatus::Exited(pid, 0), "a child: {end:?}");
    }
    work.end(wake_ups)
}

/// Forks a child that does this and exits.
fn child(work: impl FnOnce() -> Result<()>) -> Result<Pid> {
    // SAFETY: this process has one thread, so the child may do whatever the parent could.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            let code = work().inspect_err(|error| eprintln!("{error:#}")).is_err();
            std::process::exit(i32::from(code))
        }
        ForkResult::Parent { child } => Ok(child),
    }
}

fn wake(mut wakes: impl Write, until_ns: u64) -> Result<()> {
    let mut next_ns = monotonic_ns()?;
    let mut random = next_ns;
    while next_ns < until_ns {
        // Knuth's linear congruential generator; the upper bits are the random ones.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        next_ns += MIN_GAP_NS + (random >> 32) * RANDOM_GAP_NS / (1 << 32);
        while monotonic_ns()? < next_ns {}
        wakes.write_all(&[0])?;
    }
    Ok(())
}
