//! The account of a workload's thread of its own time.
//!
//! A thread reads three clocks of the kernel: `CLOCK_MONOTONIC` passes always,
//! `CLOCK_THREAD_CPUTIME_ID` while it runs, and the second number of `/proc/thread-self/schedstat`
//! while it is runnable and does not run. What is left of a call is the time that it was blocked in
//! it; the reason follows from the call. The last two count from the thread's start, so they
//! include a wait for a busy CPU before its first instruction. None of the three comes from
//! kcollect. But the last two are sums of the scheduler that kcollect reads as well, at its own
//! instants: of them, agreement means that nothing was lost or misplaced. And the kernel leaves out
//! of the second the wait of a thread that was preempted when it had declared itself asleep and was
//! not off its CPU yet.
//!
//! Blocked time outside of [`ThreadTimes::blocked`] is in no state, and the check that reads the
//! account refuses a workload that cannot explain its own time.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use experiment_format::microstate::Microstate;
use nix::time::ClockId;

use crate::workload::truth::{clock_ns, monotonic_ns};

/// The time of one or more threads, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeAccount {
    /// The number of threads.
    pub threads: u64,
    /// Wall time, summed over the threads.
    pub tracked_ns: u64,
    /// Off-CPU time by number of the state. The states on CPU are 0: they come from the process's
    /// usage.
    pub off_cpu_ns: [u64; Microstate::PER_THREAD],
}

impl TimeAccount {
    /// Adds time in a state.
    pub fn credit(&mut self, state: Microstate, ns: u64) {
        if let Some(sum) = self.off_cpu_ns.get_mut(state as usize) {
            *sum += ns;
        }
    }

    /// Adds the account of other threads.
    pub fn add(&mut self, other: &Self) {
        self.threads += other.threads;
        self.tracked_ns += other.tracked_ns;
        for (sum, ns) in self.off_cpu_ns.iter_mut().zip(other.off_cpu_ns) {
            *sum += ns;
        }
    }
}

/// The three clocks of a thread at one instant, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClocks {
    /// `CLOCK_MONOTONIC`.
    pub wall_ns: u64,
    /// CPU time since the thread's start.
    pub cpu_ns: u64,
    /// Waits for a CPU since the thread's start.
    pub waited_ns: u64,
}

impl ThreadClocks {
    /// Returns the account at a later instant, if the thread's blocked time since this one was all
    /// in one state.
    pub fn blocked_until(&self, later: &Self, state: Microstate) -> TimeAccount {
        let mut account = self.account_until(later);
        account.credit(state, self.blocked_ns(later).try_into().unwrap_or(0));
        account
    }

    /// Returns the account at a later instant, without the blocked time in between.
    fn account_until(&self, later: &Self) -> TimeAccount {
        let before_ns = self.cpu_ns + self.waited_ns;
        let mut account = TimeAccount {
            threads: 1,
            tracked_ns: before_ns + (later.wall_ns - self.wall_ns),
            ..TimeAccount::default()
        };
        account.credit(Microstate::WaitCpu, later.waited_ns);
        account
    }

    /// Returns the blocked time until a later instant. It is nearly 0, and may be negative, for a
    /// call that did not block, since the clocks are read one after the other.
    fn blocked_ns(&self, later: &Self) -> i64 {
        let elsewhere = (later.cpu_ns - self.cpu_ns) + (later.waited_ns - self.waited_ns);
        (later.wall_ns - self.wall_ns) as i64 - elsewhere as i64
    }
}

/// The times of the thread that made it. No other thread may use it: two of its clocks are the
/// thread's own.
#[derive(Debug)]
pub struct ThreadTimes {
    schedstat: File,
    start: ThreadClocks,
    /// Blocked time by number of the state. Negative times count against positive ones: the errors
    /// of two hundred thousand calls would else add up.
    blocked_ns: [i64; Microstate::PER_THREAD],
}

impl ThreadTimes {
    /// Starts the account now. It includes what the thread has run and waited since its start, and
    /// not what blocked it before now, which for a new thread is nothing.
    ///
    /// # Errors
    /// When a clock cannot be read. The hint for a missing `schedstat` is a kernel with
    /// `CONFIG_SCHED_INFO`.
    pub fn start() -> Result<Self> {
        let schedstat = File::open("/proc/thread-self/schedstat")
            .context("/proc/thread-self/schedstat: how long a thread waited for a CPU")?;
        Ok(Self {
            start: instant(&schedstat)?,
            schedstat,
            blocked_ns: [0; Microstate::PER_THREAD],
        })
    }

    /// Makes a call that blocks for a known reason. Only the time blocked is noted: neither the
    /// call's CPU time nor its wait for a CPU after the wake-up.
    ///
    /// # Errors
    /// When a clock cannot be read. What the call returns is the caller's to judge.
    pub fn blocked<T>(&mut self, state: Microstate, call: impl FnOnce() -> T) -> Result<T> {
        let before = instant(&self.schedstat)?;
        let result = call();
        let after = instant(&self.schedstat)?;
        if let Some(sum) = self.blocked_ns.get_mut(state as usize) {
            *sum += before.blocked_ns(&after);
        }
        Ok(result)
    }

    /// Ends the account now.
    ///
    /// # Errors
    /// When a clock cannot be read.
    pub fn end(self) -> Result<TimeAccount> {
        let mut account = self.start.account_until(&instant(&self.schedstat)?);
        for (sum, ns) in account.off_cpu_ns.iter_mut().zip(self.blocked_ns) {
            *sum += u64::try_from(ns).unwrap_or(0);
        }
        Ok(account)
    }
}

/// Returns how long the calling thread has waited for a CPU since its start, nanoseconds.
///
/// # Errors
/// When the kernel does not say.
pub fn waited_ns() -> Result<u64> {
    waited(&File::open("/proc/thread-self/schedstat")?)
}

fn waited(schedstat: &File) -> Result<u64> {
    let mut text = [0; 64];
    let length = schedstat.read_at(&mut text, 0)?;
    parse_waited(text.get(..length).unwrap_or_default())
}

/// Returns the wait for a CPU in a `schedstat`, nanoseconds: the second of its numbers.
///
/// # Errors
/// The second number is missing or malformed.
pub fn parse_waited(schedstat: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(schedstat)?;
    let number = text.split_ascii_whitespace().nth(1);
    number
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("schedstat: {text:?}"))
}

/// Reads the three clocks without a wait for the CPU in between, which would be in one and not in
/// another. Such waits are frequent: a read of a thread's CPU time brings the scheduler's account
/// up to date, which may end the thread's time slice, and others run on the way out of the call.
fn instant(schedstat: &File) -> Result<ThreadClocks> {
    let mut waited_ns = waited(schedstat)?;
    loop {
        // The CPU time is one of some time during the call, which takes longer on a CPU that the
        // thread has just come to.
        let before_ns = monotonic_ns()?;
        let cpu_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        let after_ns = monotonic_ns()?;
        let again = waited(schedstat)?;
        if again == waited_ns {
            return Ok(ThreadClocks {
                wall_ns: before_ns.midpoint(after_ns),
                cpu_ns,
                waited_ns,
            });
        }
        waited_ns = again;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;
    use std::time::Duration;

    #[test]
    fn a_sleep_is_noted_where_it_belongs() {
        let mut thread_times = ThreadTimes::start().unwrap();
        thread_times
            .blocked(Microstate::Sleep, || sleep(Duration::from_millis(20)))
            .unwrap();
        let account = thread_times.end().unwrap();
        let slept = account.off_cpu_ns[Microstate::Sleep as usize];
        assert!(
            slept > 15_000_000 && slept <= account.tracked_ns,
            "{account:?}"
        );
        assert_eq!(account.off_cpu_ns[Microstate::UserLock as usize], 0);
    }

    #[test]
    fn accounts_of_threads_add_up() {
        let mut sum = TimeAccount::default();
        let mut one = TimeAccount {
            threads: 1,
            tracked_ns: 5,
            ..TimeAccount::default()
        };
        one.credit(Microstate::Stopped, 3);
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.threads, sum.tracked_ns), (2, 10));
        assert_eq!(sum.off_cpu_ns, [0, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
    }
}
