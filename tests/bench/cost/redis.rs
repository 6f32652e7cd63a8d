//! A server under load: redis, from the package of its tools.
//!
//! That package has the whole server under another name, `redis-check-rdb`, and the program's name
//! decides what it does. The package of the server would start one at its installation, on every
//! machine that measures.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;
use tests::command::Running;
use tests::machine::{online_cpus, work_cpu};
use tests::workload::truth::pin;

/// The longest that the server may run.
const LIMIT: Duration = Duration::from_secs(120);

const REQUESTS: &str = "120000";

/// A server on a free port, which stores nothing. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    // Its working directory.
    _directory: TempDir,
    _running: Running,
}

impl Server {
    /// Starts it on the CPU of loads, and waits until it listens.
    pub(crate) fn start() -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let directory = TempDir::new()?;
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").current_dir(directory.path());
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        // A program begins on the CPUs of the thread that starts it.
        let started = scope(|scope| {
            let start = scope.spawn(|| {
                pin(work_cpu()?)?;
                Running::start(&mut command, LIMIT)
            });
            start.join().map_err(|_| anyhow!("the starter died"))?
        });
        let mut running = started?;
        running.until("connection", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })?;
        Ok(Self {
            port,
            _directory: directory,
            _running: running,
        })
    }
}

/// Returns the command of clients on another CPU, if there is one.
pub(crate) fn requests(port: u16) -> Result<Command> {
    let cpu = *online_cpus()?.first().context("no CPU is online")?;
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), "redis-benchmark", "--csv"]);
    command.args(["-p", &port.to_string(), "-t", "get", "-n", REQUESTS]);
    Ok(command)
}
