//! A machine of many processes for a minute: what a profiler takes and writes in the long run.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::{Signal, killpg};
use tempfile::TempDir;
use tests::command::Running;

use crate::load::{bench, compile};
use crate::setting::{Kind, Setting};
use crate::sources;
use crate::watched::{self, Watched, while_working};

const PROCESSES: u32 = 200;

/// Maximum time that a measurement takes.
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

/// Describes what runs; the tables show it.
pub(crate) fn describe(seconds: u16) -> String {
    format!("{PROCESSES} processes and a compiler (make -j2, {COMPILER} -O2) for {seconds} s")
}

/// Measures the load under each setting once, one after the other.
pub(crate) fn measure(
    settings: &[Setting],
    seconds: u16,
    check: impl Fn() -> Result<()>,
) -> Result<Vec<Watched>> {
    watched::measure(settings, &KINDS, 1, |setting| {
        check()?;
        eprintln!("{}: {}", describe(seconds), setting.name);
        let many_processes = ManyProcesses::start()?;
        let profiler = setting.start()?;
        let time = Duration::from_secs(seconds.into());
        let tree = many_processes.tree.path();
        let share = while_working(&profiler, time, || bench(compile(tree, COMPILER)).map(drop))?;
        Ok((profiler.stop()?, share))
    })
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
