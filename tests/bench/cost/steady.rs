//! Servers under load for longer than the loads last: what kcollect takes in a steady state,
//! without its start, in which it reads the files of what runs.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::command::Running;

use crate::setting::{Kind, Profiler, Setting};
use crate::took::Took;
use crate::watched::{Watched, measure, while_working};
use crate::{mariadb, redis};

/// The time after the start of a profiler that does not count.
const SETTLING: Duration = Duration::from_secs(5);

/// Maximum time that clients run.
const LIMIT: Duration = Duration::from_mins(30);
/// Clients would run this many times as long as a load, which is more than [`LIMIT`].
const LENGTH: u32 = 10_000;

/// The wanted settings that are measured here.
const KINDS: [Kind; 1] = [Kind::On];

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Redis,
    Mariadb,
}

impl Server {
    pub(crate) const ALL: [Server; 2] = [Server::Redis, Server::Mariadb];

    /// Describes what runs; the tables show it.
    pub(crate) fn describe(self, seconds: u16) -> String {
        let name = match self {
            Server::Redis => "redis",
            Server::Mariadb => "MariaDB",
        };
        let settling = SETTLING.as_secs();
        format!("{name} under load, for {seconds} s after the first {settling}")
    }

    /// Measures it under each setting in each round.
    pub(crate) fn measure(
        self,
        settings: &[Setting],
        (rounds, seconds): (u16, u16),
        check: impl Fn() -> Result<()>,
    ) -> Result<Vec<Watched>> {
        let time = Duration::from_secs(seconds.into());
        measure(settings, &KINDS, rounds, |setting| {
            check()?;
            eprintln!("{}: {}", self.describe(seconds), setting.name);
            self.watch(setting, time)
        })
    }

    fn watch(self, setting: &Setting, time: Duration) -> Result<(Took, Option<f64>)> {
        let profiler = setting.start()?;
        let share = match self {
            Server::Redis => {
                let server = redis::Server::start(&profiler)?;
                let share = share(&profiler, redis::requests(server.port, LENGTH)?, time)?;
                server.stop()?;
                share
            }
            Server::Mariadb => {
                let server = mariadb::Server::start(&profiler)?;
                let clients = server.queries(LENGTH * mariadb::QUERIES)?;
                let share = share(&profiler, clients, time)?;
                server.stop()?;
                share
            }
        };
        Ok((profiler.stop()?, share))
    }
}

/// Returns the share of one CPU that a profiler took, percent, while clients ran without end.
fn share(profiler: &Profiler, mut clients: Command, time: Duration) -> Result<Option<f64>> {
    let mut clients = Running::start(&mut clients, LIMIT)?;
    sleep(SETTLING);
    let share = while_working(profiler, time, || {
        sleep(Duration::from_millis(100));
        Ok(())
    })?;
    ensure!(
        !clients.ended()?,
        "the clients ended: {}",
        clients.output()?
    );
    Ok(share)
}
