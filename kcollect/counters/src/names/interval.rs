//! The intervals that `on`, `hi` and `lo` mean for a counter: events between two overflows.
//!
//! `on` aims at about 100 overflows a second on a busy CPU, `hi` at ten times as many, `lo` at a
//! tenth. The rate of an event is not known beforehand, so it is estimated from its kind:
//!
//! | events | cycles for each event |
//! |---|---|
//! | cycles and instructions; events of unknown kind: raw codes, events of sysfs | 1 |
//! | branches, accesses to caches | 10 |
//! | misses of caches and mispredicts | 100 |
//! | misses of TLBs, of the last-level cache and of a node's memory | 1000 |
//!
//! An estimated rate that is too high gives too few overflows, one that is too low far too many. So
//! an event of unknown kind is taken to happen at every cycle, as er_kernel does. The clock rate is
//! the machine's, or 3 GHz if it is not known. Intervals are prime numbers, so that they do not
//! stay in step with loops.
//!
//! Clocks overflow at the intervals of `-p`. Page faults and context switches happen thousands of
//! times a second and overflow at every 101st (`hi` 11, `lo` 1009); major faults, migrations,
//! tracepoints and breakpoints at each, with `lo` at every 11th (the first two) or 101st.

use host::Root;
use perf_event_open_sys::bindings as sys;

use crate::names::event::Encoding;
use crate::names::grammar::OverflowInterval;

/// The clock of a CPU whose clock is not known: rather too fast, so that the interval is too long.
const DEFAULT_MHZ: u64 = 3000;

/// The intervals of `-p on`, `hi` and `lo`.
const CLOCK_INTERVALS_NS: [u64; 3] = [10_007_000, 997_000, 100_003_000];

/// Returns the interval in events, or in nanoseconds for a clock; at least 1. `mhz` is the CPU's
/// clock.
#[must_use]
pub fn in_events(interval: OverflowInterval, encoding: &Encoding, mhz: u64) -> u64 {
    let level = match interval {
        OverflowInterval::Every(count) => return count,
        OverflowInterval::On => 0,
        OverflowInterval::Hi => 1,
        OverflowInterval::Lo => 2,
    };
    // The upper half is the number of a PMU where cores are of several kinds.
    let config = encoding.config as u32;
    let cycles = match encoding.kind {
        sys::PERF_TYPE_SOFTWARE => return software_intervals(config)[level],
        sys::PERF_TYPE_TRACEPOINT | sys::PERF_TYPE_BREAKPOINT => return [1, 1, 101][level],
        sys::PERF_TYPE_HARDWARE => cycles_per_hardware_event(config),
        sys::PERF_TYPE_HW_CACHE => cycles_per_cache_event(config),
        _ => 1,
    };
    let on = mhz.clamp(100, 20_000) * 1_000_000 / 100 / cycles;
    prime_from([on, on / 10, on * 10][level])
}

fn software_intervals(config: u32) -> [u64; 3] {
    match config {
        sys::PERF_COUNT_SW_CPU_CLOCK | sys::PERF_COUNT_SW_TASK_CLOCK => CLOCK_INTERVALS_NS,
        sys::PERF_COUNT_SW_PAGE_FAULTS
        | sys::PERF_COUNT_SW_PAGE_FAULTS_MIN
        | sys::PERF_COUNT_SW_CONTEXT_SWITCHES
        | sys::PERF_COUNT_SW_CGROUP_SWITCHES
        | sys::PERF_COUNT_SW_BPF_OUTPUT => [101, 11, 1009],
        _ => [1, 1, 11],
    }
}

/// Returns the estimated number of cycles for each event.
fn cycles_per_hardware_event(config: u32) -> u64 {
    match config {
        sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS | sys::PERF_COUNT_HW_CACHE_REFERENCES => 10,
        sys::PERF_COUNT_HW_BRANCH_MISSES => 100,
        sys::PERF_COUNT_HW_CACHE_MISSES => 1000,
        _ => 1,
    }
}

/// Returns the estimated number of cycles for each event.
fn cycles_per_cache_event(config: u32) -> u64 {
    let (cache, misses) = (config & 0xff, config >> 16 & 0xff != 0);
    match (misses, cache) {
        (false, _) => 10,
        (
            true,
            sys::PERF_COUNT_HW_CACHE_L1D
            | sys::PERF_COUNT_HW_CACHE_L1I
            | sys::PERF_COUNT_HW_CACHE_BPU,
        ) => 100,
        (true, _) => 1000,
    }
}

/// Returns the smallest prime number that is not below `least`.
fn prime_from(least: u64) -> u64 {
    let prime = |number: &u64| {
        let mut divisors = (2..).take_while(|divisor| divisor * divisor <= *number);
        *number > 1 && divisors.all(|divisor| !number.is_multiple_of(divisor))
    };
    (least..).find(prime).unwrap_or(least)
}

/// Returns the clock of the first CPU in MHz: its maximum, or where that is not known its present
/// one.
#[must_use]
pub fn cpu_mhz(root: &Root) -> u64 {
    let khz: Option<u64> = root.number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    let now = || {
        let info = root.text("/proc/cpuinfo")?;
        let line = info.lines().find(|line| line.starts_with("cpu MHz"))?;
        let mhz: f64 = line.split_once(':')?.1.trim().parse().ok()?;
        Some(mhz as u64)
    };
    khz.map(|khz| khz / 1000)
        .or_else(now)
        .filter(|mhz| *mhz > 0)
        .unwrap_or(DEFAULT_MHZ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::tree::Tree;

    fn of(kind: u32, config: u64) -> [u64; 3] {
        let encoding = Encoding {
            kind,
            config,
            ..Encoding::default()
        };
        [
            OverflowInterval::On,
            OverflowInterval::Hi,
            OverflowInterval::Lo,
        ]
        .map(|level| in_events(level, &encoding, 3000))
    }

    #[test]
    fn levels() {
        assert_eq!(of(0, 0), [30_000_001, 3_000_017, 300_000_007]);
        assert_eq!(of(0, 8 << 32 | 5), [300_007, 30_011, 3_000_017]);
        assert_eq!(of(3, 0x10003), [30_011, 3001, 300_007]);
        assert_eq!(of(4, 0x1c2), of(0, 1));
        assert_eq!(of(1, 0), CLOCK_INTERVALS_NS);
        assert_eq!(of(1, 2), [101, 11, 1009]);
        assert_eq!(of(1, 4), [1, 1, 11]);
        assert_eq!(of(2, 314), [1, 1, 101]);
        let encoding = Encoding::default();
        assert_eq!(in_events(OverflowInterval::Every(7), &encoding, 3000), 7);
    }

    #[test]
    fn the_clock_of_the_machine() {
        let tree = Tree::new();
        assert_eq!(cpu_mhz(&tree.root()), DEFAULT_MHZ);
        let tree = tree.file("/proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2599.998\n");
        assert_eq!(cpu_mhz(&tree.root()), 2599);
        let tree = tree.file(
            "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
            "4700000\n",
        );
        assert_eq!(cpu_mhz(&tree.root()), 4700);
    }
}
