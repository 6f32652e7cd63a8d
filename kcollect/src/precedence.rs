//! Who reads the rings goes before others, for a tenth of the time: on a machine with more work than CPUs it would wait in a row
//! with all that work, while the rings fill up, and the profile of the very overload that somebody wants to understand would
//! have holes.
//!
//! Not for more. When hundreds of processes begin at once there is a second's work to do for them, and what they do should not have to
//! wait for that: it can be done when the CPUs have nothing else. And a real-time thread that waits in the kernel for a lock
//! or a reference of another thread by trying again and again keeps that thread from its CPU: `wait4(2)` does so, and what looks up
//! names below `/proc`, where the directory of somebody dead has to go first.
//!
//! So a thread that does nothing else gives and takes it, in turns.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Pid, gettid};

/// So long at a time the reader goes before others,
const BEFORE: Duration = Duration::from_millis(10);
/// and so long it does not. The rings hold what busy machines record in some of these.
const BESIDE: Duration = Duration::from_millis(90);

/// The calling thread goes before others, in turns, until this is dropped.
#[derive(Debug)]
pub struct Precedence {
    /// Whoever gives and takes it ends when this is gone.
    pace: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    reader: Pid,
}

impl Precedence {
    /// Takes it: round robin among real-time threads, at their lowest priority. What the thread starts meanwhile does not
    /// inherit that; but its nice value, if it is no longer what it was, has to be set again.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_NICE, and where the thread's cgroup has no share of real time; or when no thread can be started.
    pub fn take() -> io::Result<Precedence> {
        let reader = gettid();
        prefer(reader)?;
        let (pace, ended) = channel();
        let thread = thread::Builder::new()
            .name("precedence".to_owned())
            .spawn(move || take_turns(reader, &ended));
        // What was tried is undone, or the thread goes on from it.
        yield_to_others(reader);
        Ok(Precedence {
            pace: Some(pace),
            thread: Some(thread?),
            reader,
        })
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        drop(self.pace.take());
        // It can only have ended well.
        let _ = self.thread.take().map(JoinHandle::join);
        yield_to_others(self.reader);
    }
}

fn take_turns(reader: Pid, ended: &Receiver<()>) {
    // It has to come in time itself, before the one that it is about.
    if schedule(gettid(), libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 2).is_err() {
        return;
    }
    let mut before = true;
    loop {
        let turn = match before {
            true => prefer(reader).map(|()| BEFORE).unwrap_or(BESIDE),
            false => {
                yield_to_others(reader);
                BESIDE
            }
        };
        match ended.recv_timeout(turn) {
            Err(RecvTimeoutError::Timeout) => before = !before,
            _ => return,
        }
    }
}

fn prefer(thread: Pid) -> Result<(), Errno> {
    schedule(thread, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1)
}

fn yield_to_others(thread: Pid) {
    // To give it up needs no privilege. Should it fail nevertheless, the end of the process does it.
    let _ = schedule(thread, libc::SCHED_OTHER, 0);
}

fn schedule(thread: Pid, policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &raw const parameters) };
    Errno::result(done).map(drop)
}

/// The nice value of the calling thread.
#[must_use]
pub fn nice() -> i32 {
    // SAFETY: takes and gives numbers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets it.
///
/// # Errors
/// What `setpriority(2)` says.
pub fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: takes and gives numbers.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(done).map(drop)
}
