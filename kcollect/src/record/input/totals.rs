//! What the kernel has counted since the recording began, at one instant. Experiments that follow
//! one another have the differences.

use bpf::OverflowCounts;
use bpf_abi::CpuCounts;
use experiment_format::units::Nanos;

/// The recorded time of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// How long its ticks were recorded, nanoseconds.
    pub recorded_ns: Nanos,
    /// The start of the time that is not in `recorded_ns` yet.
    pub(super) since_ns: Option<Nanos>,
    pub(super) has_clock: bool,
}

/// Counts since the beginning of the recording.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The counts of every CPU that ticked, with its recorded time.
    pub cpus: Vec<(u32, CpuCounts, CpuTime)>,
    /// Events of each counter, in the order of the command line.
    pub counters: Vec<OverflowCounts>,
    /// Events that arrived after later ones had been passed on.
    pub late: u64,
    /// How often the kernel skipped a program that traces `io_uring`.
    pub skipped_operations: u64,
}

impl Totals {
    /// Returns one count of the statistics, summed over the CPUs.
    #[must_use]
    pub fn sum(&self, of: fn(&CpuCounts) -> u64) -> u64 {
        self.cpus.iter().map(|(_, stats, _)| of(stats)).sum()
    }

    /// What was counted since the totals `before`. A CPU or counter that is not in these had
    /// counted nothing.
    #[must_use]
    pub fn since(&self, before: &Totals) -> Totals {
        let cpus = self.cpus.iter().map(|(cpu, stats, time)| {
            let earlier = before.cpus.iter().find(|(earlier, ..)| earlier == cpu);
            match earlier {
                Some((_, earlier, earlier_time)) => {
                    (*cpu, stats.since(earlier), time.since(earlier_time))
                }
                None => (*cpu, *stats, *time),
            }
        });
        let counters = self.counters.iter().enumerate().map(|(number, counts)| {
            let earlier = before.counters.get(number).copied().unwrap_or_default();
            OverflowCounts {
                events: counts.events.saturating_sub(earlier.events),
                recorded: counts.recorded.saturating_sub(earlier.recorded),
                lost: counts.lost.saturating_sub(earlier.lost),
                enabled_ns: counts.enabled_ns.saturating_sub(earlier.enabled_ns),
                running_ns: counts.running_ns.saturating_sub(earlier.running_ns),
            }
        });
        Totals {
            cpus: cpus.collect(),
            counters: counters.collect(),
            late: self.late.saturating_sub(before.late),
            skipped_operations: self
                .skipped_operations
                .saturating_sub(before.skipped_operations),
        }
    }
}

impl CpuTime {
    /// Returns the time recorded since an earlier one.
    fn since(self, before: &CpuTime) -> CpuTime {
        CpuTime {
            recorded_ns: self.recorded_ns.saturating_sub(before.recorded_ns),
            ..self
        }
    }

    /// Adds the time since the last change if the CPU was recorded in it. `recording` is whether it
    /// is recorded from `now_ns` on.
    pub(super) fn change(&mut self, now_ns: Nanos, recording: bool) {
        if let Some(since) = self.since_ns.take() {
            self.recorded_ns += now_ns.saturating_sub(since);
        }
        self.since_ns = recording.then_some(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_since_are_differences_and_what_is_new_counts_as_a_whole() {
        let stats = |user| CpuCounts {
            user,
            ..CpuCounts::default()
        };
        let time = |recorded_ns| CpuTime {
            recorded_ns,
            ..CpuTime::default()
        };
        let counts = |events| OverflowCounts {
            events,
            ..OverflowCounts::default()
        };
        let before = Totals {
            cpus: vec![(1, stats(3), time(Nanos(30)))],
            counters: vec![counts(5)],
            late: 1,
            skipped_operations: 2,
        };
        let after = Totals {
            cpus: vec![
                (0, stats(2), time(Nanos(20))),
                (1, stats(10), time(Nanos(100))),
            ],
            counters: vec![counts(9)],
            late: 4,
            skipped_operations: 7,
        };
        let since = after.since(&before);
        let cpus: Vec<_> = since
            .cpus
            .iter()
            .map(|(cpu, stats, time)| (*cpu, stats.user, time.recorded_ns))
            .collect();
        assert_eq!(cpus, [(0, 2, Nanos(20)), (1, 7, Nanos(70))]);
        assert_eq!((since.counters[0].events, since.late), (4, 3));
        assert_eq!(since.skipped_operations, 5);
        assert_eq!(after.since(&Totals::default()).cpus[1].1.user, 10);
    }
}
