//! Who reads the rings goes before others: on a machine with more work than CPUs it would wait in a row with all that work,
//! while the rings fill up, and the profile of the very overload that somebody wants to understand would have holes.
//!
//! It needs little, a tenth of a percent of a CPU on most machines, so nobody waits long for it; and should it ever need
//! much, the kernel lets no thread of this kind have more than 95 % of a CPU.

use nix::errno::Errno;
use nix::libc;

/// The calling thread goes before others until this is dropped.
#[derive(Debug)]
pub struct Precedence(());

impl Precedence {
    /// Takes it: round robin among real-time threads, at their lowest priority. What the thread starts meanwhile, threads and
    /// the load, does not inherit it.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_NICE, and where the thread's cgroup has no share of real time.
    pub fn take() -> Result<Precedence, Errno> {
        schedule(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1).map(|()| Precedence(()))
    }
}

/// Does something without it, if the calling thread has it: starts a program, which is to inherit what kcollect was started with,
/// its nice value too, which the kernel else resets with the rest.
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: takes and gives numbers.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let held = policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR
        && schedule(libc::SCHED_OTHER, 0).is_ok();
    let done = work();
    if held {
        // Had a moment ago.
        let _ = schedule(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
    }
    done
}

impl Drop for Precedence {
    fn drop(&mut self) {
        // To give it up needs no privilege. Should it fail nevertheless, the end of the process does it.
        let _ = schedule(libc::SCHED_OTHER, 0);
    }
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    Errno::result(done).map(drop)
}
