//! How long a report of a large experiment takes, and how much memory, compared with stock gprofng.
//!
//! The experiment is made, not recorded: a million packets with 200 thousand symbols, the budget of
//! the design. Each run is a process of its own, the files are in the page cache, and ours is the
//! median of five. The program is `KCOLLECT`, or the kcollect next to this benchmark.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tests::experiment::synthetic::{Size, large};

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    size: Size,
    /// Make the experiment in this directory and leave it there; if it is there already, it is
    /// taken as it is
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Leave gprofng out
    #[arg(long)]
    alone: bool,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The cost of a run.
struct Took {
    time: Duration,
    /// CPU time, which counts on a busy machine.
    cpu: Duration,
    /// Peak memory of any run so far, kilobytes.
    peak_kb: i64,
}

fn run(command: &mut Command) -> Result<Took> {
    let (begun, before) = (Instant::now(), children_cpu()?);
    let status = command.stdout(Stdio::null()).status()?;
    let (time, cpu) = (begun.elapsed(), children_cpu()? - before);
    ensure!(status.success(), "{command:?}: {status}");
    let peak_kb = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    Ok(Took { time, cpu, peak_kb })
}

fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds());
    Ok(Duration::from_micros(u64::try_from(
        micros.iter().sum::<i64>(),
    )?))
}

fn kcollect() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KCOLLECT") {
        return Ok(path.into());
    }
    // target/release/deps/report-0123456789abcdef
    let own = std::env::current_exe()?;
    let directory = own.ancestors().nth(2).context("no directory")?;
    Ok(directory.join("kcollect"))
}

fn ours(experiment: &Path, view: &str) -> Result<Took> {
    let mut runs = Vec::new();
    for _ in 0..5 {
        let mut command = Command::new(kcollect()?);
        runs.push(run(command
            .arg("report")
            .arg(experiment)
            .args([view, "-n", "20"]))?);
    }
    runs.sort_by_key(|run| run.time);
    runs.into_iter().nth(2).context("no run")
}

fn main() -> Result<()> {
    let options = Options::parse();
    let directory = tempfile::tempdir()?;
    let parent = options.directory.as_deref().unwrap_or(directory.path());
    let made = parent.join("made.1.er");
    let experiment = if made.exists() {
        made
    } else {
        large(parent, options.size)?
    };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "seconds", "CPU seconds", "peak MB"]);
    let mut row = |name: &str, took: &Took| {
        let peak = took.peak_kb as f64 / 1024.0;
        table.add_row([
            name.to_owned(),
            format!("{:.3}", took.time.as_secs_f64()),
            format!("{:.3}", took.cpu.as_secs_f64()),
            format!("{peak:.0}"),
        ]);
    };
    let functions = ours(&experiment, "functions")?;
    row("kcollect report functions", &functions);
    row("kcollect report threads", &ours(&experiment, "threads")?);
    if !options.alone {
        let mut command = Command::new("gprofng");
        command
            .args(["display", "text", "-limit", "20", "-functions"])
            .arg(&experiment)
            .env("HOME", directory.path());
        // Its peak is the largest of all runs, by far.
        let gprofng = run(&mut command)?;
        row("gprofng display text -functions", &gprofng);
        let ratio = gprofng.cpu.as_secs_f64() / functions.cpu.as_secs_f64();
        println!("{table}\n\ngprofng takes {ratio:.0} times as much CPU time");
        return Ok(());
    }
    println!("{table}");
    Ok(())
}
