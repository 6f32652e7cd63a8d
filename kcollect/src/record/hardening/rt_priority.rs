//! Real-time priority for kcollect's threads.
//!
//! The [reader](crate::record::input::reader) always has it: it copies records out of the rings,
//! and records that find a full ring are lost.
//!
//! The thread that applies the records and the thread that makes unwind tables have it for a tenth
//! of the time (duty-cycled). As long as the BPF programs have no tables of a process they copy its
//! stacks, which are more data to read and to apply. When hundreds of processes start at once and
//! these threads had to wait in the run queue behind them, the tables would come too late for all
//! of them.
//!
//! They have it for no more than a tenth of the time, for two reasons. There may be a second's work
//! to do, which can wait until the CPUs are idle. And a real-time thread that spins in the kernel
//! for a lock or a reference held by a preempted thread keeps that thread off the CPU: `wait4(2)`
//! does so, and so do look-ups below `/proc`, which wait until the directory of an exited process
//! is gone. A thread of its own therefore switches the priority on and off.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use experiment_format::ids::Tid;
use nix::errno::Errno;
use nix::libc;

/// The two parts of a duty cycle: with real-time priority, and without. Switching takes 0.1 ms of
/// CPU time for each cycle, so with half of the length kcollect would take a tenth more beside a
/// busy redis.
const ON_TIME: Duration = Duration::from_millis(20);
const OFF_TIME: Duration = Duration::from_millis(180);

/// Real-time priorities: a thread preempts those with a lower number.
const DUTY_CYCLED_PRIORITY: libc::c_int = 1;
const READER_PRIORITY: libc::c_int = 2;
const SWITCHER_PRIORITY: libc::c_int = 3;

/// The thread that makes a system call, in its arguments.
const CALLING_THREAD: Tid = Tid(0);

/// Sets real-time priority for the calling thread. Threads that it starts do not inherit it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, and if the thread's cgroup has no share of real time.
pub fn always() -> Result<(), Errno> {
    set_scheduler(
        CALLING_THREAD,
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        READER_PRIORITY,
    )
}

/// Duty-cycled real-time priority of some threads, until it is dropped.
#[derive(Debug)]
pub struct RtPriority {
    /// The thread that switches the priority ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RtPriority {
    /// Sets real-time priority for threads, duty-cycled: round robin, at the lowest priority.
    /// Threads that they start meanwhile do not inherit it.
    ///
    /// # Errors
    /// Those of [`always`]; or no thread can be started.
    pub fn duty_cycled(threads: Vec<Tid>) -> io::Result<RtPriority> {
        let tried = threads.iter().try_for_each(|thread| switch_on(*thread));
        switch_off(&threads);
        tried?;
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("rt-priority".to_owned())
            .spawn(move || run_duty_cycle(&threads, &stopped))?;
        Ok(RtPriority {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for RtPriority {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run_duty_cycle(threads: &[Tid], stopped: &Receiver<()>) {
    // Without a higher priority of its own this thread could not switch the others off in time.
    let this = CALLING_THREAD;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    if set_scheduler(this, policy, SWITCHER_PRIORITY).is_err() {
        return;
    }
    let mut on = true;
    loop {
        let time = if on {
            for thread in threads {
                // It fails only if the thread has exited.
                let _ = switch_on(*thread);
            }
            ON_TIME
        } else {
            switch_off(threads);
            OFF_TIME
        };
        match stopped.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => on = !on,
            _ => break,
        }
    }
    switch_off(threads);
}

fn switch_on(thread: Tid) -> Result<(), Errno> {
    set_scheduler(
        thread,
        libc::SCHED_RR | libc::SCHED_RESET_ON_FORK,
        DUTY_CYCLED_PRIORITY,
    )
}

fn switch_off(threads: &[Tid]) {
    for thread in threads {
        // This needs no privilege, and fails only if the thread has exited.
        let _ = set_scheduler(*thread, libc::SCHED_OTHER, 0);
    }
}

fn set_scheduler(thread: Tid, policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &raw const parameters) };
    Errno::result(done).map(drop)
}

/// Returns the message for threads without it.
#[must_use]
pub fn no_rt_priority(error: &io::Error) -> String {
    format!("no real-time priority ({error}): on an overloaded machine, data may be lost")
}
