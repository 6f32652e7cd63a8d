//! The part of the summary about followed processes.

use bpf::TableUse;
use experiment_format::losses::Losses;
use experiment_format::units::Ticks;
use serde::Serialize;
use user_collector::jit::JitFileStats;
use user_collector::join::JoinCounts;
use user_collector::objects::UnwindTableCounts;

use crate::record::dispatch::Dispatcher;
use crate::record::process_writer::FollowedProcess;
use crate::record::user_stacks::resolve_stack::{StackLosses, UnwindCounts};
use crate::record::user_stacks::user_stack::StackCounts;

/// The processes that were followed into their user code.
#[derive(Debug, Serialize)]
pub struct FollowSummary {
    /// The followed processes, by the number of their ticks.
    pub processes: Vec<FollowedProcess>,
    /// Ticks of all of them by how their user stack ended.
    pub user_stacks: StackCounts,
    /// The same for ticks on a CPU only. These are harder: the stack of a sleeping thread is
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
    /// Losses of user stacks.
    #[serde(flatten)]
    pub stacks: StackLosses,
    /// Intervals that are in the founder because too many were held until it was decided whether
    /// their processes are followed.
    pub not_held: u64,
    /// Mappings that were too many of one process, or beyond the limit (`-L`).
    pub unwritten_mappings: u64,
    /// JIT functions that were beyond the limit, of one process or of all.
    pub unwritten_functions: u64,
    /// Processes that exited before the last part of their JIT files was read, because too many
    /// files were open to hold theirs.
    pub unread_at_exit: u64,
}

impl FollowSummary {
    /// Returns the summary of the followed processes. None if none could be followed.
    pub(super) fn new(
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

    /// What exceeded a bound on what a process can make grow.
    pub(super) fn bounds(&self) -> Losses {
        let sum = |of: fn(&FollowedProcess) -> u64| self.processes.iter().map(of).sum();
        let jit = |of: fn(&JitFileStats) -> u64| {
            let jit = self.processes.iter().filter_map(|row| row.jit.as_ref());
            jit.map(|jit| of(&jit.counts)).sum()
        };
        Losses {
            not_held: self.losses.not_held,
            dropped_copies: self.losses.stacks.dropped_copies,
            unwritten_mappings: self.losses.unwritten_mappings,
            unwritten_functions: self.losses.unwritten_functions,
            jit_functions: jit(|counts| counts.too_many),
            jit_files: jit(|counts| u64::from(counts.unread > 0)),
            jit_code: jit(|counts| counts.code_over_limit),
            unread_at_exit: self.losses.unread_at_exit,
            thread_names: sum(|row| row.unwritten_names),
            unkept_addresses: sum(|row| u64::from(row.has_unkept_addresses)),
            ..Losses::default()
        }
    }

    /// Returns the number of packets that their ticks are in.
    pub(super) fn packets(&self) -> u64 {
        self.processes.iter().map(|process| process.packets).sum()
    }

    /// Returns the number of ticks in them.
    pub(super) fn ticks(&self) -> Ticks {
        self.processes.iter().map(|process| process.ticks).sum()
    }
}
