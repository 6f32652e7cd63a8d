//! What kcollect costs the work that it watches: `cargo bench -p tests` (as root).
//!
//! Two loads, each with nothing running, under `-p on` and under `-p hi`, in turns, so that a slow minute of the machine
//! falls on all of them alike. Medians and their ratios to nothing running are printed; machines differ, ratios less.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::unistd::pipe;
use tests::kcollect::Recording;
use tests::machine::{Exclusive, online_cpus, work_cpu};
use tests::truth::pin;

const ROUNDS: usize = 7;
const SPINS: u64 = 150_000_000;
const TRIPS: u32 = 60_000;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let _machine = Exclusive::take()?;
    let settings: [(&str, Option<&str>); 3] = [
        ("nothing", None),
        ("-p on", Some("on")),
        ("-p hi", Some("hi")),
    ];
    let mut spinning = [const { Vec::new() }; 3];
    let mut piping = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (slot, (_, interval)) in settings.iter().enumerate() {
            let recording = interval.map(start).transpose()?;
            spinning[slot].push(spin_everywhere()?);
            piping[slot].push(ping_pong()?);
            if let Some(recording) = recording {
                recording.stop()?;
            }
        }
    }
    report("arithmetic on all CPUs, ms", 1e3, &settings, spinning);
    report(
        "pipe ping-pong on one CPU, us a round trip",
        1e6 / f64::from(TRIPS),
        &settings,
        piping,
    );
    Ok(())
}

fn start(interval: &str) -> Result<Recording> {
    let mut recording = Recording::start(["-p", interval], LIMIT)?;
    recording.until_running()?;
    Ok(recording)
}

/// Seconds for a fixed amount of arithmetic on every CPU at once.
fn spin_everywhere() -> Result<f64> {
    let cpus = online_cpus()?;
    let start = Instant::now();
    scope(|scope| {
        let threads: Vec<_> = cpus
            .into_iter()
            .map(|cpu| {
                scope.spawn(move || {
                    pin(cpu)?;
                    let mut value = 1u64;
                    for _ in 0..SPINS {
                        value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a spinner died"))?)
    })?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds for a byte to go to and fro between two threads of one CPU: two switches a trip.
fn ping_pong() -> Result<f64> {
    let cpu = work_cpu()?;
    let (there_out, there_in) = pipe()?;
    let (back_out, back_in) = pipe()?;
    let echo = spawn(move || {
        pin(cpu)?;
        trips(there_out, back_in, false)
    });
    let start = Instant::now();
    // In a thread of its own: the one that measures stays free to run anywhere.
    let caller = spawn(move || {
        pin(cpu)?;
        trips(back_out, there_in, true)
    });
    for thread in [caller, echo] {
        thread
            .join()
            .map_err(|_| anyhow!("an end of the pipe died"))??;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn trips(from: OwnedFd, to: OwnedFd, first: bool) -> Result<()> {
    let (mut from, mut to) = (File::from(from), File::from(to));
    let mut byte = [0];
    for _ in 0..TRIPS {
        if first {
            to.write_all(&byte)?;
        }
        from.read_exact(&mut byte)?;
        if !first {
            to.write_all(&byte)?;
        }
    }
    Ok(())
}

fn report(what: &str, scale: f64, settings: &[(&str, Option<&str>); 3], times: [Vec<f64>; 3]) {
    println!("{what} (median of {ROUNDS}, and its ratio to nothing running)");
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * scale
    });
    for ((name, _), median) in settings.iter().zip(medians) {
        println!("  {name:8} {median:10.3}  {:.3}", median / medians[0]);
    }
}
