//! The summary at the end of a recording: text ([`Summary::head`], [`Summary::rest`]) or JSON. The
//! JSON is also in the experiment, as `kcollect.json`: facts of the recording, its losses, and
//! exact times by process.
//! Where to look first is what a report of the experiment shows ([`first_tables`]).

pub mod first_tables;
mod text;

use bpf::{OverflowCounts, TableUse};
use bpf_abi::{CpuStats, DetailTimes, KernelCounts};
use counters::names::event::CounterRequest;
use experiment_format::ids::{Pid, Tid};
use experiment_format::losses::{Losses, Recorded};
use experiment_format::microstate::Microstate;
use host::machine::now;
use serde::Serialize;
use user_collector::archive::ArchiveStats;
use user_collector::join::JoinCounts;
use user_collector::objects::UnwindTableCounts;

use crate::plan::{Interval, Plan};
use crate::record::dispatch::Dispatcher;
use crate::record::governor::{Change, Economy, Governor};
use crate::record::input::inputs::{CpuTime, Inputs};
use crate::record::input::totals::Totals;
use crate::record::kernel::accounts::ProcessTimes;
use crate::record::subexperiment::{FollowedProcess, IoCounts, MemoryCounts};
use crate::record::user_stacks::resolve_stack::{StackLosses, UnwindCounts};
use crate::record::user_stacks::user_stack::StackCounts;

/// The whole summary. Times are in seconds unless the name has another unit.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of kcollect.
    pub version: &'static str,
    /// Path of the experiment.
    pub experiment: String,
    /// Build id of the kernel, hexadecimal.
    pub kernel_build_id: Option<String>,
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
    pub ticks: u64,
    /// Packets in the experiment.
    pub packets: u64,
    /// Tick arrays of threads in the experiment, on a CPU or off it.
    pub arrays: u64,
    /// Ticks in them.
    pub thread_ticks: u64,
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
    /// What was given up for the budget, if there is one (`--budget`). It is set last.
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
    /// The followed processes. None if none could be followed.
    pub followed: Option<FollowSummary>,
    /// The archived files of followed processes (`-A`). It is set last.
    pub archive: Option<ArchiveStats>,
    /// The processes and threads of `-T`.
    pub targets: Vec<ProcessSummary>,
    /// The resources that kcollect used itself.
    pub cost: OwnCost,
}

/// A counter that was recorded.
#[derive(Debug, Serialize)]
pub struct CounterSummary {
    /// The name as typed.
    pub name: String,
    /// The number of events after which it overflowed.
    pub interval: u64,
    /// All events while data were recorded, of all CPUs together.
    pub events: u64,
    /// Events in the experiment: overflows times the interval.
    pub recorded: u64,
    /// Events of overflows that found the ring full.
    pub lost: u64,
    /// Events of overflows that the kernel did not report, because they happened while another BPF
    /// program ran.
    pub unreported: u64,
    /// The share of the time in which it was counted: less than 1 if there were more counters than
    /// the hardware has. `events` and `recorded` are not scaled by it.
    pub share_of_time: f64,
}

/// The traced system calls that do I/O.
#[derive(Debug, Serialize)]
pub struct IoCallSummary {
    /// Calls in the experiment. One that moves bytes from a descriptor to another counts for both.
    pub recorded: u64,
    /// Their time, seconds.
    pub recorded_s: f64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Calls that found the ring full.
    pub lost: u64,
}

/// How the memory of followed processes grew.
#[derive(Debug, Serialize)]
pub struct MemorySummary {
    /// How often memory came.
    pub mapped: u64,
    /// Bytes that came.
    pub mapped_bytes: u64,
    /// Bytes that went.
    pub unmapped_bytes: u64,
    /// System calls that found the ring full.
    pub lost: u64,
}

/// The budget, and what was given up for it.
#[derive(Debug, Serialize)]
pub struct BudgetSummary {
    /// The share of one CPU that kcollect's own process may take.
    pub percent: f64,
    /// The changes of what is given up, in order.
    pub changes: Vec<BudgetChange>,
}

/// A change of what is given up.
#[derive(Debug, Serialize)]
pub struct BudgetChange {
    /// When, since the start.
    pub at_s: f64,
    /// What is given up from then on, with what stands before it in the order of the manual.
    pub given_up: Economy,
    /// The share of one CPU that was taken in the five seconds before. None: it was given up before
    /// the experiment began.
    pub cpu_percent: Option<f64>,
}

impl BudgetSummary {
    /// Returns that of an experiment which began at a time.
    #[must_use]
    pub fn new(governor: &Governor, began_ns: u64) -> BudgetSummary {
        let change = |change: &Change| BudgetChange {
            at_s: change.at_ns.saturating_sub(began_ns) as f64 / 1e9,
            given_up: change.economy,
            cpu_percent: change.share.map(|share| 100.0 * share),
        };
        BudgetSummary {
            percent: 100.0 * governor.budget(),
            changes: governor.changes().iter().map(change).collect(),
        }
    }
}

/// The traced waits for locks.
#[derive(Debug, Serialize)]
pub struct LockWaitSummary {
    /// The shortest that is recorded, microseconds.
    pub threshold_us: u64,
    /// Waits in the experiment.
    pub recorded: u64,
    /// Their time, seconds.
    pub recorded_s: f64,
    /// Waits that were left out, since there were so many in the same second.
    pub left_out: u64,
    /// Their time, seconds.
    pub left_out_s: f64,
    /// Waits that found the ring full.
    pub lost: u64,
}

/// The processes that were followed into their user code.
#[derive(Debug, Serialize)]
pub struct FollowSummary {
    /// The followed processes, by the number of their ticks.
    pub processes: Vec<FollowedProcess>,
    /// Ticks of all of them by how their user stack ended.
    pub user_stacks: StackCounts,
    /// The same of ticks on a CPU alone, which are harder: of a thread that sleeps, the stack is
    /// captured at leisure.
    pub cpu_user_stacks: StackCounts,
    /// Ticks of all threads by whether the return to user mode reported their user stack.
    pub user_returns: JoinCounts,
    /// User stacks by where they were unwound.
    pub unwound: UnwindCounts,
    /// Look-ups of code that were not used because another thread changed the mappings meanwhile.
    pub raced_look_ups: u64,
    /// The kernel memory of the unwind tables.
    pub table_use: TableUse,
    /// The origin of the load objects' unwind tables.
    pub tables: UnwindTableCounts,
    /// Losses, by cause.
    pub losses: FollowLosses,
}

/// Losses of followed processes, by cause.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FollowLosses {
    /// Those of user stacks.
    #[serde(flatten)]
    pub stacks: StackLosses,
    /// Intervals that are in the founder because too many were held before it was decided whether
    /// their processes are followed.
    pub not_held: u64,
    /// Mappings that were too many of one process, or beyond the limit (`-L`).
    pub unwritten_mappings: u64,
    /// Functions made at run time that were beyond the limit, of one process or of all.
    pub unwritten_functions: u64,
    /// Processes that exited before what they wrote last of their JIT code was read, where too many
    /// files were open to hold theirs.
    pub unread_at_exit: u64,
}

/// The ticks of one CPU.
#[derive(Debug, Serialize)]
pub struct CpuTicks {
    /// The CPU's id.
    pub cpu: u32,
    /// The time in which its ticks were recorded, nanoseconds.
    pub recorded_ns: u64,
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
    pub late_ticks: u64,
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
    /// While the hypervisor ran something else and a thread was on the CPU; none where the kernel
    /// does not know it.
    pub stolen: Option<f64>,
}

/// When a recording started and stopped.
#[derive(Clone, Copy, Debug)]
pub struct RecordingTimes {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub started_ns: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub stopped_ns: u64,
    /// From when kcollect's own CPU time counts.
    pub own: OwnStart,
}

/// The instant from which kcollect's own CPU time counts as an experiment's.
#[derive(Clone, Copy, Debug)]
pub struct OwnStart {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The CPU time that had been used by then, for another experiment, seconds.
    pub cpu_s: f64,
}

impl OwnStart {
    /// Returns the start of the program, if it is called at once: all CPU time counts.
    pub fn of_the_program() -> OwnStart {
        OwnStart {
            at_ns: now(),
            cpu_s: 0.0,
        }
    }

    /// Returns the present instant.
    pub fn now() -> OwnStart {
        OwnStart {
            at_ns: now(),
            cpu_s: own_use().0,
        }
    }
}

impl RecordingTimes {
    fn elapsed_s(&self) -> f64 {
        self.stopped_ns.saturating_sub(self.started_ns) as f64 / 1e9
    }
}

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
    pub user: f64,
    /// Seconds in the kernel.
    pub kernel: f64,
    /// Ticks of both.
    pub ticks: u64,
    /// Exact seconds of all its threads by state, in the order of [`Summary::states`].
    pub states_s: Vec<f64>,
    /// Details of some states.
    pub detail_s: DetailSeconds,
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

impl DetailSeconds {
    fn new(details: &DetailTimes) -> DetailSeconds {
        let seconds = |ns: u64| ns as f64 / 1e9;
        DetailSeconds {
            block_io: seconds(details.block_io),
            preempted: seconds(details.preempted),
            throttled: seconds(details.throttled),
            stolen: seconds(details.stolen),
        }
    }
}

/// The resources that kcollect used itself.
#[derive(Debug, Serialize)]
pub struct OwnCost {
    /// CPU seconds of its process, from its start until the summary; of an experiment that follows
    /// another, since that one was closed.
    pub cpu_s: f64,
    /// The same as a percentage of one CPU over that time.
    pub cpu_percent: f64,
    /// The largest resident memory, bytes.
    pub peak_rss_bytes: u64,
    /// Bytes written for data and logs.
    pub bytes_written: u64,
}

impl Summary {
    /// Returns the summary of an experiment whose data have ended. `totals` are what was counted
    /// since they began.
    #[must_use]
    pub fn new(
        plan: &Plan,
        path: &str,
        (inputs, totals): (&Inputs, &Totals),
        dispatcher: &Dispatcher,
        times: RecordingTimes,
    ) -> Summary {
        let founder = &dispatcher.router.founder;
        let stats = &totals.cpus;
        let interval = plan.interval;
        let seconds = |ticks: u64| interval.seconds_of(ticks);
        let sum =
            |of: fn(&CpuStats) -> u64| stats.iter().map(|(_, stats, _)| of(stats)).sum::<u64>();
        let recorded = founder.recorded;
        let sent = sum(CpuStats::boundaries) - sum(|stats| stats.unsent) - sum(|stats| stats.lost);
        let elapsed_s = times.elapsed_s();
        let accounts = &dispatcher.router.accounts;
        let row = |times: &ProcessTimes, tid| ProcessSummary {
            pid: times.pid,
            tid,
            name: times.name.clone(),
            user: seconds(times.times.ticks.user),
            kernel: seconds(times.times.ticks.kernel),
            ticks: times.times.ticks.sum(),
            states_s: times.times.states().map(|ns| ns as f64 / 1e9).to_vec(),
            detail_s: DetailSeconds::new(&times.times.details),
            counts: times.times.counts,
            threads: times.threads,
            tracked_s: times.times.tracked_ns as f64 / 1e9,
        };
        let (system, _) = accounts.system();
        let followed = user(
            dispatcher,
            inputs.programs.table_use(),
            sum(|stats| stats.raced_look_ups),
        );
        let counters = counters(inputs, totals);
        let lock_waits = plan.lock_threshold.map(|threshold| {
            let traced = followed.iter().flat_map(|followed| &followed.processes);
            let (recorded, recorded_ns) = traced.fold((0, 0), |(count, ns), process| {
                (count + process.lock_waits.0, ns + process.lock_waits.1)
            });
            LockWaitSummary {
                threshold_us: threshold.duration().as_micros() as u64,
                recorded,
                recorded_s: recorded_ns as f64 / 1e9,
                left_out: sum(|stats| stats.lock_waits_skipped),
                left_out_s: sum(|stats| stats.lock_waits_skipped_ns) as f64 / 1e9,
                lost: sum(|stats| stats.lock_waits_lost),
            }
        });
        let io_calls = plan.trace_io.then(|| {
            let traced = followed.iter().flat_map(|followed| &followed.processes);
            let mut counts = IoCounts::default();
            traced.for_each(|process| counts += process.io_calls);
            IoCallSummary {
                recorded: counts.calls,
                recorded_s: counts.nanos as f64 / 1e9,
                read_bytes: counts.read,
                written_bytes: counts.written,
                lost: sum(|stats| stats.io_calls_lost),
            }
        });
        let memory = plan.trace_memory.then(|| {
            let traced = followed.iter().flat_map(|followed| &followed.processes);
            let mut counts = MemoryCounts::default();
            traced.for_each(|process| counts += process.memory);
            MemorySummary {
                mapped: counts.mapped,
                mapped_bytes: counts.mapped_bytes,
                unmapped_bytes: counts.unmapped_bytes,
                lost: sum(|stats| stats.io_calls_lost),
            }
        });
        let arrays = recorded.arrays + followed.as_ref().map_or(0, FollowSummary::arrays);
        let thread_ticks = recorded.array_ticks + followed.as_ref().map_or(0, FollowSummary::ticks);
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            experiment: path.to_owned(),
            kernel_build_id: host::machine::kernel_build_id(),
            interval,
            elapsed_s,
            idle_recorded: plan.record_idle,
            cpus: stats.iter().map(cpu).collect(),
            cpu_time: CpuSeconds {
                user: seconds(sum(|stats| stats.user)),
                kernel: seconds(sum(|stats| stats.kernel)),
                interrupts: seconds(recorded.irq_work),
                idle: seconds(sum(|stats| stats.idle)),
                stolen: (inputs.programs.knows_stolen_time())
                    .then(|| seconds(sum(|stats| stats.stolen))),
            },
            ticks: recorded.ticks,
            packets: recorded.packets,
            arrays,
            thread_ticks,
            budget: None,
            losses: Losses {
                overflows: counters
                    .iter()
                    .map(|counter| counter.lost + counter.unreported)
                    .sum(),
                ring_full: sum(|stats| stats.lost),
                not_written: dispatcher.not_written,
                unaccounted: sent as i64 - (recorded.ticks + dispatcher.not_written) as i64,
                off_cpu: sum(|stats| stats.off_cpu_lost),
                thread_records: sum(|stats| stats.thread_records_lost),
                untracked_threads: sum(|stats| stats.threads_untracked),
                sideband: dispatcher.sideband_lost,
                unnamed_ticks: recorded.unnamed,
                truncated_stacks: recorded.truncated,
                missing_stacks: recorded.no_stack,
                late_ticks: sum(|stats| stats.late),
                user_returns: sum(|stats| stats.user_returns_lost),
                vfork_starts: sum(|stats| stats.vfork_starts_lost),
                lock_waits: lock_waits
                    .as_ref()
                    .map_or(0, |waits| waits.left_out + waits.lost),
                io_calls: sum(|stats| stats.io_calls_lost),
                late_events: totals.late,
                recorded: Recorded {
                    ticks: recorded.ticks,
                    thread_ticks,
                    arrays,
                },
            },
            counters,
            lock_waits,
            io_calls,
            memory,
            targets: accounts
                .targets
                .iter()
                .map(|(target, times)| row(times, target.tid))
                .collect(),
            states: Microstate::ALL[..Microstate::PER_THREAD]
                .iter()
                .filter_map(|state| state.metric())
                .collect(),
            processes: accounts
                .by_process()
                .iter()
                .map(|times| row(times, None))
                .collect(),
            detail_s: DetailSeconds::new(&system.details),
            followed,
            archive: None,
            cost: cost(&times, dispatcher.router.bytes_written()),
        }
    }

    /// Returns the summary as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Returns the summaries of the counters.
fn counters(inputs: &Inputs, totals: &Totals) -> Vec<CounterSummary> {
    let counter = |(counted, request): (&OverflowCounts, &CounterRequest)| {
        // Each CPU is between two overflows.
        let since_overflow = (request.interval - 1) * inputs.cpus() as u64;
        let reported = counted.recorded + counted.lost;
        CounterSummary {
            name: request.event.name.clone(),
            interval: request.interval,
            events: counted.events,
            recorded: counted.recorded,
            lost: counted.lost,
            unreported: counted.events.saturating_sub(reported + since_overflow),
            share_of_time: match counted.enabled_ns {
                0 => 1.0,
                enabled => counted.running_ns as f64 / enabled as f64,
            },
        }
    };
    (totals.counters.iter().zip(&inputs.counters))
        .map(counter)
        .collect()
}

impl FollowSummary {
    fn arrays(&self) -> u64 {
        self.processes.iter().map(|process| process.arrays).sum()
    }

    fn ticks(&self) -> u64 {
        self.processes.iter().map(|process| process.ticks).sum()
    }
}

/// Returns the summary of the followed processes. None if none could be followed.
fn user(
    dispatcher: &Dispatcher,
    table_use: TableUse,
    raced_look_ups: u64,
) -> Option<FollowSummary> {
    let user = dispatcher.user.as_ref()?;
    let processes = dispatcher.router.followed();
    let (mut user_stacks, mut cpu_user_stacks) = <(StackCounts, StackCounts)>::default();
    let (mut unwritten_mappings, mut unwritten_functions, mut unread_at_exit) = (0, 0, 0);
    for process in &processes {
        unwritten_functions += process.unwritten_functions;
        unwritten_mappings += process.unwritten_mappings;
        unread_at_exit += u64::from(process.unread_at_exit);
        user_stacks.merge(&process.user_stacks);
        cpu_user_stacks.merge(&process.cpu_user_stacks);
    }
    Some(FollowSummary {
        processes,
        user_stacks,
        cpu_user_stacks,
        user_returns: user.joined(),
        unwound: user.resolver.unwound,
        raced_look_ups,
        table_use,
        tables: user.code.objects.counts,
        losses: FollowLosses {
            stacks: user.resolver.losses,
            not_held: dispatcher.router.not_held,
            unwritten_mappings,
            unwritten_functions,
            unread_at_exit,
        },
    })
}

fn cpu((cpu, stats, time): &(u32, CpuStats, CpuTime)) -> CpuTicks {
    CpuTicks {
        cpu: *cpu,
        recorded_ns: time.recorded_ns,
        user: stats.user,
        kernel: stats.kernel,
        idle: stats.idle,
        stolen: stats.stolen,
        lost: stats.lost,
        late_ticks: stats.late,
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

fn cost(times: &RecordingTimes, bytes_written: u64) -> OwnCost {
    let (cpu_s, peak_rss_bytes) = own_use();
    let cpu_s = cpu_s - times.own.cpu_s;
    // Not over the recording: a short one would have the CPU time of the start in it.
    let of_ns = now().saturating_sub(times.own.at_ns).max(1);
    OwnCost {
        cpu_s,
        cpu_percent: 100.0 * cpu_s / (of_ns as f64 / 1e9),
        peak_rss_bytes,
        bytes_written,
    }
}
