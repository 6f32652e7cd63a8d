//! Blocks of allocators (`-H on`): functions that count the blocks that they allocate and free are
//! recorded with exactly these if each is (`-H all`), and within the statistics if they are
//! sampled.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use analysis::model::Model;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment::summary::RunSummary;
use tests::kcollect::{FinishedRecording, Recording, experiments_in, record, sub_experiment};
use tests::machine::Shared;
use tests::workload::memory::{ALLOCATIONS, FUNCTIONS, SAMPLED, counted, has_blocks};

use super::memory::{agrees_with_gprofng, reported};

const LIMIT: Duration = Duration::from_secs(60);
/// The number of the system call, as the kernel shows it.
const CLOCK_NANOSLEEP: &str = "230 ";

/// Checks that each function has exactly the blocks that it counted, for gprofng too.
fn agrees(recorded: &FinishedRecording, stdout: &str) -> Result<()> {
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    let own = sub_experiment(&experiment, "_allocations_PID_")?;
    has_blocks(&own)?;
    let counted = counted(stdout, FUNCTIONS)?;
    let model = Model::load(&[experiment])?;
    for (name, expected) in &counted {
        let found = reported(&model, name)?;
        ensure!(found == *expected, "{name}: {found:?}, not {expected:?}");
    }
    let counted = counted.into_iter().filter(|(_, sums)| sums[2] > 0);
    agrees_with_gprofng(recorded, &counted.collect())
}

/// Returns the relative standard deviation of the estimate for `blocks` blocks of `bytes` bytes
/// each; one byte of `mean_bytes` is sampled on average.
fn sigma(blocks: u64, bytes: f64, mean_bytes: f64) -> f64 {
    let probability = 1.0 - (-bytes / mean_bytes).exp();
    ((1.0 - probability) / (blocks as f64 * probability)).sqrt()
}

#[test]
fn root_each_block_of_a_load_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(&["-H", "all", "-F", "load"], &[ALLOCATIONS, "50"], LIMIT)?;
    let stdout = recorded.finished.stdout.clone();
    agrees(&recorded, &stdout)
}

/// Probes come into a program that runs.
#[test]
fn root_each_block_of_a_running_process_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let mut program = Running::start(Command::new(ALLOCATIONS).arg("60000"), LIMIT)?;
    let pid = program.pid().to_string();
    let call = format!("/proc/{pid}/syscall");
    let pauses = || fs::read_to_string(&call).is_ok_and(|call| call.starts_with(CLOCK_NANOSLEEP));
    program.until("its pause", pauses)?;
    let mut recording = Recording::start(["-H", "all", "-F", "off", "-T", &pid], LIMIT)?;
    recording.until_running()?;
    program.signal(Signal::SIGUSR1)?;
    let stdout = program.finish()?.succeeded()?.stdout;
    agrees(&recording.stop()?, &stdout)
}

/// Samples add up to what was allocated, as exactly as their number permits.
#[test]
fn root_sampled_blocks_stand_for_all() -> Result<()> {
    const MEAN_BYTES: f64 = 65_536.0;
    let _machine = Shared::take()?;
    let mean = MEAN_BYTES.to_string();
    let load = [ALLOCATIONS, "50", "sampled"];
    let arguments = ["-H", &mean, "--trace-budget", "off", "-F", "load"];
    let recorded = record(&arguments, &load, LIMIT)?;
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    let model = Model::load(&[experiment])?;
    for (name, [live, allocated, count]) in counted(&recorded.finished.stdout, 2)? {
        let bytes = allocated as f64 / count as f64;
        let sigma = |blocks| sigma(blocks, bytes, MEAN_BYTES);
        let found = reported(&model, name)?;
        let expected = [(live, count / 2), (allocated, count), (count, count)];
        for (found, (expected, blocks)) in found.into_iter().zip(expected) {
            let off = (found as f64 / expected as f64 - 1.0) / sigma(blocks);
            ensure!(
                off.abs() < 5.0,
                "{name}: {found}, not {expected}: {off:.1} sigma"
            );
        }
    }
    Ok(())
}

/// What a program has sampled itself is recorded with the weights that it says, also of one that
/// runs already. Its functions are not probed, unless each block is asked for.
#[test]
fn root_what_a_program_samples_itself_is_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(&["-H", "on", "-F", "load"], &[SAMPLED, "4000"], LIMIT)?;
    let stdout = recorded.finished.stdout.clone();
    own_samples(&recorded, &stdout)?;

    let mut command = Command::new(SAMPLED);
    let program = Running::start(command.arg("4000"), LIMIT)?;
    let pid = program.pid().to_string();
    let mut recording = Recording::start(["-H", "on", "-F", "off", "-T", &pid], LIMIT)?;
    recording.until_running()?;
    let stdout = program.finish()?.succeeded()?.stdout;
    own_samples(&recording.stop()?, &stdout)?;

    // It waits in vain for its semaphores.
    let recorded = record(&["-H", "all", "-F", "load"], &[SAMPLED, "4000"], LIMIT)?;
    let experiment = recorded.experiment()?;
    ensure!(summed(&experiment, "sampling_processes")? == 0);
    ensure!(summed(&experiment, "sampled")? >= 8000);
    Ok(())
}

fn own_samples(recorded: &FinishedRecording, stdout: &str) -> Result<()> {
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    ensure!(summed(&experiment, "sampling_processes")? == 1);
    let counted = counted(stdout, 2)?;
    ensure!(
        counted.values().all(|[_, allocated, _]| *allocated > 0),
        "{counted:?}"
    );
    let model = Model::load(&[experiment])?;
    for (name, expected) in &counted {
        let found = reported(&model, name)?;
        ensure!(found == *expected, "{name}: {found:?}, not {expected:?}");
    }
    Ok(())
}

/// Returns a field of `allocations` in the summary.
pub(super) fn summed(experiment: &Path, field: &str) -> Result<u64> {
    number_of(experiment, "allocations", field)
}

/// Returns a field of a part of the summary.
pub(super) fn number_of(experiment: &Path, part: &str, field: &str) -> Result<u64> {
    let summary = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&summary)?;
    let value = &summary[part][field];
    value.as_u64().with_context(|| format!("{field}: {value}"))
}

/// Where probes take more than their budget, they are removed.
#[test]
fn root_what_allocates_too_fast_is_no_longer_probed() -> Result<()> {
    let _machine = Shared::take()?;
    let load = [ALLOCATIONS, "50", "churn"];
    let recorded = record(&["-H", "on", "-F", "load"], &load, LIMIT)?;
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    let counts = ["over_budget", "probed_processes"].map(|field| summed(&experiment, field));
    ensure!(matches!(counts, [Ok(1), Ok(1)]), "{counts:?}");
    let log = fs::read_to_string(experiment.join("log.xml"))?;
    ensure!(log.contains("--trace-budget"), "no word of it: {log}");
    let counted = counted(&recorded.finished.stdout, 2)?;
    let model = Model::load(&[experiment])?;
    // No block that was recorded before is taken for one that is left.
    let [live, allocated, _] = reported(&model, "churn")?;
    let all = counted["churn"][1];
    ensure!(
        live == 0 && allocated < all / 2,
        "{live}, {allocated} of {all}"
    );
    ensure!(reported(&model, "hoard")? == [0; 3], "it was probed");
    Ok(())
}

/// After a while the blocks of a program that has calmed down are recorded again.
#[test]
fn root_blocks_are_recorded_again() -> Result<()> {
    const MEAN_BYTES: f64 = 16_384.0;
    let _machine = Shared::take()?;
    let mean = MEAN_BYTES.to_string();
    let load = [ALLOCATIONS, "50", "later"];
    let recorded = record(&["-H", &mean, "-F", "load"], &load, LIMIT)?;
    let experiment = recorded.experiment()?;
    RunSummary::of(&experiment)?.complete()?;
    let counts = ["over_budget", "probed_processes"].map(|field| summed(&experiment, field));
    ensure!(matches!(counts, [Ok(1), Ok(1)]), "{counts:?}");
    let log = fs::read_to_string(experiment.join("log.xml"))?;
    // One warning that there is less, and one that there is all again.
    let warnings = log.matches("(process ").count();
    ensure!(warnings >= 2, "no word of it: {log}");
    let [_, bytes, count] = counted(&recorded.finished.stdout, 3)?["later"];
    let model = Model::load(&[experiment])?;
    let sigma = sigma(count, 1000.0, MEAN_BYTES);
    let found = reported(&model, "later")?;
    for (found, expected) in found.into_iter().zip([bytes, bytes, count]) {
        let off = (found as f64 / expected as f64 - 1.0) / sigma;
        ensure!(off.abs() < 5.0, "{found}, not {expected}: {off:.1} sigma");
    }
    ensure!(reported(&model, "hoard")? == [0; 3], "it was probed");
    Ok(())
}

/// A program that executes another one has nothing of it left, and the other one's blocks are
/// recorded too.
#[test]
fn root_blocks_end_with_their_program() -> Result<()> {
    let _machine = Shared::take()?;
    let script = format!("{ALLOCATIONS} 50 >&2; exec {ALLOCATIONS} 50");
    let recorded = record(&["-H", "all", "-F", "load"], &["sh", "-c", &script], LIMIT)?;
    let founder = recorded.experiment()?;
    let experiments = experiments_in(&founder)?;
    ensure!(experiments.len() == 1, "{experiments:?}");
    let model = Model::load(&[founder])?;
    for (name, expected) in counted(&recorded.finished.stdout, FUNCTIONS)? {
        let found = reported(&model, name)?;
        ensure!(found == expected, "{name}: {found:?}, not {expected:?}");
    }
    // The shell's blocks are gone.
    let shell = reported(&model, "main")?;
    ensure!(shell[1] > 0, "nothing in main");
    Ok(())
}

/// When kcollect is killed, the program's code is as it was.
#[test]
fn root_no_probe_stays() -> Result<()> {
    let _machine = Shared::take()?;
    let mut program = Running::start(Command::new(ALLOCATIONS).arg("60000"), LIMIT)?;
    let pid = program.pid().to_string();
    program.until("its C library", || code_of(&pid).is_ok())?;
    let before = code_of(&pid)?;
    let mut recording = Recording::start(["-H", "on", "-F", "off", "-T", &pid], LIMIT)?;
    recording.until_running()?;
    let during = code_of(&pid)?;
    ensure!(before != during, "no probe was set");
    recording.signal(Signal::SIGKILL)?;
    let killed = recording.running();
    while !killed.ended()? {
        sleep(Duration::from_millis(10));
    }
    // Links go when the kernel has closed the descriptors of the process.
    let deadline = Instant::now() + LIMIT;
    while code_of(&pid)? != before {
        ensure!(Instant::now() < deadline, "a probe is left");
        sleep(Duration::from_millis(10));
    }
    ensure!(!program.ended()?, "the program has ended");
    Ok(())
}

/// Returns the code of the C library of a process, as it is in memory.
fn code_of(pid: &str) -> Result<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with("libc.so.6"))
        .context("no C library")?;
    let (from, rest) = line.split_once('-').context("no addresses")?;
    let to = rest.split(' ').next().unwrap_or_default();
    let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
    let mut code = vec![0; (to - from) as usize];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut code, from)?;
    Ok(code)
}
