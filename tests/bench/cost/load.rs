//! The loads of the machine while it is profiled, and their measured times.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeVal;
use tests::command::{Finished, Running};
use tests::machine::{online_cpus, work_cpu};
use tests::workload::io_calls::IO_CALLS;
use tests::workload::locked::LOCKED;
use tests::workload::memory::ALLOCATIONS;
use tests::workload::truth::pin;

use crate::setting::Profiler;
use crate::{git, mariadb, redis, sources};

/// Maximum time that a load may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of round trips of the pipe, two switches each.
const TRIPS: &str = "400000";

/// How often each of two threads wakes the other.
const LOCK_TRIPS: &str = "300000";

/// The number of writes of a byte, and of multiplications before each: some 10 us, so 100,000
/// writes a second.
const WRITES: [&str; 2] = ["200000", "9000"];

/// The number of groups of 40 processes, and of messages from each sender to each receiver of its
/// group.
const MESSAGES: [&str; 4] = ["-g", "10", "-l", "300"];

/// The number of multiplications on each CPU; each needs the result of the previous one.
const MULTIPLICATIONS: u64 = 1_600_000_000;

/// The number of programs that the shell starts, one after the other.
const PROGRAMS: u32 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// Two processes on one CPU that wake each other: the most switches there can be
    Pipe,
    /// 400 processes on all CPUs that send each other messages
    Messaging,
    /// Arithmetic on all CPUs: no switches
    Cpu,
    /// A shell that starts /bin/true again and again
    Fork,
    /// redis under load over loopback, server and client on a CPU each
    Redis,
    /// make -j2 of C files made on the spot
    Compile,
    /// Two threads on one CPU that wake each other by semaphores: the most waits for locks there
    /// can be
    Lock,
    /// A thread that computes for 10 us and writes a byte to /dev/null, again and again
    Write,
    /// A thread that allocates and frees blocks as fast as it can, for two seconds
    Allocate,
    /// git fsck of a large tree made on the spot; only if it is named
    Git,
    /// MariaDB under load, server and clients on a CPU each; only if it is named
    Mariadb,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// The value that is compared, in [`Load::unit`].
    pub(crate) value: f64,
    /// The time from start to end.
    pub(crate) elapsed: Duration,
    /// Context switches of the whole machine meanwhile.
    pub(crate) switches: u64,
    /// CPU time of the whole machine meanwhile without the load's: the profiler's and other
    /// programs'.
    pub(crate) others_s: f64,
}

impl Load {
    /// Returns those that are measured unless others are named.
    pub(crate) fn by_default() -> Vec<Self> {
        let mut loads = Self::value_variants().to_vec();
        loads.retain(|load| !matches!(load, Self::Git | Self::Mariadb));
        loads
    }

    /// Describes what runs; the tables show it.
    pub(crate) fn describe(self, length: u32) -> Result<String> {
        Ok(match self {
            Self::Pipe => command_line(&pipe()?),
            Self::Messaging => command_line(&messaging()),
            Self::Cpu => format!(
                "{MULTIPLICATIONS} multiplications on each of {} CPUs",
                online_cpus()?.len()
            ),
            Self::Fork => command_line(&storm()?),
            Self::Redis => command_line(&redis::requests(0, length)?),
            Self::Compile => format!("make -j2 of {} C files, cc -O2", sources::FILES),
            Self::Lock => format!("two threads that wake each other {LOCK_TRIPS} times"),
            Self::Write => format!("{} writes of a byte to /dev/null, 10 us apart", WRITES[0]),
            Self::Allocate => "malloc and free of a small block, for two seconds".to_owned(),
            Self::Git => format!(
                "git fsck of {} files in {} commits",
                length * git::FILES,
                git::COMMITS
            ),
            Self::Mariadb => mariadb::describe(length),
        })
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Pipe | Self::Lock => "us a trip",
            Self::Fork => "us a program",
            Self::Write => "us a write",
            Self::Allocate => "us a block",
            Self::Redis => "us a request",
            Self::Mariadb => "us a query",
            Self::Messaging | Self::Cpu | Self::Compile | Self::Git => "ms",
        }
    }

    /// Returns the number of digits after the point that its values are printed with.
    pub(crate) fn digits(self) -> usize {
        match self {
            Self::Pipe | Self::Lock | Self::Write | Self::Allocate => 3,
            Self::Redis | Self::Mariadb => 2,
            Self::Messaging | Self::Cpu | Self::Fork | Self::Compile | Self::Git => 0,
        }
    }

    /// Returns whether it is one command, or has a server, which a profiler can start.
    pub(crate) fn is_command(self) -> bool {
        self != Self::Cpu
    }

    /// Runs it; servers and git run `length` times as long. What all its runs need stays in
    /// `place`.
    pub(crate) fn run(self, profiler: &Profiler, place: &Path, length: u32) -> Result<Ran> {
        // The clients of a server are not started by a profiler.
        let alone = bench;
        let bench = |command| bench(profiler.around(command));
        let redis = match self {
            Self::Redis => Some(redis::Server::start(profiler)?),
            _ => None,
        };
        let mariadb = match self {
            Self::Mariadb => Some(mariadb::Server::start(profiler)?),
            _ => None,
        };
        let repository = match self {
            Self::Git => Some(git::repository(place, length)?),
            _ => None,
        };
        let tree = match self {
            Self::Compile => Some(sources::make()?),
            _ => None,
        };
        let (start, before) = (Instant::now(), Machine::now()?);
        let value = match self {
            Self::Pipe => printed_number(&bench(pipe()?)?, |words| match words {
                [value, "usecs/op"] => Some(*value),
                _ => None,
            })?,
            Self::Messaging => {
                1e3 * printed_number(&bench(messaging())?, |words| match words {
                    ["Total", "time:", value, "[sec]"] => Some(*value),
                    _ => None,
                })?
            }
            Self::Cpu => 1e3 * multiply_everywhere(online_cpus()?)?.as_secs_f64(),
            Self::Fork => 1e6 * bench(storm()?)?.elapsed.as_secs_f64() / f64::from(PROGRAMS),
            Self::Redis => {
                let server = redis.as_ref().context("no server")?;
                // A line of names, and "GET","119047.62" and more.
                let rate =
                    printed_number(&alone(redis::requests(server.port, length)?)?, |words| {
                        let [line] = words else { return None };
                        line.strip_prefix("\"GET\",\"")?.split('"').next()
                    })?;
                1e6 / rate
            }
            Self::Compile => {
                let tree = tree.as_ref().context("no sources")?;
                1e3 * bench(compile(tree.path(), "cc"))?.elapsed.as_secs_f64()
            }
            Self::Lock => number_behind("trip", &bench(lock()?)?)? / 1e3,
            Self::Write => number_behind("call", &bench(writes()?)?)? / 1e3,
            Self::Allocate => number_behind("pair", &bench(blocks()?)?)? / 1e3,
            Self::Git => {
                let repository = repository.as_ref().context("no repository")?;
                let checked = bench(git::check(repository)?)?;
                1e3 * printed_number(&checked, |words| match words {
                    ["exit", elapsed, "code:0"] => elapsed.strip_prefix("elapsed:"),
                    _ => None,
                })?
            }
            Self::Mariadb => {
                let server = mariadb.as_ref().context("no server")?;
                let queries = length * mariadb::QUERIES;
                let clients = alone(server.queries(queries)?)?;
                let seconds = printed_number(&clients, |words| match words {
                    ["Average", .., value, "seconds"] => Some(*value),
                    _ => None,
                })?;
                1e6 * seconds / f64::from(queries)
            }
        };
        let elapsed = start.elapsed();
        // The CPU time of a server is known once it has ended.
        redis.map(redis::Server::stop).transpose()?;
        mariadb.map(mariadb::Server::stop).transpose()?;
        let after = Machine::now()?;
        let own_s = after.own_s - before.own_s;
        Ok(Ran {
            value,
            elapsed,
            switches: after.switches - before.switches,
            others_s: (after.busy_s - before.busy_s - own_s).max(0.0),
        })
    }
}

fn pipe() -> Result<Command> {
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string()]);
    command.args(["perf", "bench", "sched", "pipe", "-l", TRIPS]);
    Ok(command)
}

fn lock() -> Result<Command> {
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string(), LOCKED]);
    command.args(["ping", LOCK_TRIPS]);
    Ok(command)
}

fn writes() -> Result<Command> {
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string(), IO_CALLS, "loop"]);
    command.args(WRITES);
    Ok(command)
}

fn blocks() -> Result<Command> {
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string(), ALLOCATIONS]);
    command.args(["0", "churn"]);
    Ok(command)
}

fn messaging() -> Command {
    let mut command = Command::new("perf");
    command.args(["bench", "sched", "messaging"]).args(MESSAGES);
    command
}

/// Returns a shell that starts many programs, as scripts do. It runs on one CPU: on several, the
/// measured time depends largely on the scheduler's placement.
fn storm() -> Result<Command> {
    let script = format!("i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true; i=$((i+1)); done");
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string()]);
    command.args(["sh", "-c", &script]);
    Ok(command)
}

/// Returns the command that compiles a directory of [`sources`].
pub(crate) fn compile(tree: &Path, compiler: &str) -> Command {
    let mut command = Command::new("make");
    command.args(["-s", "-B", "-j2", &format!("CC={compiler}"), "-C"]);
    command.arg(tree);
    command
}

/// Runs a command in a process group of its own. When it fails or takes too long, the whole group
/// is killed.
pub(crate) fn bench(mut command: Command) -> Result<Finished> {
    let running = Running::start(command.process_group(0), LIMIT)?;
    let group = running.pid();
    running
        .finish()
        .and_then(Finished::succeeded)
        .inspect_err(|_| {
            // The group may have exited.
            let _ = killpg(group, Signal::SIGKILL);
        })
}

/// Returns the number in the line of a word and a number.
fn number_behind(name: &str, finished: &Finished) -> Result<f64> {
    printed_number(finished, |words| match words {
        [word, value] if *word == name => Some(*value),
        _ => None,
    })
}

/// Returns the number that `of` finds among the words of a line that was printed.
fn printed_number(
    finished: &Finished,
    of: impl for<'a> Fn(&[&'a str]) -> Option<&'a str>,
) -> Result<f64> {
    finished
        .stdout
        .lines()
        .chain(finished.stderr.lines())
        .find_map(|line| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            of(&words)?.parse().ok()
        })
        .with_context(|| format!("no time in the words of {finished}"))
}

fn multiply_everywhere(cpus: BTreeSet<usize>) -> Result<Duration> {
    let start = Instant::now();
    scope(|scope| {
        let threads: Vec<_> = cpus
            .into_iter()
            .map(|cpu| {
                scope.spawn(move || {
                    pin(cpu)?;
                    let mut value = 1u64;
                    for _ in 0..MULTIPLICATIONS {
                        value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a CPU's thread died"))?)
    })?;
    Ok(start.elapsed())
}

/// The kernel's counts so far.
struct Machine {
    /// Context switches of all CPUs.
    switches: u64,
    /// The time in which they ran a program.
    busy_s: f64,
    /// CPU time of this process and of the children that it has waited for.
    own_s: f64,
}

impl Machine {
    fn now() -> Result<Self> {
        /// The first columns of a line of CPU time: user, nice, system.
        const BUSY: usize = 3;
        const JIFFIES_A_SECOND: f64 = 100.0;
        let stat = fs::read_to_string("/proc/stat")?;
        let field = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| format!("/proc/stat has no {name:?}"))
        };
        let jiffies: u64 = field("cpu ")?
            .split_ascii_whitespace()
            .take(BUSY)
            .map(str::parse::<u64>)
            .sum::<Result<_, _>>()?;
        let own = |who| anyhow::Ok(cpu_time(who)?.as_secs_f64());
        Ok(Self {
            switches: field("ctxt ")?.trim().parse()?,
            busy_s: jiffies as f64 / JIFFIES_A_SECOND,
            own_s: own(UsageWho::RUSAGE_SELF)? + own(UsageWho::RUSAGE_CHILDREN)?,
        })
    }
}

/// Returns the CPU time so far of this process, or of its children that have been waited for.
pub(crate) fn cpu_time(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who)?;
    let micros =
        |time: TimeVal| time.tv_sec().cast_unsigned() * 1_000_000 + time.tv_usec().cast_unsigned();
    Ok(Duration::from_micros(
        micros(usage.user_time()) + micros(usage.system_time()),
    ))
}

fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
