//! The self-test: kcollect runs a thread of its own through user mode, system calls, a sleep, a
//! wait in a futex and page faults, and compares the account that the BPF programs keep of it with
//! what the thread itself knows.
//!
//! A kernel that kcollect does not know may load every program and call none, or give threads no
//! storage: then every figure of the recording is wrong, and each looks as if the machine were
//! idle. The account is the thread record that is sent when the thread exits, so the test needs no
//! program of its own. It looks at the records as they pass and waits for nothing.
//!
//! On a machine that is busy everything takes longer, and nothing takes less: so a time in the
//! account has to be at least a tenth of what the thread asked for, and at most what has passed.
//! Where records were lost, or the recording ended first, the test is inconclusive.

mod judge;
pub mod run;
mod thread;

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use bpf_abi::{CapturedStack, Record, ThreadRecord};
use experiment_format::units::Nanos;
use host::machine::now;

pub use self::judge::{Check, Counts, Outcome, Report};
use self::thread::TestThread;
pub use self::thread::{Known, Phases};

/// When the record of the exit is this old, the records of all CPUs have arrived.
const SETTLED: Duration = Duration::from_millis(100);
/// The account is missing if the thread has been gone for this long.
const OVERDUE: Duration = Duration::from_millis(400);

/// What the test expects in addition to the account.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// How long the thread does each thing.
    pub phases: Phases,
    /// The time between two ticks.
    pub interval: Nanos,
    /// kcollect's own process is followed, so that user stacks of its threads arrive.
    pub user_stacks: bool,
    /// Page faults in the kernel are noted as they happen.
    pub kernel_faults: bool,
}

/// A user stack of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenStack {
    /// It reaches the first function of the thread.
    Complete,
    /// A part of it was copied, from a function whose file was found or not.
    Copied { found: bool },
    /// It ends early, after that many frames.
    Partial { frames: usize },
}

/// What the BPF programs have sent of the thread.
#[derive(Debug, Default)]
struct Seen {
    on_cpu_ticks: u64,
    off_cpu_records: u64,
    /// Those without a number of a user stack.
    unnumbered: u64,
    /// The numbers of user stacks of off-CPU records, each with the stack once it has arrived.
    stacks: BTreeMap<u32, Option<SeenStack>>,
    /// Its record at its exit.
    account: Option<Box<ThreadRecord>>,
}

/// A test that is under way.
#[derive(Debug)]
pub struct SelfTest {
    expected: Expected,
    thread: TestThread,
    /// When the thread was started, CLOCK_MONOTONIC.
    started_ns: Nanos,
    known: Option<Known>,
    seen: Seen,
    /// When the thread was first found to be gone.
    gone_ns: Option<Nanos>,
    /// The recording stopped before the thread was gone.
    is_interrupted: bool,
}

impl SelfTest {
    /// Starts the test. The recording has started.
    ///
    /// # Errors
    /// When the thread cannot be spawned.
    pub fn start(expected: Expected) -> io::Result<SelfTest> {
        Ok(SelfTest {
            expected,
            started_ns: now(),
            thread: TestThread::start(expected.phases)?,
            known: None,
            seen: Seen::default(),
            gone_ns: None,
            is_interrupted: false,
        })
    }

    /// Checks a record that passes.
    pub fn observe(&mut self, record: &Record) {
        let header = record.header();
        if header.tid != self.thread.tid() || header.tid == 0 {
            return;
        }
        let seen = &mut self.seen;
        match record {
            Record::Tick(tick) => seen.on_cpu_ticks += u64::from(tick.ticks),
            Record::OffCpu(_) => {
                seen.off_cpu_records += 1;
                match header.user_return {
                    0 => seen.unnumbered += 1,
                    number => {
                        seen.stacks.entry(number).or_default();
                    }
                }
            }
            // With the number of an off-CPU record that may come from another CPU's ring, later.
            Record::UserReturn(stack) if stack.call_site == 0 => {
                seen.stacks
                    .insert(header.user_return, Some(seen_stack(&stack.stack)));
            }
            Record::Thread(thread) if thread.exited => seen.account = Some(thread.clone()),
            _ => {}
        }
    }

    /// The recording stops or pauses: what the thread does from here on is in no account.
    pub fn interrupt(&mut self) {
        self.look();
        let is_over = self.seen.account.is_some()
            || self.thread.is_gone()
                && self
                    .known
                    .is_some_and(|known| now() > known.end_ns + Nanos::from(OVERDUE));
        self.is_interrupted |= !is_over;
    }

    /// Returns the result, once there is one. `counts` are read if they are needed; `last`: no
    /// record follows.
    ///
    /// # Errors
    /// Errors of `counts`.
    pub fn poll<E>(
        &mut self,
        last: bool,
        counts: impl FnOnce() -> Result<Counts, E>,
    ) -> Result<Option<Report>, E> {
        let time = now();
        match self.look() {
            Some(Err(error)) => {
                let why = format!("the thread could not do what it had to: {error}");
                return Ok(Some(Report::inconclusive(why)));
            }
            None if last || self.is_interrupted => return Ok(Some(unfinished())),
            _ => {}
        }
        if self.gone_ns.is_none() && self.thread.is_gone() {
            self.gone_ns = Some(time);
        }
        let is_past = |since: Nanos, length: Duration| time > since + Nanos::from(length);
        let is_settled = match (&self.seen.account, self.gone_ns) {
            (Some(account), _) => is_past(Nanos(account.header.time_ns), SETTLED),
            (None, _) if self.is_interrupted => return Ok(Some(unfinished())),
            (None, Some(gone_ns)) => is_past(gone_ns, OVERDUE),
            (None, None) => false,
        };
        let (true, Some(known)) = (is_settled || last, self.known) else {
            return Ok(None);
        };
        let counts = counts()?;
        let started_ns = self.started_ns;
        Ok(Some(judge::judge(
            &self.expected,
            &known,
            &self.seen,
            started_ns,
            counts,
        )))
    }

    /// Takes what the thread knows, if it has come. Returns whether it has, and why it cannot.
    fn look(&mut self) -> Option<Result<(), String>> {
        if self.known.is_some() {
            return Some(Ok(()));
        }
        match self.thread.known.try_recv() {
            Ok(Ok(known)) => {
                self.known = Some(known);
                Some(Ok(()))
            }
            Ok(Err(error)) => Some(Err(error.to_string())),
            Err(TryRecvError::Disconnected) => Some(Err("it has ended".to_owned())),
            Err(TryRecvError::Empty) => None,
        }
    }
}

fn unfinished() -> Report {
    Report::inconclusive("the recording stopped or paused before the test was over".to_owned())
}

fn seen_stack(stack: &CapturedStack) -> SeenStack {
    match stack {
        CapturedStack::Unwound { end, .. } if *end == bpf_abi::unwind::UnwindEnd::Complete => {
            SeenStack::Complete
        }
        CapturedStack::Unwound { frames, .. } => SeenStack::Partial {
            frames: frames.len(),
        },
        CapturedStack::StackCopy { file, .. } => SeenStack::Copied {
            found: file.inode != 0,
        },
    }
}
