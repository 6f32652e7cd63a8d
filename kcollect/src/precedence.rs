//! Who reads the rings goes before others: on a machine with more work than CPUs it would wait in a row with all that work,
//! while the rings fill up, and the profile of the very overload that somebody wants to understand would have holes.
//!
//! It needs little, a tenth of a percent of a CPU on most machines, so nobody waits long for it; and should it ever need
//! much, the kernel lets no thread of this kind have more than 95 % of a CPU.
//!
//! Not while it waits for others: a real-time thread that waits in the kernel for a lock or a reference of another thread by trying
//! again and again keeps that thread from its CPU. `wait4(2)` does so, and what looks up names below `/proc`, where the
//! directory of somebody dead has to go first: until the kernel took the CPU away, after 0.95 s. So these are done
//! [`without`] it, only with the best nice value.

use std::cell::Cell;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::libc;

/// The best nice value.
const BEST: libc::c_int = -20;

/// What kcollect was started with.
static NICE: OnceLock<libc::c_int> = OnceLock::new();

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread goes before others until this is dropped.
#[derive(Debug)]
pub struct Precedence(());

impl Precedence {
    /// Takes it: round robin among real-time threads, at their lowest priority. What the thread starts meanwhile does not
    /// inherit it, nor, if it is started with [`nice`], the nice value.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_NICE, and where the thread's cgroup has no share of real time.
    pub fn take() -> Result<Precedence, Errno> {
        nice();
        prefer()?;
        set_nice(BEST)?;
        HELD.set(true);
        Ok(Precedence(()))
    }
}

/// The nice value that kcollect was started with, and that a load is to have.
pub fn nice() -> i32 {
    *NICE.get_or_init(|| {
        // SAFETY: takes and gives numbers.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    })
}

/// Does something without it, if the calling thread has it: what may wait for other threads, or starts a program.
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    let held = HELD.replace(false) && schedule(libc::SCHED_OTHER, 0).is_ok();
    let done = work();
    if held {
        // Had a moment ago.
        HELD.set(prefer().is_ok());
    }
    done
}

impl Drop for Precedence {
    fn drop(&mut self) {
        HELD.set(false);
        // To give it up needs no privilege. Should it fail nevertheless, the end of the process does it.
        let _ = schedule(libc::SCHED_OTHER, 0);
        let _ = set_nice(nice());
    }
}

fn prefer() -> Result<(), Errno> {
    schedule(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1)
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    Errno::result(done).map(drop)
}

/// Of the calling thread.
///
/// # Errors
/// What `setpriority(2)` says.
pub fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: takes and gives numbers.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(done).map(drop)
}
