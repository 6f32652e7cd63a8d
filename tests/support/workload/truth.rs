//! The line of JSON that a workload prints about itself when it ends.
//!
//! The numbers come from the kernel, not from the workload's own idea of what it did:
//! `CLOCK_MONOTONIC` for wall time, `getrusage` for CPU time. On a kernel with tick based
//! accounting the *sum* of user and system time is exact and the *split* is itself a sample, taken
//! [`accounting_hz`] times a second; a check that compares the split has to allow for both samples.
//!
//! [`ThreadTimes`] has where the rest of its time went, in the calls that it made through
//! [`Work::blocked`].

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{self, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

use crate::machine::{stolen_everywhere, stolen_since};
use crate::workload::thread_times::{ThreadTimes, TimeAccount};

/// A name that a process had from a moment on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The process.
    pub pid: Pid,
    /// The name's bytes, as `prctl(PR_SET_NAME)` was given them. Not a string: hostile names are
    /// not UTF-8.
    pub name: Vec<u8>,
    /// `CLOCK_MONOTONIC` when the name was set, nanoseconds.
    pub since_ns: u64,
    /// `CLOCK_MONOTONIC` when it was given up, nanoseconds.
    pub until_ns: u64,
    /// CPU time used under this name, nanoseconds (`CLOCK_PROCESS_CPUTIME_ID`).
    pub cpu_ns: u64,
}

/// The ground truth of one workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The name of the workload.
    pub workload: String,
    /// Its process id.
    pub pid: Pid,
    /// The CPU it was pinned to.
    pub cpu: usize,
    /// `CLOCK_MONOTONIC` at the start of the work, nanoseconds.
    pub start_ns: u64,
    /// `CLOCK_MONOTONIC` at the end of the work, nanoseconds.
    pub end_ns: u64,
    /// User time of the process since it was forked, nanoseconds.
    pub user_ns: u64,
    /// System time of the process since it was forked, nanoseconds.
    pub system_ns: u64,
    /// The number of operations: iterations, reads, spawns.
    pub operations: u64,
    /// Threads of the process that the workload keeps account of, the first one included.
    pub threads: u64,
    /// Wall time of these threads, summed, seconds: from the first to the last instant that each
    /// has an account of, and what it ran and waited for a CPU before.
    pub tracked_s: f64,
    /// That time by number of the microstate, seconds. User and system time are those
    /// of `getrusage`; trap time, which it counts as system time, is 0. Blocked time is what the
    /// workload made through [`Work::blocked`]; of a workload that blocks otherwise some time is in
    /// no state.
    pub states_s: [f64; Microstate::PER_THREAD],
    /// For how long it was throttled by a quota, by the kernel's sum for its control group,
    /// seconds. All of it is a wait for a CPU.
    #[serde(default)]
    pub throttled_s: f64,
    /// Upper bound of the time that was stolen meanwhile from all CPUs ([`stolen_since`]), seconds.
    /// It passes on the wall clock of the thread on the CPU, and is in no thread's CPU time.
    #[serde(default)]
    pub stolen_s: f64,
    /// For how long its process had existed when the work began, seconds: its program was read,
    /// perhaps from a busy disk. It is 10 ms too long at most, and 0 where it is unknown.
    #[serde(default)]
    pub before_s: f64,
    /// Children, in the order of their creation.
    #[serde(default)]
    pub children: Vec<Pid>,
    /// Names that were set, in order.
    #[serde(default)]
    pub names: Vec<Named>,
}

impl Truth {
    /// Returns the CPU time of the process, nanoseconds: exact on every kernel, unlike its split.
    pub fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// Returns the wall time of the work, nanoseconds.
    pub fn wall_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// Adds an account of the threads' time, and the CPU time of the process, or of its children
    /// that have ended.
    ///
    /// # Errors
    /// When the kernel's account cannot be read.
    pub fn spent(mut self, account: &TimeAccount, usage: UsageWho) -> Result<Self> {
        let usage = getrusage(usage)?;
        self.user_ns = nanoseconds(usage.user_time())?;
        self.system_ns = nanoseconds(usage.system_time())?;
        self.threads = account.threads;
        self.tracked_s = seconds(account.tracked_ns);
        self.states_s = account.off_cpu_ns.map(seconds);
        self.states_s[Microstate::User as usize] = seconds(self.user_ns);
        self.states_s[Microstate::System as usize] = seconds(self.system_ns);
        Ok(self)
    }

    /// Prints the line of a workload, in one piece: others may print at the same time.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn print(&self) -> Result<()> {
        print_line(self.line()?)
    }

    /// Returns the line that a workload prints.
    ///
    /// # Errors
    /// When it cannot be put into JSON, which no value of this type causes.
    pub fn line(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// Finds the line in what a workload printed, among the lines of others.
    ///
    /// # Errors
    /// When no line is one.
    pub fn find(output: &str) -> Result<Self> {
        Self::find_all(output)
            .into_iter()
            .next()
            .ok_or_else(|| anyhow!("no workload printed its truth; the output was:\n{output}"))
    }

    /// Finds all lines of workloads: with several processes, each prints one.
    pub fn find_all(output: &str) -> Vec<Self> {
        output
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}

/// The CPU time of a process from its start to its end, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaped {
    /// The process.
    pub reaped: Pid,
    /// Its CPU time, its threads' and its reaped children's, nanoseconds.
    pub cpu_ns: u64,
}

impl Reaped {
    /// Returns the CPU time of the only child that the calling process has waited for.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn now(pid: Pid) -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(Self {
            reaped: pid,
            cpu_ns: nanoseconds(usage.user_time())? + nanoseconds(usage.system_time())?,
        })
    }

    /// Prints it as a line of JSON.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn print(&self) -> Result<()> {
        print_line(serde_json::to_string(self)?)
    }

    /// Finds the line in what a workload printed.
    ///
    /// # Errors
    /// The output has no such line.
    pub fn find(output: &str) -> Result<Self> {
        let mut lines = output.lines();
        lines
            .find_map(|line| serde_json::from_str(line).ok())
            .with_context(|| format!("nothing was reaped; the output was:\n{output}"))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a workload's own output, which a check reads"
)]
fn print_line(line: String) -> Result<()> {
    Ok(std::io::stdout().write_all((line + "\n").as_bytes())?)
}

/// A running workload: pinned, with its clock started.
#[derive(Debug)]
pub struct Work {
    truth: Truth,
    until_ns: u64,
    thread_times: ThreadTimes,
    others: TimeAccount,
    stolen_ns: f64,
}

impl Work {
    /// Starts the work that the command line `SECONDS CPU` asks for and pins the process to that
    /// CPU.
    ///
    /// # Errors
    /// When the arguments are not two numbers or the CPU is not there.
    pub fn start(workload: &str) -> Result<Self> {
        let mut arguments = std::env::args().skip(1);
        let mut next = || {
            arguments
                .next()
                .with_context(|| format!("usage: {workload} SECONDS CPU"))
        };
        let seconds: f64 = next()?.parse().context("SECONDS is a number")?;
        let cpu: usize = next()?.parse().context("CPU is a number")?;
        ensure!(
            seconds > 0.0 && seconds < 3600.0,
            "SECONDS is more than 0 and less than 3600"
        );
        pin(cpu)?;
        read_program()?;
        let stolen_ns = stolen_everywhere()?;
        let thread_times = ThreadTimes::start()?;
        let start_ns = monotonic_ns()?;
        let span = u64::try_from(Duration::from_secs_f64(seconds).as_nanos())?;
        Ok(Self {
            truth: Truth {
                workload: workload.to_owned(),
                pid: Pid::from_raw(unistd::getpid().as_raw()),
                cpu,
                start_ns,
                before_s: age_s()?,
                ..Truth::default()
            },
            until_ns: start_ns + span,
            thread_times,
            others: TimeAccount::default(),
            stolen_ns,
        })
    }

    /// Makes a call that blocks the calling thread, the process's first, in a known state.
    ///
    /// # Errors
    /// When the clocks cannot be read. What the call returns is the caller's to judge.
    pub fn blocked<T>(&mut self, state: Microstate, call: impl FnOnce() -> T) -> Result<T> {
        self.thread_times.blocked(state, call)
    }

    /// Notes the account of threads that have ended.
    pub fn account(&mut self, threads: &TimeAccount) {
        self.others.add(threads);
    }

    /// Returns whether the time is over. It stays in user mode: the clock is read through the vDSO.
    ///
    /// # Errors
    /// When the clock cannot be read.
    pub fn over(&self) -> Result<bool> {
        Ok(monotonic_ns()? >= self.until_ns)
    }

    /// Returns the time at which the work is over, `CLOCK_MONOTONIC` nanoseconds.
    pub fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Returns the CPU that the work is pinned to.
    pub fn cpu(&self) -> usize {
        self.truth.cpu
    }

    /// Notes for how long the process was throttled by a quota.
    pub fn throttled(&mut self, ns: u64) {
        self.truth.throttled_s = seconds(ns);
    }

    /// Notes a child.
    pub fn child(&mut self, pid: unistd::Pid) {
        self.truth.children.push(Pid::from_raw(pid.as_raw()));
    }

    /// Notes a name.
    pub fn named(&mut self, named: Named) {
        self.truth.names.push(named);
    }

    /// Ends the work: takes the kernel's account and prints the line.
    ///
    /// # Errors
    /// When the clock or the account cannot be read.
    pub fn end(mut self, operations: u64) -> Result<()> {
        self.truth.end_ns = monotonic_ns()?;
        self.others.add(&self.thread_times.end()?);
        self.truth.operations = operations;
        self.truth.stolen_s = stolen_since(self.stolen_ns)? / 1e9;
        self.truth
            .spent(&self.others, UsageWho::RUSAGE_SELF)?
            .print()
    }
}

/// Returns how long ago this process was made, by proc_pid_stat(5), seconds.
fn age_s() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in brackets may hold blanks; the start time is the 20th field after it.
    let fields = stat.rsplit_once(')').context("no name")?.1;
    let started: f64 = fields
        .split_ascii_whitespace()
        .nth(19)
        .context("no start time")?
        .parse()?;
    let hz = sysconf(SysconfVar::CLK_TCK)?.context("no unit of start times")?;
    let now_ns = clock_ns(ClockId::CLOCK_BOOTTIME)?;
    Ok(now_ns as f64 / 1e9 - started / hz as f64)
}

/// Reads the program and its libraries into memory. With a cold page cache their pages would else
/// be read from the disk during the work, in faults that its own times do not have.
fn read_program() -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (range, modes, file) = (fields.next(), fields.next(), fields.nth(3));
        let bounds = range.and_then(|range| range.split_once('-'));
        let (Some((start, end)), Some(modes), Some(file)) = (bounds, modes, file) else {
            continue;
        };
        if !modes.starts_with('r') || !file.starts_with('/') {
            continue;
        }
        let start = usize::from_str_radix(start, 16)?;
        let length = usize::from_str_radix(end, 16)? - start;
        // SAFETY: pages are mapped for reading as any access would map them; no memory changes. A
        // kernel before 5.14 refuses, and reads them later.
        unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                length,
                libc::MADV_POPULATE_READ,
            )
        };
    }
    Ok(())
}

/// Returns nanoseconds in seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the variant, the third argument of the command line.
///
/// # Errors
/// When it is missing.
pub fn variant() -> Result<String> {
    std::env::args()
        .nth(3)
        .context("usage: SECONDS CPU VARIANT")
}

fn nanoseconds(time: TimeVal) -> Result<u64> {
    let microseconds = time.tv_sec() * 1_000_000 + time.tv_usec();
    Ok(u64::try_from(microseconds)? * 1000)
}

/// Returns `CLOCK_MONOTONIC`, nanoseconds.
///
/// # Errors
/// When the clock cannot be read.
pub fn monotonic_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Returns the CPU time of this process so far, nanoseconds.
///
/// # Errors
/// When the clock cannot be read.
pub fn process_cpu_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns a clock, nanoseconds.
///
/// # Errors
/// When the clock cannot be read.
pub fn clock_ns(clock: ClockId) -> Result<u64> {
    Ok(u64::try_from(
        Duration::from(clock_gettime(clock)?).as_nanos(),
    )?)
}

/// Pins the calling thread, and all it creates, to one CPU.
///
/// # Errors
/// When there is no such CPU or it is offline.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(unistd::Pid::from_raw(0), &set)
        .with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Puts the calling thread, and all it creates, under a policy of the scheduler.
///
/// # Errors
/// When the kernel refuses: a real-time policy needs root.
pub fn schedule(policy: i32, priority: i32) -> Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads the structure and nothing else.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    ensure!(
        result == 0,
        "scheduling policy {policy}: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Spins in user mode until a moment of `CLOCK_MONOTONIC`, and returns the number of iterations.
///
/// # Errors
/// When the clock cannot be read.
pub fn spin_until(until_ns: u64) -> Result<u64> {
    let mut value = 1u64;
    let mut rounds = 0;
    while monotonic_ns()? < until_ns {
        for _ in 0..1000 {
            value = std::hint::black_box(
                value
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1),
            );
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// Spins in user mode until this process has used so much more CPU time, however long the wait for
/// a CPU is.
///
/// # Errors
/// When the clocks cannot be read.
pub fn spin_for_cpu(span_ns: u64) -> Result<()> {
    let goal = process_cpu_ns()? + span_ns;
    while let Some(left) = goal.checked_sub(process_cpu_ns()?).filter(|left| *left > 0) {
        spin_until(monotonic_ns()? + left)?;
    }
    Ok(())
}

/// Returns how often a second the kernel decides whether a running process is in user or system
/// mode, for `getrusage`.
///
/// Kernels with `CONFIG_TICK_CPU_ACCOUNTING` do it at the scheduler's tick. Nothing in user space
/// says how long that is (`CLK_TCK` is a constant), so the kernel's configuration is asked and 250,
/// the usual value, is assumed where it is not readable. Kernels with exact accounting are better
/// than this says, which makes a check laxer, never wrong.
pub fn accounting_hz() -> f64 {
    let config = std::process::Command::new("zcat")
        .arg("/proc/config.gz")
        .output();
    let text = config
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("CONFIG_HZ=")?.parse().ok())
        .unwrap_or(250.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_among_others() {
        let truth = Truth {
            workload: "renamer".into(),
            pid: Pid(7),
            names: vec![Named {
                pid: Pid(7),
                name: vec![0xff, b'\n'],
                since_ns: 1,
                until_ns: 2,
                cpu_ns: 1,
            }],
            ..Truth::default()
        };
        let output = format!(
            "run time 3 s\n{}\n{{\"ticks\": 3}}\n",
            truth.line().unwrap()
        );
        assert_eq!(Truth::find(&output).unwrap(), truth);
        assert_eq!(Truth::find_all(&output), [truth]);
        assert!(Truth::find("nothing here").is_err());
    }

    #[test]
    fn the_age_of_this_process_grows() {
        let began = age_s().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let passed = age_s().unwrap() - began;
        assert!(
            began > 0.0 && (0.3..30.0).contains(&passed),
            "{began} {passed}"
        );
    }

    #[test]
    fn spinning_for_cpu_time_takes_it() {
        // Other threads of this process use CPU time as well, so it may be over early, but not
        // without its goal.
        let before = process_cpu_ns().unwrap();
        spin_for_cpu(2_000_000).unwrap();
        assert!(process_cpu_ns().unwrap() - before >= 2_000_000);
    }

    #[test]
    fn spinning_ends_on_time() {
        let start = monotonic_ns().unwrap();
        spin_until(start + 2_000_000).unwrap();
        assert!(monotonic_ns().unwrap() >= start + 2_000_000);
    }
}
