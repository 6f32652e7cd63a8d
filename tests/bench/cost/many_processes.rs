//! A machine of many processes for a minute: what a profiler takes and writes in the long run, when
//! the cost of its start no longer matters. The time of the machine's work is measured by the
//! loads.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, killpg};
use tempfile::TempDir;
use tests::command::Running;

use crate::load::{bench, compile};
use crate::setting::{Kind, Setting};
use crate::sources;
use crate::took::Took;

const PROCESSES: u32 = 200;

/// The longest that a measurement takes.
const LIMIT: Duration = Duration::from_secs(900);

/// The settings that are measured so, of those wanted: a minute each is all the time that the
/// benchmark has.
const KINDS: [Kind; 3] = [Kind::On, Kind::Perf, Kind::Dwarf];

/// The compiler that runs: LLVM has the largest unwind tables.
const COMPILER: &str = "clang";

/// Processes that wake up five times a second and work a little, and the sources for a compiler.
#[derive(Debug)]
struct ManyProcesses {
    running: Running,
    tree: TempDir,
}

/// Returns what runs, for the tables.
pub(crate) fn describe(seconds: u16) -> String {
    format!("{PROCESSES} processes and a compiler (make -j2, {COMPILER} -O2) for {seconds} s")
}

/// The results of a setting.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) setting: String,
    /// What it took, and its share of one CPU while it watched, percent.
    pub(crate) took: Result<(Took, Option<f64>)>,
}

/// Measures the load under each setting once, one after the other.
pub(crate) fn measure(
    settings: &[Setting],
    seconds: u16,
    check: impl Fn() -> Result<()>,
) -> Result<Vec<Watched>> {
    let mut all = Vec::new();
    for setting in settings {
        if !KINDS.contains(&setting.kind) {
            continue;
        }
        check()?;
        eprintln!("{}: {}", describe(seconds), setting.name);
        match watch(setting, Duration::from_secs(seconds.into())) {
            Err(error) if setting.must_work() => return Err(error),
            took => all.push(Watched {
                setting: setting.name.clone(),
                took,
            }),
        }
    }
    Ok(all)
}

fn watch(setting: &Setting, time: Duration) -> Result<(Took, Option<f64>)> {
    let many_processes = ManyProcesses::start()?;
    let profiler = setting.start()?;
    let (start, before) = (Instant::now(), profiler.cpu()?);
    while start.elapsed() < time {
        bench(compile(many_processes.tree.path(), COMPILER))?;
    }
    let (watched, after) = (start.elapsed(), profiler.cpu()?);
    let share = before
        .zip(after)
        .map(|(before, after)| 100.0 * (after - before).as_secs_f64() / watched.as_secs_f64());
    Ok((profiler.stop()?, share))
}

impl ManyProcesses {
    fn start() -> Result<Self> {
        let script = format!(
            "for (2..{PROCESSES}) {{ last unless fork }} \
             for (;;) {{ $x += $_ for 1..3000; select undef, undef, undef, 0.2 }}"
        );
        let mut command = Command::new("perl");
        command.args(["-e", &script]).process_group(0);
        let running = Running::start(&mut command, LIMIT)?;
        let many_processes = Self {
            running,
            tree: sources::make()?,
        };
        // Once compiled, all of them are there, and what the compiler reads is in memory.
        bench(compile(many_processes.tree.path(), COMPILER))?;
        Ok(many_processes)
    }
}

impl Drop for ManyProcesses {
    fn drop(&mut self) {
        // The group may have exited.
        let _ = killpg(self.running.pid(), Signal::SIGKILL);
    }
}
