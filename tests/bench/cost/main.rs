//! The cost of kcollect for the work that it profiles, compared with other profilers: `make bench`,
//! or as root `cargo bench -p tests --bench cost`. Options come after `--`.
//!
//! Every load runs in every round under every setting, in an order that changes from round to
//! round, and what is compared is a setting with nothing running *in the same round*
//! ([`tests::oracle::paired`] says why). Each run has a profiler of its own, started before and
//! ended after it, so that what it wrote and took is of this load.
//!
//! Servers are also profiled for longer, without the start of the profiler ([`steady`]), and a
//! machine of many processes for a minute, once by each of a few settings ([`many_processes`]).
//!
//! A peer that is not installed, or that this kernel does not let run, is a row that says so:
//! `cargo install samply` and Debian's heaptrack, ltrace and bpfcc-tools, with the headers of the
//! kernel that runs, bring them. A load whose program is missing says so too: Debian's
//! mariadb-server-core and mariadb-client bring one. kcollect has to run.

mod empty;
mod git;
mod load;
mod machine;
mod many_processes;
mod mariadb;
mod redis;
mod served;
mod setting;
mod sources;
mod steady;
mod table;
mod took;
mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tests::machine::Exclusive;
use tests::oracle::paired::order;

use crate::load::Load;
use crate::setting::{Kind, Profiler, Setting};
use crate::table::{Measured, Results, Row, Style};

/// The pause between two loads, in which waiting checks get the lock of the machine.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum share of one CPU that other programs take during a run without it being repeated. The
/// kernel counts CPU time in ticks, and writes files for a profiler in threads of its own: less
/// than this is no disturbance.
const MAX_DISTURBANCE_SHARE: f64 = 0.15;

/// How long a machine of many processes is profiled: as the budget of the time to the summary says.
const MANY_PROCESSES_SECONDS: u16 = 60;

/// For how long a server is watched in a steady state.
const STEADY_SECONDS: u16 = 15;

/// Maximum number of tries of a run; the least disturbed one counts.
const MAX_TRIES: usize = 3;

/// What kcollect costs the work that it watches, compared with other profilers.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench -p tests --bench cost --")]
struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only these loads
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    only: Option<Vec<Load>>,
    /// Only these settings; nothing is always among them
    #[arg(long, value_name = "SETTING,...", value_delimiter = ',')]
    settings: Option<Vec<Kind>>,
    /// How many times as long the loads of servers and of git are
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..100))]
    length: u32,
    /// For how long a machine of 200 processes is watched, by each of a few settings; 0 leaves it
    /// out, as --only does
    #[arg(long, value_name = "SECONDS")]
    many_processes: Option<u16>,
    /// For how long a server is watched in each round, by "on" after its first seconds; 0 leaves it
    /// out, as --only does
    #[arg(long, value_name = "SECONDS")]
    steady: Option<u16>,
    /// The kcollect that is measured; the default is $KCOLLECT, or else the release build
    #[arg(long, value_name = "PATH")]
    kcollect: Option<PathBuf>,
    /// Another one, measured in the same rounds as "on (other)" and so on
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Print the tables as Markdown
    #[arg(long)]
    markdown: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// A signal such as Ctrl-C, which is handled between two runs.
#[derive(Debug)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn watch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signal_hook::flag::register(signal as i32, flag.clone())?;
        }
        Ok(Self(flag))
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.0.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let interrupt = Interrupt::watch()?;
    let binary = match &options.kcollect {
        Some(path) => path
            .canonicalize()
            .with_context(|| path.display().to_string())?,
        None => tests::kcollect::binary()?,
    };
    let kinds = options.settings.as_deref();
    let place = TempDir::new()?;
    let settings = Setting::all(
        &kinds.map_or_else(Kind::by_default, <[_]>::to_vec),
        &binary,
        options.against.as_deref(),
        place.path(),
    );
    let loads = options.only.clone().unwrap_or_else(Load::by_default);

    let mut all = try_out(
        (&loads, options.length),
        &settings,
        place.path(),
        &interrupt,
    )?;
    let rounds = usize::from(options.rounds);
    // A machine that is never quiet makes the whole run half as long again, not three times as
    // long.
    let runs: usize = all.iter().map(|results| results.rows.len()).sum();
    let mut spare = runs * rounds / 2;
    for round in 0..rounds {
        for results in &mut all {
            if results.what.is_err() {
                continue;
            }
            eprintln!("round {} of {rounds}: {:?}", round + 1, results.load);
            let _machine = Exclusive::take()?;
            measure_round(results, round, &mut spare, &interrupt)?;
            sleep(PAUSE);
        }
    }
    let seconds = |wanted: Option<u16>, by_default| match (wanted, &options.only) {
        (Some(seconds), _) => seconds,
        (None, None) => by_default,
        (None, Some(_)) => 0,
    };
    let of_servers = seconds(options.steady, STEADY_SECONDS);
    let mut steady = Vec::new();
    for server in steady::Server::ALL {
        if of_servers > 0 && (server == steady::Server::Redis || mariadb::is_installed()) {
            let _machine = Exclusive::take()?;
            let how = (options.rounds, of_servers);
            let watched = server.measure(&settings, how, || interrupt.check())?;
            steady.push((server.describe(of_servers), watched));
        }
    }
    let seconds = seconds(options.many_processes, MANY_PROCESSES_SECONDS);
    let many_processes = match seconds {
        0 => Vec::new(),
        _ => {
            let _machine = Exclusive::take()?;
            many_processes::measure(&settings, seconds, || interrupt.check())?
        }
    };
    let style = Style {
        markdown: options.markdown,
    };
    print!("{}", style.list(&machine::describe(&binary)?));
    print_tables(style, &settings, &all);
    for (title, watched) in &steady {
        print!("{}", style.watched(title, watched));
    }
    print!(
        "{}",
        style.watched(&many_processes::describe(seconds), &many_processes)
    );
    Ok(())
}

/// Runs every load once alone, and starts every profiler once, to find what works and to warm the
/// caches.
fn try_out(
    (loads, length): (&[Load], u32),
    settings: &[Setting],
    place: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Results>> {
    let _machine = Exclusive::take()?;
    let mut rows = Vec::new();
    for setting in settings {
        interrupt.check()?;
        let tried = setting.start().and_then(|profiler| {
            profiler.try_out()?;
            profiler.stop()
        });
        let failure = match tried {
            Ok(_) => None,
            Err(error) if setting.must_work() => return Err(error),
            Err(error) => Some(format!("cannot run here: {}", in_short(&error))),
        };
        rows.push(Row {
            setting: setting.clone(),
            works: failure.is_none(),
            rounds: Vec::new(),
            failure,
        });
    }
    let mut all = Vec::new();
    for &load in loads {
        interrupt.check()?;
        let what = load.describe(length)?;
        let ran = load.run(&Profiler::None, place, length);
        all.push(Results {
            load,
            length,
            rows: if ran.is_ok() {
                rows.iter().map(|row| row.on(load)).collect()
            } else {
                Vec::new()
            },
            what: ran.map(|_| what).map_err(|error| in_short(&error)),
        });
    }
    Ok(all)
}

/// Runs every load under every setting that works, once.
fn measure_round(
    results: &mut Results,
    round: usize,
    spare: &mut usize,
    interrupt: &Interrupt,
) -> Result<()> {
    let load = (results.load, results.length);
    let mut working: Vec<_> = results.rows.iter_mut().filter(|row| row.works).collect();
    for place in order(working.len(), round) {
        let row = &mut working[place];
        let measured = match with_min_disturbance(load, &row.setting, spare, interrupt) {
            Ok(measured) => Some(measured),
            Err(error) if row.setting.must_work() => return Err(error),
            Err(error) => {
                row.failure = Some(format!(
                    "failed in round {}: {}",
                    round + 1,
                    in_short(&error)
                ));
                None
            }
        };
        row.rounds.push(measured);
    }
    Ok(())
}

/// Measures, again if other programs disturbed it, [`MAX_TRIES`] times at most.
fn with_min_disturbance(
    load: (Load, u32),
    setting: &Setting,
    spare: &mut usize,
    interrupt: &Interrupt,
) -> Result<Measured> {
    interrupt.check()?;
    let mut best = measure(load, setting)?;
    for _ in 1..MAX_TRIES {
        if best.others() < MAX_DISTURBANCE_SHARE || *spare == 0 {
            break;
        }
        interrupt.check()?;
        *spare -= 1;
        let again = measure(load, setting)?;
        if again.others() < best.others() {
            best = again;
        }
    }
    Ok(best)
}

fn measure((load, length): (Load, u32), setting: &Setting) -> Result<Measured> {
    let profiler = setting.start()?;
    let before = profiler.cpu()?;
    let ran = load.run(&profiler, setting.place(), length)?;
    let after = profiler.cpu()?;
    Ok(Measured {
        ran,
        cpu_meanwhile_s: before
            .zip(after)
            .map(|(before, after)| (after - before).as_secs_f64()),
        took: profiler.stop()?,
    })
}

/// Returns an error as one line: what failed, and the last cause.
fn in_short(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first} {last}"),
        None => first.to_owned(),
    }
}

fn print_tables(style: Style, settings: &[Setting], all: &[Results]) {
    let lines: Vec<_> = settings
        .iter()
        .map(|setting| (setting.name.clone(), setting.describe()))
        .collect();
    print!("{}", style.list(&lines));
    for results in all {
        print!("{}", style.load(results));
    }
    print!("{}", style.traffic(all));
}
