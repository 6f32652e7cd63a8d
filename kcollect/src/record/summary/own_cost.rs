//! The resources that kcollect uses itself, and the instants from which they count.

use experiment_format::units::Nanos;
use host::machine::now;
use serde::Serialize;

use crate::record::input::totals::Totals;

/// When a recording started and stopped.
#[derive(Clone, Copy, Debug)]
pub struct RecordingTimes {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub started_ns: Nanos,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub stopped_ns: Nanos,
    /// From when kcollect's own CPU time counts.
    pub own: OwnStart,
}

/// The instant from which kcollect's own CPU time counts as an experiment's.
#[derive(Clone, Copy, Debug)]
pub struct OwnStart {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: Nanos,
    /// The CPU time that had been used by then, for another experiment, seconds.
    pub cpu_s: f64,
}

impl OwnStart {
    /// Returns the start of the recording. The few milliseconds of CPU time before it count too.
    pub fn of_the_recording() -> OwnStart {
        OwnStart {
            at_ns: now(),
            cpu_s: 0.0,
        }
    }

    /// Returns the current instant.
    pub fn now() -> OwnStart {
        OwnStart {
            at_ns: now(),
            cpu_s: own_use().0,
        }
    }
}

impl RecordingTimes {
    /// Returns the time from start to stop, seconds.
    pub(super) fn elapsed_s(&self) -> f64 {
        self.stopped_ns
            .saturating_sub(self.started_ns)
            .as_secs_f64()
    }
}

/// What kcollect took.
#[derive(Debug, Serialize)]
pub struct OwnCost {
    /// CPU seconds of its process, from its start until the summary. For an experiment that follows
    /// another one, from when that one was closed.
    pub cpu_s: f64,
    /// The same as a percentage of one CPU over that time.
    pub cpu_percent: f64,
    /// What its programs in the kernel took of other threads' time, and of idle CPUs', seconds:
    /// those at context switches, ticks and returns to user mode. Of the switches it is an
    /// estimate.
    pub programs_s: f64,
    /// The same as a percentage of the recorded time of all CPUs.
    pub programs_percent: f64,
    /// The largest resident memory, bytes.
    pub peak_rss_bytes: u64,
    /// Bytes written for data and logs.
    pub bytes_written: u64,
}

impl OwnCost {
    /// Returns the resources used until now.
    pub(super) fn new(times: &RecordingTimes, totals: &Totals, bytes_written: u64) -> OwnCost {
        let (cpu_s, peak_rss_bytes) = own_use();
        let cpu_s = cpu_s - times.own.cpu_s;
        // Not over the recording: a short one would have the CPU time of the start in it.
        let of_ns = now().saturating_sub(times.own.at_ns).max(Nanos(1));
        let programs_ns = Nanos(totals.sum(|stats| stats.programs_ns));
        let recorded_ns = totals.cpus.iter().map(|(_, _, time)| time.recorded_ns.0);
        let recorded_ns = recorded_ns.sum::<u64>().max(1);
        OwnCost {
            cpu_s,
            cpu_percent: 100.0 * cpu_s / (of_ns.as_secs_f64()),
            programs_s: programs_ns.as_secs_f64(),
            programs_percent: 100.0 * programs_ns.0 as f64 / recorded_ns as f64,
            peak_rss_bytes,
            bytes_written,
        }
    }
}

/// Returns the CPU time of this process, seconds, and its largest resident memory, bytes.
pub fn own_use() -> (f64, u64) {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    usage.map_or((0.0, 0), |usage| {
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
        (cpu, usage.max_rss().max(0) as u64 * 1024)
    })
}
