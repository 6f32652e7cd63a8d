//! Who reads the rings goes before others: on a machine with more work than CPUs it would wait in a row with all that work,
//! while the rings fill up, and the profile of the very overload that somebody wants to understand would have holes.
//!
//! Only while it waits for the rings and reads them, which takes a ten thousandth of a CPU. What it does with what it read, and
//! above all what it asks the kernel for, it does as everybody else: a real-time thread that waits in the kernel for a
//! lock or a reference of another thread, by trying again and again, keeps that thread from its CPU. `wait4(2)` does so where
//! it removes the directory of the dead from `/proc`, until the kernel takes the CPU from it after 0.95 s.

use nix::errno::Errno;
use nix::libc;

/// Whether the calling thread may go before others.
#[derive(Clone, Copy, Debug)]
pub struct Precedence {
    permitted: bool,
}

impl Precedence {
    /// Finds out whether it may, and why not: `EPERM` without CAP_SYS_NICE, and where the thread's cgroup has no share of real
    /// time. It then goes on without.
    pub fn find() -> (Precedence, Result<(), Errno>) {
        let tried = schedule(libc::SCHED_RR, 1);
        let permitted = tried.is_ok() && schedule(libc::SCHED_OTHER, 0).is_ok();
        (Precedence { permitted }, tried)
    }

    /// Does something before all others but real-time threads: round robin among these, at their lowest priority. It must start
    /// no thread and no program, which would inherit that, and wait for none.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let taken = self.permitted && schedule(libc::SCHED_RR, 1).is_ok();
        let done = work();
        if taken {
            // To give it up needs no privilege.
            let _ = schedule(libc::SCHED_OTHER, 0);
        }
        done
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
