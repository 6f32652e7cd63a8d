//! A load's server. A profiler that watches only what it starts starts the server itself.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tests::command::{POLL_INTERVAL, Running, run};
use tests::machine::work_cpu;

use crate::setting::Profiler;

/// Maximum time that the server may run.
const LIMIT: Duration = Duration::from_secs(120);

/// A server, and what starts it, in a process group of their own. It is killed when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Served {
    running: Running,
    group: Pid,
}

impl Served {
    /// Starts it, waits until it answers, and moves it to the CPU of loads. What else a profiler
    /// starts goes where it likes.
    pub(crate) fn start(
        command: Command,
        name: &str,
        profiler: &Profiler,
        answers: impl FnMut() -> bool,
    ) -> Result<Self> {
        let mut command = profiler.around(command);
        let running = Running::start(command.process_group(0), LIMIT)?;
        let group = running.pid();
        let mut served = Self { running, group };
        served.running.until("connection", answers)?;
        let mut command = Command::new("taskset");
        command.args(["-a", "-c", "-p", &work_cpu()?.to_string()]);
        command.arg(process(name, group)?.to_string());
        run(&mut command, LIMIT)?.succeeded()?;
        Ok(served)
    }

    /// Waits until the server has ended, which was asked for, and its profiler with it.
    pub(crate) fn ended(mut self) -> Result<()> {
        while !self.running.ended()? {
            self.running.in_time()?;
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The server of a killed profiler would continue. The group may have ended.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

/// Returns the process of a name in a group.
fn process(name: &str, group: Pid) -> Result<u32> {
    let group = group.to_string();
    fs::read_dir("/proc")?
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // It may have ended.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            (name_and_group(&stat)? == (name, &group)).then_some(pid)
        })
        .next()
        .with_context(|| format!("no {name} among the processes that were started"))
}

/// Returns the name and the process group in a process's `stat`.
fn name_and_group(stat: &str) -> Option<(&str, &str)> {
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    // After the state and the parent.
    Some((name, after.split(' ').nth(2)?))
}
