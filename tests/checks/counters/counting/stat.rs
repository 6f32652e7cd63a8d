//! `kcollect stat`: the total is the sum of all CPUs, also of those that go offline.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::command::{Running, run};
use tests::kcollect::command;
use tests::machine::disturbance::{judge_times, not_judged};
use tests::machine::{Offline, online_cpus, work_cpu};

use super::track::{count, of, rows};

const LIMIT: Duration = Duration::from_secs(30);
const EVENTS: [&str; 3] = ["cpu-clock", "context-switches", "page-faults"];

#[test]
fn root_alone_the_total_is_the_sum_of_the_cpus() -> Result<()> {
    judge_times(|| {
        let args = [
            "stat",
            "-p",
            "0.25",
            "-N",
            "4",
            "--json",
            "-c",
            &EVENTS.join(","),
        ];
        let finished = run(&mut command(args)?, LIMIT)?.succeeded()?;
        let rows = rows(&finished);
        let cpus = online_cpus()?.len();
        ensure!(of(&rows, "tick").count() == 4 * cpus, "{finished}");
        let total = of(&rows, "total").next().context("no total")?;
        for event in EVENTS {
            let sum: u64 = of(&rows, "tick").map(|row| count(row, event)).sum();
            ensure!(
                sum == count(total, event),
                "{event}: {sum} in ticks, {total}"
            );
        }
        let stolen = |row: &Value| row["stolen_ns"].as_u64().context("no stolen time");
        let sum: u64 = of(&rows, "tick").map(stolen).sum::<Result<u64>>()?;
        ensure!(sum == stolen(total)?, "{sum} ns stolen in ticks, {total}");
        // A CPU's clock runs whether it is busy or not.
        for row in of(&rows, "tick") {
            let clock = count(row, "cpu-clock") as f64 / 1e9;
            ensure!((0.2..0.35).contains(&clock), "{row}");
        }
        Ok(())
    })
}

#[test]
fn root_alone_a_cpu_that_goes_offline_keeps_its_counts_and_is_counted_again() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?;
        if !Offline::possible(cpu) {
            not_judged(format_args!(
                "CPU {cpu} of this machine cannot be taken offline"
            ));
            return Ok(());
        }
        let args = ["stat", "-p", "0.2", "--json", "-c", &EVENTS.join(",")];
        let stat = Running::start(&mut command(args)?, LIMIT)?;
        sleep(Duration::from_millis(700));
        let offline = Offline::take(cpu)?;
        sleep(Duration::from_millis(700));
        offline.back()?;
        sleep(Duration::from_millis(900));
        stat.signal(Signal::SIGINT)?;
        let finished = stat.finish()?.succeeded()?;
        let rows = rows(&finished);
        let of_cpu = rows.iter().filter(|row| row["cpu"] == cpu);
        let events: Vec<_> = of_cpu.filter_map(|row| row["event"].as_str()).collect();
        let changes: Vec<_> = events.iter().filter(|event| **event != "tick").collect();
        ensure!(changes == [&"offline", &"online"], "{finished}");
        ensure!(events.last() == Some(&"tick"), "{finished}");
        let total = of(&rows, "total").next().context("no total")?;
        for event in EVENTS {
            let counted = rows
                .iter()
                .filter(|row| row["cpu"].is_u64() && row["counts"].is_object());
            let sum: u64 = counted.map(|row| count(row, event)).sum();
            ensure!(
                sum == count(total, event),
                "{event}: {sum} in rows, {total}\n{finished}"
            );
        }
        // While it was away it counted nothing: 1.6 seconds of 2.3, give or take a tick.
        let clock: u64 = rows
            .iter()
            .filter(|row| row["cpu"] == cpu && row["counts"].is_object())
            .map(|row| count(row, "cpu-clock"))
            .sum();
        let clock = clock as f64 / 1e9;
        ensure!(
            (1.2..2.0).contains(&clock),
            "{clock} s on CPU {cpu}\n{finished}"
        );
        Ok(())
    })
}
