//! The summary at the end of a recording: text ([`Summary::head`], [`Summary::rest`]) or JSON. The
//! JSON is also in the experiment, as `kcollect.json`: facts of the recording, its losses, and
//! exact times by process.
//! Where to look first is what a report of the experiment shows ([`first_tables`]).

mod budget;
pub mod first_tables;
mod followed;
mod own_cost;
mod problems;
mod process;
#[cfg(test)]
mod tests;
mod text;
mod traced;

use std::collections::BTreeMap;

use bpf_abi::CpuCounts;
use experiment_format::losses::{Losses, RecordedTotals};
use experiment_format::microstate::Microstate;
use experiment_format::units::{Nanos, Ticks};
use serde::Serialize;
use user_collector::archive::ArchiveStats;

pub use self::budget::BudgetSummary;
pub use self::followed::FollowSummary;
pub use self::own_cost::{OwnCost, OwnStart, RecordingTimes, own_use};
pub use self::process::{DetailSeconds, ProcessSummary, WaitSeconds};
pub use self::traced::{
    BlockSummary, CounterSummary, IoCallSummary, LockWaitSummary, MemorySummary,
};
use crate::plan::{Archive, HeapTracing, Interval, Plan};
use crate::record::dispatch::Dispatcher;
use crate::record::input::inputs::Inputs;
use crate::record::input::totals::{CpuTime, Totals};
use crate::record::problem::Problem;
use crate::record::user::UserSpace;

/// The whole summary. Times are in seconds unless the name has another unit.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of kcollect.
    pub version: &'static str,
    /// Path of the experiment.
    pub experiment: String,
    /// What makes the recording wrong, or leaves a whole part of it out. They are set last.
    pub problems: Vec<Problem>,
    /// Build id of the kernel, hexadecimal.
    pub kernel_build_id: Option<String>,
    /// Where some of the kernel's functions were, hexadecimal, if the experiment has no copy of its
    /// symbols (`-A off`): by these its functions are named later.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kernel_functions: BTreeMap<String, String>,
    /// The time between two ticks.
    #[serde(rename = "interval_us")]
    pub interval: Interval,
    /// The time from the start to the end of the recording.
    pub elapsed_s: f64,
    /// Whether ticks of the idle task are in the experiment.
    pub idle_recorded: bool,
    /// The ticks of each CPU.
    pub cpus: Vec<CpuTicks>,
    /// The time of all CPUs by what they did.
    pub cpu_time: CpuSeconds,
    /// Ticks in the experiment.
    pub ticks: Ticks,
    /// Packets in the experiment.
    pub packets: u64,
    /// Packets of threads' ticks in the experiment, on a CPU or off it.
    pub thread_packets: u64,
    /// Ticks in them.
    pub thread_ticks: Ticks,
    /// The counters that were recorded, in the order of the command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<CounterSummary>,
    /// The traced waits for locks, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_waits: Option<LockWaitSummary>,
    /// The traced system calls that do I/O, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_calls: Option<IoCallSummary>,
    /// How the memory of followed processes grew, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySummary>,
    /// The blocks that followed processes allocated, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations: Option<BlockSummary>,
    /// How far detail was reduced for the budget, if there is one (`--budget`). It is set last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetSummary>,
    /// What is missing or impaired, by cause.
    pub losses: Losses,
    /// The states of a thread, by the names of gprofng's metrics.
    pub states: Vec<&'static str>,
    /// All processes, those with the most time on a CPU, waiting for one, in page faults and for
    /// block I/O first.
    pub processes: Vec<ProcessSummary>,
    /// Details of some states of all threads.
    pub detail_s: DetailSeconds,
    /// How much of the time blocked of all threads was suffered, and how much was idle.
    pub waited_s: WaitSeconds,
    /// What woke each thread was watched (`-W on`). Otherwise a wait is undecided unless the
    /// waiting thread's own state says its cause.
    pub wakers_watched: bool,
    /// The followed processes. None if none could be followed.
    pub followed: Option<FollowSummary>,
    /// The archived files of followed processes (`-A`). It is set last.
    pub archive: Option<ArchiveStats>,
    /// The processes and threads of `-T`.
    pub targets: Vec<ProcessSummary>,
    /// The resources that kcollect used itself.
    pub cost: OwnCost,
}

/// The ticks of one CPU.
#[derive(Debug, Serialize)]
pub struct CpuTicks {
    /// The CPU's id.
    pub cpu: u32,
    /// The time in which its ticks were recorded, nanoseconds.
    pub recorded_ns: Nanos,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub kernel: u64,
    /// Ticks in the idle task.
    pub idle: u64,
    /// Ticks in which the hypervisor ran something else.
    pub stolen: u64,
    /// Ticks that found the ring full.
    pub lost: u64,
    /// Ticks that were added because the timer fired late by one or more intervals.
    pub late_ticks: Ticks,
}

/// CPU time in seconds.
#[derive(Debug, Serialize)]
pub struct CpuSeconds {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub kernel: f64,
    /// The part of `kernel` in interrupts and softirqs.
    pub interrupts: f64,
    /// In the idle task.
    pub idle: f64,
    /// While the hypervisor ran something else and a thread was on the CPU; None if the kernel
    /// does not measure it.
    pub stolen: Option<f64>,
}

impl Summary {
    /// The summary of an experiment into which recording has ended. `totals` are what was counted
    /// since it began.
    #[must_use]
    pub fn new(
        plan: &Plan,
        path: &str,
        inputs: &Inputs,
        totals: &Totals,
        dispatcher: &Dispatcher,
        times: RecordingTimes,
    ) -> Summary {
        let founder = &dispatcher.router.founder;
        let (recorded, accounts) = (&founder.recorded, &dispatcher.router.accounts);
        let (system, _) = accounts.system();
        let followed = FollowSummary::new(
            dispatcher,
            inputs.programs.table_use(),
            totals.sum(|stats| stats.raced_look_ups),
        );
        let traced = followed
            .as_ref()
            .map_or(&[][..], |followed| &followed.processes);
        let counters = traced::counters(inputs, totals);
        let lock_waits = plan
            .tracing
            .lock_threshold
            .map(|threshold| LockWaitSummary::new(threshold, traced, totals));
        let io_calls = plan.tracing.io.then(|| IoCallSummary::new(traced, totals));
        let user = dispatcher.user.as_ref();
        let probed = user.map(UserSpace::probed).unwrap_or_default();
        let grows = plan.tracing.heap == HeapTracing::Growth;
        let memory = grows.then(|| MemorySummary::new(traced, totals));
        let allocations = plan
            .tracing
            .heap
            .mean_bytes()
            .map(|mean_bytes| BlockSummary::new(mean_bytes, traced, probed, totals));
        let thread_packets =
            recorded.thread_packets + followed.as_ref().map_or(0, FollowSummary::packets);
        let thread_ticks =
            recorded.thread_ticks + followed.as_ref().map_or(Ticks::ZERO, FollowSummary::ticks);
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            experiment: path.to_owned(),
            problems: Vec::new(),
            kernel_build_id: host::machine::kernel_build_id(),
            kernel_functions: match plan.archive {
                Archive::Off => dispatcher.router.kernel.places().clone(),
                _ => BTreeMap::new(),
            },
            interval: plan.tick_interval,
            elapsed_s: times.elapsed_s(),
            idle_recorded: plan.record_idle,
            cpus: totals.cpus.iter().map(cpu).collect(),
            cpu_time: CpuSeconds::new(
                plan.tick_interval,
                totals,
                recorded.irq_work,
                inputs.programs.has_stolen_time(),
            ),
            ticks: recorded.ticks,
            packets: recorded.packets,
            thread_packets,
            thread_ticks,
            budget: None,
            losses: losses(
                dispatcher,
                totals,
                &counters,
                lock_waits.as_ref(),
                followed.as_ref(),
                RecordedTotals {
                    ticks: recorded.ticks.0,
                    thread_ticks: thread_ticks.0,
                    thread_packets,
                },
            ),
            counters,
            lock_waits,
            io_calls,
            memory,
            allocations,
            targets: accounts
                .targets
                .iter()
                .map(|(target, times)| ProcessSummary::new(times, target.tid, plan.tick_interval))
                .collect(),
            states: Microstate::ALL[..Microstate::PER_THREAD]
                .iter()
                .filter_map(|state| state.metric())
                .collect(),
            processes: accounts
                .by_process()
                .iter()
                .map(|times| ProcessSummary::new(times, None, plan.tick_interval))
                .collect(),
            detail_s: DetailSeconds::new(&system.details),
            waited_s: WaitSeconds::new(&system.causes),
            wakers_watched: inputs.programs.watches_wakers(),
            followed,
            archive: None,
            cost: OwnCost::new(&times, totals, dispatcher.router.bytes_written()),
        }
    }

    /// Returns the summary as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn cpu((cpu, stats, time): &(u32, CpuCounts, CpuTime)) -> CpuTicks {
    CpuTicks {
        cpu: *cpu,
        recorded_ns: time.recorded_ns,
        user: stats.user,
        kernel: stats.kernel,
        idle: stats.idle,
        stolen: stats.stolen,
        lost: stats.lost,
        late_ticks: Ticks(stats.late),
    }
}

impl CpuSeconds {
    /// Returns the time of all CPUs. `irq_ticks` are those in interrupts, `has_stolen_time` says
    /// whether the kernel measures stolen time.
    fn new(
        interval: Interval,
        totals: &Totals,
        irq_ticks: Ticks,
        has_stolen_time: bool,
    ) -> CpuSeconds {
        let seconds = |of| interval.seconds_of(Ticks(totals.sum(of)));
        CpuSeconds {
            user: seconds(|stats| stats.user),
            kernel: seconds(|stats| stats.kernel),
            interrupts: interval.seconds_of(irq_ticks),
            idle: seconds(|stats| stats.idle),
            stolen: has_stolen_time.then(|| seconds(|stats| stats.stolen)),
        }
    }
}

/// What is missing from or impaired in an experiment that holds what `recorded` says.
fn losses(
    dispatcher: &Dispatcher,
    totals: &Totals,
    counters: &[CounterSummary],
    lock_waits: Option<&LockWaitSummary>,
    followed: Option<&FollowSummary>,
    recorded: RecordedTotals,
) -> Losses {
    let kernel = &dispatcher.router.founder.recorded;
    let sum = |of| totals.sum(of);
    let of_followed = followed.map(FollowSummary::bounds).unwrap_or_default();
    let sent = sum(CpuCounts::boundaries) - sum(|stats| stats.unsent) - sum(|stats| stats.lost);
    Losses {
        overflows: counters
            .iter()
            .map(|counter| counter.lost + counter.unreported)
            .sum(),
        ring_full: sum(|stats| stats.lost),
        not_written: dispatcher.not_written.0,
        unaccounted: sent as i64 - (recorded.ticks + dispatcher.not_written.0) as i64,
        off_cpu: sum(|stats| stats.off_cpu_lost),
        thread_records: sum(|stats| stats.thread_records_lost) + dispatcher.router.unclosed_threads,
        untracked_threads: sum(|stats| stats.threads_untracked),
        sideband: dispatcher.sideband_lost,
        unnamed_ticks: kernel.unnamed.0,
        truncated_stacks: kernel.truncated,
        missing_stacks: kernel.no_stack,
        late_ticks: sum(|stats| stats.late),
        user_returns: sum(|stats| stats.user_returns_lost),
        lock_waits: lock_waits.map_or(0, |waits| waits.left_out + waits.lost),
        io_calls: sum(|stats| stats.io_calls_lost),
        unseen_calls: sum(|stats| stats.calls_unseen) + totals.skipped_operations,
        blocks: sum(|stats| stats.blocks_lost),
        late_events: totals.late,
        thread_names: of_followed.thread_names + dispatcher.router.founder.unwritten_names(),
        merged_processes: dispatcher.router.accounts.merged_processes(),
        recorded,
        ..of_followed
    }
}
