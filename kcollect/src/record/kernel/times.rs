//! Where the time of a thread went, or of many: exact nanoseconds, ticks, and what the kernel
//! counted.

use bpf_abi::{DetailTimes, KernelCounts, ThreadRecord};
use experiment_format::microstate::Microstate;

/// Ticks of a thread on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub kernel: u64,
    /// Of those in the kernel, in traps: exceptions other than page faults, and interrupts.
    pub trap: u64,
}

/// The time of a thread, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Its ticks on a CPU.
    pub ticks: Ticks,
    /// Nanoseconds by state, exact; time on a CPU, in whatever mode, is under user.
    pub ns: [u64; Microstate::PER_THREAD],
    /// For how long it was watched, nanoseconds.
    pub lived: u64,
    /// What more is known of some of the time.
    pub details: DetailTimes,
    /// What the kernel counted meanwhile.
    pub counts: KernelCounts,
}

impl Ticks {
    /// Ticks of one state.
    #[must_use]
    pub fn of(state: Microstate, ticks: u64) -> Ticks {
        let of = |wanted: &[Microstate]| if wanted.contains(&state) { ticks } else { 0 };
        Ticks {
            user: of(&[Microstate::User]),
            kernel: of(&[Microstate::System, Microstate::Trap]),
            trap: of(&[Microstate::Trap]),
        }
    }

    /// All ticks.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.user + self.kernel
    }

    /// Adds others.
    pub fn add(&mut self, other: &Ticks) {
        self.user += other.user;
        self.kernel += other.kernel;
        self.trap += other.trap;
    }

    /// Splits nanoseconds on a CPU into user, system and trap time. Who was too short for a tick
    /// spent its time being made and ended, in the kernel.
    #[must_use]
    pub fn split(&self, on_cpu: u64) -> [u64; 3] {
        let part = |ticks: u64| match self.sum() {
            0 => 0,
            all => (u128::from(on_cpu) * u128::from(ticks) / u128::from(all)) as u64,
        };
        let (user, trap) = (part(self.user), part(self.trap));
        [user, on_cpu - user - trap, trap]
    }
}

impl Times {
    /// Those of one thread, which has had these ticks.
    #[must_use]
    pub fn of(thread: &ThreadRecord, ticks: Ticks) -> Times {
        Times {
            ticks,
            ns: thread.ns,
            lived: thread.tracked_ns,
            details: thread.details,
            counts: thread.counts,
        }
    }

    /// Nanoseconds by state: the time on a CPU, exact as a whole, split as its ticks are.
    #[must_use]
    pub fn states(&self) -> [u64; Microstate::PER_THREAD] {
        let mut states = self.ns;
        let on_cpu = states[Microstate::User.number() as usize];
        let split = [Microstate::User, Microstate::System, Microstate::Trap];
        for (state, ns) in split.into_iter().zip(self.ticks.split(on_cpu)) {
            states[state.number() as usize] = ns;
        }
        states
    }

    /// Nanoseconds neither asleep nor stopped: what makes a process worth a look.
    #[must_use]
    pub fn awake(&self) -> u64 {
        let quiet = [Microstate::Sleep, Microstate::Stopped];
        let quiet = quiet.map(|state| self.ns[state.number() as usize]);
        self.ns.iter().sum::<u64>() - quiet.iter().sum::<u64>()
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Times) {
        self.ticks.add(&other.ticks);
        self.lived += other.lived;
        self.details += other.details;
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
            ticks: Ticks {
                user: 1,
                kernel: 2,
                trap: 1,
            },
            ..Times::default()
        };
        times.ns[0] = 1_000_000_001;
        times.ns[7] = 5;
        let states = times.states();
        assert_eq!(states[..3], [333_333_333, 333_333_335, 333_333_333]);
        assert_eq!(states[7], 5);
        times.ticks = Ticks::default();
        assert_eq!(times.states()[..3], [0, 1_000_000_001, 0]);
    }
}
