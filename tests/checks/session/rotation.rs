//! One experiment after the other (`--rotate`): nothing is lost between them, and nothing counts
//! twice.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta};
use experiment_format::ids::Pid;
use experiment_format::reader::Experiment;
use host::exit::ExitKind;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::command::{Running, run};
use tests::experiment::series::{closed_without_a_gap, series, service, span, until_data};
use tests::experiment::states::{ProcessTimes, States};
use tests::experiment::summary::{CpuStats, RunSummary};
use tests::experiment::{Packet, packets};
use tests::kcollect::{command, record, run_in};
use tests::machine::day_clock::DayClock;
use tests::machine::{Exclusive, Shared, alone, work_cpu};
use tests::oracle::statistics::Band;
use tests::random::SplitMix;
use tests::workload;
use tests::workload::truth::Truth;

const LIMIT: Duration = Duration::from_secs(60);

/// Checks that the ticks of a CPU in all experiments are their time, as if there were one. It has
/// two edges, each of which may have moved by half an interval.
fn elapsed(cpu: usize, ticks: u64, recorded_ns: f64, interval_ns: f64) -> Result<()> {
    let whole = CpuStats {
        cpu,
        recorded_ns,
        user: ticks,
        kernel: 0,
        idle: 0,
        stolen: 0,
        lost: 0,
    };
    whole.elapsed(interval_ns, 1)
}

/// Returns the exact seconds of a process: on a CPU, and tracked.
fn times_of(path: &Path, pid: Pid) -> Result<(f64, f64)> {
    let text = fs::read_to_string(path.join("kcollect.json"))?;
    let json: Value = serde_json::from_str(&text)?;
    let processes = json["processes"].as_array().context("processes")?;
    let Some(process) = processes.iter().find(|process| process["pid"] == pid.0) else {
        return Ok((0.0, 0.0));
    };
    let names = json["states"].as_array().context("states")?;
    let states = process["states_s"].as_array().context("states_s")?;
    let on_cpu = names.iter().zip(states).filter(|(name, _)| {
        let name = name.as_str().unwrap_or_default();
        ["user", "system", "trap"].contains(&name)
    });
    let on_cpu = on_cpu.filter_map(|(_, seconds)| seconds.as_f64()).sum();
    Ok((on_cpu, process["tracked_s"].as_f64().context("tracked_s")?))
}

/// Checks that what `kcollect list` shows of a directory agrees with the experiments themselves,
/// and with their size on disk by du(1).
fn listed(directory: &Path, all: &[PathBuf]) -> Result<()> {
    let mut list = command(["list".as_ref(), directory.as_os_str(), "--json".as_ref()])?;
    let list: Value = serde_json::from_str(&run(&mut list, LIMIT)?.succeeded()?.stdout)?;
    let rows = list["rows"].as_array().context("rows")?;
    ensure!(rows.len() == all.len(), "{list:#} of {all:?}");
    for (row, path) in rows.iter().zip(all) {
        let (began, ended) = span(path)?;
        let length_s = row["length_s"].as_f64().context("length_s")?;
        ensure!(
            row["experiment"] == path.to_string_lossy().as_ref()
                && row["state"] == "complete"
                && (length_s - (ended - began) as f64 / 1e9).abs() < 1e-6
                && row["followed"] == Experiment::open(path)?.subexperiments()?.len(),
            "{row:#}"
        );
        let mut du = Command::new("du");
        du.args(["--block-size=512", "--summarize"]).arg(path);
        let blocks = run(&mut du, LIMIT)?.succeeded()?.stdout;
        let blocks: f64 = blocks.split('\t').next().context("a number")?.parse()?;
        // Without the experiment's own directory.
        let own = fs::metadata(path)?.blocks() as f64;
        let size_mb = row["size_mb"].as_f64().context("size_mb")?;
        ensure!(
            (size_mb - (blocks - own) * 512e-6).abs() < 1e-6,
            "du has {blocks} blocks, {own} of the directory: {row:#}"
        );
    }
    Ok(())
}

/// Returns the time of a process in seconds, by ticks, in a report of a part of a directory's
/// experiments; and the time in RFC 3339 at which that part ends. None: nothing was recorded then.
fn reported(directory: &Path, part: [&str; 2], pid: Pid) -> Result<Option<(f64, String)>> {
    let options = ["processes", "--json", "-m", "e.total", "--ticks"];
    let words = ["report".as_ref(), directory.as_os_str()].into_iter();
    let words = words.chain(part.iter().chain(&options).map(OsStr::new));
    let report = run(&mut command(words)?, LIMIT)?;
    if report.code() == i32::from(ExitKind::Empty.code()) {
        return Ok(None);
    }
    let report: Value = serde_json::from_str(&report.succeeded()?.stdout)?;
    let rows = report["rows"].as_array().context("rows")?;
    let ours: Vec<_> = rows.iter().filter(|row| row["pid"] == pid.0).collect();
    ensure!(ours.len() <= 1, "a process is one row: {ours:#?}");
    let seconds = ours
        .first()
        .map_or(Some(0.0), |row| row["e.total"].as_f64());
    let end = report["period"]["to"].as_str().context("a period")?;
    Ok(Some((seconds.context("seconds")?, end.to_owned())))
}

/// Maximum time that a load waits for a CPU on a machine where other checks run, seconds.
const LONGEST_WAIT_S: f64 = 0.05;

/// Checks that the reports of all seconds of a series together have what its experiments have, and
/// that the report of a second in the middle has a second.
fn at_each_second(directory: &Path, pid: Pid, ticks: u64, interval_s: f64) -> Result<()> {
    let (whole, end) = reported(directory, ["--last", "1h"], pid)?.context("a report")?;
    ensure!(
        (whole - ticks as f64 * interval_s).abs() < 1e-6,
        "{ticks} ticks, {whole} s are reported"
    );
    let end = DateTime::parse_from_rfc3339(&end).ok().context("a time")?;
    let mut parts = Vec::new();
    // The load ran for 4.5 seconds; what is before it has no time of it.
    for back in (0..=10).rev() {
        let at = (end - TimeDelta::seconds(back)).format("%FT%T").to_string();
        // Before the first experiment there is nothing.
        let part = reported(directory, ["--at", &at], pid)?;
        parts.push(part.map_or(0.0, |(part, _)| part));
    }
    let sum: f64 = parts.iter().sum();
    ensure!((sum - whole).abs() < 1e-6, "{parts:?} is not {whole} s");
    // A wait for a CPU counts where it ends, which may be in the next second.
    let full = parts
        .iter()
        .filter(|part| (**part - 1.0).abs() < LONGEST_WAIT_S);
    ensure!(
        full.count() >= 3,
        "{parts:?}: 4.5 s have three whole seconds"
    );
    Ok(())
}

#[test]
fn root_alone_not_a_tick_falls_between_two_experiments() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?.to_string();
        let options = [
            "-p", "hi", "-x", "off", "--rotate", "1", "-A", "off", "-F", "on",
        ];
        let load = [workload!("spin_user"), "4.5", &cpu];
        let recorded = record(&options, &load, LIMIT)?;
        let truth = recorded.truth()?;
        let all = series(recorded.directory())?;
        ensure!(
            (4..=6).contains(&all.len()),
            "{all:?}: {}",
            recorded.finished
        );

        listed(recorded.directory(), &all)?;

        let (mut ticks, mut elapsed_ns, mut on_cpu, mut tracked) = (0, 0.0, 0.0, 0.0);
        let mut of_process = 0;
        let mut interval_ns = 0.0;
        closed_without_a_gap(&all)?;
        for (number, path) in all.iter().enumerate() {
            let (began, ended) = span(path)?;
            let summary = RunSummary::of(path)?;
            summary.complete()?;
            interval_ns = summary.interval_us * 1000.0;
            let stats = summary.cpu(truth.cpu)?;
            // Each of the two edges may have moved by half an interval.
            stats.elapsed(interval_ns, 1)?;
            ticks += stats.ticks();
            elapsed_ns += stats.recorded_ns;
            let (process, path) = summary.followed()?.one(path, truth.pid)?;
            of_process += process.ticks;
            let lasted = (ended - began) as f64 / interval_ns;
            ensure!(
                process.ticks as f64 <= lasted + 1.5,
                "{process:?} in {lasted} intervals"
            );
            span(&path)?;
            let times = times_of(&all[number], truth.pid)?;
            on_cpu += times.0;
            tracked += times.1;
        }
        let directory = recorded.directory();
        at_each_second(directory, truth.pid, of_process, interval_ns / 1e9)?;
        elapsed(truth.cpu, ticks, elapsed_ns, interval_ns)?;
        let span_ns = span(all.last().context("an experiment")?)?.1 - span(&all[0])?.0;
        ensure!(
            tracked <= span_ns as f64 / 1e9 + 1e-6,
            "{tracked} s of {span_ns} ns"
        );
        // Less its beginning, before it executed its program.
        Band::of(truth.cpu_ns() as f64 / 1e9, 0.01)
            .with_edges(0.02)
            .judge("seconds on a CPU", on_cpu)
    })
}

/// Processes that run for milliseconds are in the experiment of their time, those that run over
/// the moment of rotation in both.
#[test]
fn root_alone_no_process_is_forgotten_between_two_experiments() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?.to_string();
    // In memory: where many files were just deleted, as by the check before, ext4 without a journal
    // takes milliseconds for each that is made, and rotations are late.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = ["-p", "hi", "-F", "on", "--rotate", "1", "-A", "off", "--"];
    let arguments = [&options[..], &[workload!("short_lived"), "4.5", &cpu]].concat();
    let finished = run_in(directory.path(), &arguments, LIMIT)?;
    ensure!(finished.code() == 0, "{finished}");
    let truth = Truth::find(&finished.stdout)?;
    let mut ticks: BTreeMap<Pid, u64> = BTreeMap::new();
    let mut parents = 0;
    let mut accounts: BTreeMap<Pid, Vec<ProcessTimes>> = BTreeMap::new();
    for path in series(directory.path())? {
        let summary = RunSummary::of(&path)?;
        summary.complete()?;
        for process in States::of(&path)?.processes {
            accounts.entry(process.pid).or_default().push(process);
        }
        for process in &summary.followed()?.processes {
            *ticks.entry(process.pid).or_default() += process.ticks;
            parents += usize::from(process.pid == truth.pid);
        }
    }
    ensure!((4..=6).contains(&parents), "{parents}: {finished}");
    ensure!(truth.children.len() >= 500, "{truth:?}");
    // Three milliseconds of CPU time are three ticks.
    let forgotten = truth
        .children
        .iter()
        .filter(|pid| ticks.get(pid).is_none_or(|ticks| *ticks == 0));
    let forgotten: Vec<_> = forgotten.collect();
    if let Some(pid) = forgotten.first() {
        let meanwhile = packets_meanwhile(directory.path(), &truth, **pid)?;
        anyhow::bail!("{forgotten:?}: {:?}: {meanwhile:#?}", accounts.get(pid));
    }
    Ok(())
}

/// Returns the packets of the CPU while a child had its name, with their times since then and two
/// milliseconds more at both ends.
fn packets_meanwhile(directory: &Path, truth: &Truth, pid: Pid) -> Result<Vec<(i64, Packet)>> {
    const EDGE_NS: u64 = 2_000_000;
    let named = truth.names.iter().find(|named| named.pid == pid);
    let named = named.context("it has no name")?;
    let lived = named.since_ns - EDGE_NS..named.until_ns + EDGE_NS;
    let mut found = Vec::new();
    for path in series(directory)? {
        let packets = packets(&path)?.into_iter();
        let packets = packets.filter(|packet| packet.cpu == truth.cpu);
        let packets = packets.filter(|packet| lived.contains(&packet.time_ns));
        found.extend(packets.map(|packet| {
            let since = packet.time_ns.cast_signed() - named.since_ns.cast_signed();
            (since, packet)
        }));
    }
    Ok(found)
}

/// Processes that begin, run and exit at a rotation have all of their time in the experiments of
/// that time.
#[test]
fn root_alone_what_a_process_does_at_a_rotation_counts_once() -> Result<()> {
    alone(|| {
        let directory = tempfile::tempdir()?;
        let directory = directory.path();
        let words = ["-p", "hi", "-F", "off", "-A", "off", "--rotate", "1h"];
        let mut service = service(directory, &words, LIMIT)?;
        until_data(&mut service, &directory.join("ktest.1.er"))?;
        let mut load = Command::new(workload!("short_lived"));
        let load = Running::start(load.args(["4", &work_cpu()?.to_string()]), LIMIT)?;
        let mut random = SplitMix(0x5345_414d);
        for _ in 0..40 {
            sleep(Duration::from_micros(50_000 + random.below(50_000)));
            service.signal(Signal::SIGHUP)?;
        }
        let truth = Truth::find_all(&load.finish()?.succeeded()?.stdout);
        let truth = truth.first().context("no truth")?;
        service.signal(Signal::SIGTERM)?;
        service.finish()?.succeeded()?;

        let all = series(directory)?;
        ensure!(all.len() >= 20, "{all:?}");
        closed_without_a_gap(&all)?;
        let mut accounts: BTreeMap<Pid, Vec<ProcessTimes>> = BTreeMap::new();
        for path in &all {
            RunSummary::of(path)?.complete()?;
            for process in States::of(path)?.processes {
                accounts.entry(process.pid).or_default().push(process);
            }
        }
        ensure!(truth.names.len() >= 300, "{truth:?}");
        let mut over_both = 0;
        for child in &truth.names {
            let parts = accounts.get(&child.pid).map_or(&[][..], Vec::as_slice);
            let stolen = |part: &ProcessTimes| part.detail_s.as_ref().map_or(0.0, |it| it.stolen);
            let cpu_s: f64 = parts.iter().map(|part| part.cpu_s() + stolen(part)).sum();
            let tracked_s: f64 = parts.iter().map(|part| part.tracked_s).sum();
            let lived_s = (child.until_ns - child.since_ns) as f64 / 1e9;
            over_both += usize::from(parts.len() > 1);
            ensure!(
                cpu_s >= child.cpu_ns as f64 / 1e9 - 1e-5 && tracked_s <= lived_s + 1e-5,
                "{child:?}: {parts:?}"
            );
        }
        ensure!(
            over_both >= 5,
            "{over_both} children ran over the moment of rotation"
        );
        Ok(())
    })
}

/// The oldest experiments are removed; those that are left open by themselves, with their archives.
#[test]
fn root_alone_the_oldest_experiments_are_removed() -> Result<()> {
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let cpu = work_cpu()?.to_string();
    let other = directory.join("other.1.er");
    fs::create_dir(&other)?;
    fs::write(other.join("log.xml"), "<collector>kcollect 0</collector>")?;
    let options = [
        "-p",
        "on",
        "--rotate",
        "1",
        "--keep",
        "2s",
        "-o",
        "night.1.er",
    ];
    let load = ["--", workload!("spin_user"), "6.5", &cpu];
    let finished = run_in(directory, &[&options[..], &load].concat(), LIMIT)?.succeeded()?;
    ensure!(other.exists(), "another series was touched: {finished}");
    let all = series(directory)?;
    let left: Vec<_> = all.iter().filter(|path| **path != other).collect();
    // At least the present one and the one before it: of those before, each may be too old by then.
    ensure!((2..=5).contains(&left.len()), "{left:?}: {finished}");
    ensure!(!directory.join("night.1.er").exists(), "{finished}");
    for path in left {
        let archives = fs::read_dir(path.join("archives"))?.count();
        ensure!(
            archives > 3,
            "{archives} load objects in {}",
            path.display()
        );
        let report = ["report", &path.to_string_lossy(), "functions"];
        let report = run_in(directory, &report, LIMIT)?.succeeded()?;
        ensure!(report.stdout.contains("spin"), "{report}");
    }
    Ok(())
}

/// A service has no terminal: SIGHUP closes its experiment, and it continues in the next one.
#[test]
fn root_alone_sighup_begins_the_next_experiment() -> Result<()> {
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let words = ["-p", "hi", "-F", "off", "-A", "off", "--rotate", "1h"];
    let mut service = service(directory, &words, LIMIT)?;
    for experiments in 1..=3 {
        let going_on = || {
            let all = series(directory).unwrap_or_default();
            let newest = all.last().map(|path| path.join("log.xml"));
            let log = newest.map(fs::read_to_string).and_then(Result::ok);
            let log = log.unwrap_or_default();
            all.len() == experiments && log.contains("<event kind=\"resume\"")
        };
        service.until("data in the next experiment", going_on)?;
        sleep(Duration::from_millis(400));
        service.signal(match experiments {
            3 => Signal::SIGTERM,
            _ => Signal::SIGHUP,
        })?;
    }
    let finished = service.finish()?.succeeded()?;
    let all = series(directory)?;
    ensure!(all.len() == 3, "{all:?}: {finished}");
    closed_without_a_gap(&all)?;
    for path in &all {
        let (began, ended) = span(path)?;
        ensure!(ended - began >= 300_000_000, "{} ns", ended - began);
    }
    Ok(())
}

/// Signals may follow each other at once, also while the next experiment is being made.
#[test]
fn root_alone_sighups_in_quick_succession_lose_nothing() -> Result<()> {
    alone(|| {
        let directory = tempfile::tempdir()?;
        let directory = directory.path();
        let cpu = work_cpu()?.to_string();
        let mut load = Command::new(workload!("spin_user"));
        let load = Running::start(load.args(["60", &cpu]), LIMIT)?;
        let words = [
            "-p", "hi", "-x", "off", "-F", "on", "-A", "off", "--rotate", "1h",
        ];
        let mut service = service(directory, &words, LIMIT)?;
        until_data(&mut service, &directory.join("ktest.1.er"))?;
        let mut random = SplitMix(0x5349_4748_5550);
        for _ in 0..20 {
            service.signal(Signal::SIGHUP)?;
            sleep(Duration::from_micros(random.below(30_000)));
        }
        sleep(Duration::from_millis(300));
        service.signal(Signal::SIGTERM)?;
        let finished = service.finish()?.succeeded()?;
        drop(load);

        let all = series(directory)?;
        ensure!(all.len() >= 5, "{all:?}: {finished}");
        closed_without_a_gap(&all)?;
        let (mut interval_ns, mut by_cpu) = (0.0, BTreeMap::new());
        for path in &all {
            let summary = RunSummary::of(path)?;
            summary.complete()?;
            interval_ns = summary.interval_us * 1000.0;
            for stats in &summary.cpus {
                let sums = by_cpu.entry(stats.cpu).or_insert((0, 0.0));
                sums.0 += stats.ticks();
                sums.1 += stats.recorded_ns;
            }
        }
        for (cpu, (ticks, recorded_ns)) in by_cpu {
            elapsed(cpu, ticks, recorded_ns, interval_ns)?;
        }
        Ok(())
    })
}

/// `--at` finds what was recorded by the clock of that time, so each change of it begins another
/// experiment.
#[test]
fn root_alone_a_clock_that_is_set_begins_the_next_experiment() -> Result<()> {
    const STEP: Duration = Duration::from_secs(3);
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let words = ["-p", "hi", "-F", "off", "-A", "off", "--rotate", "1h"];
    let mut service = service(directory, &words, LIMIT)?;
    let path = |number: u32| directory.join(format!("ktest.{number}.er"));
    until_data(&mut service, &path(1))?;
    let clock = DayClock::look()?;
    clock.set_ahead(STEP)?;
    until_data(&mut service, &path(2))?;
    clock.set_ahead(Duration::ZERO)?;
    until_data(&mut service, &path(3))?;
    service.signal(Signal::SIGTERM)?;
    service.finish()?.succeeded()?;

    let all = series(directory)?;
    ensure!(all.len() == 3, "{all:?}");
    closed_without_a_gap(&all)?;
    let mut ahead = Vec::new();
    for (path, was_set) in all.iter().zip([true, true, false]) {
        let experiment = Experiment::open(path)?;
        let start = experiment.start();
        let wall_ns = i128::from(start.wall_s) * 1_000_000_000 + i128::from(start.wall_subsec_ns);
        ahead.push(wall_ns - i128::from(start.tstamp_ns.0));
        let log = fs::read_to_string(path.join("log.xml"))?;
        let step = format!(" {:.1} s", STEP.as_secs_f64());
        let mut warnings = log.lines().filter(|line| line.contains("\"cwarn\""));
        ensure!(
            warnings.any(|line| line.contains(&step)) == was_set,
            "{was_set}: {log}"
        );
    }
    let step_ns = STEP.as_nanos().cast_signed();
    let right = [ahead[0] + step_ns, ahead[0]];
    let off = ahead[1..]
        .iter()
        .zip(right)
        .map(|(is, right)| (is - right).abs());
    ensure!(off.max() < Some(10_000_000), "{ahead:?}");
    Ok(())
}

#[test]
fn root_a_series_needs_a_number() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let arguments = ["-p", "on", "-t", "1", "--rotate", "5m", "-o", "night.er"];
    let finished = run_in(directory.path(), &arguments, LIMIT)?;
    ensure!(finished.code() == 64, "{finished}");
    Ok(())
}
