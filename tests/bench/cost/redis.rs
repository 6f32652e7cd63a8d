//! A server under load: redis, from the package of its tools.
//!
//! That package has the whole server under another name, `redis-check-rdb`, and the program's name
//! decides what it does. The package of the server would start one at its installation, on every
//! machine that measures.

use std::env;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tests::machine::online_cpus;

use crate::served::Served;
use crate::setting::Profiler;

const PROGRAM: &str = "redis-check-rdb";

const NAME: &str = "redis-server";

const REQUESTS: u32 = 120_000;

/// A server on a free port, which stores nothing. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) port: u16,
    served: Served,
    // Its working directory.
    _directory: TempDir,
}

impl Server {
    /// Starts it on the CPU of loads, and waits until it listens.
    pub(crate) fn start(profiler: &Profiler) -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let directory = TempDir::new()?;
        // A profiler that starts it does not give it another name.
        let server = directory.path().join(NAME);
        symlink(program()?, &server)?;
        let mut command = Command::new(server);
        command.arg("--dir").arg(directory.path());
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        let served = Served::start(command, NAME, profiler, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })?;
        Ok(Self {
            port,
            served,
            _directory: directory,
        })
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.write_all(b"SHUTDOWN NOSAVE\r\n")?;
        self.served.ended()
    }
}

fn program() -> Result<PathBuf> {
    env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join(PROGRAM))
        .find(|path| path.is_file())
        .with_context(|| format!("cannot find {PROGRAM}"))
}

/// Returns the command of clients on another CPU, if there is one, with `length` times as many
/// requests.
pub(crate) fn requests(port: u16, length: u32) -> Result<Command> {
    let cpu = *online_cpus()?.first().context("no CPU is online")?;
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), "redis-benchmark", "--csv"]);
    let requests = length * REQUESTS;
    command.args(["-p", &port.to_string(), "-t", "get"]);
    command.args(["-n", &requests.to_string()]);
    Ok(command)
}
