//! Another server under load: MariaDB, from Debian's mariadb-server-core and mariadb-client, which
//! start none at their installation.
//!
//! It has a directory of its own without the system's tables, which it needs for users, and which
//! are made by a program that takes longer than the load. Its log reaches the disk once a second:
//! what is compared is the server, not the disk.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tests::command::{Finished, run};
use tests::machine::online_cpus;

use crate::served::Served;
use crate::setting::Profiler;

const NAME: &str = "mariadbd";

/// Where Debian has the server, which is not in every user's PATH.
const DEBIAN_SERVER: &str = "/usr/sbin/mariadbd";

/// The number of queries of all connections together.
pub(crate) const QUERIES: u32 = 100_000;

const CONNECTIONS: &str = "4";

/// The table, and the two queries that are made in turn: ten rows are read, and one is added.
const TABLE: &str = "CREATE TABLE words (id INT AUTO_INCREMENT PRIMARY KEY, word VARCHAR(200)); \
    INSERT INTO words (word) SELECT REPEAT('x', 100) FROM seq_1_to_10000";
const STATEMENTS: &str = "SELECT word FROM words WHERE id BETWEEN 5000 AND 5009; \
    INSERT INTO words (word) VALUES ('a row that is added')";

/// Maximum time that a client takes to end the server.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);

/// A server that listens on a socket in its directory. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    served: Served,
    directory: TempDir,
}

impl Server {
    /// Starts it on the CPU of loads, and waits until it listens.
    pub(crate) fn start(profiler: &Profiler) -> Result<Self> {
        let directory = TempDir::new()?;
        let data = directory.path().join("data");
        fs::create_dir(&data)?;
        let socket = socket_in(directory.path());
        let mut command = Command::new(if Path::new(DEBIAN_SERVER).exists() {
            DEBIAN_SERVER
        } else {
            NAME
        });
        command.arg("--no-defaults");
        command.arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", socket.display()));
        command.args(["--user=root", "--skip-networking", "--skip-grant-tables"]);
        // Statistics of tables are in the system's tables too.
        command.args(["--use-stat-tables=never", "--innodb-stats-persistent=0"]);
        command.args([
            "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-fast-shutdown=2",
        ]);
        let served = Served::start(command, NAME, profiler, || {
            UnixStream::connect(&socket).is_ok()
        })?;
        Ok(Self { served, directory })
    }

    /// Returns the command of clients that make these queries, on another CPU if there is one.
    pub(crate) fn queries(&self, queries: u32) -> Result<Command> {
        clients(&socket_in(self.directory.path()), queries)
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Result<()> {
        let mut command = client("mariadb", &socket_in(self.directory.path()));
        run(command.args(["-e", "SHUTDOWN"]), SHUTDOWN_LIMIT).and_then(Finished::succeeded)?;
        self.served.ended()
    }
}

/// Returns whether the server is installed.
pub(crate) fn is_installed() -> bool {
    Path::new(DEBIAN_SERVER).exists()
}

/// Describes what runs; the tables show it.
pub(crate) fn describe(length: u32) -> String {
    let queries = length * QUERIES;
    format!(
        "mariadb-slap: {queries} queries in {CONNECTIONS} connections, SELECT and INSERT in turn"
    )
}

fn clients(socket: &Path, queries: u32) -> Result<Command> {
    let cpu = *online_cpus()?.first().context("no CPU is online")?;
    let slap = client("mariadb-slap", socket);
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]);
    command.arg(slap.get_program()).args(slap.get_args());
    command.args(["--iterations=1", "--delimiter=;"]);
    command.arg(format!("--concurrency={CONNECTIONS}"));
    command.arg(format!("--number-of-queries={queries}"));
    command.arg(format!("--create={TABLE}"));
    command.arg(format!("--query={STATEMENTS}"));
    Ok(command)
}

/// Returns the command of a client, which reads no configuration.
fn client(program: &str, socket: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--no-defaults");
    command.arg(format!("--socket={}", socket.display()));
    command
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("socket")
}
