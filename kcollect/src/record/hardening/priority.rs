//! Priority for kcollect's threads.
//!
//! The [reader](crate::record::input::reader) has real-time priority: it copies records out of the
//! rings, and records that find a full ring are lost.
//!
//! The thread that applies the records and the thread that makes unwind tables have a nice value
//! below others. As long as the BPF programs have no tables of a process they copy its stacks,
//! which are more data to read and to apply. When hundreds of processes start at once and these
//! threads had to wait in the run queue like each of them, the tables would come too late for all.
//! Competing with 300 of them on a CPU, these threads get a thirtieth of its time, and run next
//! when they wake up.
//!
//! They have no real-time priority, for two reasons. There may be a second's work to do, which can
//! wait. And a real-time thread that spins in the kernel for a lock or a reference held by a
//! preempted thread keeps that thread off the CPU: `wait4(2)` does so, and so do look-ups below
//! `/proc`, which wait until the directory of an exited process is gone.
//!
//! Nice values count within a cgroup; between cgroups their weights do, whatever the number of
//! threads in each.

use std::io;

use experiment_format::ids::Tid;
use nix::errno::Errno;
use nix::libc;

/// The nice value of threads whose work others wait for: a weight nine times the normal one.
const RAISED_NICE: libc::c_int = -10;
/// The real-time priority of the reader, above the lowest one: a thread preempts those with a lower
/// number.
const READER_PRIORITY: libc::c_int = 2;

/// The thread that makes a system call, in its arguments.
const CALLING_THREAD: Tid = Tid(0);

/// Sets real-time priority for the calling thread. Threads that it starts do not inherit it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, and if the thread's cgroup has no share of real time.
pub fn set_real_time() -> Result<(), Errno> {
    set_scheduler(CALLING_THREAD, libc::SCHED_FIFO, READER_PRIORITY)
}

/// A raised priority of some threads, until it is dropped.
#[derive(Debug)]
pub struct RaisedPriority {
    threads: Vec<Tid>,
}

impl RaisedPriority {
    /// Raises the priority of threads. Threads and processes that they start do not inherit it.
    ///
    /// # Errors
    /// `EACCES` without `CAP_SYS_NICE`.
    pub fn of(threads: Vec<Tid>) -> Result<RaisedPriority, Errno> {
        for thread in &threads {
            set_scheduler(*thread, libc::SCHED_OTHER, 0)?;
            set_nice(*thread, RAISED_NICE)?;
        }
        Ok(RaisedPriority { threads })
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        for thread in &self.threads {
            // This needs no privilege, and fails only if the thread has exited.
            let _ = set_nice(*thread, 0);
        }
    }
}

fn set_nice(thread: Tid, nice: libc::c_int) -> Result<(), Errno> {
    // SAFETY: it takes three numbers; a process is a thread to it.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.0, nice) };
    Errno::result(done).map(drop)
}

/// Sets the policy and the real-time priority of a thread, which those that it starts do not
/// inherit, nor a nice value below 0.
fn set_scheduler(thread: Tid, policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &raw const parameters) };
    Errno::result(done).map(drop)
}

/// Returns the message for threads without it.
#[must_use]
pub fn no_priority(error: &io::Error) -> String {
    format!("no raised priority ({error}): on an overloaded machine, data may be lost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice_of_this_thread() -> libc::c_int {
        // SAFETY: it takes two numbers.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn a_raised_priority_is_not_inherited_and_ends() {
        let this = Tid::from_raw(nix::unistd::gettid().as_raw());
        // That takes CAP_SYS_NICE.
        let Ok(raised) = RaisedPriority::of(vec![this]) else {
            return;
        };
        assert_eq!(nice_of_this_thread(), RAISED_NICE);
        let inherited = std::thread::spawn(nice_of_this_thread).join().unwrap();
        assert_eq!(inherited, 0);
        drop(raised);
        assert_eq!(nice_of_this_thread(), 0);
    }
}
