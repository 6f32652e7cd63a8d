//! Sums: the times and counts of a thread, and the counts of a CPU.

use std::ops::AddAssign;

use serde::Serialize;

use crate::layout::{CAUSE_SLOTS, CAUSES, LOCK_CAUSES};

/// A struct of sums.
macro_rules! sums {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $sum:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$what])* pub $sum: u64,)*
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$sum += other.$sum;)*
            }
        }

        impl $name {
            /// Returns what was added since earlier sums.
            #[must_use]
            pub fn since(self, before: &$name) -> $name {
                $name { $($sum: self.$sum.saturating_sub(before.$sum),)* }
            }
        }
    };
}

sums! {
    /// Times of a thread by detail, nanoseconds.
    DetailTimes {
        /// Of the blocked time, in whatever state: waits for block I/O, according to the scheduler.
        block_io,
        /// Of the wait for a CPU: since a preemption or a yield. The rest is since a wake-up.
        preempted,
        /// Of the wait for a CPU: since the quota of the cgroup was used up.
        throttled,
        /// Of the wait for a CPU: while the hypervisor ran something else on the CPU that the
        /// thread was on.
        stolen,
    }
}

/// Blocked times of a thread by cause, nanoseconds: in `UserLock`, and in all other blocked states.
/// `Stopped` is in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CauseTimes {
    /// In states other than `UserLock`, by the number of the cause.
    pub other: [u64; CAUSES],
    /// In `UserLock`.
    pub lock: [u64; CAUSES],
}

impl CauseTimes {
    /// Returns the sums of a record, which has the locks' after the others'.
    #[must_use]
    pub(super) fn of(slots: &[u64; CAUSE_SLOTS]) -> CauseTimes {
        CauseTimes {
            other: std::array::from_fn(|cause| slots[cause]),
            lock: std::array::from_fn(|cause| slots[LOCK_CAUSES + cause]),
        }
    }

    /// Returns what was added since earlier sums. What moved from one cause to another since, as
    /// a wait that had not ended does, counts only where it is now.
    #[must_use]
    pub fn since(self, before: &CauseTimes) -> CauseTimes {
        let less = |now: [u64; CAUSES], before: [u64; CAUSES]| {
            std::array::from_fn(|cause| now[cause].saturating_sub(before[cause]))
        };
        CauseTimes {
            other: less(self.other, before.other),
            lock: less(self.lock, before.lock),
        }
    }
}

impl AddAssign for CauseTimes {
    fn add_assign(&mut self, other: CauseTimes) {
        let both = [(&mut self.other, other.other), (&mut self.lock, other.lock)];
        for (sums, others) in both {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum += other;
            }
        }
    }
}

sums! {
    /// What the kernel counts of a thread by itself.
    KernelCounts {
        /// Page faults without I/O.
        minor_faults,
        /// Page faults with I/O.
        major_faults,
        /// Context switches in which it gave its CPU up.
        voluntary_switches,
        /// Context switches in which it was preempted.
        involuntary_switches,
        /// Bytes read by `read(2)` and the like, from anything.
        read_chars,
        /// Bytes written so.
        written_chars,
        /// System calls that read.
        read_calls,
        /// System calls that write.
        write_calls,
        /// Bytes read from block devices.
        read_bytes,
        /// Bytes to be written to block devices.
        written_bytes,
    }
}

sums! {
    /// What the BPF programs have counted on a CPU since it was first recorded.
    ///
    /// `user + kernel + idle + stolen` boundaries are the time recorded; of these, `unsent` were
    /// left out by request, and `lost` found the ring full.
    CpuCounts {
        /// Boundaries in user mode.
        user,
        /// Boundaries in the kernel.
        kernel,
        /// Boundaries in the idle task.
        idle,
        /// Boundaries that passed while the hypervisor ran something else, and a thread was on the
        /// CPU.
        stolen,
        /// Idle boundaries not sent, because idle time is not recorded.
        unsent,
        /// Boundaries whose record found the ring full.
        lost,
        /// Boundaries beyond the first of a firing on a busy CPU, whose timer was late.
        late,
        /// Boundaries of off-CPU records that found the ring full.
        off_cpu_lost,
        /// Thread records that found the ring full.
        thread_records_lost,
        /// Times that the kernel had no memory for the account of a thread.
        threads_untracked,
        /// Returns to user mode that could not be waited for or sent.
        user_returns_lost,
        /// Look-ups of mapped code that were thrown away, since the mappings changed meanwhile.
        raced_look_ups,
        /// Lock waits that found the ring full.
        lock_waits_lost,
        /// Lock waits that were not sent, since there were too many in the same second.
        lock_waits_skipped,
        /// Their time.
        lock_waits_skipped_ns,
        /// Traced system calls that found the ring full.
        io_calls_lost,
        /// Changes of blocks that found the ring full, or no space among the blocks that are kept.
        blocks_lost,
        /// Context switches to threads whose system calls were not seen, because two threads were
        /// preempted in the programs that trace calls.
        calls_unseen,
        /// What the programs took at context switches, ticks and returns to user mode, nanoseconds.
        programs_ns,
    }
}

impl CpuCounts {
    /// Returns the boundaries that passed while this CPU was recorded.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.user + self.kernel + self.idle + self.stolen
    }
}
