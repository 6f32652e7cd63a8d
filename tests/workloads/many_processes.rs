//! `many_processes WHAT COUNT SECONDS`: COUNT `threads`, or `processes`, all at once. Each works a
//! little now and then. It prints `ready` when all are there, and ends when all have ended.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::wait::wait;
use nix::unistd::{ForkResult, fork};

/// The stack size of a thread, bytes.
const STACK: usize = 64 * 1024;

/// The time of work, before each sleep.
const WORK: Duration = Duration::from_micros(50);
const REST: Duration = Duration::from_millis(900);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, count, seconds] = &args[..] else {
        bail!("many_processes WHAT COUNT SECONDS");
    };
    let (count, time) = (count.parse()?, Duration::from_secs_f64(seconds.parse()?));
    match &**what {
        "threads" => threads(count, time),
        "processes" => processes(count, time),
        other => bail!("no {other:?}"),
    }
}

fn live(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        let begin = Instant::now();
        while begin.elapsed() < WORK {}
        sleep(REST.min(time.saturating_sub(start.elapsed())));
    }
}

#[expect(clippy::disallowed_methods, reason = "a check waits for the line")]
fn ready() -> Result<()> {
    println!("ready");
    Ok(std::io::stdout().flush()?)
}

fn threads(count: usize, time: Duration) -> Result<()> {
    let all = Arc::new(Barrier::new(count + 1));
    let mut threads = Vec::new();
    for number in 0..count {
        let all = Arc::clone(&all);
        let live = move || {
            all.wait();
            live(time);
        };
        let builder = Builder::new().stack_size(STACK);
        threads.push(
            builder
                .spawn(live)
                .with_context(|| format!("thread {number}"))?,
        );
    }
    all.wait();
    ready()?;
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a thread panicked"))?;
    }
    Ok(())
}

fn processes(count: usize, time: Duration) -> Result<()> {
    for number in 0..count {
        // SAFETY: this process has one thread, so the child may do whatever the parent could.
        match unsafe { fork() }.with_context(|| format!("process {number}"))? {
            ForkResult::Child => {
                live(time);
                std::process::exit(0);
            }
            ForkResult::Parent { .. } => {}
        }
    }
    ready()?;
    for _ in 0..count {
        wait()?;
    }
    Ok(())
}
