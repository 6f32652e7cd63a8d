//! What the summary has of a followed process.

use experiment_format::ids::Pid;
use experiment_format::packet::{HeapKind, IoKind, IoOperation};
use experiment_format::units::{Nanos, Ticks};
use user_collector::allocators::BlockChange;
use user_collector::jit::{JitFileStats, JitWatch};
use user_collector::memory::Change;
use user_collector::process::Cgroup;

use crate::record::user_stacks::user_stack::StackCounts;

/// A followed process, as the summary has it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FollowedProcess {
    /// Its number.
    pub pid: Pid,
    /// Its experiment's directory.
    pub experiment: String,
    /// Its rank in a parallel program (MPI).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpi_rank: Option<u32>,
    /// The control group that it was in, and what that names.
    #[serde(flatten)]
    pub cgroup: Option<Cgroup>,
    /// Ticks of its threads in its experiment.
    pub ticks: Ticks,
    /// Packets that hold them.
    pub packets: u64,
    /// Mappings that were too many to be written.
    #[serde(skip)]
    pub unwritten_mappings: u64,
    /// JIT functions that were too many.
    #[serde(skip)]
    pub unwritten_functions: u64,
    /// JIT functions that are not in the experiment, because no stack is in them, of very many.
    pub unused_functions: u64,
    /// How often a thread had a name that is not in the experiment, because it had too many.
    #[serde(skip)]
    pub unwritten_names: u64,
    /// More addresses were in stacks than are kept for `-A used…`.
    #[serde(skip)]
    pub has_unkept_addresses: bool,
    /// It exited, and what it wrote last of its JIT code could not be read any more.
    #[serde(skip)]
    pub unread_at_exit: bool,
    /// Traced waits for locks in its experiment: how many, and their time.
    #[serde(skip)]
    pub lock_waits: (u64, Nanos),
    /// Traced system calls in its experiment.
    #[serde(skip)]
    pub io_calls: IoCounts,
    /// Memory that came and went in its experiment.
    #[serde(skip)]
    pub memory: MemoryCounts,
    /// How the user stacks of its ticks ended.
    pub user_stacks: StackCounts,
    /// The same of ticks on a CPU alone.
    pub cpu_user_stacks: StackCounts,
    /// Its JIT code, where it reported any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jit: Option<JitStats>,
}

/// Traced system calls, and the bytes that they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Number of calls.
    pub calls: u64,
    /// Their time.
    pub nanos: Nanos,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl IoCounts {
    pub(super) fn add(&mut self, operation: &IoOperation) {
        // Of a call that moves bytes between two descriptors, the second operation has no time.
        if operation.call.is_none() {
            return;
        }
        self.calls += 1;
        if operation.requested_ns > Nanos::ZERO {
            self.nanos += operation.ended_ns.saturating_sub(operation.requested_ns);
        }
        match operation.kind {
            IoKind::Read => self.read += operation.bytes,
            IoKind::Write => self.written += operation.bytes,
            _ => {}
        }
    }
}

impl std::ops::AddAssign for IoCounts {
    fn add_assign(&mut self, other: IoCounts) {
        self.calls += other.calls;
        self.nanos += other.nanos;
        self.read += other.read;
        self.written += other.written;
    }
}

/// Memory that came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// How often memory came.
    pub mapped: u64,
    /// Bytes that came.
    pub mapped_bytes: u64,
    /// Bytes that went.
    pub unmapped_bytes: u64,
    /// Sampled blocks.
    pub sampled_blocks: u64,
    /// The number of blocks for which they stand, times
    /// [`WEIGHT_OF_ONE`](experiment_format::packet::WEIGHT_OF_ONE).
    pub weight: u64,
    /// The bytes of these.
    pub allocated_bytes: u64,
    /// Sampled blocks that were freed.
    pub freed_blocks: u64,
}

impl MemoryCounts {
    pub(super) fn add(&mut self, change: &Change) {
        match change.kind {
            HeapKind::Mapped => {
                self.mapped += 1;
                self.mapped_bytes += change.bytes;
            }
            _ => self.unmapped_bytes += change.bytes,
        }
    }

    pub(super) fn add_block(&mut self, change: &BlockChange) {
        if change.freed {
            self.freed_blocks += 1;
        } else {
            self.sampled_blocks += 1;
            // Sizes are what the process says.
            self.weight = self.weight.saturating_add(change.weight);
            self.allocated_bytes = self.allocated_bytes.saturating_add(change.weighted_bytes);
        }
    }
}

impl std::ops::AddAssign for MemoryCounts {
    fn add_assign(&mut self, other: MemoryCounts) {
        self.mapped += other.mapped;
        self.mapped_bytes += other.mapped_bytes;
        self.unmapped_bytes += other.unmapped_bytes;
        self.sampled_blocks += other.sampled_blocks;
        self.weight = self.weight.saturating_add(other.weight);
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.freed_blocks += other.freed_blocks;
    }
}

/// What a process reported of its JIT code, in perf maps and jitdumps.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JitStats {
    /// How much was reported, and how much of that is not in the experiment.
    #[serde(flatten)]
    pub counts: JitFileStats,
    /// Why a file was not read, or not to its end: the last reason.
    pub refusal: Option<String>,
    /// The cause of that, for programs.
    pub refusal_cause: Option<&'static str>,
}

impl JitStats {
    pub(super) fn add(&mut self, watch: &JitWatch) {
        self.counts += watch.counts();
        if let Some(refusal) = watch.refusal() {
            self.refusal = Some(refusal.to_string());
            self.refusal_cause = Some(refusal.cause());
        }
    }
}
