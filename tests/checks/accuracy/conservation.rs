//! With `-x off` nothing of a CPU's time is missing: its ticks, times the interval, are the time
//! that passed.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use experiment_format::losses::{RecordedTotals, phrase};
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment;
use tests::experiment::states::MAX_STOLEN_ERROR_SHARE;
use tests::experiment::summary::{CpuStats, RunSummary};
use tests::gprofng;
use tests::kcollect::{Recording, record};
use tests::machine::{Setting, alone, online_cpus, stolen_everywhere, stolen_since, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;

/// Maximum time from the start of the experiment to the first CPU's clock, and from the last clock
/// to the end, nanoseconds.
const EDGE_NS: f64 = 5e7;

#[test]
fn root_alone_ticks_are_elapsed_time_at_hi() -> Result<()> {
    conserves("hi", "2")
}

#[test]
fn root_alone_ticks_are_elapsed_time_at_on() -> Result<()> {
    conserves("on", "2")
}

#[test]
fn root_alone_ticks_are_elapsed_time_at_lo() -> Result<()> {
    conserves("lo", "4")
}

fn conserves(interval: &str, seconds: &str) -> Result<()> {
    alone(|| {
        // One CPU is busy, with sleeps and wake-ups of all kinds; the others are mostly idle.
        let cpu = work_cpu()?.to_string();
        let mut load = std::process::Command::new(workload!("spawner"));
        let _load = Running::start(load.args([seconds, &cpu]), Duration::from_secs(60))?;
        let before_ns = stolen_everywhere()?;
        let recorded = record(
            &["-p", interval, "-x", "off", "-t", seconds],
            &[],
            Duration::from_secs(40),
        )?;
        let experiment = recorded.experiment()?;
        let summary = RunSummary::of(&experiment)?;
        // No tick is lost. The names of a thousand processes a second may be, if others want the
        // CPUs as well: one compiler has been enough.
        summary.without(&["ring_full", "not_written", "unaccounted"])?;
        let header = gprofng::header(&experiment)?;
        // Time stolen from threads; the hypervisor's sum includes idle CPUs, over a longer time.
        let stolen_ns = summary.detail_s.stolen * 1e9;
        let max_ns = stolen_since(before_ns)?;
        ensure!(
            stolen_ns <= max_ns,
            "{stolen_ns} ns stolen from threads, not {max_ns} at most"
        );
        let ticks: u64 = summary.cpus.iter().map(|cpu| cpu.stolen).sum();
        let all: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
        let intervals = stolen_ns / header.interval_ns;
        Band::time(
            stolen_ns,
            all as f64 * header.interval_ns,
            header.interval_ns,
        )
        .with_stints(intervals)
        .with_edges(MAX_STOLEN_ERROR_SHARE * intervals)
        .judge("ticks of stolen CPUs", ticks as f64)?;
        let cpus = gprofng::objects(&experiment, "cpus")?;
        for cpu in online_cpus()? {
            let stats = summary.cpu(cpu)?;
            let ticks = stats.ticks() as f64;
            stats.elapsed(header.interval_ns, 1)?;

            // That time is the run, but for the moment that starting and stopping takes.
            let missing = header.duration_ns - stats.recorded_ns;
            ensure!(
                (-1.0..EDGE_NS).contains(&missing),
                "CPU {cpu} was recorded for {} s of {} s",
                stats.recorded_ns / 1e9,
                header.duration_ns / 1e9
            );

            // And gprofng shows all of them. It rounds to a thousandth of a second.
            let shown = cpus.get(&format!("CPU {cpu}")) * 1e9 / header.interval_ns;
            ensure!(
                (shown - ticks).abs() < 1.0,
                "gprofng shows {shown} ticks of {ticks} of CPU {cpu}"
            );
        }
        Ok(())
    })
}

#[test]
fn root_alone_idle_is_left_out_unless_asked_for() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?.to_string();
        let recorded = record(
            &["-p", "hi"],
            &[workload!("spin_user"), "2", &cpu],
            Duration::from_secs(40),
        )?;
        let experiment = recorded.experiment()?;
        let summary = RunSummary::of(&experiment)?;
        summary.complete()?;
        let functions = gprofng::functions(&experiment, None)?;
        ensure!(
            functions.find("<IDLE>").is_none(),
            "idle ticks were recorded: {functions:?}"
        );
        ensure!(
            gprofng::header(&experiment)?.text.contains("idle CPUs"),
            "the header does not say that idle is left out"
        );

        // It is left out of the experiment, not of the statistics.
        let idle: u64 = summary.cpus.iter().map(|cpu| cpu.idle).sum();
        let all: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
        ensure!(
            summary.ticks == all - idle,
            "{} ticks recorded, of {all} with {idle} idle",
            summary.ticks
        );
        for cpu in &summary.cpus {
            cpu.elapsed(experiment::interval_ns(&experiment)?, 1)?;
        }
        Ok(())
    })
}

/// A clock that has fired as often as the kernel permits since the CPU's last scheduler tick is
/// stopped until the next, and fires at other instants afterwards. At the least rate that permits
/// the interval, an idle CPU's clock is stopped all the time.
#[test]
fn root_alone_a_clock_that_the_kernel_throttles_keeps_time() -> Result<()> {
    alone(|| {
        let _setting = Setting::set("/proc/sys/kernel/perf_event_max_sample_rate", "1000")?;
        let recorded = record(
            &["-p", "on", "-x", "off", "-t", "6"],
            &[],
            Duration::from_secs(40),
        )?;
        let summary = RunSummary::of(&recorded.experiment()?)?;
        summary.complete()?;
        for cpu in &summary.cpus {
            cpu.elapsed(summary.interval_us * 1e3, 1)?;
        }
        Ok(())
    })
}

/// A collector that cannot read for seconds overflows its rings. What is missing then is counted to
/// the tick, and reported.
#[test]
fn root_alone_what_a_stalled_collector_loses_is_counted() -> Result<()> {
    alone(|| {
        // 10,000 records a second and CPU, of 40 bytes at the least, fill 2 MiB in less than three
        // seconds.
        let arguments = ["-p", "0.1", "-x", "off", "-t", "7"];
        let mut recording = Recording::start(arguments, Duration::from_secs(40))?;
        recording.until_running()?;
        sleep(Duration::from_millis(500));
        recording.signal(Signal::SIGSTOP)?;
        sleep(Duration::from_secs(5));
        recording.signal(Signal::SIGCONT)?;
        let recorded = recording.finish()?.succeeded()?;
        let experiment = recorded.experiment()?;
        let summary = RunSummary::of(&experiment)?;
        let lost = summary.losses.get("ring_full").copied().unwrap_or_default();
        ensure!(lost > 0, "five seconds without a reader lost nothing");
        let passed: u64 = summary.cpus.iter().map(CpuStats::ticks).sum();
        ensure!(
            passed == summary.ticks + lost as u64,
            "{passed} ticks passed, {} are written and {lost} lost",
            summary.ticks
        );
        let written = experiment::ticks(&experiment)?;
        ensure!(
            written == summary.ticks,
            "the statistics have {} ticks, the experiment holds {written}",
            summary.ticks
        );
        for cpu in &summary.cpus {
            cpu.elapsed(summary.interval_us * 1e3, 1)?;
        }
        let header = gprofng::header(&experiment)?.text;
        let totals = RecordedTotals {
            ticks: summary.ticks,
            ..RecordedTotals::default()
        };
        ensure!(
            header.contains(&phrase("ring_full", lost, &totals)),
            "the header does not have the loss: {header}"
        );
        Ok(())
    })
}
