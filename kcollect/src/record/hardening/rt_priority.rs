//! Who goes before others: how the scheduler treats kcollect's threads, and the load.
//!
//! The [reader](crate::record::input::reader) goes before others always: it copies memory, and what it does not
//! take in time is lost.
//!
//! Who applies what was read, and who makes unwind tables, go before others for a tenth of the
//! time. As long as the programs in the kernel do not know a process they copy its stacks, and that
//! is more to read and to apply: where hundreds begin at once, who had to wait in a row with them
//! would come too late for all of them.
//!
//! Not for more. There may be a second's work to do for them, and what they do should not have to
//! wait for that: it can be done when the CPUs have nothing else. And a real-time thread that waits
//! in the kernel for a lock or a reference of another thread by trying again and again keeps that
//! thread from its CPU: `wait4(2)` does so, and what looks up names below `/proc`, where the
//! directory of somebody dead has to go first. So a thread that does nothing else gives and takes
//! it, in turns.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

/// So long at a time they go before others,
const BEFORE: Duration = Duration::from_millis(10);
/// and so long they do not.
const BESIDE: Duration = Duration::from_millis(90);

/// Priorities, each before those below.
const IN_TURNS: libc::c_int = 1;
const ALWAYS: libc::c_int = 2;
const GIVES_TURNS: libc::c_int = 3;

/// The calling thread goes before others from now on. Threads that it starts do not inherit that.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, and where the thread's cgroup has no share of real time.
pub fn always() -> Result<(), Errno> {
    schedule(
        Pid::from_raw(0),
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        ALWAYS,
    )
}

/// Some threads go before others, in turns, until this is dropped.
#[derive(Debug)]
pub struct Precedence {
    /// Whoever gives and takes it ends when this is gone.
    pace: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Precedence {
    /// Gives it to threads: round robin among real-time threads, at their lowest priority. What
    /// they start meanwhile does not inherit that.
    ///
    /// # Errors
    /// As [`always`]; or when no thread can be started.
    pub fn in_turns(threads: Vec<Pid>) -> io::Result<Precedence> {
        let tried = threads.iter().try_for_each(|thread| prefer(*thread));
        // What was tried is undone, or a thread goes on from it.
        yield_to_others(&threads);
        tried?;
        let (pace, ended) = channel();
        let thread = thread::Builder::new()
            .name("precedence".to_owned())
            .spawn(move || take_turns(&threads, &ended))?;
        Ok(Precedence {
            pace: Some(pace),
            thread: Some(thread),
        })
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        drop(self.pace.take());
        // It can only have ended well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn take_turns(threads: &[Pid], ended: &Receiver<()>) {
    // It has to come in time itself, before those that it is about.
    let own = Pid::from_raw(0);
    if schedule(
        own,
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        GIVES_TURNS,
    )
    .is_err()
    {
        return;
    }
    let mut before = true;
    loop {
        let turn = if before {
            // One that has ended needs none.
            for thread in threads {
                let _ = prefer(*thread);
            }
            BEFORE
        } else {
            yield_to_others(threads);
            BESIDE
        };
        match ended.recv_timeout(turn) {
            Err(RecvTimeoutError::Timeout) => before = !before,
            _ => break,
        }
    }
    yield_to_others(threads);
}

fn prefer(thread: Pid) -> Result<(), Errno> {
    schedule(thread, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, IN_TURNS)
}

fn yield_to_others(threads: &[Pid]) {
    for thread in threads {
        // To give it up needs no privilege. Should it fail nevertheless, the end of the process
        // does it.
        let _ = schedule(*thread, libc::SCHED_OTHER, 0);
    }
}

fn schedule(thread: Pid, policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &raw const parameters) };
    Errno::result(done).map(drop)
}
