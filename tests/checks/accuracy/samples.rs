//! At every sample the exact times of the machine are the sums of its threads' times, gprofng's
//! file has the same sums, and the counts of a process are the ones that it reads of itself.

use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use nix::sys::signal::Signal;
use tests::command::Running;
use tests::experiment::states::States;
use tests::experiment::summary::RunSummary;
use tests::experiment::thread_ticks;
use tests::experiment::threads;
use tests::experiment::threads::MAX_CLOCK_DRIFT_SHARE;
use tests::kcollect::{Recording, experiments_in, record};
use tests::machine::disturbance::judge_times;
use tests::machine::{Exclusive, Shared, alone, work_cpu};
use tests::workload;
use tests::workload::counts::Counts;
use tests::workload::proctorture::{PROCTORTURE, pid, start};

const LIMIT: Duration = Duration::from_secs(40);

/// How far the beginning and the end of data may differ between CPUs, nanoseconds.
const EDGE_NS: u64 = 10_000_000;

#[test]
fn root_alone_threads_sum_up_to_the_machine_at_every_sample() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?.to_string();
        // Threads that come and go, one that only runs and one that mostly sleeps.
        let mut others = Vec::new();
        for program in [workload!("spin_user"), workload!("vfork_parent")] {
            others.push(Running::start(
                Command::new(program).args(["4", &cpu]),
                LIMIT,
            )?);
        }
        let recorded = record(
            &["-p", "on"],
            &[workload!("thread_starts"), "3.5", &cpu],
            LIMIT,
        )?;
        for other in others {
            other.finish()?.succeeded()?;
        }
        let experiment = recorded.experiment()?;
        let lines = threads::lines(&experiment)?;
        let samples = threads::judge(&lines)?;
        ensure!(samples.len() >= 5, "{} samples in 3.5 s", samples.len());
        let short_lived: u64 = lines.iter().filter_map(|line| line.short_lived).sum();
        ensure!(
            short_lived > 1000,
            "only {short_lived} short-lived threads of thread_starts"
        );

        // The samples that gprofng reads.
        let read = Experiment::open(&experiment)?.samples()?;
        ensure!(read.len() == samples.len(), "{} usage records", read.len());
        for (sample, line) in read.iter().zip(&samples) {
            let usage = sample.usage.as_ref().context("a sample without usage")?;
            let states: Nanos = usage.states_ns.iter().sum();
            ensure!(
                usage.real_ns == Nanos(line.tracked_ns)
                    && states == usage.real_ns
                    && u64::from(usage.threads) == line.threads
                    && sample.at_ns == Nanos(line.at_ns),
                "{usage:?} is not {line:?}"
            );
        }

        // The last one is the whole run, which the summary has by process.
        let last = samples.last().context("no sample")?;
        let account = States::of(&experiment)?;
        let lived: f64 = account.processes.iter().map(|row| row.tracked_s).sum();
        ensure!(
            (lived - last.tracked_ns as f64 / 1e9).abs() < 1e-6,
            "{lived} s by process, {last:?}"
        );
        Ok(())
    })
}

#[test]
fn root_alone_counts_are_those_of_the_process() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?.to_string();
        let recorded = record(&["-p", "on"], &[workload!("counts"), "2", &cpu], LIMIT)?;
        let own = recorded.finished.stdout.lines();
        let own: Counts = own
            .filter_map(|line| serde_json::from_str(line).ok())
            .next()
            .with_context(|| recorded.finished.to_string())?;
        let pid = recorded.truth()?.pid;
        let text = std::fs::read_to_string(recorded.experiment()?.join("kcollect.json"))?;
        let summary: serde_json::Value = serde_json::from_str(&text)?;
        let mut rows = summary["processes"].as_array().into_iter().flatten();
        let row = rows
            .rfind(|row| row["pid"] == pid.0)
            .context("no row of the workload")?;
        let counts: Counts = serde_json::from_value(row["counts"].clone())?;
        ensure!(
            own.minor_faults > 10_000 && own.voluntary_switches > 500,
            "{own:?}"
        );
        counts.agree(&own)
    })
}

/// The samples of a followed process are from the beginning of data, or its own start, to its exit,
/// whenever it had its first tick: the times of its thread fill them.
#[test]
fn root_samples_of_a_followed_process_cover_its_life() -> Result<()> {
    let _machine = Shared::take()?;
    let sleeper = start(PROCTORTURE, &["sleep:1500", "one:300", "sleep:60000"])?;
    let follow = format!("={}|spawner", sleeper.pid());
    let cpu = work_cpu()?.to_string();
    let options = ["-p", "hi", "-F", &follow];
    let recorded = record(&options, &[workload!("spawner"), "2.5", &cpu], LIMIT)?;
    let directories = experiments_in(&recorded.experiment()?)?;
    ensure!(directories.len() > 1, "{directories:?}");
    let mut slept = 0;
    for directory in &directories {
        let experiment = Experiment::open(directory)?;
        let samples = experiment.samples()?;
        let (first, last) = samples.first().zip(samples.last()).context("no sample")?;
        ensure!(
            samples.len() > 1 && samples.is_sorted_by(|one, next| one.at_ns < next.at_ns),
            "{}: {samples:?}",
            directory.display()
        );
        if experiment.header().pid != pid(&sleeper) {
            continue;
        }
        let usage = last.usage.as_ref().context("a sample without usage")?;
        let off = usage.real_ns.abs_diff(last.at_ns - first.at_ns);
        ensure!(
            off < Nanos(EDGE_NS),
            "{off} ns are missing, or too much: {samples:?}"
        );
        slept += 1;
    }
    ensure!(slept == 1, "{directories:?}");
    Ok(())
}

/// While recording is paused no thread has time or ticks.
#[test]
fn root_alone_paused_time_is_not_counted() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let sleeper = workload!("state_sleep");
        let mut sleeper =
            Running::start(Command::new(sleeper).args(["8", &cpu, "nanosleep"]), LIMIT)?;
        let spinner = Running::start(
            Command::new(workload!("spin_user")).args(["8", &cpu]),
            LIMIT,
        )?;
        let mut recording = Recording::start(["-p", "hi", "-y", "USR1,r"], LIMIT)?;
        recording.until_running()?;
        sleep(Duration::from_secs(1));
        for _ in 0..2 {
            // Paused, and on again.
            recording.signal(Signal::SIGUSR1)?;
            sleep(Duration::from_millis(1500));
            recording.signal(Signal::SIGUSR1)?;
            sleep(Duration::from_secs(1));
        }
        ensure!(!sleeper.ended()?, "the load has ended too early");
        let recorded = recording.stop()?;
        let experiment = recorded.experiment()?;
        let summary = RunSummary::of(&experiment)?;
        summary.complete()?;
        let recorded_s = summary
            .cpus
            .iter()
            .map(|cpu| cpu.recorded_ns)
            .fold(0.0, f64::max)
            / 1e9;
        ensure!((2.5..4.5).contains(&recorded_s), "data for {recorded_s} s");

        let account = States::of(&experiment)?;
        let threads = threads::lines(&experiment)?;
        for load in [&sleeper, &spinner] {
            let pid = pid(load);
            let row = account.row(pid)?;
            ensure!(row.threads == 1, "{row:?}");
            ensure!(
                (row.tracked_s - recorded_s).abs() < MAX_CLOCK_DRIFT_SHARE * recorded_s,
                "{row:?} in {recorded_s} s that were recorded"
            );
            let sum: f64 = row.states_s.iter().sum();
            ensure!((sum - row.tracked_s).abs() < 1e-6, "{row:?}");
            // Its ticks: within one at each end of each of the three spans, and one for each time
            // that it changed its CPU, which it does not.
            let ticks = thread_ticks(&experiment, Some(pid))?;
            let expected = recorded_s / (summary.interval_us / 1e6);
            ensure!(
                (ticks as f64 - expected).abs() <= 8.0,
                "{ticks} ticks of {row:?}, not {expected:.0}"
            );
        }
        ensure!(
            threads.iter().any(|line| line.sample.is_some()),
            "no sample"
        );
        sleeper.finish()?.succeeded()?;
        spinner.finish()?.succeeded()?;
        Ok(())
    })
}

/// Threads that sleep, wake and leave their CPU as recording starts: whichever of these the
/// programs see first, a thread's ticks match its time.
#[test]
fn root_alone_a_thread_that_wakes_as_data_begin_has_no_earlier_ticks() -> Result<()> {
    const SLEEPERS: usize = 16;

    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let mut sleepers = Vec::new();
        for _ in 0..SLEEPERS {
            let mut command = Command::new(workload!("state_sleep"));
            sleepers.push(Running::start(
                command.args(["30", &cpu, "nanosleep"]),
                LIMIT,
            )?);
        }
        for _ in 0..3 {
            let recorded = record(&["-p", "hi", "-t", "1"], &[], LIMIT)?;
            let experiment = recorded.experiment()?;
            let summary = RunSummary::of(&experiment)?;
            summary.complete()?;
            let account = States::of(&experiment)?;
            for sleeper in &sleepers {
                let pid = pid(sleeper);
                let row = account.row(pid)?;
                let recorded = summary.cpus.iter().map(|cpu| cpu.recorded_ns);
                let recorded_s = recorded.fold(0.0, f64::max) / 1e9;
                ensure!(
                    row.tracked_s <= recorded_s + 5e-4,
                    "{row:?}: more than the {recorded_s} s for which data were recorded"
                );
                let ticks = thread_ticks(&experiment, Some(pid))?;
                let expected = row.tracked_s / (summary.interval_us / 1e6);
                ensure!(
                    expected > 900.0 && (ticks as f64 - expected).abs() <= 4.0,
                    "{ticks} ticks of {row:?}, not {expected:.0}"
                );
            }
        }
        for sleeper in &mut sleepers {
            ensure!(!sleeper.ended()?, "the load has ended too early");
        }
        Ok(())
    })
}

/// More threads than a buffer of the kernel holds, and more than a ring would: each has its row,
/// asleep all the time.
#[test]
fn root_alone_ten_thousand_threads() -> Result<()> {
    const THREADS: usize = 10_000;

    let _machine = Exclusive::take()?;
    let gate = Arc::new(Barrier::new(THREADS + 1));
    let mut sleepers = Vec::new();
    for _ in 0..THREADS {
        let gate = Arc::clone(&gate);
        let thread = std::thread::Builder::new().stack_size(16 << 10);
        sleepers.push(thread.spawn(move || gate.wait())?);
    }
    let recorded = record(&["-p", "on", "-t", "2"], &[], LIMIT);
    gate.wait();
    for sleeper in sleepers {
        sleeper.join().ok().context("a sleeper died")?;
    }
    let recorded = recorded?;
    let experiment = recorded.experiment()?;
    let summary = RunSummary::of(&experiment)?;
    summary.complete()?;
    ensure!(
        summary.losses["off_cpu"] == 0
            && summary.losses["thread_records"] == 0
            && summary.losses["untracked_threads"] == 0,
        "{:?}",
        summary.losses
    );
    let own = Pid(std::process::id());
    let row = States::of(&experiment)?.row(own)?.clone();
    ensure!(row.threads > THREADS as u64, "{row:?}");
    ensure!(
        (row.tracked_s / row.threads as f64 - summary.elapsed_s).abs()
            < MAX_CLOCK_DRIFT_SHARE * summary.elapsed_s,
        "{} threads were tracked for {} s, of {} s each",
        row.threads,
        row.tracked_s,
        summary.elapsed_s
    );
    let ticks = thread_ticks(&experiment, Some(own))?;
    let expected = row.tracked_s / (summary.interval_us / 1e6);
    ensure!(
        (ticks as f64 - expected).abs() <= 2.0 * row.threads as f64,
        "{ticks} ticks, not {expected:.0}"
    );
    threads::judge(&threads::lines(&experiment)?).map(drop)
}

/// No process is followed, so no user stack is captured: the ticks of all threads are there
/// without.
#[test]
fn root_alone_no_user_stacks_without_following() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [workload!("state_lock"), "1", &cpu, "mutex"];
    let recorded = record(&["-p", "hi"], &load, LIMIT)?;
    let experiment = recorded.experiment()?;
    let text = std::fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let all = thread_ticks(&experiment, None)?;
    ensure!(
        summary["followed"].is_null() && all > 1000,
        "{all} ticks in packets: {}",
        summary["followed"]
    );
    let subexperiments = std::fs::read_dir(&experiment)?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with('_'));
    ensure!(subexperiments.count() == 0, "a process was followed");
    Ok(())
}
