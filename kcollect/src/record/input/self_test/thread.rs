//! The thread whose account is tested: it does one thing after the other, and notes by clocks of
//! its own how long each took.

use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::units::Nanos;
use host::machine::now;
use memmap2::MmapMut;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{getppid, gettid};

const NAME: &str = "kc-self-test";
/// It calls little, but a build without optimization needs more.
const STACK_BYTES: usize = 256 << 10;
/// Pages that are touched first in user mode.
const FRESH_PAGES: usize = 8;

/// Tries to sleep, and to wait in a futex.
const MAX_WAITS: u32 = 10;

/// How long the thread does each thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Computes in user mode.
    pub user: Duration,
    /// Makes system calls.
    pub system: Duration,
    /// Sleeps.
    pub sleep: Duration,
    /// Waits in a futex.
    pub lock: Duration,
}

impl Phases {
    /// At the start of a recording: little CPU time, and each wait longer than a tick of `-p on`.
    pub const AT_START: Phases = Phases {
        user: Duration::from_millis(2),
        system: Duration::from_millis(1),
        sleep: Duration::from_millis(14),
        lock: Duration::from_millis(14),
    };
    /// In `kcollect doctor`, about a second.
    pub const DOCTOR: Phases = Phases {
        user: Duration::from_millis(200),
        system: Duration::from_millis(100),
        sleep: Duration::from_millis(300),
        lock: Duration::from_millis(200),
    };
}

/// What the thread knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// When it was about to exit, CLOCK_MONOTONIC.
    pub end_ns: Nanos,
    /// The time since it began to run.
    pub lived: Duration,
    /// Its CPU time.
    pub cpu: Duration,
    /// The time from before the sleep until after it.
    pub slept: Duration,
    /// The time from before the wait in the futex until after it.
    pub waited: Duration,
    /// Its page faults without I/O.
    pub minor_faults: u64,
    /// It has had a page fault in a system call.
    pub faulted_in_kernel: bool,
}

/// The thread, as the others see it.
#[derive(Debug)]
pub(super) struct TestThread {
    tid: Arc<AtomicU32>,
    pub(super) known: Receiver<io::Result<Known>>,
}

impl TestThread {
    /// Starts the thread. It is not waited for: it ends by itself.
    pub(super) fn start(phases: Phases) -> io::Result<TestThread> {
        let (sender, known) = channel();
        let tid = Arc::new(AtomicU32::new(0));
        let own_tid = Arc::clone(&tid);
        let thread = thread::Builder::new()
            .name(NAME.to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn(move || {
            own_tid.store(gettid().as_raw().cast_unsigned(), Ordering::Release);
            // The receiver may be gone.
            let _ = sender.send(run(phases));
        })?;
        Ok(TestThread { tid, known })
    }

    /// Its id; 0 if it has not run yet.
    pub(super) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Whether it has exited.
    pub(super) fn is_gone(&self) -> bool {
        let path = format!("/proc/self/task/{}", self.tid());
        self.tid() != 0 && !std::fs::exists(path).unwrap_or(true)
    }
}

fn run(phases: Phases) -> io::Result<Known> {
    let start = Instant::now();
    spin(phases.user, || {
        std::hint::black_box(0);
    });
    spin(phases.system, || {
        std::hint::black_box(getppid());
    });
    let mut sleep = Ok(());
    let slept = timed(|| sleep = sleep_undisturbed(phases.sleep));
    sleep?;
    let mut wait = Ok(());
    let waited = timed(|| wait = wait_in_futex(phases.lock));
    wait?;
    touch_pages()?;
    let before = minor_faults()?;
    fault_in_system_call()?;
    let after = minor_faults()?;
    let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Known {
        end_ns: now(),
        lived: start.elapsed(),
        cpu: Duration::from(cpu),
        slept,
        waited,
        minor_faults: after,
        faulted_in_kernel: after > before,
    })
}

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

/// Repeats an action until a time is over.
fn spin(length: Duration, mut action: impl FnMut()) {
    let start = Instant::now();
    while start.elapsed() < length {
        for _ in 0..100 {
            action();
        }
    }
}

/// Sleeps. On a busy machine the thread may be preempted once the kernel knows when the sleep ends,
/// and before it begins, so that most of it is a wait for a CPU: then it tries again.
fn sleep_undisturbed(length: Duration) -> io::Result<()> {
    for _ in 0..MAX_WAITS {
        let before = getrusage(UsageWho::RUSAGE_THREAD)?.involuntary_context_switches();
        thread::sleep(length);
        if getrusage(UsageWho::RUSAGE_THREAD)?.involuntary_context_switches() == before {
            break;
        }
    }
    Ok(())
}

/// Waits for a condition that never comes true. On a busy machine the thread may be preempted just
/// before the futex call until the time is over, so that it does not wait there: then it tries
/// again.
fn wait_in_futex(length: Duration) -> io::Result<()> {
    let (mutex, condition) = (Mutex::new(()), Condvar::new());
    let poisoned = || io::Error::other("a mutex is poisoned");
    for _ in 0..MAX_WAITS {
        let before = voluntary_switches()?;
        let locked = mutex.lock().map_err(|_| poisoned())?;
        let waited = condition.wait_timeout_while(locked, length, |()| true);
        waited.map(drop).map_err(|_| poisoned())?;
        if voluntary_switches()? > before {
            break;
        }
    }
    Ok(())
}

/// Number of times that the thread has given up its CPU: each wait is one.
fn voluntary_switches() -> io::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.voluntary_context_switches())
}

fn touch_pages() -> io::Result<()> {
    let page = host::machine::page_size();
    let mut memory = MmapMut::map_anon(FRESH_PAGES * page)?;
    (0..FRESH_PAGES).for_each(|number| memory[number * page] = 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// Has the kernel write into a page that is not there yet.
fn fault_in_system_call() -> io::Result<()> {
    let mut memory = MmapMut::map_anon(host::machine::page_size())?;
    let (mut reader, mut writer) = io::pipe()?;
    writer.write_all(&[1; 64])?;
    reader.read_exact(&mut memory[..64])
}

fn minor_faults() -> io::Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok(u64::try_from(usage.minor_page_faults()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_knows_how_long_each_phase_took() {
        let phases = Phases::AT_START;
        let thread = TestThread::start(phases).unwrap();
        let known = thread.known.recv().unwrap().unwrap();
        assert!(known.slept >= phases.sleep && known.waited >= phases.lock);
        assert!(known.lived >= known.slept + known.waited + phases.user + phases.system);
        assert!(known.cpu > Duration::ZERO && known.cpu <= known.lived);
        assert!(
            known.minor_faults >= 1 && known.faulted_in_kernel,
            "{known:?}"
        );
    }
}
