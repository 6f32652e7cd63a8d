//! Packs the experiments of a series once they are complete (`--pack`).
//!
//! A thread does it, slowly: after each write it sleeps until its CPU time is no more than its
//! share of the time that has passed. One that another process reads is packed when it is read no
//! more. What is not packed when the recording ends stays as it is.

use std::io;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::directory::Former;
use experiment_format::packed::{PackStep, pack_in_place};
use host::output::Output;
use nix::time::{ClockId, clock_gettime};

use crate::plan::CpuShare;

/// The share of one CPU where there is no budget.
const SHARE: f64 = 0.05;
/// The part of a budget.
const PART_OF_BUDGET: f64 = 0.25;
/// The most experiments that wait.
const MOST_WAITING: usize = 16;
/// The time between two looks whether an experiment is still in use.
const IN_USE_PERIOD: Duration = Duration::from_millis(500);
/// After so long in use it is left as it is.
const MOST_IN_USE: Duration = Duration::from_secs(3600);
/// The longest that the end of the recording waits for the thread.
const MOST_AT_THE_END: Duration = Duration::from_secs(1);

/// The thread that packs.
#[derive(Debug)]
pub(super) struct Packer {
    waiting: SyncSender<Former>,
    results: Receiver<PackResult>,
    /// The thread stops when this is dropped.
    running: Sender<()>,
}

/// What became of an experiment.
#[derive(Debug)]
struct PackResult {
    name: String,
    /// The bytes that its files had, and those of the packed file.
    bytes: Result<(u64, u64), experiment_format::Error>,
}

impl Packer {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(budget: Option<CpuShare>) -> io::Result<Packer> {
        let (waiting, queue) = sync_channel::<Former>(MOST_WAITING);
        let (done, results) = channel();
        let (running, stopped) = channel();
        let share = budget.map_or(SHARE, |budget| budget.share() * PART_OF_BUDGET);
        let run = move || {
            for former in queue {
                let mut pace = Pace::new(share, &stopped);
                let bytes = pack_in_place(&former, &mut |step| pace.wait(step));
                let name = former.name().to_owned();
                if pace.is_over || done.send(PackResult { name, bytes }).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("pack".to_owned()).spawn(run)?;
        Ok(Packer {
            waiting,
            results,
            running,
        })
    }

    /// Packs a complete experiment when those before it are packed.
    pub(super) fn add(&self, former: Former, output: &mut Output) {
        let sent = self.waiting.try_send(former);
        if let Err(TrySendError::Full(former) | TrySendError::Disconnected(former)) = sent {
            output.say(&format!(
                "{} is not packed (--pack): {MOST_WAITING} are waiting",
                former.name()
            ));
        }
    }

    /// Prints what became of those that were packed since the last call.
    pub(super) fn report(&self, output: &mut Output) {
        for result in self.results.try_iter() {
            result.report(output);
        }
    }

    /// Ends the thread. An experiment that is not packed yet stays as it is.
    pub(super) fn end(self, output: &mut Output) {
        drop((self.running, self.waiting));
        // The thread ends at its next write, and drops its end of the channel then.
        while let Ok(result) = self.results.recv_timeout(MOST_AT_THE_END) {
            result.report(output);
        }
    }
}

impl PackResult {
    fn report(self, output: &mut Output) {
        let PackResult { name, bytes } = self;
        match bytes {
            Ok((before, packed)) => output.detail(&format!(
                "{name} is packed: {:.1} of {:.1} MB (--pack)",
                packed as f64 / 1e6,
                before as f64 / 1e6
            )),
            Err(error) => output.say(&format!("{name} is not packed (--pack): {error}")),
        }
    }
}

/// How fast the thread packs an experiment.
struct Pace<'a> {
    share: f64,
    stopped: &'a Receiver<()>,
    since: Instant,
    cpu: Duration,
    /// The time that the experiment has been in use.
    in_use: Duration,
    /// Whether the recording has ended.
    is_over: bool,
}

impl<'a> Pace<'a> {
    fn new(share: f64, stopped: &'a Receiver<()>) -> Pace<'a> {
        Pace {
            share,
            stopped,
            since: Instant::now(),
            cpu: cpu_of_thread(),
            in_use: Duration::ZERO,
            is_over: false,
        }
    }

    fn wait(&mut self, step: PackStep) -> io::Result<()> {
        let time = match step {
            PackStep::Written => {
                let cpu = cpu_of_thread();
                let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
                let due = used.as_secs_f64() / self.share;
                Duration::try_from_secs_f64(due)
                    .unwrap_or(Duration::MAX)
                    .saturating_sub(self.since.elapsed())
            }
            PackStep::InUse if self.in_use > MOST_IN_USE => {
                return Err(io::Error::other("it is in use"));
            }
            PackStep::InUse => {
                self.in_use += IN_USE_PERIOD;
                IN_USE_PERIOD
            }
        };
        let stopped = self.stopped.recv_timeout(time);
        self.since = Instant::now();
        match stopped {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => {
                self.is_over = true;
                Err(io::ErrorKind::Interrupted.into())
            }
        }
    }
}

fn cpu_of_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
