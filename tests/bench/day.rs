//! A day of a machine that is recorded all the time, compressed: `make day`, or as root `cargo
//! bench -p tests --bench day`. Options come after `--`.
//!
//! `kcollect -p on -F on --rotate … --keep … --pack` records as a service, which is started again
//! whenever it ends, while a shell starts twenty programs a second and a server is restarted in
//! each period. In turn, the service is killed in the middle of a rotation, is asked to rotate, has
//! the wall clock set forward and back, finds its disk full, and is restarted. In each period a
//! program with a name of its own computes for a known time.
//!
//! Afterwards nothing is lost in any complete experiment, the ticks of each CPU are its time, each
//! experiment of a recording begins where the one before it ends, `report --at` of each minute has
//! the programs of that minute and the time that they took, memory is what it was in the beginning,
//! disk usage stays within `--keep`, and nothing is left in the kernel. Otherwise it fails, and the
//! experiments stay where `--failed` says.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use chrono::{DateTime, FixedOffset};
use clap::Parser;
use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table};
use experiment_format::packed::packed_file;
use experiment_format::reader::Experiment;
use host::exit::ExitKind;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::command::{Running, copy_program, run};
use tests::experiment::series::{disk_usage, no_gap, number, series, service, until_data};
use tests::experiment::summary::RunSummary;
use tests::kcollect::command;
use tests::machine::day_clock::DayClock;
use tests::machine::loaded::Loaded;
use tests::machine::used::{cpu_time, memory};
use tests::machine::{Exclusive, SmallDisk, work_cpu};
use tests::random::SplitMix;
use tests::workload;
use tests::workload::truth::Truth;

/// Maximum time that a program of the load runs.
const MAX_LOAD: Duration = Duration::from_hours(24);
/// Maximum time that a command runs.
const LIMIT: Duration = Duration::from_mins(10);
/// The time after which the service is started again, as `RestartSec=` says.
const RESTART: Duration = Duration::from_secs(1);
/// By how much the clock of the day is set.
const STEP: Duration = Duration::from_secs(20);
/// The part of a period for which a program computes.
const COMPUTING: f64 = 0.1;
/// The clock interval of `-p on`, seconds.
const TICK_S: f64 = 0.01;
/// Maximum growth of memory from the first period to the last, bytes.
const MAX_GROWTH: u64 = 16 << 20;

/// A day of a machine that is recorded all the time, compressed
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench -p tests --bench day --")]
struct Options {
    /// How many experiments are recorded, at least
    #[arg(long, default_value_t = 60)]
    periods: u32,
    /// The time of each, seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The size of the disk, MiB of memory
    #[arg(long, default_value_t = 8192)]
    disk: u64,
    /// The maximum disk usage of complete experiments (--keep), MiB
    #[arg(long, default_value_t = 5120)]
    keep: u64,
    /// Where the experiments are copied to if something is wrong
    #[arg(long)]
    failed: Option<PathBuf>,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// What happens at the beginning of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Kill,
    Rotate,
    ClockForward,
    ClockBack,
    DiskFull,
    Restart,
}

/// The events, one period after the other, again and again. A clock that was set forward is set
/// back in the period after.
const EVENTS: [Event; 10] = [
    Event::Nothing,
    Event::Kill,
    Event::Rotate,
    Event::ClockForward,
    Event::ClockBack,
    Event::Kill,
    Event::DiskFull,
    Event::Nothing,
    Event::Restart,
    Event::Kill,
];

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::Nothing => "",
            Event::Kill => "SIGKILL in a rotation",
            Event::Rotate => "SIGHUP",
            Event::ClockForward => "clock 20 s forward",
            Event::ClockBack => "clock 20 s back",
            Event::DiskFull => "disk full",
            Event::Restart => "restart",
        })
    }
}

/// What was seen of a period.
struct Period {
    event: Event,
    /// The name of the program that computed.
    name: String,
    truth: Truth,
    /// From its start to its end, by the clock of this process.
    elapsed: Duration,
    /// The time of the day at which it began and ended.
    began: SystemTime,
    ended: SystemTime,
    cpu_percent: f64,
    memory: u64,
    disk_usage: u64,
}

/// The service, started again whenever it ended.
struct Service<'a> {
    directory: &'a Path,
    options: Vec<String>,
    running: Running,
    /// The numbers of the first experiments of its recordings.
    firsts: Vec<u64>,
    /// The numbers of the experiments that found the disk full.
    full: Vec<u64>,
}

impl<'a> Service<'a> {
    fn start(directory: &'a Path, options: Vec<String>) -> Result<Service<'a>> {
        let (running, first) = started(directory, &options)?;
        Ok(Service {
            directory,
            options,
            running,
            firsts: vec![first],
            full: Vec::new(),
        })
    }

    /// Waits until it has ended, and starts it again. Returns its exit code.
    fn again(&mut self) -> Result<i32> {
        while !self.running.ended()? {
            sleep(Duration::from_millis(10));
        }
        sleep(RESTART);
        let (running, first) = started(self.directory, &self.options)?;
        self.firsts.push(first);
        let before = std::mem::replace(&mut self.running, running);
        Ok(before.finish()?.code())
    }

    /// Has it begin the next experiment, and waits until that is there.
    fn rotate(&mut self) -> Result<()> {
        let newest = newest(self.directory)?;
        let next = self.directory.join(format!("ktest.{}.er", newest + 1));
        self.running.signal(Signal::SIGHUP)?;
        self.running.until("the next experiment", || next.exists())
    }
}

fn started(directory: &Path, options: &[String]) -> Result<(Running, u64)> {
    let first = newest(directory)? + 1;
    let words: Vec<_> = options.iter().map(String::as_str).collect();
    let mut running = service(directory, &words, MAX_LOAD)?;
    until_data(&mut running, &directory.join(format!("ktest.{first}.er")))?;
    Ok((running, first))
}

fn newest(directory: &Path) -> Result<u64> {
    Ok(series(directory)?.last().map_or(0, |path| number(path)))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let _machine = Exclusive::take()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(Signal::SIGINT as i32, interrupted.clone())?;
    let loaded = Loaded::now()?;
    let disk = SmallDisk::of(options.disk * 1024)?;
    let (periods, firsts, full) = recorded(&options, &disk, &interrupted)?;
    let judged = judged(&options, disk.path(), &periods, (&firsts, &full));
    if judged.is_err()
        && let Some(place) = &options.failed
    {
        let mut copy = Command::new("cp");
        let copied = run(copy.arg("-a").arg(disk.path()).arg(place), LIMIT)?;
        eprintln!("the experiments are in {}", place.display());
        copied.succeeded()?;
    }
    judged?;
    loaded.nothing_more()
}

/// Records the day. Returns its periods, and the numbers of the first experiments of the recordings
/// and of those that found the disk full.
fn recorded(
    options: &Options,
    disk: &SmallDisk,
    interrupted: &AtomicBool,
) -> Result<(Vec<Period>, Vec<u64>, Vec<u64>)> {
    let places = tempfile::tempdir()?;
    let mut random = SplitMix(0x6461_7921);
    let clock = DayClock::look()?;
    let shell = "while :; do /bin/true; sleep 0.05; done";
    let _programs = Running::start(Command::new("sh").args(["-c", shell]), MAX_LOAD)?;
    let mut server = Server::start(places.path())?;
    let words = format!(
        "-p on -F on --pack --rotate {} --keep {}M",
        options.seconds, options.keep
    );
    let words = words.split(' ').map(ToOwned::to_owned).collect();
    let mut service = Service::start(disk.path(), words)?;
    let mut periods = Vec::new();
    let period = Duration::from_secs(options.seconds.into());
    for at in 0..options.periods {
        let begun = Instant::now();
        let event = EVENTS[at as usize % EVENTS.len()];
        happen(event, &mut service, disk, &clock, &mut random)
            .with_context(|| format!("period {at}: {event:?}"))?;
        server = server.again(places.path())?;
        let pid = service.running.pid();
        let (since, before) = (Instant::now(), cpu_time(pid)?);
        let name = format!("computes_{at}");
        let program = places.path().join(&name);
        copy_program(workload!("spin_user"), &program)?;
        let seconds = COMPUTING * f64::from(options.seconds);
        let mut program = Command::new(program);
        program.args([seconds.to_string(), work_cpu()?.to_string()]);
        let began = SystemTime::now();
        let finished = run(&mut program, LIMIT)?.succeeded()?;
        let ended = SystemTime::now();
        while begun.elapsed() < period {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            if service.running.ended()? {
                bail!("the service ended: {}", service.running.output()?);
            }
            sleep(Duration::from_millis(100));
        }
        let used = cpu_time(pid)? - before;
        periods.push(Period {
            event,
            name,
            truth: Truth::find(&finished.stdout)?,
            elapsed: finished.elapsed,
            began,
            ended,
            cpu_percent: 100.0 * used.as_secs_f64() / since.elapsed().as_secs_f64(),
            memory: memory(pid, "VmRSS:")?,
            disk_usage: disk_usage(&series(disk.path())?),
        });
        if let Some(last) = periods.last() {
            eprintln!(
                "{at} of {}: {event}; {:.2} % of a CPU, {:.1} MB of memory, {:.0} MB on the disk",
                options.periods,
                last.cpu_percent,
                last.memory as f64 / 1e6,
                last.disk_usage as f64 / 1e6
            );
        }
    }
    service.running.signal(Signal::SIGTERM)?;
    let Service {
        running,
        firsts,
        full,
        ..
    } = service;
    running.finish()?.succeeded()?;
    Ok((periods, firsts, full))
}

fn happen(
    event: Event,
    service: &mut Service<'_>,
    disk: &SmallDisk,
    clock: &DayClock,
    random: &mut SplitMix,
) -> Result<()> {
    match event {
        Event::Nothing => {}
        Event::Rotate => service.rotate()?,
        Event::Kill => {
            service.rotate()?;
            sleep(Duration::from_micros(random.below(200_000)));
            service.running.signal(Signal::SIGKILL)?;
            let code = service.again()?;
            ensure!(code == 128 + 9, "it ended with {code}");
        }
        Event::Restart => {
            service.running.signal(Signal::SIGTERM)?;
            let code = service.again()?;
            ensure!(code == 0, "it ended with {code}");
        }
        Event::ClockForward | Event::ClockBack => {
            let newest = newest(disk.path())?;
            clock.set_ahead(match event {
                Event::ClockForward => STEP,
                _ => Duration::ZERO,
            })?;
            let next = disk.path().join(format!("ktest.{}.er", newest + 1));
            until_data(&mut service.running, &next)?;
        }
        Event::DiskFull => {
            while !service.running.ended()? {
                disk.fill()?;
                sleep(Duration::from_millis(10));
            }
            fs::remove_file(disk.path().join("ballast"))?;
            service.full.push(newest(disk.path())?);
            let code = service.again()?;
            ensure!(code == 74, "it ended with {code}");
        }
    }
    Ok(())
}

/// A server of another program each time it is started, and what asks it.
struct Server {
    server: Running,
    client: Running,
}

impl Server {
    fn start(place: &Path) -> Result<Server> {
        let socket = place.join("socket");
        let _ = fs::remove_file(&socket);
        let mut server = Command::new("redis-check-rdb");
        std::os::unix::process::CommandExt::arg0(&mut server, "redis-server");
        server.args(["--port", "0", "--save", "", "--unixsocket"]);
        let server = Running::start(server.arg(&socket).current_dir(place), MAX_LOAD)?;
        let ask = "while sleep 1; do redis-benchmark -s \"$0\" -q -t get -n 5000; done";
        let mut client = Command::new("sh");
        let client = Running::start(client.args(["-c", ask]).arg(&socket), MAX_LOAD)?;
        Ok(Server { server, client })
    }

    fn again(self, place: &Path) -> Result<Server> {
        self.client.signal(Signal::SIGTERM)?;
        self.server.signal(Signal::SIGTERM)?;
        self.client.finish()?;
        self.server.finish()?;
        Server::start(place)
    }
}

/// Checks what was recorded, and prints it.
fn judged(
    options: &Options,
    directory: &Path,
    periods: &[Period],
    (firsts, full): (&[u64], &[u64]),
) -> Result<()> {
    let all = series(directory)?;
    let mut wrong = Vec::new();
    let (closed, packed) = complete(&all, (firsts, full), &mut wrong)?;
    let minutes = minutes(directory, periods, full)?;
    let mut table = Table::new();
    table.load_style(if options.markdown {
        ASCII_MARKDOWN
    } else {
        NOTHING
    });
    table.set_header([
        "period",
        "then",
        "CPU, % of one",
        "memory, MB",
        "disk, MB",
        "computed, s",
        "by the minutes, s",
        "on a CPU, s",
        "by the minutes, s",
    ]);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // One that was killed before its first byte does not open.
    let mut open = all.iter().filter_map(|path| Experiment::open(path).ok());
    let oldest_ns = open.next().context("no experiment")?.start().tstamp_ns.0;
    for (at, period) in periods.iter().enumerate() {
        let kept = period.truth.start_ns > oldest_ns;
        let found = found(period, &minutes);
        if kept && let Err(error) = as_computed(period, &found, &minutes) {
            wrong.push(format!("period {at}: {error:#}"));
        }
        table.add_row([
            at.to_string(),
            period.event.to_string(),
            format!("{:.2}", period.cpu_percent),
            format!("{:.1}", period.memory as f64 / 1e6),
            format!("{:.1}", period.disk_usage as f64 / 1e6),
            format!("{:.3}", period.truth.wall_ns() as f64 / 1e9),
            format!("{:.3}", found.total),
            format!("{:.3}", period.truth.cpu_ns() as f64 / 1e9),
            format!("{:.3}", found.on_cpu),
        ]);
    }
    println!("{table}\n");
    println!(
        "{} experiments of {} recordings, {closed} closed, {packed} packed; {} minutes",
        all.len(),
        firsts.len(),
        minutes.len()
    );
    let most = |periods: &[Period]| periods.iter().map(|period| period.memory).max();
    // Two rounds of events, so that both parts have the same events.
    let part = periods.len().min(EVENTS.len());
    let first = most(&periods[..part]).unwrap_or(0);
    let last = most(&periods[periods.len() - part..]).unwrap_or(0);
    if last > first + MAX_GROWTH {
        wrong.push(format!("{first} bytes of memory became {last}"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Checks the experiments one by one. Returns how many are closed, and packed.
fn complete(
    all: &[PathBuf],
    (firsts, full): (&[u64], &[u64]),
    wrong: &mut Vec<String>,
) -> Result<(usize, usize)> {
    let (mut closed, mut packed) = (0, 0);
    let mut before: Option<&PathBuf> = None;
    for path in all {
        let name = path.display();
        packed += usize::from(packed_file(path).is_some());
        for entry in [Some(path.clone()), Some(path.join("archives"))] {
            let entries = entry.and_then(|path| fs::read_dir(path).ok());
            for entry in entries.into_iter().flatten() {
                let file = entry?.file_name();
                if file.as_encoded_bytes().starts_with(b".incomplete") {
                    wrong.push(format!("{name}: {}", file.display()));
                }
            }
        }
        // One that was killed before its first byte.
        let log = fs::metadata(path.join("log.xml")).map_or(0, |log| log.len());
        if log == 0 && packed_file(path).is_none() {
            before = None;
            continue;
        }
        let experiment = Experiment::open(path).with_context(|| path.display().to_string())?;
        if !experiment.is_closed() {
            before = None;
            continue;
        }
        closed += 1;
        // What did not fit on the disk is missing, and its exit code said so.
        if full.contains(&number(path)) {
            before = None;
            continue;
        }
        let summary = RunSummary::of(experiment.path())?;
        let interval_ns = summary.interval_us * 1000.0;
        let whole = summary.complete().and_then(|()| {
            let mut cpus = summary.cpus.iter();
            // Without `-x off`, idle ticks are counted all the same.
            cpus.try_for_each(|cpu| cpu.elapsed(interval_ns, 1))
        });
        if let Err(error) = whole {
            wrong.push(format!("{name}: {error:#}"));
        }
        if let Some(before) = before
            && !firsts.contains(&number(path))
            && let Err(error) = no_gap(before, path)
        {
            wrong.push(format!("{name}: {error:#}"));
        }
        before = Some(path);
    }
    Ok((closed, packed))
}

/// The seconds of a program, by ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    total: f64,
    on_cpu: f64,
}

/// The programs of each minute of the day, by the minute since the epoch.
type Minutes = BTreeMap<i64, HashMap<String, Found>>;

/// Has each minute of the day reported. Parts are missing from an experiment that found the disk
/// `full`, and its reports say so.
fn minutes(directory: &Path, periods: &[Period], full: &[u64]) -> Result<Minutes> {
    let (whole, _) = report(directory, &["--last", "1s"])?.context("no last second")?;
    let end = whole["period"]["to"].as_str().context("a period")?;
    let end = DateTime::parse_from_rfc3339(end).ok().context("a time")?;
    let zone = *end.offset();
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for period in periods {
        first = first.min(minute_of(period.began)? - 1);
        last = last.max(minute_of(period.ended)? + 1);
    }
    let mut minutes = Minutes::new();
    for minute in first..=last {
        let at = DateTime::from_timestamp_secs(minute * 60).context("a time")?;
        let at: DateTime<FixedOffset> = at.with_timezone(&zone);
        let text = at.format("%FT%H:%M").to_string();
        let Some((report, whole)) = report(directory, &["--at", &text])? else {
            continue;
        };
        let experiments = report["period"]["experiments"].as_array();
        let experiments = experiments.context("the experiments of a period")?;
        let mut names = experiments.iter().filter_map(|name| name.as_str());
        ensure!(
            whole || names.any(|name| full.contains(&number(Path::new(name)))),
            "{text}: parts of {experiments:?} are left out"
        );
        let mut found: HashMap<String, Found> = HashMap::new();
        for row in report["rows"].as_array().context("rows")? {
            let seconds = |metric: &str| row[metric].as_f64().unwrap_or(0.0);
            let name = row["name"].as_str().context("a name")?;
            let of_name = found.entry(name.to_owned()).or_default();
            of_name.total += seconds("e.total");
            of_name.on_cpu += seconds("e.totalcpu");
        }
        minutes.insert(minute, found);
    }
    Ok(minutes)
}

/// Returns the report of a part of the time, and whether all parts of the experiments could be
/// read; none if nothing was recorded then.
fn report(directory: &Path, part: &[&str]) -> Result<Option<(Value, bool)>> {
    let metrics = ["processes", "--json", "-m", "e.total:e.totalcpu:name"];
    let words = ["report".as_ref(), directory.as_os_str()].into_iter();
    let words = words.chain(part.iter().chain(&metrics).map(AsRef::as_ref));
    let report = run(&mut command(words)?, LIMIT)?;
    let code = report.code();
    if code == i32::from(ExitKind::Empty.code()) {
        return Ok(None);
    }
    let whole = code == 0;
    ensure!(
        whole || code == i32::from(ExitKind::NoInput.code()),
        "{report}"
    );
    Ok(Some((serde_json::from_str(&report.stdout)?, whole)))
}

fn minute_of(time: SystemTime) -> Result<i64> {
    Ok((time.duration_since(UNIX_EPOCH)?.as_secs() / 60).cast_signed())
}

/// Returns what all minutes have of a period's program.
fn found(period: &Period, minutes: &Minutes) -> Found {
    let mut sum = Found::default();
    let of_program = minutes
        .values()
        .filter_map(|minute| minute.get(&period.name));
    for found in of_program {
        sum.total += found.total;
        sum.on_cpu += found.on_cpu;
    }
    sum
}

/// Checks that the minutes in which a program ran have the time that it took, and no others.
fn as_computed(period: &Period, found: &Found, minutes: &Minutes) -> Result<()> {
    let lived = period.truth.wall_ns() as f64 / 1e9;
    let most = period.elapsed.as_secs_f64() + 2.0 * TICK_S;
    ensure!(
        found.total > lived - 2.0 * TICK_S && found.total < most,
        "it lived {lived} to {most} s: {found:?}"
    );
    // Each tick is a sample of a Bernoulli variable: it ran, or waited for the CPU.
    let cpu = period.truth.cpu_ns() as f64 / 1e9;
    let share = (cpu / lived).min(1.0);
    let sigma = (lived / TICK_S * share * (1.0 - share)).sqrt() * TICK_S;
    let least = cpu - 5.0 * sigma - 3.0 * TICK_S;
    ensure!(
        found.on_cpu > least && found.on_cpu < cpu + 5.0 * sigma + 3.0 * TICK_S,
        "{cpu} s on a CPU: {found:?}"
    );
    let ran = minute_of(period.began)?..=minute_of(period.ended)?;
    let elsewhere = minutes
        .iter()
        .find(|(minute, programs)| !ran.contains(minute) && programs.contains_key(&period.name));
    ensure!(
        elsewhere.is_none(),
        "it ran in {ran:?}, and is in {:?}",
        elsewhere.map(|(minute, _)| minute)
    );
    Ok(())
}
