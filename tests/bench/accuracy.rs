//! How exact kcollect's account of microstates is: `cargo bench -p tests --bench accuracy` (as
//! root).
//!
//! Runs each workload that reports its microstates, again and again under kcollect with its
//! defaults, and prints how far the recorded times were from the workload's own. The checks pass or
//! fail by bounds; this shows how far the results are from them.
//!
//! `-- --rounds N` (20) and `--seconds S` (1) of work a round, `--only NAME` for the loads with
//! that in their names, `--markdown` for the tables of ACCURACY.md. The order is round by round, so
//! that a bad minute of the machine falls on all alike.
//!
//! The second table compares the ticks of the state with its exact time in the same recordings, all
//! rounds together. The third, `-- --bursts`, has functions of known CPU time: the error of their
//! ticks, and the error of the exact time that the ticks stand for.

use std::path::Path;
use std::time::Duration;

use analysis::aggregate;
use analysis::filter::{Filter, ProcessFilter, Selection};
use analysis::metric::BaseMetric;
use analysis::model::Model;
use anyhow::{Context, Result, bail, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use tests::experiment::state_ticks;
use tests::experiment::states::{ProcessTimes, States};
use tests::kcollect::record;
use tests::machine::{Exclusive, work_cpu};
use tests::workload;
use tests::workload::bursts::{BurstTruth, FUNCTIONS};
use tests::workload::loads::{self, Load};
use tests::workload::truth::Truth;

const LIMIT: Duration = Duration::from_secs(60);

const TITLES: [&str; 10] = [
    "workload",
    "state",
    "share, %",
    "mean",
    "σ",
    "worst",
    "other states",
    "thread time, worst %",
    "CPU, mean %",
    "CPU, worst %",
];

const TICK_TITLES: [&str; 7] = [
    "workload",
    "state",
    "thread time, s",
    "exact, s",
    "ticks, s",
    "difference, % of thread time",
    "in σ",
];

const BURST_TITLES: [&str; 10] = [
    "waits for",
    "-p",
    "function",
    "exact, s",
    "ticks: mean, %",
    "expected error, %",
    "worst, %",
    "weighed: mean, %",
    "expected error, %",
    "worst, %",
];

/// The options of the benchmark.
struct Options {
    rounds: usize,
    seconds: f64,
    only: String,
    markdown: bool,
    bursts: bool,
}

/// The results of one round of one load, percent.
struct Round {
    /// The share of the subject's time in the load's state, by its truth.
    share: f64,
    /// The account less the truth in that state, of the wall time.
    state: f64,
    /// Maximum difference in another state off CPU, of the wall time.
    others: f64,
    /// The account less the truth in the tracked time of its threads, of that time.
    life: f64,
    /// The account less `getrusage` in time on CPU, of that time.
    cpu: f64,
    sampled: Sampled,
}

/// The ticks of one round of one load.
#[derive(Clone, Copy, Default)]
struct Sampled {
    /// The tracked time of the subject's threads, seconds.
    life_s: f64,
    /// The account's time in the load's state, seconds.
    exact_s: f64,
    /// Ticks in that state, seconds.
    ticks_s: f64,
    /// The variance of a fair sample of that size, seconds².
    variance: f64,
}

impl Sampled {
    /// Returns the ticks of a subject in a state, or on a CPU.
    fn new(
        row: &ProcessTimes,
        state: Option<Microstate>,
        ticks: &[u64; Microstate::PER_THREAD],
        interval_s: f64,
    ) -> Sampled {
        let states = Microstate::ALL.into_iter().take(Microstate::PER_THREAD);
        let wanted = |one: &Microstate| match state {
            Some(state) => *one == state,
            None => one.in_total_cpu(),
        };
        let count: u64 = states.filter(wanted).map(|one| ticks[one as usize]).sum();
        let exact_s = state.map_or(row.cpu_s(), |state| row.of(state));
        let share = exact_s / row.tracked_s;
        Sampled {
            life_s: row.tracked_s,
            exact_s,
            ticks_s: count as f64 * interval_s,
            variance: row.tracked_s * interval_s * share * (1.0 - share),
        }
    }
}

fn main() -> Result<()> {
    let options = options(std::env::args().skip(1))?;
    if options.bursts {
        return bursts(&options);
    }
    let loads: Vec<Load> = loads::possible()
        .filter(|load| load.to_string().contains(&options.only))
        .collect();
    ensure!(
        !loads.is_empty(),
        "no workload has {:?} in its name",
        options.only
    );
    let mut rounds: Vec<Vec<Round>> = loads.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (load, rounds) in loads.iter().zip(&mut rounds) {
            rounds.push(round(load, options.seconds).with_context(|| load.to_string())?);
        }
    }
    let loads = || loads.iter().zip(&rounds);
    let rows = loads().map(|(load, rounds)| row(load, rounds));
    print(&TITLES, &rows.collect::<Vec<_>>(), options.markdown);
    println!();
    let rows = loads().map(|(load, rounds)| tick_row(load, rounds));
    print(&TICK_TITLES, &rows.collect::<Vec<_>>(), options.markdown);
    Ok(())
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options {
        rounds: 20,
        seconds: 1.0,
        only: String::new(),
        markdown: false,
        bursts: false,
    };
    while let Some(word) = args.next() {
        let mut value = || args.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => options.rounds = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--only" => options.only = value()?,
            "--markdown" => options.markdown = true,
            "--bursts" => options.bursts = true,
            // What cargo passes to every benchmark.
            "--bench" => {}
            other => bail!("no option {other:?}"),
        }
    }
    ensure!(options.rounds > 0, "at least one round");
    Ok(options)
}

/// Prints the errors of the functions of `bursts`, by what it waits for and by the interval.
fn bursts(options: &Options) -> Result<()> {
    let mut rows = Vec::new();
    for variant in ["disk", "even", "random"] {
        for interval in ["on", "hi"] {
            let mut rounds = Vec::new();
            for _ in 0..options.rounds {
                rounds.push(burst_round(variant, interval, options.seconds)?);
            }
            for (at, name) in FUNCTIONS.iter().chain(&["the process"]).enumerate() {
                let seconds = rounds.iter().map(|round| round[at].exact_s);
                let of = |pick: fn(&BurstError) -> f64| -> Vec<f64> {
                    rounds.iter().map(|round| pick(&round[at])).collect()
                };
                let (raw, weighed) = (of(|error| error.raw), of(|error| error.weighed));
                rows.push([
                    variant.to_owned(),
                    interval.to_owned(),
                    (*name).to_owned(),
                    format!("{:.3}", seconds.sum::<f64>() / rounds.len() as f64),
                    format!("{:+.1}", mean(&raw)),
                    format!("{:.1}", rms(&raw)),
                    format!("{:+.1}", worst(&raw)),
                    format!("{:+.1}", mean(&weighed)),
                    format!("{:.1}", rms(&weighed)),
                    format!("{:+.1}", worst(&weighed)),
                ]);
            }
        }
    }
    print(&BURST_TITLES, &rows, options.markdown);
    Ok(())
}

/// The errors of a function, or of the process, in one round, percent of its exact time.
struct BurstError {
    exact_s: f64,
    raw: f64,
    weighed: f64,
}

fn burst_round(variant: &str, interval: &str, seconds: f64) -> Result<[BurstError; 4]> {
    let _machine = Exclusive::take()?;
    let args = [workload!("bursts"), &seconds.to_string(), variant];
    let recorded = record(&["-p", interval, "-x", "off", "-F", "load"], &args, LIMIT)?;
    let truth = BurstTruth::find(&recorded.finished.stdout)?;
    let mut model = Model::load(&[recorded.experiment()?])?;
    let weighed = burst_times(&model, truth.pid);
    model.show_ticks();
    let raw = burst_times(&model, truth.pid);
    let functions_s = truth.functions_ns.map(|ns| ns as f64 / 1e9);
    Ok(std::array::from_fn(|at| {
        let exact_s = functions_s.get(at).copied();
        let exact_s = exact_s.unwrap_or(truth.cpu_us as f64 / 1e6);
        let error = |shown_s: f64| (shown_s / exact_s - 1.0) * 100.0;
        BurstError {
            exact_s,
            raw: error(raw[at]),
            weighed: error(weighed[at]),
        }
    }))
}

/// Returns the CPU time of the functions of `bursts` including callees, then the process's,
/// seconds.
fn burst_times(model: &Model, pid: u32) -> [f64; 4] {
    let filter = Filter {
        processes: vec![ProcessFilter::Pid(Pid(pid))],
        ..Filter::default()
    };
    let totals = aggregate::totals(model, &Selection::new(model, &filter));
    let functions = aggregate::functions(model, &totals).functions;
    let seconds = |sums| BaseMetric::TotalCpu.of(sums) as f64 / 1e6;
    std::array::from_fn(|at| match FUNCTIONS.get(at) {
        Some(name) => {
            let all = model.functions.iter().zip(&functions.inclusive);
            let own = all.filter(|(function, _)| function.name.ends_with(name));
            own.map(|(_, sums)| seconds(sums)).sum()
        }
        None => seconds(&totals.all),
    })
}

fn round(load: &Load, seconds: f64) -> Result<Round> {
    // The lock is held for one run at a time: checks may run in between.
    let _machine = Exclusive::take()?;
    let sibling = Path::new(workload!("spin_user"));
    let args = load.args(sibling, &seconds.to_string(), work_cpu()?);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    // With idle ticks: a second of sleep on a quiet machine has no others, and a run without any is
    // an error.
    let recorded = record(&["-p", "on", "-x", "off"], &args, LIMIT)?;
    let experiment = recorded.experiment()?;
    let account = States::of(&experiment)?;
    let truths = Truth::find_all(&recorded.finished.stdout);
    let truth = truths.iter().find(|truth| truth.workload == load.subject);
    let truth = truth.with_context(|| format!("no truth of {}", load.subject))?;
    let row = account.row(truth.pid)?;
    let ticks = state_ticks(&experiment, Some(truth.pid))?;
    let sampled = Sampled::new(row, load.state, &ticks, account.interval_us / 1e6);
    Ok(compare(load, truth, row, sampled))
}

fn compare(load: &Load, truth: &Truth, row: &ProcessTimes, sampled: Sampled) -> Round {
    let wall = truth.wall_ns() as f64 / 1e9;
    let cpu = truth.cpu_ns() as f64 / 1e9;
    let error = |state: Microstate| row.of(state) - truth.states_s[state as usize];
    let (own, state) = load.state.map_or((cpu, row.cpu_s() - cpu), |state| {
        (truth.states_s[state as usize], error(state))
    });
    let others = Microstate::ALL
        .into_iter()
        .take(Microstate::PER_THREAD)
        .filter(|state| !state.in_total_cpu() && Some(*state) != load.state);
    Round {
        share: own / truth.tracked_s * 100.0,
        state: state / wall * 100.0,
        others: others.map(|state| error(state).abs()).fold(0.0, f64::max) / wall * 100.0,
        life: (row.tracked_s / truth.tracked_s - 1.0) * 100.0,
        cpu: (row.cpu_s() - cpu) / cpu * 100.0,
        sampled,
    }
}

fn row(load: &Load, rounds: &[Round]) -> [String; 10] {
    let column = |pick: fn(&Round) -> f64| rounds.iter().map(pick).collect::<Vec<_>>();
    let state = column(|round| round.state);
    let cpu = column(|round| round.cpu);
    [
        load.to_string(),
        load.state.map_or("on CPU", Microstate::name).to_owned(),
        format!("{:.1}", mean(&column(|round| round.share))),
        format!("{:+.3}", mean(&state)),
        format!("{:.3}", sigma(&state)),
        format!("{:+.3}", worst(&state)),
        format!("{:.3}", worst(&column(|round| round.others))),
        format!("{:+.3}", worst(&column(|round| round.life))),
        format!("{:+.2}", mean(&cpu)),
        format!("{:+.2}", worst(&cpu)),
    ]
}

fn tick_row(load: &Load, rounds: &[Round]) -> [String; 7] {
    let sum = rounds
        .iter()
        .fold(Sampled::default(), |sum, round| Sampled {
            life_s: sum.life_s + round.sampled.life_s,
            exact_s: sum.exact_s + round.sampled.exact_s,
            ticks_s: sum.ticks_s + round.sampled.ticks_s,
            variance: sum.variance + round.sampled.variance,
        });
    let difference_s = sum.ticks_s - sum.exact_s;
    [
        load.to_string(),
        load.state.map_or("on CPU", Microstate::name).to_owned(),
        format!("{:.3}", sum.life_s),
        format!("{:.3}", sum.exact_s),
        format!("{:.3}", sum.ticks_s),
        format!("{:+.2}", difference_s / sum.life_s * 100.0),
        format!("{:+.1}", difference_s / sum.variance.sqrt()),
    ]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn sigma(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// Returns the root of the mean square: the error to be expected.
fn rms(values: &[f64]) -> f64 {
    let squares: f64 = values.iter().map(|value| value.powi(2)).sum();
    (squares / values.len() as f64).sqrt()
}

/// Returns the value that is farthest from zero.
fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, |worst, value| {
        if value.abs() > worst.abs() {
            value
        } else {
            worst
        }
    })
}

fn print<const N: usize>(titles: &[&str; N], rows: &[[String; N]], markdown: bool) {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([titles[column].chars().count()])
            .max()
            .unwrap_or(0)
    });
    let line = |cells: [&str; N]| {
        let padded =
            cells
                .iter()
                .zip(widths)
                .enumerate()
                .map(|(column, (cell, width))| match column {
                    0 | 1 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                });
        let cells: Vec<_> = padded.collect();
        if markdown {
            println!("| {} |", cells.join(" | "));
        } else {
            println!("{}", cells.join("  "));
        }
    };
    line(*titles);
    if markdown {
        println!("|---|---{}|", "|--:".repeat(N - 2));
    }
    for row in rows {
        line(row.each_ref().map(String::as_str));
    }
}
