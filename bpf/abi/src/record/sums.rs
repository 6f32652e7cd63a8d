//! Sums that are adjacent words in a thread's record.

use std::ops::AddAssign;

use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A struct of sums.
macro_rules! sums {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $sum:ident,)* }) => {
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Serialize,
            FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(C)]
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
