//! `state_lock SECONDS CPU VARIANT`: threads that wait for each other in futexes.
//!
//! * `mutex`: three threads want one lock, and each sleeps while it has it;
//! * `condvar`: one thread waits for a condition that another makes true now and then;
//! * `pi`: as `mutex`, with a lock that lends the waiter's priority to the owner.
//!
//! The first thread also waits for the others to end, which is a futex as well.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use experiment_format::microstate::Microstate;
use tests::workload::thread_times::{ThreadTimes, TimeAccount};
use tests::workload::truth::{Work, monotonic_ns, variant};

/// How long a lock is held, and how long a condition is not true.
const HOLD: Duration = Duration::from_millis(2);
/// How long a thread pauses without the lock. Another has it by then.
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<()> {
    let mut work = Work::start("state_lock")?;
    let until_ns = work.until_ns();
    let threads: Vec<JoinHandle<Result<TimeAccount>>> = match variant()?.as_str() {
        "mutex" => (0..3)
            .map(|_| spawn(move || want_mutex(until_ns)))
            .collect(),
        "condvar" => vec![
            spawn(move || wait_for_flag(until_ns)),
            spawn(move || raise_flag(until_ns)),
        ],
        "pi" => (0..3).map(|_| spawn(move || want_pi(until_ns))).collect(),
        other => bail!("no variant {other:?}"),
    };
    let count = threads.len() as u64;
    for thread in threads {
        let account = work.blocked(Microstate::UserLock, || thread.join())?;
        work.account(&account.map_err(|_| anyhow!("a thread panicked"))??);
    }
    work.end(count)
}

fn want_mutex(until_ns: u64) -> Result<TimeAccount> {
    static LOCK: Mutex<()> = Mutex::new(());
    let mut thread_times = ThreadTimes::start()?;
    while monotonic_ns()? < until_ns {
        let held = thread_times.blocked(Microstate::UserLock, || LOCK.lock())?;
        thread_times.blocked(Microstate::Sleep, || sleep(HOLD))?;
        drop(held);
        thread_times.blocked(Microstate::Sleep, || sleep(PAUSE))?;
    }
    thread_times.end()
}

/// Whether there is something to do, and whether it is over.
static FLAG: Mutex<(bool, bool)> = Mutex::new((false, false));
static RAISED: Condvar = Condvar::new();

fn wait_for_flag(_until_ns: u64) -> Result<TimeAccount> {
    let mut thread_times = ThreadTimes::start()?;
    loop {
        let mut flag = thread_times
            .blocked(Microstate::UserLock, || {
                let flag = FLAG.lock().unwrap_or_else(PoisonError::into_inner);
                RAISED.wait_while(flag, |(raised, _)| !*raised)
            })?
            .unwrap_or_else(PoisonError::into_inner);
        flag.0 = false;
        if flag.1 {
            return thread_times.end();
        }
    }
}

fn raise_flag(until_ns: u64) -> Result<TimeAccount> {
    let mut thread_times = ThreadTimes::start()?;
    let mut over = false;
    while !over {
        thread_times.blocked(Microstate::Sleep, || sleep(HOLD))?;
        over = monotonic_ns()? >= until_ns;
        let lock = thread_times.blocked(Microstate::UserLock, || FLAG.lock())?;
        *lock.unwrap_or_else(PoisonError::into_inner) = (true, over);
        RAISED.notify_one();
    }
    thread_times.end()
}

fn want_pi(until_ns: u64) -> Result<TimeAccount> {
    static LOCK: AtomicU32 = AtomicU32::new(0);
    let mut thread_times = ThreadTimes::start()?;
    while monotonic_ns()? < until_ns {
        thread_times.blocked(Microstate::UserLock, || futex(&LOCK, libc::FUTEX_LOCK_PI))??;
        thread_times.blocked(Microstate::Sleep, || sleep(HOLD))?;
        futex(&LOCK, libc::FUTEX_UNLOCK_PI)?;
        thread_times.blocked(Microstate::Sleep, || sleep(PAUSE))?;
    }
    // The lock word is the kernel's alone here: all of its changes are made by system calls.
    ensure!(
        LOCK.load(Ordering::Relaxed) & libc::FUTEX_OWNER_DIED == 0,
        "an owner of the lock has died"
    );
    thread_times.end()
}

/// The two calls on a lock that lends priority. The kernel also does what a library would do
/// without it.
fn futex(lock: &AtomicU32, operation: i32) -> Result<()> {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the lock is a static, so it outlives every wait; there is no time limit.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            lock.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            0,
            none,
        )
    };
    ensure!(result == 0, "futex: {}", std::io::Error::last_os_error());
    Ok(())
}
