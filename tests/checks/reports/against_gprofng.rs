//! `kcollect report` shows the numbers of stock gprofng, to the last digit.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use analysis::aggregate::{Totals, totals};
use analysis::filter::{Filter, ProcessFilter, Selection};
use analysis::metric::{BaseMetric, offered};
use analysis::model::{Model, Sums};
use analysis::report::table::{Cell, Report, Table};
use analysis::report::views::{self, TableOptions, View};
use anyhow::{Context, Result, anyhow, bail, ensure};
use experiment_format::stacks::StackEnd;
use experiment_format::units::Ticks;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::experiment::synthetic::{DYNAMIC, KERNEL, LIBRARY, PROGRAM, Plan, STEP, StateInterval};
use tests::gprofng::{self, GprofngOutput, Row, script};
use tests::kcollect::record;
use tests::machine::{Shared, work_cpu};
use tests::oracle::usage::blocks;
use tests::workload;

/// How many functions each load object has.
const FUNCTIONS: usize = 12;

/// Rows by name, in thousandths; rows of the same name in any order; no rows of zeros.
type Rows = BTreeMap<String, Vec<Vec<i64>>>;

fn collect(rows: impl Iterator<Item = (String, Vec<f64>)>) -> Rows {
    let mut found = Rows::new();
    for (name, values) in rows {
        let values: Vec<_> = values
            .iter()
            .map(|value| (value * 1000.0).round() as i64)
            .collect();
        if values.iter().any(|value| *value != 0) {
            found.entry(name).or_default().push(values);
        }
    }
    found.values_mut().for_each(|rows| rows.sort());
    found
}

fn stock(experiment: &Path, metrics: &str, view: &str) -> Result<Vec<Row>> {
    let columns = metrics.split(':').count() - 1;
    let output = script(&[&format!("metrics {metrics}"), view], experiment)?;
    Ok(output.table(columns).rows)
}

fn named(rows: Vec<Row>) -> Rows {
    collect(rows.into_iter().map(|row| (row.name, row.values)))
}

/// Returns the rows as they are printed, not as they are computed.
fn ours(model: &Model, metrics: &str, view: View) -> Result<Rows> {
    let options = TableOptions {
        metrics: Some(metrics.to_owned()),
        ..TableOptions::default()
    };
    let table = printed(model, view, &options)?;
    let name = table
        .columns
        .iter()
        .position(|column| column.key == "name")
        .context("no name")?;
    let rows = table.rows.iter().map(|row| {
        let Cell::Text(name) = &row[name] else {
            return (String::new(), Vec::new());
        };
        let numbers = row
            .iter()
            .filter(|cell| matches!(cell, Cell::Microseconds(_)));
        let numbers = numbers.filter_map(|cell| cell.plain().parse().ok());
        (name.clone(), numbers.collect())
    });
    Ok(collect(rows))
}

/// Checks that rows of a name are equal where both have as many. gprofng may have several for one
/// hole between functions: then the sums are equal, except for the rounding of each.
fn same(what: &str, ours: &Rows, stock: &Rows) -> Result<()> {
    let sum = |rows: &[Vec<i64>]| {
        let mut sums = vec![0; rows.first().map_or(0, Vec::len)];
        for row in rows {
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
        sums
    };
    for name in ours.keys().chain(stock.keys()) {
        let (Some(ours), Some(stock)) = (ours.get(name), stock.get(name)) else {
            bail!(
                "{what}: {name}: {:?}, and gprofng shows {:?}",
                ours.get(name),
                stock.get(name)
            );
        };
        let equal = if ours.len() == stock.len() {
            ours == stock
        } else {
            let rounding = (ours.len() + stock.len()) as i64;
            let sums = sum(ours).into_iter().zip(sum(stock));
            sums.into_iter()
                .all(|(ours, stock)| (ours - stock).abs() <= rounding)
        };
        ensure!(
            equal,
            "{what}: {name}: {ours:?}, and gprofng shows {stock:?}"
        );
    }
    Ok(())
}

/// Returns sums as gprofng shows them, one for each metric.
fn shown(sums: &Sums, bases: &[BaseMetric]) -> Vec<f64> {
    let cells = bases.iter().map(|base| Cell::Microseconds(base.of(sums)));
    cells.filter_map(|cell| cell.plain().parse().ok()).collect()
}

fn agrees(experiment: &Path) -> Result<()> {
    let mut model = Model::load(&[experiment.to_owned()])?;
    // As gprofng counts.
    model.show_ticks();
    let bases = offered(&model);
    let list = |flavors: &[&str]| {
        let metrics = bases.iter().flat_map(|base| {
            flavors
                .iter()
                .map(|flavor| format!("{flavor}.{}", base.keyword()))
        });
        metrics.collect::<Vec<_>>().join(":") + ":name"
    };
    let (both, own) = (list(&["e", "i"]), list(&["e"]));
    let functions = named(stock(experiment, &both, "functions")?);
    same(
        "functions",
        &ours(&model, &both, View::Functions)?,
        &functions,
    )?;
    relatives(experiment, &model, &list(&["i"]), bases.len())?;
    tree(experiment, &model, &list(&["i"]), bases.len())?;
    let cpus = named(stock(experiment, &own, "cpus")?);
    same("cpus", &ours(&model, &own, View::Cpus)?, &cpus)?;

    let totals = totals(&model, &Selection::new(&model, &Filter::default()));
    processes(
        &model,
        &totals,
        &bases,
        stock(experiment, &own, "processes")?,
    )?;
    threads(&model, &bases, stock(experiment, &own, "threads")?)
}

fn printed(model: &Model, view: View, options: &TableOptions) -> Result<Table> {
    match views::make(model, view, options).map_err(|failure| anyhow!("{failure}"))? {
        Report::Table(table) => Ok(table),
        Report::Page(_) => bail!("{view:?} is a page"),
    }
}

/// Returns the numbers of a row, and its texts by the keys of their columns.
fn parts<'a>(table: &'a Table, row: &'a [Cell]) -> (Vec<f64>, BTreeMap<&'a str, String>) {
    let cells = table.columns.iter().zip(row);
    let (mut numbers, mut texts) = (Vec::new(), BTreeMap::new());
    for (column, cell) in cells {
        match cell {
            Cell::Microseconds(_) => numbers.extend(cell.plain().parse::<f64>()),
            _ => drop(texts.insert(&*column.key, cell.plain())),
        }
    }
    (numbers, texts)
}

/// Compares callers and callees of all functions, one function after the other. Functions that
/// share a name are skipped.
fn relatives(experiment: &Path, model: &Model, metrics: &str, columns: usize) -> Result<()> {
    let output = script(
        &[&format!("metrics {metrics}"), "callers-callees"],
        experiment,
    )?;
    let mut blocks: BTreeMap<String, Vec<Rows>> = BTreeMap::new();
    for block in output.text.split("\n\n") {
        let rows = GprofngOutput { text: block.into() }.table(columns).rows;
        let Some(at) = rows.iter().position(|row| row.name.starts_with('*')) else {
            continue;
        };
        let function = rows[at].name.trim_start_matches('*').to_owned();
        let rows = rows.into_iter().enumerate().map(|(position, row)| {
            let role = ["caller", "function", "callee"]
                [1 + usize::from(position > at) - usize::from(position < at)];
            (
                format!("{role} {}", row.name.trim_start_matches('*')),
                row.values,
            )
        });
        blocks.entry(function).or_default().push(collect(rows));
    }
    for function in &model.functions {
        let name = &function.name;
        let same_name = model.functions.iter().filter(|other| other.name == *name);
        let stock = blocks.get(name).map_or(&[][..], Vec::as_slice);
        let ([stock], 1) = (stock, same_name.count()) else {
            continue;
        };
        let options = TableOptions {
            metrics: Some(metrics.to_owned()),
            function: Some(name.clone()),
            ..TableOptions::default()
        };
        let table = printed(model, View::CallersCallees, &options)?;
        let ours = table.rows.iter().map(|row| {
            let (numbers, texts) = parts(&table, row);
            (format!("{} {}", texts["role"], texts["name"]), numbers)
        });
        same(&format!("callers-callees {name}"), &collect(ours), stock)?;
    }
    Ok(())
}

/// Compares the paths of the call tree, each with what is attributed to its end.
fn tree(experiment: &Path, model: &Model, metrics: &str, columns: usize) -> Result<()> {
    let output = script(&[&format!("metrics {metrics}"), "calltree"], experiment)?;
    let mut open: Vec<(usize, &str)> = Vec::new();
    let mut stock = Vec::new();
    for line in output.text.lines() {
        let Some(at) = line.find("+-") else { continue };
        let words = line[..at].split_whitespace().filter(|word| *word != "|");
        let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        ensure!(numbers.len() == columns, "{line}");
        open.retain(|(column, _)| *column < at);
        open.push((at, line[at + 2..].trim()));
        let path: Vec<_> = open.iter().map(|(_, name)| *name).collect();
        stock.push((path.join("/"), numbers));
    }
    let options = TableOptions {
        metrics: Some(metrics.to_owned()),
        ..TableOptions::default()
    };
    let table = printed(model, View::CallTree, &options)?;
    let mut open: Vec<String> = Vec::new();
    let mut ours = Vec::new();
    for row in &table.rows {
        let (numbers, texts) = parts(&table, row);
        open.truncate(texts["depth"].parse()?);
        open.push(texts["name"].clone());
        ours.push((open.join("/"), numbers));
    }
    same(
        "calltree",
        &collect(ours.into_iter()),
        &collect(stock.into_iter()),
    )
}

/// Returns the number that follows `key` in a name such as `Process   2, Thread 7`.
fn number(name: &str, key: &str) -> Option<u64> {
    let rest = name[name.find(key)? + key.len()..].trim_start();
    let digits = rest
        .find(|digit: char| !digit.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Compares processes, which are experiments to gprofng.
fn processes(model: &Model, totals: &Totals, bases: &[BaseMetric], rows: Vec<Row>) -> Result<()> {
    let stock = rows
        .into_iter()
        .filter_map(|row| Some((number(&row.name, "Process ")?.to_string(), row.values)));
    let ours = (1..)
        .zip(&totals.experiments)
        .map(|(number, sums): (usize, _)| (number.to_string(), shown(sums, bases)));
    ensure!(model.experiments.len() == totals.experiments.len());
    same("processes", &collect(ours), &collect(stock))
}

/// Compares threads, which gprofng has once in each experiment.
fn threads(model: &Model, bases: &[BaseMetric], rows: Vec<Row>) -> Result<()> {
    let stock = rows.into_iter().filter_map(|row| {
        let (process, thread) = (
            number(&row.name, "Process ")?,
            number(&row.name, "Thread ")?,
        );
        Some((format!("{process} {thread}"), row.values))
    });
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for row in &model.rows {
        let name = format!("{} {}", row.experiment.0 + 1, model.thread(row.thread).tid);
        sums.entry(name).or_default()[row.slot()] += row.micros;
    }
    let ours = sums
        .into_iter()
        .map(|(name, sums)| (name, shown(&sums, bases)));
    same("threads", &collect(ours), &collect(stock))
}

fn addresses() -> impl Strategy<Value = u64> {
    let within = (0..FUNCTIONS as u64 * STEP).boxed();
    prop_oneof![
        3 => within.clone().prop_map(|offset| KERNEL + offset),
        3 => within.clone().prop_map(|offset| PROGRAM + offset),
        3 => within.prop_map(|offset| LIBRARY + offset),
        1 => (0u64..256).prop_map(|offset| DYNAMIC + offset),
        1 => (0u64..256).prop_map(|offset| 0x9999_0000 + offset),
    ]
}

fn state_intervals(
    tids: std::ops::Range<u32>,
    kernel_cpu: impl Strategy<Value = bool> + Clone,
) -> impl Strategy<Value = Vec<StateInterval>> {
    let ends = vec![
        StackEnd::Complete,
        StackEnd::Complete,
        StackEnd::Truncated,
        StackEnd::UnwindFailed,
    ];
    let ticks = prop::array::uniform10(prop_oneof![3 => Just(0u32), 1 => 1u32..5000]);
    let state_interval = (
        (0u32..4, tids, 0u64..1_000_000_000),
        // Few addresses, so that functions recur in a stack.
        prop::collection::vec(addresses(), 0..8),
        prop::sample::select(ends),
        ticks,
        kernel_cpu,
    );
    let state_interval = state_interval.prop_map(
        |((cpu, tid, at), frames, end, ticks, kernel_cpu)| StateInterval {
            cpu,
            tid,
            at,
            frames,
            end,
            ticks: ticks.map(|ticks| Ticks(ticks.into())),
            kernel_cpu,
        },
    );
    prop::collection::vec(state_interval, 0..40)
}

fn plans() -> impl Strategy<Value = Plan> {
    let founder = state_intervals(100..110, any::<bool>());
    let process = |pid: u32| {
        state_intervals(pid..pid + 3, Just(false))
            .prop_map(move |state_intervals| (pid, state_intervals))
    };
    let processes = (process(10), process(20), process(30));
    (
        prop::sample::select(vec![997, 10_007, 10_000, 100_003]),
        founder,
        processes,
        0usize..4,
    )
        .prop_map(|(tick_us, founder, (a, b, c), count)| Plan {
            tick_us,
            functions: FUNCTIONS,
            founder: founder
                .into_iter()
                .map(|state_interval| (state_interval.tid / 4, state_interval))
                .collect(),
            processes: [a, b, c].into_iter().take(count).collect(),
        })
}

#[test]
fn random_experiments_are_reported_as_gprofng_does() {
    let mut runner = TestRunner::new(Config {
        cases: 24,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&plans(), |plan| {
        let directory =
            tempfile::tempdir().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let experiment = plan
            .write(directory.path())
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        agrees(&experiment).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    outcome.unwrap();
}

#[test]
fn root_a_recording_is_reported_as_gprofng_does() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let recorded = record(
        &["-p", "hi", "-x", "off", "-F", "load", "--descendants"],
        &[workload!("spawner"), "1.2", &cpu],
        Duration::from_secs(40),
    )?;
    let experiment = recorded.experiment()?;
    agrees_but_for_names(&experiment)?;
    let interval = gprofng::header(&experiment)?.interval_ns / 1e3;
    let model = Model::load(std::slice::from_ref(&experiment))?;
    ensure!(
        model
            .experiments
            .iter()
            .all(|info| f64::from(info.tick_us) == interval)
    );
    ensure!(model.warnings.is_empty(), "{:?}", model.warnings);
    usage(&model, &experiment)
}

/// The duration from which the averages of threads agree to the last digit, seconds.
const SHORT_S: f64 = 0.01;

/// Compares samples and statistics of the founder and of a followed process, to the last digit that
/// gprofng displays.
fn usage(model: &Model, experiment: &Path) -> Result<()> {
    let stock = [
        ("statistics", View::Statistics),
        ("sample_detail", View::Samples),
    ];
    let followed = model.processes.iter().filter(|process| process.followed);
    let mut wishes: Vec<_> = followed.map(|process| Some(process.pid)).collect();
    wishes.push(None);
    let mut compared = 0;
    for (command, view) in stock {
        let blocks = blocks(&script(&[command], experiment)?.content()?.text);
        for pid in &wishes {
            let mut options = TableOptions::default();
            options.filter.processes.extend(pid.map(ProcessFilter::Pid));
            let table = printed(model, view, &options)?;
            for row in &table.rows {
                let cells: BTreeMap<_, _> = table
                    .columns
                    .iter()
                    .zip(row)
                    .map(|(column, cell)| (&*column.key, cell.plain()))
                    .collect();
                let block = blocks.iter().find(|block| {
                    block.experiment.ends_with(&cells["experiment"])
                        && block.sample.map(|number| number.to_string())
                            == cells.get("sample").cloned()
                });
                let block =
                    block.with_context(|| format!("{command}: gprofng has no {cells:?}"))?;
                for (key, shown) in &block.values {
                    let ours: f64 = cells[key].parse()?;
                    // gprofng's durations are a nanosecond too small: for a process of 20 us that
                    // changes the fifth digit.
                    let short = block.values["duration_s"] < SHORT_S && *key == "threads";
                    let allowed = if short { 0.001 + ours / 1e3 } else { 0.0 };
                    ensure!(
                        (ours - *shown).abs() <= allowed,
                        "{command}: {key}: {ours}, and {block:?}"
                    );
                    compared += 1;
                }
            }
        }
    }
    ensure!(compared > 100, "{compared}");
    Ok(())
}

/// Compares without the names of C++ functions, since there are two ways to write a template.
fn agrees_but_for_names(experiment: &Path) -> Result<()> {
    let mut model = Model::load(&[experiment.to_owned()])?;
    // As gprofng counts.
    model.show_ticks();
    let bases = offered(&model);
    let metrics: Vec<_> = bases
        .iter()
        .flat_map(|base| ["e", "i"].map(|flavor| format!("{flavor}.{}", base.keyword())))
        .collect();
    let metrics = metrics.join(":") + ":name";
    let plain = |rows: Rows| -> Rows {
        rows.into_iter()
            .filter(|(name, _)| !name.contains(['(', ':']))
            .collect()
    };
    let functions = plain(named(stock(experiment, &metrics, "functions")?));
    ensure!(functions.len() > 20, "{functions:?}");
    same(
        "functions",
        &plain(ours(&model, &metrics, View::Functions)?),
        &functions,
    )?;
    let totals = totals(&model, &Selection::new(&model, &Filter::default()));
    let own: Vec<_> = bases
        .iter()
        .map(|base| format!("e.{}", base.keyword()))
        .collect();
    let own = own.join(":") + ":name";
    processes(
        &model,
        &totals,
        &bases,
        stock(experiment, &own, "processes")?,
    )?;
    threads(&model, &bases, stock(experiment, &own, "threads")?)
}
