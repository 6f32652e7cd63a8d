//! Going before others, as a real-time thread, and nice values: how the scheduler treats kcollect's threads, and the load.

use nix::errno::Errno;
use nix::libc;

/// The calling thread goes before all others but real-time threads from now on. Threads that it starts do not inherit that.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`, and where the thread's cgroup has no share of real time.
pub fn take() -> Result<(), Errno> {
    let lowest = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: a valid `struct sched_param`, which the kernel copies.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const lowest) };
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
