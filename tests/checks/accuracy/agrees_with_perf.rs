//! kcollect and `perf record -a -g -e cpu-clock` see the same kernel functions in one load, at the
//! same time.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::command::run;
use tests::gprofng;
use tests::kcollect::Recording;
use tests::machine::disturbance::judge_times;
use tests::machine::work_cpu;
use tests::oracle::kallsyms::{KERNEL, Kallsyms};
use tests::oracle::perf::{PerfRecording, PerfSample};
use tests::oracle::statistics::{MAX_SIGMAS, Pair, SLACK_TICKS};
use tests::workload;
use tests::workload::truth::Truth;

/// perf's rate, which is no multiple of kcollect's, so that the two clocks are not in step.
const PERF_HZ: u32 = 1511;

/// How many of the top functions are compared as a set.
const COMPARED_RANKS: usize = 10;

/// Minimum share of the stacks with a function that is compared with its callees included.
const MIN_COMMON_SHARE: f64 = 0.05;

/// Ticks by function.
type Counts = BTreeMap<String, f64>;

#[test]
fn root_alone_kernel_functions_are_those_of_perf() -> Result<()> {
    judge_times(|| {
        let kallsyms = Kallsyms::running()?;
        let cpu = work_cpu()?;

        let limit = Duration::from_secs(60);
        let mut recording = Recording::start(["-p", "hi", "-x", "off"], limit)?;
        recording.until_running()?;
        let watch = PerfRecording::start(PERF_HZ, limit)?;
        let load = run(
            Command::new(workload!("getdents")).args(["8", &cpu.to_string()]),
            limit,
        )?;
        let truth = Truth::find(&load.succeeded()?.stdout)?;
        let samples = watch.end()?;
        let recorded = recording.stop()?;
        let experiment = recorded.experiment()?;

        let interval = gprofng::header(&experiment)?.interval_ns;
        let table = gprofng::functions(&experiment, Some(&format!("KPID=={}", truth.pid)))?;
        let ours_n = table.total()? * 1e9 / interval;
        let mut ours = Counts::new();
        let mut ours_inclusive = Counts::new();
        for row in table.things().filter(|row| !row.name.starts_with('<')) {
            let name = kallsyms.canonical(&row.name);
            *ours.entry(name.clone()).or_default() += row.values[0] * 1e9 / interval;
            *ours_inclusive.entry(name).or_default() += row.values[1] * 1e9 / interval;
        }

        let perfs: Vec<&PerfSample> = samples
            .iter()
            .filter(|sample| sample.pid == truth.pid)
            .collect();
        let perf_n = perfs.len() as f64;
        ensure!(
            ours_n > 4000.0 && perf_n > 4000.0,
            "too few ticks to compare: {ours_n} and {perf_n}"
        );
        let (theirs, theirs_inclusive) = count(&perfs, &kallsyms);

        let ours_top = top(&ours);
        let theirs_top = top(&theirs);
        let pair = |name: &str, ours: &Counts, theirs: &Counts| Pair {
            first: (of(ours, name), ours_n),
            second: (of(theirs, name), perf_n),
        };
        let mut wrong = Vec::new();
        for name in ours_top.iter().chain(&theirs_top) {
            let pair = pair(name, &ours, &theirs);
            if !pair.agree() {
                wrong.push(format!("{name}, kcollect and perf: {pair}"));
            }
        }
        // A function that only one of them has among its top must have nearly as many ticks as the
        // last of the other's.
        for (name, others, others_top) in only_in(&ours_top, &theirs_top)
            .map(|name| (name, &theirs, &theirs_top))
            .chain(only_in(&theirs_top, &ours_top).map(|name| (name, &ours, &ours_top)))
        {
            let last = others_top.last().map_or(0.0, |last| of(others, last));
            let here = of(others, name);
            if last - here > MAX_SIGMAS * (last + here).sqrt() + SLACK_TICKS {
                wrong.push(format!("{name} is among one top {COMPARED_RANKS} only: {here} ticks in the other, where the last has {last}"));
            }
        }
        // Stacks: functions with what they call.
        for (name, _) in theirs_inclusive
            .iter()
            .filter(|(_, count)| **count > MIN_COMMON_SHARE * perf_n)
        {
            let pair = pair(name, &ours_inclusive, &theirs_inclusive);
            if !pair.agree() {
                wrong.push(format!("{name} with callees, kcollect and perf: {pair}"));
            }
        }
        ensure!(
            wrong.is_empty(),
            "{wrong:#?}\nkcollect's top: {ours_top:#?}\nperf's top: {theirs_top:#?}"
        );
        Ok(())
    })
}

/// Returns the ticks of kernel functions in perf's samples: on their own, and with their callees,
/// once a stack.
fn count(samples: &[&PerfSample], kallsyms: &Kallsyms) -> (Counts, Counts) {
    let mut exclusive = Counts::new();
    let mut inclusive = Counts::new();
    for sample in samples {
        let mut names = Vec::new();
        for (depth, address) in sample.stack.iter().enumerate() {
            // A caller's address is its return address, which may be the next function's first
            // byte.
            let address = if depth == 0 {
                *address
            } else {
                address.saturating_sub(1)
            };
            if address < KERNEL {
                break;
            }
            if let Some((_, aliases)) = kallsyms.function(address)
                && let Some(name) = aliases.first()
            {
                names.push(kallsyms.canonical(name));
            }
        }
        if let Some(leaf) = names.first() {
            *exclusive.entry(leaf.clone()).or_default() += 1.0;
        }
        names.sort();
        names.dedup();
        for name in names {
            *inclusive.entry(name).or_default() += 1.0;
        }
    }
    (exclusive, inclusive)
}

fn of(counts: &Counts, name: &str) -> f64 {
    counts.get(name).copied().unwrap_or(0.0)
}

fn top(counts: &Counts) -> Vec<String> {
    let mut names: Vec<_> = counts.iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(a.1));
    names
        .into_iter()
        .take(COMPARED_RANKS)
        .map(|(name, _)| name.clone())
        .collect()
}

fn only_in<'a>(these: &'a [String], not_those: &'a [String]) -> impl Iterator<Item = &'a String> {
    these.iter().filter(|name| !not_those.contains(name))
}
