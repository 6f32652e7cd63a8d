//! Ticks stand for the exact time of their thread and state: what reports show of functions adds up
//! to what the kernel says of the process, and without weights to what gprofng shows.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use analysis::aggregate::{functions, totals};
use analysis::filter::{Filter, ProcessFilter, Selection};
use analysis::load::exact::ExactTimes;
use analysis::metric::BaseMetric;
use analysis::model::{Model, NOT_SAMPLED, ZERO_SUMS};
use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use serde_json::Value;
use tests::gprofng::script;
use tests::kcollect::{record, run_in};
use tests::machine::{Exclusive, Shared, work_cpu};
use tests::workload;
use tests::workload::bursts::BurstTruth;

const LIMIT: Duration = Duration::from_secs(60);
/// How much the sum of functions may differ from `getrusage`.
const MAX_DIFFERENCE: f64 = 0.01;
/// The CPU time of a process from where it last reads the clocks to its end, and before it first
/// does, seconds.
const START_AND_END_S: f64 = 0.002;

/// Returns the rows of a report of all functions.
fn reported(directory: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let words = [&["report", "functions", "--json"], arguments].concat();
    let text = run_in(directory, &words, LIMIT)?.succeeded()?.stdout;
    let report: Value = serde_json::from_str(&text)?;
    ensure!(
        report["warnings"].as_array().is_some_and(Vec::is_empty),
        "{text}"
    );
    Ok(report["rows"].as_array().context("no rows")?.clone())
}

fn seconds(row: &Value, metric: &str) -> Result<f64> {
    row[metric]
        .as_f64()
        .with_context(|| format!("{metric} of {row}"))
}

#[test]
fn root_alone_functions_add_up_to_the_cpu_time_of_the_process() -> Result<()> {
    let _machine = Exclusive::take()?;
    for interval in ["on", "hi"] {
        for variant in ["disk", "even"] {
            let recorded = record(
                &["-p", interval],
                &[workload!("bursts"), "2.5", variant],
                LIMIT,
            )?;
            let truth = BurstTruth::find(&recorded.finished.stdout)?;
            let cpu_s = truth.cpu_us as f64 / 1e6;
            let pid = truth.pid.to_string();
            let only = ["-m", "e.totalcpu:i.totalcpu:name", "--process", &pid];
            let rows = reported(recorded.directory(), &only)?;
            let whole = seconds(&rows[0], "e.totalcpu")?;
            let difference = (whole - cpu_s).abs();
            ensure!(
                difference < cpu_s * MAX_DIFFERENCE + START_AND_END_S,
                "{interval} {variant}: {whole} s, and getrusage has {cpu_s} s"
            );
            // Each function has its own time, and nothing is in no row.
            let own = rows[1..].iter().map(|row| seconds(row, "e.totalcpu"));
            let own: f64 = own.sum::<Result<f64>>()?;
            ensure!(
                (own - whole).abs() < 1e-6 * rows.len() as f64,
                "{own} {whole}"
            );
            let missing = rows.iter().find(|row| row["name"] == NOT_SAMPLED);
            let missing = missing.map_or(Ok(0.0), |row| seconds(row, "e.totalcpu"))?;
            ensure!(
                missing < 0.2 * cpu_s,
                "{interval} {variant}: {missing} s of {cpu_s}"
            );
        }
    }
    Ok(())
}

/// All threads together, state by state, to the microsecond for each.
#[test]
fn root_functions_add_up_to_the_exact_times_of_all_threads() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [workload!("spawner"), "1.5", &cpu];
    let recorded = record(&["-p", "on"], &load, LIMIT)?;
    let mut model = Model::load(&[recorded.experiment()?])?;
    ensure!(
        model.weighed && model.warnings.is_empty(),
        "{:?}",
        model.warnings
    );
    let exact = ExactTimes::read(&model.experiments[0].source)?.context("no exact times")?;
    let mut expected = [0_i64; Microstate::PER_THREAD];
    let threads = exact.threads.iter().map(|thread| &thread.times);
    for times in threads.chain(exact.short_lived.iter().map(|row| &row.times)) {
        for (sum, ns) in expected.iter_mut().zip(times.states) {
            *sum += i64::try_from(ns.0)?;
        }
    }
    let selection = Selection::new(&model, &Filter::default());
    let sums = totals(&model, &selection);
    let shares = functions(&model, &sums).functions;
    let mut own = ZERO_SUMS;
    for sums in shares.exclusive {
        own.iter_mut().zip(sums).for_each(|(own, sum)| *own += sum);
    }
    // Time without a stack is in no function.
    own.iter_mut()
        .zip(sums.stacks[0])
        .for_each(|(own, sum)| *own += sum);
    // A thread that has no exact time, since the kernel hides it, has its ticks.
    let known = exact.threads.iter();
    let known: BTreeSet<_> = known.map(|one| (one.pid, u64::from(one.tid))).collect();
    for row in &model.rows {
        let thread = model.thread(row.thread);
        let pid = model.process(thread.process).pid;
        let length = (model.length_of_ticks(row) / Nanos::from_micros(1)) as i64;
        if !known.contains(&(pid, thread.tid)) && row.micros == length {
            own[row.slot()] -= row.micros;
        }
    }
    let on_cpu: i64 = expected[..3].iter().sum();
    let differences = (3..Microstate::PER_THREAD)
        .map(|state| (own[state], expected[state]))
        .chain([(BaseMetric::TotalCpu.of(&own), on_cpu)]);
    for (micros, ns) in differences {
        let difference = (micros - ns / 1000).abs();
        ensure!(
            difference <= 2,
            "{micros} us in functions, and {ns} ns exactly: {own:?} {expected:?}"
        );
    }
    // A part of it has its part of the time.
    let pid = model.processes.iter().map(|process| process.pid).max();
    let one = Filter {
        processes: pid.into_iter().map(ProcessFilter::Pid).collect(),
        ..Filter::default()
    };
    let of = |model: &Model, pid: Pid| -> i64 {
        let rows = model.rows.iter();
        let of_process = rows.filter(|row| {
            let thread = model.thread(row.thread);
            model.process(thread.process).pid == pid
        });
        of_process.map(|row| row.micros).sum()
    };
    let selected = totals(&model, &Selection::new(&model, &one)).all;
    ensure!(selected.iter().sum::<i64>() == of(&model, pid.context("no process")?));
    model.show_ticks();
    let ticks = model
        .rows
        .iter()
        .map(|row| i64::from(row.ticks))
        .sum::<i64>();
    let tick_us = i64::from(model.experiments[0].tick_us);
    let all = totals(&model, &Selection::new(&model, &Filter::default())).all;
    ensure!(all.iter().sum::<i64>() == ticks * tick_us);
    Ok(())
}

#[test]
fn root_ticks_are_those_of_gprofng() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(
        &["-p", "hi"],
        &[workload!("bursts"), "1.5", "random"],
        LIMIT,
    )?;
    let metrics = ["user", "system", "wait", "sleep"];
    let list = metrics.map(|metric| format!("e.{metric}")).join(":") + ":name";
    let rows = reported(recorded.directory(), &["--ticks", "-m", &list])?;
    ensure!(rows.iter().all(|row| row["name"] != NOT_SAMPLED));
    let output = script(
        &[&format!("metrics {list}"), "functions"],
        &recorded.experiment()?,
    )?;
    let theirs = output.content()?.table(metrics.len());
    let total = theirs.find("<Total>").context("no total")?;
    for (at, metric) in metrics.iter().enumerate() {
        let ours = seconds(&rows[0], &format!("e.{metric}"))?;
        // gprofng prints milliseconds.
        ensure!(
            (ours - total.values[at]).abs() < 0.001,
            "{metric}: {ours}, and gprofng has {total:?}"
        );
    }
    Ok(())
}
