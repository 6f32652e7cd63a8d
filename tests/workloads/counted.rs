//! `counted threads|forks|churn NUMBER PAGES`: threads or processes that touch PAGES fresh pages
//! each, and print what the kernel has counted of them, each in a line.
//!
//! `threads`: NUMBER threads, eight at a time, and one before them that is not printed. `forks`:
//! NUMBER children one after the other; every second one executes `/bin/true`. `churn`: for NUMBER
//! milliseconds one thread after the other, eight at a time.

use std::io::Write as _;
use std::sync::Mutex;
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use experiment_format::ids::Tid;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, execv, fork};
use tests::workload::counted::{Counted, Fresh};

/// The number of threads that run at the same time.
const ABREAST: usize = 8;

#[expect(clippy::disallowed_methods, reason = "a check reads it")]
fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [what, number, pages] = args.as_slice() else {
        bail!("usage: counted threads|forks|churn NUMBER PAGES");
    };
    let (number, pages) = (number.parse()?, pages.parse()?);
    let counted = match what.as_str() {
        "threads" => threads(number, pages)?,
        "forks" => forks(number, pages)?,
        "churn" => churn(Duration::from_millis(number as u64), pages)?,
        other => bail!("{other}: no such work"),
    };
    let mut text = String::new();
    for counted in counted {
        text += &serde_json::to_string(&counted)?;
        text.push('\n');
    }
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn work(pages: usize) -> Result<Counted> {
    let mut fresh = Fresh::map(pages)?;
    fresh.touch(pages)?;
    drop(fresh);
    Counted::here()
}

fn threads(number: usize, pages: usize) -> Result<Vec<Counted>> {
    // The first thread that ends touches the code of ending, which belongs to no thread's work.
    let first = spawn(move || work(pages)).join();
    first.map_err(|_| anyhow!("a thread panicked"))??;
    let mut counted = Vec::new();
    while counted.len() < number {
        let many = ABREAST.min(number - counted.len());
        let threads: Vec<_> = (0..many).map(|_| spawn(move || work(pages))).collect();
        for thread in threads {
            counted.push(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
    }
    Ok(counted)
}

fn churn(time: Duration, pages: usize) -> Result<Vec<Counted>> {
    let until = Instant::now() + time;
    let all = Mutex::new(Vec::new());
    let one_by_one = || -> Result<()> {
        while Instant::now() < until {
            let counted = spawn(move || work(pages)).join();
            let counted = counted.map_err(|_| anyhow!("a thread panicked"))??;
            all.lock().map_err(|_| anyhow!("poisoned"))?.push(counted);
        }
        Ok(())
    };
    scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..ABREAST).map(|_| scope.spawn(one_by_one)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    all.into_inner().map_err(|_| anyhow!("poisoned"))
}

fn forks(number: usize, pages: usize) -> Result<Vec<Counted>> {
    let mut counted = Vec::new();
    let program = c"/bin/true";
    for child in 0..number {
        // SAFETY: this process has one thread, so the child may do whatever the parent could.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                let mut fresh = Fresh::map(pages)?;
                fresh.touch(pages)?;
                if child % 2 == 1 {
                    execv(program, &[program])?;
                }
                std::process::exit(0);
            }
            ForkResult::Parent { child } => {
                waitpid(child, None)?;
                counted.push(Counted {
                    tid: Tid::from_raw(child.as_raw()),
                    ..Counted::default()
                });
            }
        }
    }
    Ok(counted)
}
