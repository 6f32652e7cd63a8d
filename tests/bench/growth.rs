//! How the cost of kcollect grows with the number of threads, of processes, and with time: `make
//! growth`, or as root `cargo bench -p tests --bench growth`. Options come after `--`.
//!
//! Each thread or process computes for 50 us a second, so the work is small and what is measured is
//! kcollect itself: its CPU time in a steady state, and the CPU time per thread added since the
//! previous row, which stays the same if the cost is linear.
//!
//! The last tables are of one experiment, and of a series (`--rotate`), during a load that is
//! compressed 24 times: with fifty new programs a second and a rotation every 25 s, 15 minutes have
//! as many as six hours with two programs a second and a rotation every ten minutes. Memory should
//! be the same at the end as in the first minutes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table};
use experiment_format::log::LogEvent;
use experiment_format::reader::Experiment;
use nix::time::ClockId;
use serde_json::Value;
use tests::command::Running;
use tests::experiment::series::disk_usage;
use tests::kcollect::{Recording, experiments_in};
use tests::machine::used::{cpu_time, memory};
use tests::machine::{Exclusive, Setting};
use tests::workload;

/// A series that rotates as one every ten minutes does in 24 times the time.
const SERIES: [&str; 5] = ["--rotate", "25s", "--keep", "200M", "--pack"];
/// Maximum time that a measurement takes.
const LIMIT: Duration = Duration::from_hours(8);

/// After the start, until new threads and files are known.
const SETTLING: Duration = Duration::from_secs(4);

/// How the cost of kcollect grows
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench -p tests --bench growth --")]
struct Options {
    /// For how long the steady state of each number is measured, seconds
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Numbers of threads of one process
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,5000,20000")]
    threads: Vec<u32>,
    /// Numbers of processes
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,5000")]
    processes: Vec<u32>,
    /// For how long one experiment and the series are recorded, minutes; 0 leaves them out
    #[arg(long, default_value_t = 15)]
    minutes: u32,
    /// Print tables as Markdown
    #[arg(long)]
    markdown: bool,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let _machine = Exclusive::take()?;
    // A thread has four mappings.
    let _mappings = Setting::set("/proc/sys/vm/max_map_count", "262144")?;
    for (what, counts) in [
        ("threads", &options.threads),
        ("processes", &options.processes),
    ] {
        let mut table = titled(
            &options,
            &[
                what,
                "to the first tick, s",
                "CPU, % of one",
                "more of each, 1/1000 %",
                "in the kernel, % of all CPUs",
                "memory, MB",
                "B/thread tick",
                "to the summary, s",
                "lost",
            ],
        );
        let mut before = (0, 0.0);
        for count in counts {
            eprintln!("{count} {what} ...");
            let measured = measure(what, *count, options.seconds)?;
            let more = (measured.cpu_percent - before.1) / f64::from(count - before.0);
            before = (*count, measured.cpu_percent);
            table.add_row([
                count.to_string(),
                format!("{:.2}", measured.started.as_secs_f64()),
                format!("{:.2}", measured.cpu_percent),
                format!("{:.2}", 1000.0 * more),
                format!("{:.3}", measured.programs_percent),
                format!("{:.1}", measured.memory_bytes as f64 / 1e6),
                format!("{:.1}", measured.bytes_per_tick),
                format!("{:.2}", measured.ended.as_secs_f64()),
                measured.lost.to_string(),
            ]);
        }
        println!("{table}\n");
    }
    if options.minutes > 0 {
        println!("{}\n", over_time(&options, &[])?);
        println!("{}", over_time(&options, &SERIES)?);
    }
    Ok(())
}

fn titled(options: &Options, titles: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(if options.markdown {
        ASCII_MARKDOWN
    } else {
        NOTHING
    });
    table.set_header(titles);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What a recording took.
struct Measured {
    started: Duration,
    cpu_percent: f64,
    programs_percent: f64,
    memory_bytes: u64,
    bytes_per_tick: f64,
    ended: Duration,
    lost: i64,
}

fn measure(what: &str, count: u32, seconds: u32) -> Result<Measured> {
    let time = Duration::from_secs(seconds.into());
    let lifetime = SETTLING + time + Duration::from_secs(15);
    let mut load = Command::new(workload!("many_processes"));
    load.args([what, &count.to_string(), &lifetime.as_secs().to_string()]);
    let mut load = Running::start(&mut load, LIMIT)?;
    let begun = Instant::now();
    load.until_printed()?;
    let (start, start_ns) = (Instant::now(), monotonic_ns()?);
    let mut recording = Recording::start(["-p", "on", "-F", "on", "-A", "off"], LIMIT)?;
    recording.until_running()?;
    sleep(SETTLING);
    let pid = recording.running().pid();
    let (since, before) = (Instant::now(), cpu_time(pid)?);
    sleep(time);
    let used = cpu_time(pid)? - before;
    let cpu_percent = 100.0 * used.as_secs_f64() / since.elapsed().as_secs_f64();
    let memory_bytes = memory(pid, "VmHWM:")?;
    let end = Instant::now();
    let recorded = recording.stop()?;
    let ended = end.elapsed();
    let experiment = recorded.experiment()?;
    // The log is written some time after it.
    let started = Duration::from_nanos(recording_since(&experiment)? - start_ns);
    let json = summary(&experiment)?;
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    load.finish()?.succeeded()?;
    eprintln!("  ready after {:.1} s", (start - begun).as_secs_f64());
    Ok(Measured {
        started,
        cpu_percent,
        programs_percent: number(&json["cost"]["programs_percent"]),
        memory_bytes,
        bytes_per_tick: number(&json["cost"]["bytes_written"])
            / number(&json["thread_ticks"]).max(1.0),
        ended,
        lost: lost(&experiment)?,
    })
}

/// Records while a shell starts programs. Returns a row for each minute.
fn over_time(options: &Options, words: &[&str]) -> Result<Table> {
    let mut table = titled(
        options,
        &[
            "minute",
            "CPU, % of one",
            "memory, MB",
            "most by then, MB",
            "experiments",
            "disk, MB",
        ],
    );
    let seconds = 60 * options.minutes + 30;
    let script = format!(
        "end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do /bin/true; sleep 0.05; done"
    );
    let load = Running::start(Command::new("sh").args(["-c", &script]), LIMIT)?;
    // Not what else the machine runs.
    let words = ["-p", "on", "-F", "=sh|true|sleep"].iter().chain(words);
    let mut recording = Recording::start(words, LIMIT)?;
    let experiment = recording.until_running()?;
    let directory = experiment.parent().context("a directory")?.to_owned();
    let pid = recording.running().pid();
    let mut before = cpu_time(pid)?;
    for minute in 1..=options.minutes {
        sleep(Duration::from_mins(1));
        let used = cpu_time(pid)?;
        let experiments = experiments_in(&directory)?;
        let disk_usage = disk_usage(&experiments);
        table.add_row([
            minute.to_string(),
            format!("{:.2}", 100.0 * (used - before).as_secs_f64() / 60.0),
            format!("{:.1}", memory(pid, "VmRSS:")? as f64 / 1e6),
            format!("{:.1}", memory(pid, "VmHWM:")? as f64 / 1e6),
            experiments.len().to_string(),
            format!("{:.1}", disk_usage as f64 / 1e6),
        ]);
        before = used;
    }
    let end = Instant::now();
    let recorded = recording.stop()?;
    let took = end.elapsed().as_secs_f64();
    let experiments = experiments_in(recorded.directory())?;
    let lost: i64 = experiments
        .iter()
        .map(|path| lost(path))
        .sum::<Result<_>>()?;
    eprintln!("  {took:.1} s from the end to its last word, {lost} lost");
    load.finish()?.succeeded()?;
    Ok(table)
}

/// Returns how many records of an experiment were lost.
fn lost(path: &Path) -> Result<i64> {
    let experiment = Experiment::open(path)?;
    let json = summary(experiment.path())?;
    let losses = json["losses"].as_object().context("losses")?;
    let names = [
        "ring_full",
        "not_written",
        "unaccounted",
        "sideband",
        "off_cpu",
    ];
    let lost = names.iter().map(|name| losses[*name].as_i64().unwrap_or(0));
    Ok(lost.sum())
}

/// Returns when recording started, CLOCK_MONOTONIC nanoseconds.
fn recording_since(experiment: &Path) -> Result<u64> {
    let experiment = Experiment::open(experiment)?;
    let resumed = experiment.events().iter().find_map(|event| match event {
        LogEvent::Resume { at_ns } => Some(experiment.start().tstamp_ns + *at_ns),
        _ => None,
    });
    Ok(resumed.context("recording never started")?.0)
}

fn monotonic_ns() -> Result<u64> {
    let now = Duration::from(nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    Ok(now.as_nanos().try_into()?)
}

fn summary(experiment: &Path) -> Result<Value> {
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    Ok(serde_json::from_str(&text)?)
}
