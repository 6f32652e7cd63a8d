//! `bursts SECONDS VARIANT`: three functions in turn, each on the CPU for some tens of
//! microseconds, and then a wait: `disk` (a write that is waited for), `even` (naps of 2 ms, with
//! the timer slack of every program, so that they run in step with the clock), or `random` (naps of
//! random lengths, out of step).
//!
//! Prints the measured CPU time of each function and of the process ([`tests::workload::bursts`]).

use std::env::args;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use tests::workload::bursts::BurstTruth;
use tests::workload::naps::Naps;

/// The rounds of a loop that takes about 80 µs.
const ROUNDS: u32 = 120_000;

/// Does some rounds of work. Returns the CPU time that they took, nanoseconds.
#[inline(always)]
fn work(rounds: u32) -> Result<u64> {
    let begin = cpu_ns()?;
    let mut x = 1_u32;
    for round in 0..rounds {
        x = black_box(x.wrapping_mul(2_654_435_761).wrapping_add(round));
    }
    black_box(x);
    Ok(cpu_ns()? - begin)
}

#[inline(never)]
fn burst_one() -> Result<u64> {
    work(ROUNDS)
}

#[inline(never)]
fn burst_two() -> Result<u64> {
    work(2 * ROUNDS)
}

#[inline(never)]
fn burst_four() -> Result<u64> {
    work(4 * ROUNDS)
}

fn cpu_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(u64::try_from(time.num_nanoseconds())?)
}

fn main() -> Result<()> {
    let mut args = args().skip(1);
    let seconds: f64 = args.next().context("SECONDS")?.parse()?;
    let wait: Box<dyn FnMut() -> Result<()>> = match args.next().as_deref() {
        Some("disk") => {
            let file: File = tempfile::tempfile_in("/var/tmp").context("/var/tmp")?;
            Box::new(move || {
                file.write_all_at(&[0x55; 4096], 0)?;
                Ok(file.sync_data()?)
            })
        }
        Some("even") => Box::new(|| {
            sleep(Duration::from_millis(2));
            Ok(())
        }),
        Some("random") => {
            let mut naps = Naps::new()?;
            Box::new(move || {
                sleep(naps.next_length());
                Ok(())
            })
        }
        other => bail!("no variant {other:?}"),
    };
    repeat(seconds, wait)
}

fn repeat(seconds: f64, mut wait: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut functions_ns = [0; 3];
    while Instant::now() < end {
        for (sum, burst) in functions_ns
            .iter_mut()
            .zip([burst_one, burst_two, burst_four])
        {
            *sum += burst()?;
        }
        wait()?;
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    let truth = BurstTruth {
        pid: std::process::id(),
        functions_ns,
        cpu_us: u64::try_from(micros)?,
    };
    println!("{}", serde_json::to_string(&truth)?);
    Ok(())
}
