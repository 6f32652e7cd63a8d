//! SIGKILL at any moment leaves an experiment that opens, with every complete tick, and nothing in the kernel.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment;
use tests::gprofng;
use tests::kcollect::{Recording, experiments_in};
use tests::machine::{Exclusive, bpf_objects, online_cpus, work_cpu};
use tests::workload;

const RUNS: u32 = 50;

/// Of so many runs one is killed while it starts.
const STARTS: u32 = 5;

/// The seed: a failure can be repeated, as far as the machine repeats itself.
const SEED: u64 = 0x6b63_6f6c_6c65_6374;

/// Ticks may be on their way from the kernel to the file for this long.
const LAG: Duration = Duration::from_millis(500);

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn root_fifty_kills_leave_fifty_experiments() -> Result<()> {
    let _machine = Exclusive::take()?;
    let before = bpf_objects()?;
    // Processes that come and go make events of all kinds.
    let cpu = work_cpu()?.to_string();
    let _load = Running::start(
        std::process::Command::new(workload!("spawner")).args(["300", &cpu]),
        Duration::MAX,
    )?;
    let mut random = SplitMix(SEED);
    for run in 0..RUNS {
        killed(run, &mut random).with_context(|| format!("run {run} of {RUNS}, seed {SEED:#x}"))?;
    }
    if let Some(before) = before {
        leaves_nothing(&before)?;
    }
    Ok(())
}

fn killed(run: u32, random: &mut SplitMix) -> Result<()> {
    let mut recording = Recording::start(["-p", "hi", "-x", "off"], LIMIT)?;
    let mut recorded = Duration::ZERO;
    if run.is_multiple_of(STARTS) {
        sleep(Duration::from_millis(random.below(300)));
    } else {
        recording.until_running()?;
        recorded = Duration::from_millis(random.below(2000));
        sleep(recorded);
    }
    recording.signal(Signal::SIGKILL)?;
    let dead = recording.finish()?;
    ensure!(
        dead.finished.code() == 128 + 9,
        "it was not killed: {}",
        dead.finished
    );

    // Killed before it made the directory, or before it wrote the first byte into it: there is nothing to open.
    let Some(experiment) = experiments_in(dead.directory())?.pop() else {
        ensure!(
            recorded.is_zero(),
            "no experiment after {recorded:?} of recording"
        );
        return Ok(());
    };
    let log = std::fs::metadata(experiment.join("log.xml")).map_or(0, |file| file.len());
    if recorded.is_zero() && log == 0 {
        return Ok(());
    }

    let said = gprofng::script(
        &["metrics e.kcpu:i.kcpu:name", "functions", "header"],
        &experiment,
    )?
    .content()?;
    ensure!(
        said.text.contains("not closed"),
        "the header does not say that the experiment was not closed"
    );
    let ticks = experiment::ticks(&experiment)?;
    let interval = experiment::interval_ns(&experiment)?;
    let shown = said
        .table(2)
        .find("<Total>")
        .map_or(0.0, |row| row.values[0])
        * 1e9
        / interval;
    // gprofng rounds to a thousandth of a second.
    ensure!(
        (shown - ticks as f64).abs() < 1.0,
        "gprofng shows {shown} ticks of {ticks} in the file"
    );

    let due =
        recorded.saturating_sub(LAG).as_nanos() as f64 / interval * online_cpus()?.len() as f64;
    ensure!(
        ticks as f64 >= due,
        "{ticks} ticks in the file after {recorded:?}: at least {due:.0} were due"
    );
    Ok(())
}

/// The kernel frees programs and maps a little after their last user is gone.
fn leaves_nothing(before: &std::collections::BTreeSet<String>) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = bpf_objects()?.unwrap_or_default();
        let left: Vec<_> = now.difference(before).collect();
        if left.is_empty() {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "killed kcollects left in the kernel: {left:#?}"
        );
        sleep(Duration::from_millis(100));
    }
}

/// SplitMix64: a small generator whose numbers are the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
