//! The times of a process or thread, as a row of the summary.

use bpf_abi::{CauseTimes, DetailTimes, KernelCounts};
use experiment_format::cause::{Cause, WaitKind};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::{Nanos, Ticks};
use serde::Serialize;

use crate::plan::Interval;
use crate::record::kernel::accounts::ProcessTimes;

/// The times of a process, or of one of its threads.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessSummary {
    /// Its number.
    pub pid: Pid,
    /// The thread. None: all threads of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<Tid>,
    /// Its last name.
    pub name: String,
    /// Seconds in user mode.
    #[serde(rename = "user")]
    pub user_s: f64,
    /// Seconds in the kernel.
    #[serde(rename = "kernel")]
    pub kernel_s: f64,
    /// Ticks of both.
    pub ticks: Ticks,
    /// Exact seconds of all its threads by state, in the order of
    /// [`Summary::states`](super::Summary::states).
    pub states_s: Vec<f64>,
    /// Details of some states.
    pub detail_s: DetailSeconds,
    /// How much of the time blocked was suffered, and how much was idle.
    pub waited_s: WaitSeconds,
    /// Counts of the kernel for them.
    pub counts: KernelCounts,
    /// The number of threads.
    pub threads: u64,
    /// The time for which all of them together were tracked, seconds.
    pub tracked_s: f64,
}

/// Details of some states of threads, seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DetailSeconds {
    /// The part of the time blocked, in any state, that was block I/O.
    pub block_io: f64,
    /// The part of the wait for a CPU that began with preemption or a yield, and not a wake-up.
    pub preempted: f64,
    /// The part of the wait for a CPU that began because a cgroup's quota was used up.
    pub throttled: f64,
    /// The part of the wait for a CPU in which the hypervisor ran something else on the CPU that
    /// the thread was on.
    pub stolen: f64,
}

impl ProcessSummary {
    /// Returns the times of a process, or of a thread of it.
    pub(super) fn new(times: &ProcessTimes, tid: Option<Tid>, interval: Interval) -> Self {
        ProcessSummary {
            pid: times.pid,
            tid,
            name: times.name.clone(),
            user_s: interval.seconds_of(times.times.ticks.user),
            kernel_s: interval.seconds_of(times.times.ticks.kernel),
            ticks: times.times.ticks.sum(),
            states_s: times.times.states().map(|ns| ns.as_secs_f64()).to_vec(),
            detail_s: DetailSeconds::new(&times.times.details),
            waited_s: WaitSeconds::new(&times.times.causes),
            counts: times.times.counts,
            threads: times.threads,
            tracked_s: times.times.tracked_ns.as_secs_f64(),
        }
    }
}

impl DetailSeconds {
    pub(super) fn new(details: &DetailTimes) -> DetailSeconds {
        let seconds = |ns: Nanos| ns.as_secs_f64();
        DetailSeconds {
            block_io: seconds(Nanos(details.block_io)),
            preempted: seconds(Nanos(details.preempted)),
            throttled: seconds(Nanos(details.throttled)),
            stolen: seconds(Nanos(details.stolen)),
        }
    }
}

/// The time blocked by what it was for the threads, seconds. The three add up to the states lock,
/// sleep and the page faults.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WaitSeconds {
    /// They needed something in the middle of work.
    pub suffered: f64,
    /// They had nothing to do.
    pub idle: f64,
    /// Neither is known.
    pub undecided: f64,
}

impl WaitSeconds {
    pub(super) fn new(causes: &CauseTimes) -> WaitSeconds {
        let seconds = |kind| {
            let of_kind = Cause::ALL.into_iter().filter(|cause| cause.kind() == kind);
            let ns: Nanos = of_kind
                .map(|cause| Nanos(causes.other[cause as usize] + causes.lock[cause as usize]))
                .sum();
            ns.as_secs_f64()
        };
        WaitSeconds {
            suffered: seconds(WaitKind::Suffered),
            idle: seconds(WaitKind::Idle),
            undecided: seconds(WaitKind::Undecided),
        }
    }
}
