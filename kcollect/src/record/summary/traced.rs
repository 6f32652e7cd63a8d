//! The parts of the summary about what is recorded in addition to ticks: counters (`-h`), waits for
//! locks (`-s`), calls that do I/O (`-i`) and memory (`-H`).

use bpf::OverflowCounts;
use counters::names::event::CounterRequest;
use experiment_format::packet::{SyncThreshold, WEIGHT_OF_ONE};
use experiment_format::units::Nanos;
use serde::Serialize;

use crate::record::input::inputs::Inputs;
use crate::record::input::totals::Totals;
use crate::record::process_writer::{FollowedProcess, IoCounts, MemoryCounts};
use crate::record::user::ProbeCounts;

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

/// Returns the summaries of the counters.
pub(super) fn counters(inputs: &Inputs, totals: &Totals) -> Vec<CounterSummary> {
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

/// The traced waits for locks.
#[derive(Debug, Serialize)]
pub struct LockWaitSummary {
    /// The shortest that is recorded, microseconds.
    pub threshold_us: u64,
    /// Waits in the experiment.
    pub recorded: u64,
    /// Their time, seconds.
    pub recorded_s: f64,
    /// Waits that were left out, since there were too many in the same second.
    pub left_out: u64,
    /// Their time, seconds.
    pub left_out_s: f64,
    /// Waits that found the ring full.
    pub lost: u64,
}

impl LockWaitSummary {
    /// Returns the waits of all followed processes.
    pub(super) fn new(
        threshold: SyncThreshold,
        followed: &[FollowedProcess],
        totals: &Totals,
    ) -> LockWaitSummary {
        let (recorded, recorded_ns) = followed
            .iter()
            .fold((0, Nanos::ZERO), |(count, ns), process| {
                (count + process.lock_waits.0, ns + process.lock_waits.1)
            });
        LockWaitSummary {
            threshold_us: threshold.duration().as_micros() as u64,
            recorded,
            recorded_s: recorded_ns.as_secs_f64(),
            left_out: totals.sum(|stats| stats.lock_waits_skipped),
            left_out_s: Nanos(totals.sum(|stats| stats.lock_waits_skipped_ns)).as_secs_f64(),
            lost: totals.sum(|stats| stats.lock_waits_lost),
        }
    }
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

impl IoCallSummary {
    /// Returns the calls of all followed processes.
    pub(super) fn new(followed: &[FollowedProcess], totals: &Totals) -> IoCallSummary {
        let mut counts = IoCounts::default();
        followed
            .iter()
            .for_each(|process| counts += process.io_calls);
        IoCallSummary {
            recorded: counts.calls,
            recorded_s: counts.nanos.as_secs_f64(),
            read_bytes: counts.read,
            written_bytes: counts.written,
            lost: totals.sum(|stats| stats.io_calls_lost),
        }
    }
}

/// The blocks that followed processes allocated.
#[derive(Debug, Serialize)]
pub struct BlockSummary {
    /// Mean number of bytes per sampled byte; 0: each block was sampled.
    pub mean_bytes: u64,
    /// Blocks in the experiment.
    pub sampled: u64,
    /// How many of them were freed.
    pub freed: u64,
    /// The blocks that they stand for.
    pub allocated: u64,
    /// The bytes of these.
    pub allocated_bytes: u64,
    /// The probes of their allocators.
    #[serde(flatten)]
    pub probes: ProbeCounts,
    /// Changes that found the ring or the table of blocks full.
    pub lost: u64,
}

impl BlockSummary {
    /// Returns the blocks of all followed processes.
    pub(super) fn new(
        mean_bytes: u64,
        followed: &[FollowedProcess],
        probes: ProbeCounts,
        totals: &Totals,
    ) -> BlockSummary {
        let mut counts = MemoryCounts::default();
        followed.iter().for_each(|process| counts += process.memory);
        BlockSummary {
            mean_bytes,
            sampled: counts.sampled_blocks,
            freed: counts.freed_blocks,
            allocated: (counts.weight + WEIGHT_OF_ONE / 2) / WEIGHT_OF_ONE,
            allocated_bytes: counts.allocated_bytes,
            probes,
            lost: totals.sum(|stats| stats.blocks_lost),
        }
    }

    /// Returns its lines in the summary.
    pub(super) fn lines(&self) -> Vec<String> {
        let probes = &self.probes;
        let mut lines = vec![format!(
            "allocations: {} bytes in {} blocks; {} of these are recorded, and {} of those were freed",
            self.allocated_bytes, self.allocated, self.sampled, self.freed
        )];
        if probes.unprobed_processes > 0 {
            lines.push(format!(
                "  followed processes without a function that has the name of an allocator's, or whose \
                 first thread had exited: {}; their blocks are missing, and -H growth needs neither",
                probes.unprobed_processes
            ));
        }
        if probes.sampling_processes > 0 {
            lines.push(format!(
                "  processes whose allocator samples blocks itself, at its own rate (otel_memory): {}",
                probes.sampling_processes
            ));
        }
        if probes.go_profiles > 0 {
            lines.push(format!(
                "  Go programs, by the profile that they keep themselves: {}",
                probes.go_profiles
            ));
        }
        if probes.go_without > 0 {
            lines.push(format!(
                "  Go programs without a profile that can be read: {}; their blocks are missing (one without \
                 runtime/pprof keeps none)",
                probes.go_without
            ));
        }
        if probes.slow_functions > 0 {
            lines.push(format!(
                "  functions of allocators whose probes the kernel single-steps: {}; each call of \
                 them took several microseconds more",
                probes.slow_functions
            ));
        }
        if probes.over_budget > 0 {
            lines.push(format!(
                "  processes not probed for some time, since their probes, or their parent's, took more \
                 than --trace-budget: {}; their blocks of that time are missing",
                probes.over_budget
            ));
        }
        lines
    }
}

/// How the memory of followed processes grew.
#[derive(Debug, Serialize)]
pub struct MemorySummary {
    /// How often memory was mapped.
    pub mapped: u64,
    /// Bytes that were mapped.
    pub mapped_bytes: u64,
    /// Bytes that were unmapped.
    pub unmapped_bytes: u64,
    /// System calls that found the ring full.
    pub lost: u64,
}

impl MemorySummary {
    /// Returns the growth of all followed processes.
    pub(super) fn new(followed: &[FollowedProcess], totals: &Totals) -> MemorySummary {
        let mut counts = MemoryCounts::default();
        followed.iter().for_each(|process| counts += process.memory);
        MemorySummary {
            mapped: counts.mapped,
            mapped_bytes: counts.mapped_bytes,
            unmapped_bytes: counts.unmapped_bytes,
            lost: totals.sum(|stats| stats.io_calls_lost),
        }
    }
}
