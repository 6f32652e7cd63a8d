//! The facts of the machine on which the meaning of a command line depends.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use host::Root;

/// Facts of the machine that the command line is resolved against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// `kernel.perf_event_max_sample_rate`, in ticks per second and CPU. None: unknown.
    pub max_sample_rate: Option<u64>,
    /// The width of the terminal; the help is wrapped to it. None: not a terminal.
    pub terminal_columns: Option<u16>,
    /// How long it takes to lock a free mutex, whole microseconds.
    pub free_lock_time: Duration,
}

impl HostFacts {
    /// Reads them from the running machine. What cannot be read is unknown.
    #[must_use]
    pub fn read() -> Self {
        HostFacts {
            max_sample_rate: Root::machine().number("/proc/sys/kernel/perf_event_max_sample_rate"),
            terminal_columns: terminal_size::terminal_size().map(|(width, _)| width.0),
            free_lock_time: free_lock_time(),
        }
    }
}

/// Returns how long it takes to lock and unlock a mutex that is free, by the rule of gprofng's
/// collector: of 100 pairs, after three that warm up, the longest or six times the mean, whichever
/// is more, in whole microseconds.
fn free_lock_time() -> Duration {
    const WARM_UP: usize = 3;
    const PAIRS: u32 = 100;
    let mutex = Mutex::new(0_u64);
    let pair = |_| {
        let start = Instant::now();
        // Of a mutex that only this function has.
        if let Ok(mut locked) = mutex.lock() {
            *locked += 1;
        }
        start.elapsed()
    };
    let times: Vec<Duration> = (0..WARM_UP + PAIRS as usize)
        .map(pair)
        .skip(WARM_UP)
        .collect();
    let longest = times.iter().max().copied().unwrap_or_default();
    let mean = times.iter().sum::<Duration>() / PAIRS;
    let micros = longest.max(6 * mean).as_nanos().div_ceil(1000);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
