//! `kcollect track`: the counters of a process or of a command, by thread.
//!
//! Rows come in the order of time: a tick of each thread at every period, and creation, fork, exec
//! and exit of threads when they happen. The counts of a tick are those since the tick before; the
//! counts of an exit are those since the thread was created or followed. The last row is the total,
//! read from the counters that all threads share: it is right even where a thread's row is
//! incomplete.
//!
//! [`held_child`] starts the command, [`follow`] opens the counters and reads the kernel's records,
//! and [`lifetimes`] makes rows of the records. When kcollect ends on Ctrl-C, the process or
//! command continues, uncounted.
//!
//! Signals come from [`host::signals`], as in a recording, and not from the library ctrlc. ctrlc
//! (3.5, feature `termination`) installs its handler for SIGHUP even where nohup(1) has it ignored,
//! so that `nohup kcollect track` would end with the terminal; it does not handle SIGQUIT, which
//! ends a run here, nor SIGXFSZ, which has to become an error of the write; and it calls a closure
//! in a thread of its own, while the loop here waits with poll(2), and for SIGCHLD too.

pub mod follow;
pub mod held_child;
pub mod lifetimes;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use host::exit::{ExitKind, Failure, load_code, spawn_code};
use host::load;
use host::machine::{self, now, online_cpus};
use host::output::Output;
use host::signals::{self, Signals};
use procfs::process::Process;
use types::ids::Pid;
use types::units::Nanos;

use crate::names::event::PerfEvent;
use crate::perf::counter::{Inherit, Start};
use crate::perf::records::TaskRecord;
use crate::perf::refusal::Refusal;
use crate::perf::retry::RetryPolicy;
use crate::rows::format::{RowFormat, RowSubject};
use crate::rows::writer::{CountOptions, RowWriter};
use crate::rows::{CountRow, RowKind};
use crate::run::{internal_error, wait_for_signals};
use follow::{ThreadCounters, ThreadFollower};
use held_child::HeldChild;
use lifetimes::ThreadLifetimes;

/// Maximum time between two rounds. A new thread gets its own counters up to this much late.
const MAX_ROUND: Duration = Duration::from_millis(20);

/// How long a run waits for the command to exit after a signal, since a terminal sends Ctrl-C to
/// both.
const EXIT_WAIT_NS: Nanos = Nanos::from_millis(200);

/// What is tracked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrackTarget {
    /// A running process.
    Process(Pid),
    /// A command and its arguments, from its first instruction.
    Command(Vec<OsString>),
}

/// The options of `kcollect track`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackOptions {
    /// What is tracked.
    pub target: TrackTarget,
    /// Whether forked processes are tracked too, and those that they fork.
    pub forks: bool,
    /// The time between two ticks. None: no ticks.
    pub period: Option<Duration>,
    /// What is counted, and how rows are printed.
    pub counting: CountOptions,
}

/// Tracks a process or command until it exits, or until a signal or the last tick. Returns the exit
/// code: the command's, or 0.
///
/// # Errors
/// A [`Failure`] with its hint: an event that cannot be counted, a process that does not exist, a
/// file that cannot be written.
pub fn track(options: &TrackOptions, output: &mut Output) -> Result<u8, Failure> {
    let events = options.counting.events()?;
    let signals = Signals::listen(None, None, signals::SignalRequest::Stop)
        .map_err(|error| Failure::of_system("signals", &error))?;
    let writer = RowWriter::open(&options.counting)?;
    let file_limits = machine::raise_descriptors();
    let cpus = online_cpus().map_err(|error| Failure::of_system("the CPUs", &error))?;
    let inherit = if options.forks {
        Inherit::All
    } else {
        Inherit::Threads
    };
    let mut follower = ThreadFollower::new(events.clone(), cpus, inherit);
    let mut child = None;
    let mut start_ns = now();
    let opened = match &options.target {
        TrackTarget::Process(pid) => {
            check_is_process(*pid)?;
            let open = || follower.open_process(*pid, Start::Now);
            let threads = RetryPolicy::DEFAULT
                .run(open)
                .map_err(|refusal| process_failure(refusal, *pid))?;
            threads
                .into_iter()
                .map(|(tid, counters)| (*pid, tid, counters))
                .collect()
        }
        TrackTarget::Command(command) => {
            if let Some((program, error)) = load::refused(command) {
                output.say(&format!("cannot start {}: {error}", program.display()));
                return Ok(spawn_code(&error));
            }
            let held = HeldChild::start(command, file_limits)
                .map_err(|error| Failure::of_system("fork", &error))?;
            let pid = held.pid();
            let counters =
                RetryPolicy::DEFAULT.run(|| follower.open_thread(pid.leader(), Start::OnExec))?;
            start_ns = now();
            match held.release() {
                Ok(started) => child = Some(started),
                Err(error) => {
                    output.say(&format!("cannot start {}: {error}", command[0].display()));
                    return Ok(spawn_code(&error));
                }
            }
            vec![(pid, pid.leader(), counters)]
        }
    };
    let mut lifetimes = ThreadLifetimes::new(
        events.len(),
        follower.exit_counts_per_thread(),
        options.forks,
    );
    for (pid, tid, counters) in opened {
        lifetimes.add_opened(pid, tid, counters);
    }
    let mut run = TrackRun {
        options,
        events: &events,
        start_ns,
        follower,
        lifetimes,
        writer,
        signals,
        child,
        status: None,
        threads_without_counters: 0,
    };
    run.run()?;
    run.finish(output)?;
    Ok(run.status.map_or(0, load_code))
}

/// A run of `kcollect track`.
struct TrackRun<'a> {
    options: &'a TrackOptions,
    events: &'a [PerfEvent],
    start_ns: Nanos,
    follower: ThreadFollower,
    lifetimes: ThreadLifetimes<ThreadCounters>,
    writer: RowWriter,
    signals: Signals,
    child: Option<Child>,
    status: Option<ExitStatus>,
    /// The number of threads that could not get counters of their own.
    threads_without_counters: u64,
}

impl TrackRun<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        if self.options.counting.header {
            let format = self.format();
            self.writer.header(&format)?;
        }
        let period_ns = self.options.period.map(Nanos::from);
        let mut due_ns = period_ns.map(|period_ns| self.start_ns + period_ns);
        let mut ticks = 0;
        let mut end_ns = Nanos::MAX;
        loop {
            let left = due_ns.map(|due_ns| Duration::from(due_ns.saturating_sub(now())));
            wait_for_signals(&self.signals, left.unwrap_or(MAX_ROUND).min(MAX_ROUND))?;
            let exited = self.command_has_exited()?;
            // When the command has exited, all records of its threads are written, but not its
            // descendants' records.
            self.round(exited && !self.options.forks)?;
            let time_ns = now();
            if let (Some(next_ns), Some(period_ns)) = (due_ns, period_ns)
                && time_ns >= next_ns
            {
                let rows = self.lifetimes.tick(now);
                self.print(&rows)?;
                ticks += 1;
                // The next tick is on the grid of the first one, however late this one is.
                due_ns = Some(next_ns + period_ns * (1 + (time_ns - next_ns) / period_ns));
            }
            self.writer.flush()?;
            let stopped = self.signals.take().contains(&signals::SignalRequest::Stop);
            if stopped && self.child.is_some() && self.status.is_none() {
                end_ns = end_ns.min(time_ns + EXIT_WAIT_NS);
            } else if stopped {
                end_ns = time_ns;
            }
            let last_tick = self
                .options
                .counting
                .ticks
                .is_some_and(|limit| ticks >= limit);
            let all_exited = self.lifetimes.is_empty() && (self.child.is_none() || exited);
            let ended = end_ns != Nanos::MAX && (time_ns >= end_ns || exited);
            if last_tick || all_exited || ended || self.writer.is_closed() {
                return Ok(());
            }
        }
    }

    /// Whether the command has exited.
    fn command_has_exited(&mut self) -> Result<bool, Failure> {
        if let (Some(child), None) = (&mut self.child, self.status) {
            self.status = child
                .try_wait()
                .map_err(|error| Failure::of_system("the command", &error))?;
        }
        Ok(self.status.is_some())
    }

    /// Prints the rows of all records, or of those that are complete.
    fn round(&mut self, all: bool) -> Result<(), Failure> {
        for (time_ns, record) in self.follower.take_records(all) {
            if let TaskRecord::Fork { tid, .. } = &record
                && self.lifetimes.opened_before_fork_record(*tid)
            {
                self.follower.close_thread(*tid);
            }
            let follower = &self.follower;
            let rows = self
                .lifetimes
                .apply(time_ns, &record, |id| follower.event_of(id));
            self.print(&rows)?;
        }
        for tid in self.lifetimes.take_new_threads() {
            match self.follower.open_own_counters(tid, Start::Now) {
                Ok(counters) => self.lifetimes.set_counters(tid, counters),
                // It has exited since.
                Err(Refusal::NoThread { .. }) => {
                    let rows = self.lifetimes.exited(tid, now());
                    self.print(&rows)?;
                }
                Err(_) => self.threads_without_counters += 1,
            }
        }
        // The lost records may include exits.
        if self.lifetimes.lost_records > 0 {
            for (pid, tid) in self.lifetimes.running_threads() {
                if !Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
                    let rows = self.lifetimes.exited(tid, now());
                    self.print(&rows)?;
                }
            }
        }
        let rows = self.lifetimes.finish_overdue(now());
        self.print(&rows)
    }

    fn finish(&mut self, output: &mut Output) -> Result<(), Failure> {
        self.round(true)?;
        let rows = self.lifetimes.finish_overdue(Nanos::MAX);
        self.print(&rows)?;
        let rows = self.lifetimes.tick(now);
        self.print(&rows)?;
        let in_rows = self.lifetimes.counts_in_rows();
        let total = self.follower.total();
        let mut total = total.map_err(|error| internal_error("the counters", &error))?;
        for ((total, in_rows), event) in total.iter_mut().zip(&in_rows).zip(self.events) {
            total.enabled_ns = in_rows.enabled_ns;
            total.running_ns = in_rows.running_ns;
            let difference = total.count.wrapping_sub(in_rows.count).cast_signed();
            if difference != 0 && self.options.counting.verbose {
                output.say(&format!(
                    "{}: {difference} counts are in the total and in no row; running threads counted them before they had \
                     counters of their own",
                    event.name
                ));
            }
        }
        let kind = RowKind::Total(self.lifetimes.followed_threads);
        self.print(&[CountRow::of_cpu(now(), None, kind, Some(total))])?;
        self.writer.flush()?;
        let ThreadLifetimes {
            lost_records,
            missing_exit_counts,
            followed_threads,
            ..
        } = self.lifetimes;
        if lost_records > 0 {
            output.say(&format!(
                "{lost_records} records of threads were lost, since their ring was full: rows are missing, the total is right"
            ));
        }
        if missing_exit_counts > 0 {
            output.say(&format!(
                "the kernel did not report the counts of {missing_exit_counts} of {followed_threads} threads when they exited: \
                 their rows are incomplete, the total is right"
            ));
        }
        if self.threads_without_counters > 0 {
            output.say(&format!(
                "{} of {followed_threads} threads have no ticks, since no counters could be opened for them: raise the limit \
                 of open files (ulimit -n)",
                self.threads_without_counters
            ));
        }
        Ok(())
    }

    fn print(&mut self, rows: &[CountRow]) -> Result<(), Failure> {
        let format = self.format();
        rows.iter()
            .try_for_each(|row| self.writer.row(&format, row))
    }
}

impl<'a> TrackRun<'a> {
    fn format(&self) -> RowFormat<'a> {
        RowFormat {
            subject: RowSubject::Threads,
            events: self.events,
            start_ns: self.start_ns,
            times: self.options.counting.times,
        }
    }
}

/// Checks that an id is a process's, since `/proc` accepts thread ids too.
fn check_is_process(pid: Pid) -> Result<(), Failure> {
    let process = Process::new(pid.as_raw());
    let status = process.and_then(|process| process.status());
    match status.map(|status| Pid::from_raw(status.tgid)) {
        Ok(leader) if leader == pid => Ok(()),
        Ok(leader) => Err(Failure::new(
            ExitKind::NoInput,
            format!("-p {pid}: {pid} is a thread of process {leader}"),
            format!("type -p {leader}"),
        )),
        Err(_) => {
            let refusal = Refusal::NoThread { tid: pid.leader() };
            Err(process_failure(refusal, pid))
        }
    }
}

/// Returns the failure of a refusal. It names the missing process where the thread that is missing
/// is the one that was typed.
fn process_failure(refusal: Refusal, pid: Pid) -> Failure {
    match refusal {
        Refusal::NoThread { tid } if tid == pid.leader() => Failure::new(
            ExitKind::NoInput,
            format!("-p {pid}: no such process"),
            refusal.hint(),
        ),
        other => other.into(),
    }
}
