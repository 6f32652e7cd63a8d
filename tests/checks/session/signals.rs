//! How a recording is controlled: signals that end, pause and sample it, times, limits, and the
//! load's own end.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use tests::command::run;
use tests::experiment::{began_ns, files_below};
use tests::gprofng::{self, Header};
use tests::kcollect::{FinishedRecording, Recording, record};
use tests::machine::disturbance::judge_times;
use tests::machine::{Exclusive, Shared, online_cpus};
use tests::oracle::statistics::Band;
use tests::workload;
use tests::workload::truth::monotonic_ns;

const LIMIT: Duration = Duration::from_secs(30);

/// Starting, stopping, pausing and resuming the CPUs' clocks takes a moment each.
const EDGE_NS: f64 = 5e7;

#[test]
fn root_alone_each_ending_signal_closes_the_experiment() -> Result<()> {
    judge_times(|| {
        for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            let mut recording = Recording::start(["-p", "hi", "-x", "off"], LIMIT)?;
            recording.until_running()?;
            sleep(Duration::from_secs(1));
            recording.signal(signal)?;
            let recorded = recording.finish()?.succeeded()?;
            let header = closed(&recorded)?;
            every_cpu_has(&recorded, &header, header.duration_ns)?;
        }
        Ok(())
    })
}

#[test]
fn root_alone_a_second_interrupt_gives_up_archiving_only() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut recording = Recording::start(["-p", "hi", "-x", "off"], LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_secs(1));
    recording.signal(Signal::SIGINT)?;
    // Wherever the second one falls, also after the end, the experiment is the same.
    sleep(Duration::from_millis(20));
    let _ = recording.signal(Signal::SIGINT);
    let recorded = recording.finish()?.succeeded()?;
    let header = closed(&recorded)?;
    every_cpu_has(&recorded, &header, header.duration_ns)
}

#[test]
fn root_alone_a_signal_pauses_and_resumes() -> Result<()> {
    judge_times(|| {
        for (option, pauses_first) in [("USR1", false), ("SIGUSR1,r", true)] {
            let mut recording = Recording::start(["-p", "hi", "-x", "off", "-y", option], LIMIT)?;
            if pauses_first {
                recording.until_running()?
            } else {
                recording.until_open()?
            };
            // Begins paused: pause, record, pause. Begins recording: record, pause, record.
            let mut turns = Vec::new();
            for _ in 0..2 {
                sleep(Duration::from_secs(1));
                turns.push(monotonic_ns()?);
                recording.signal(Signal::SIGUSR1)?;
            }
            sleep(Duration::from_secs(1));
            turns.push(monotonic_ns()?);
            let recorded = recording.stop()?;
            let header = closed(&recorded)?;
            let seconds = if pauses_first {
                (turns[0] - began_ns(&recorded.experiment()?)?) + (turns[2] - turns[1])
            } else {
                turns[1] - turns[0]
            };
            let off = header.duration_ns / 1e9 - seconds as f64 / 1e9;
            ensure!(
                off.abs() < 0.2,
                "-y {option}: data for {} s, {off} more than it should\n{}",
                header.duration_ns / 1e9,
                header.text
            );
            every_cpu_has(&recorded, &header, header.duration_ns)?;
        }
        Ok(())
    })
}

#[test]
fn root_a_signal_records_a_sample() -> Result<()> {
    let _machine = Shared::take()?;
    let mut recording =
        Recording::start(["-p", "on", "-x", "off", "-S", "off", "-l", "USR2"], LIMIT)?;
    let experiment = recording.until_running()?;
    sleep(Duration::from_millis(500));
    let before = samples(&experiment)?;
    for _ in 0..2 {
        recording.signal(Signal::SIGUSR2)?;
        sleep(Duration::from_millis(500));
    }
    ensure!(
        samples(&experiment)? == before + 2,
        "{before} samples, two signals, {} samples",
        samples(&experiment)?
    );
    closed(&recording.stop()?)?;
    Ok(())
}

#[test]
fn root_signals_while_it_starts_are_no_error() -> Result<()> {
    let _machine = Shared::take()?;
    // Ignored until kcollect has its handler, since a program inherits that.
    // SAFETY: no handler runs.
    unsafe { signal(Signal::SIGUSR1, SigHandler::SigIgn) }?;
    let mut recording = Recording::start(["-p", "on", "-l", "USR1"], LIMIT)?;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        recording.signal(Signal::SIGUSR1)?;
        sleep(Duration::from_millis(1));
    }
    recording.until_running()?;
    closed(&recording.stop()?)?;
    Ok(())
}

#[test]
fn root_alone_a_window_of_time_is_recorded() -> Result<()> {
    judge_times(|| {
        let recording = Recording::start(["-p", "hi", "-x", "off", "-t", "1-3"], LIMIT)?;
        let recorded = recording.finish()?.succeeded()?;
        let elapsed = recorded.finished.elapsed.as_secs_f64();
        ensure!((3.0..8.0).contains(&elapsed), "-t 1-3 took {elapsed} s");
        let header = closed(&recorded)?;
        ensure!(
            (header.duration_ns / 1e9 - 2.0).abs() < 0.2,
            "-t 1-3 has data for {} s",
            header.duration_ns / 1e9
        );
        every_cpu_has(&recorded, &header, header.duration_ns)
    })
}

#[test]
fn root_the_size_limit_stops_data_and_not_samples() -> Result<()> {
    let _machine = Shared::take()?;
    // The shortest interval: a megabyte is full soon.
    let recording = Recording::start(["-p", "0.1", "-x", "off", "-L", "1", "-t", "6"], LIMIT)?;
    let recorded = recording.finish()?.succeeded()?;
    closed(&recorded)?;
    let experiment = recorded.experiment()?;
    let size = |name| fs::metadata(experiment.join(name)).map(|file| file.len());
    let (packets, stacks) = (size("profile")?, size("data.frameinfo")?);
    ensure!(
        // What is on its way when the limit is reached, of a tenth of a second or two at 20,000
        // packets each, is kept. How much of it is stacks depends on what runs.
        packets + stacks >= 900_000 && packets < 2_000_000,
        "-L 1 left {packets} bytes of packets and {stacks} of stacks"
    );
    let samples = samples(&experiment)?;
    ensure!(
        samples >= 6,
        "{samples} samples in six seconds: they stopped with the data"
    );
    let output = gprofng::script(&["metrics e.kcpu:name", "samples"], &experiment)?.content()?;
    ensure!(output.table(1).total()? > 0.0, "no data at all");
    Ok(())
}

/// Two thousand threads have half a megabyte of lines in each sample.
#[test]
fn root_alone_samples_without_data_end_at_half_of_the_limit() -> Result<()> {
    let _machine = Exclusive::take()?;
    let load = [workload!("many_processes"), "threads", "2000", "5"];
    let recorded = record(&["-p", "on", "-x", "off", "-L", "1"], &load, LIMIT)?;
    closed(&recorded)?;
    let log = fs::read_to_string(recorded.experiment()?.join("log.xml"))?;
    let warnings = log.matches("samples end: ").count();
    ensure!(warnings == 1, "{warnings} warnings that samples end");
    let after = log.rsplit("samples end: ").next().unwrap_or_default();
    let labels: Vec<_> = after.match_indices("kind=\"sample\"").collect();
    ensure!(
        labels.len() == 1 && after.contains("label=\"stop\""),
        "{} samples after the last: {after}",
        labels.len()
    );
    Ok(())
}

#[test]
fn root_the_exit_code_is_that_of_the_load() -> Result<()> {
    let _machine = Shared::take()?;
    for (load, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)] {
        // A tick of the idle CPUs is data: the experiment is not empty, however short the load.
        let recording = Recording::start(["-p", "hi", "-x", "off", "sh", "-c", load], LIMIT)?;
        let recorded = recording.finish()?;
        ensure!(
            recorded.finished.code() == code,
            "a load that does `{load}`: {}",
            recorded.finished
        );
        closed(&recorded)?;
    }
    let recording = Recording::start(["-p", "hi", "--", "/no/such/program"], LIMIT)?;
    let recorded = recording.finish()?;
    ensure!(
        recorded.finished.code() == 127,
        "a load that does not exist: {}",
        recorded.finished
    );
    ensure!(
        recorded.finished.stderr.contains("/no/such/program"),
        "it is not named: {}",
        recorded.finished
    );
    Ok(())
}

#[test]
fn root_the_load_outlives_the_time_limit() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pid");
    let load = format!("echo $$ > {}; exec sleep 20", file.display());
    let start = Instant::now();
    let recording = Recording::start(
        ["-p", "hi", "-x", "off", "-t", "1", "sh", "-c", &load],
        LIMIT,
    )?;
    let recorded = recording.finish()?.succeeded()?;
    ensure!(
        start.elapsed() < Duration::from_secs(10),
        "-t 1 waited for the load: {}",
        recorded.finished
    );
    closed(&recorded)?;
    let pid = Pid::from_raw(fs::read_to_string(&file)?.trim().parse()?);
    ensure!(
        kill(pid, None).is_ok(),
        "the load was ended with the recording"
    );
    kill(pid, Signal::SIGKILL)?;
    Ok(())
}

#[test]
fn root_a_dry_run_leaves_nothing() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut command = tests::kcollect::command(["-n", "-p", "hi", "-t", "5"])?;
    let finished = run(command.current_dir(directory.path()), LIMIT)?.succeeded()?;
    ensure!(
        finished.elapsed < Duration::from_secs(4),
        "a dry run took {:?}",
        finished.elapsed
    );
    ensure!(
        fs::read_dir(directory.path())?.next().is_none(),
        "a dry run left files"
    );
    ensure!(
        finished.stdout.contains("997") || finished.stderr.contains("997"),
        "no interval is printed: {finished}"
    );
    Ok(())
}

#[test]
fn root_the_experiment_belongs_to_the_user_of_sudo() -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut command: Command = tests::kcollect::command(["-p", "hi", "-x", "off", "-t", "1"])?;
    command
        .env("SUDO_UID", "65534")
        .env("SUDO_GID", "65534")
        .env("SUDO_USER", "nobody");
    run(command.current_dir(directory.path()), LIMIT)?.succeeded()?;
    let experiment = tests::kcollect::experiment_in(directory.path())?;
    for path in std::iter::once(experiment.clone()).chain(files_below(&experiment)?) {
        let status = fs::symlink_metadata(&path)?;
        let owner = (status.uid(), status.gid());
        ensure!(
            owner == (65534, 65534),
            "{} belongs to {owner:?}",
            path.display()
        );
    }
    let mode = fs::metadata(&experiment)?.mode() & 0o7777;
    ensure!(mode == 0o700, "the experiment has mode {mode:o}");
    Ok(())
}

/// Returns the header of an experiment, which has to be closed.
fn closed(recorded: &FinishedRecording) -> Result<Header> {
    let header = gprofng::header(&recorded.experiment()?)?;
    ensure!(
        header.closed,
        "the experiment was not closed: {}\n{}",
        header.text,
        recorded.finished
    );
    Ok(header)
}

/// Checks that each CPU has ticks for a span of time, with `-x off`.
fn every_cpu_has(recorded: &FinishedRecording, header: &Header, span_ns: f64) -> Result<()> {
    let cpus = gprofng::objects(&recorded.experiment()?, "cpus")?;
    for cpu in online_cpus()? {
        let ticks = cpus.get(&format!("CPU {cpu}")) * 1e9 / header.interval_ns;
        Band::time(span_ns, span_ns, header.interval_ns)
            .with_edges(EDGE_NS / header.interval_ns)
            .judge(&format!("CPU {cpu} in {:.3} s", span_ns / 1e9), ticks)?;
    }
    Ok(())
}

/// Returns the number of sample events in the log.
fn samples(experiment: &Path) -> Result<usize> {
    Ok(fs::read_to_string(experiment.join("log.xml"))?
        .matches("kind=\"sample\"")
        .count())
}
