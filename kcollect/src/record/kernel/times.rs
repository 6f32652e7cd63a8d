//! The times of a thread, or the sum of many: exact nanoseconds, ticks, and the kernel's counts.

use bpf_abi::{CauseTimes, DetailTimes, KernelCounts, ThreadRecord};
use experiment_format::microstate::Microstate;
use experiment_format::units::{Nanos, Ticks};

/// On-CPU ticks of a thread, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnCpuTicks {
    /// In user mode.
    pub user: Ticks,
    /// In the kernel.
    pub kernel: Ticks,
    /// The part of `kernel` in traps: exceptions other than page faults, and interrupts.
    pub trap: Ticks,
}

/// The times of a thread, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// On-CPU ticks.
    pub ticks: OnCpuTicks,
    /// Exact nanoseconds by state. All on-CPU time, in any mode, is under user.
    pub ns: [Nanos; Microstate::PER_THREAD],
    /// How long it was recorded, nanoseconds.
    pub tracked_ns: Nanos,
    /// Details of some states: block I/O, preempted, throttled and others.
    pub details: DetailTimes,
    /// Blocked times by cause.
    pub causes: CauseTimes,
    /// The kernel's counts during that time.
    pub counts: KernelCounts,
}

impl OnCpuTicks {
    /// The ticks of one state; zero for an off-CPU state.
    #[must_use]
    pub fn of(state: Microstate, ticks: Ticks) -> OnCpuTicks {
        let of = |wanted: &[Microstate]| {
            if wanted.contains(&state) {
                ticks
            } else {
                Ticks::ZERO
            }
        };
        OnCpuTicks {
            user: of(&[Microstate::User]),
            kernel: of(&[Microstate::System, Microstate::Trap]),
            trap: of(&[Microstate::Trap]),
        }
    }

    /// Returns the number of all ticks.
    #[must_use]
    pub fn sum(&self) -> Ticks {
        self.user + self.kernel
    }

    /// Adds other ticks.
    pub fn add(&mut self, other: &OnCpuTicks) {
        self.user += other.user;
        self.kernel += other.kernel;
        self.trap += other.trap;
    }

    /// Splits on-CPU nanoseconds into user, system and trap time, in proportion to the ticks.
    /// Without ticks all of it is system time: a thread that is too short for a tick spends most of
    /// its time in fork and exit.
    #[must_use]
    pub fn split(&self, on_cpu_ns: Nanos) -> [Nanos; 3] {
        let part = |ticks: Ticks| match self.sum() {
            Ticks::ZERO => Nanos::ZERO,
            all => {
                let share = u128::from(on_cpu_ns.0) * u128::from(ticks.0) / u128::from(all.0);
                Nanos(share as u64)
            }
        };
        let (user, trap) = (part(self.user), part(self.trap));
        [user, on_cpu_ns - user - trap, trap]
    }
}

impl Times {
    /// Returns the times of one thread, which has these ticks.
    #[must_use]
    pub fn of(thread: &ThreadRecord, ticks: OnCpuTicks) -> Times {
        Times {
            ticks,
            ns: thread.ns.map(Nanos),
            tracked_ns: Nanos(thread.tracked_ns),
            details: thread.details,
            causes: thread.causes,
            counts: thread.counts,
        }
    }

    /// Returns nanoseconds by state. The on-CPU time is exact as a whole and split by ticks.
    #[must_use]
    pub fn states(&self) -> [Nanos; Microstate::PER_THREAD] {
        let mut states = self.ns;
        let on_cpu_ns = states[Microstate::User.number() as usize];
        let split = [Microstate::User, Microstate::System, Microstate::Trap];
        for (state, ns) in split.into_iter().zip(self.ticks.split(on_cpu_ns)) {
            states[state.number() as usize] = ns;
        }
        states
    }

    /// Returns the nanoseconds on a CPU, waiting for one, in page faults and for block I/O.
    /// Summaries sort by this: a thousand threads that wait for a lock or sleep may be idle.
    #[must_use]
    pub fn busy_ns(&self) -> Nanos {
        use Microstate::{DataFault, KernelFault, TextFault, User, WaitCpu};
        let sum = |states: &[Microstate]| -> Nanos {
            let ns = states.iter().map(|state| self.ns[state.number() as usize]);
            ns.sum()
        };
        let faults = sum(&[TextFault, DataFault, KernelFault]);
        // Most of the time of a page fault that blocks is block I/O.
        sum(&[User, WaitCpu]) + faults.max(Nanos(self.details.block_io))
    }

    /// Returns the times since earlier ones, with all of the ticks.
    #[must_use]
    pub fn since(mut self, before: &Times) -> Times {
        self.tracked_ns -= before.tracked_ns.min(self.tracked_ns);
        self.details = self.details.since(&before.details);
        self.causes = self.causes.since(&before.causes);
        self.counts = self.counts.since(&before.counts);
        for (ns, before) in self.ns.iter_mut().zip(before.ns) {
            *ns -= before.min(*ns);
        }
        self
    }

    /// Adds other times.
    pub fn add(&mut self, other: &Times) {
        self.ticks.add(&other.ticks);
        self.tracked_ns += other.tracked_ns;
        self.details += other.details;
        self.causes += other.causes;
        self.counts += other.counts;
        for (sum, ns) in self.ns.iter_mut().zip(other.ns) {
            *sum += ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_by_ticks_keeps_the_exact_sum() {
        let mut times = Times {
            ticks: OnCpuTicks {
                user: Ticks(1),
                kernel: Ticks(2),
                trap: Ticks(1),
            },
            ..Times::default()
        };
        times.ns[0] = Nanos(1_000_000_001);
        times.ns[7] = Nanos(5);
        let states = times.states();
        assert_eq!(
            states[..3],
            [333_333_333, 333_333_335, 333_333_333].map(Nanos)
        );
        assert_eq!(states[7], Nanos(5));
        times.ticks = OnCpuTicks::default();
        assert_eq!(times.states()[..3], [0, 1_000_000_001, 0].map(Nanos));
    }
}
