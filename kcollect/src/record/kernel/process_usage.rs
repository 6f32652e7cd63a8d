//! gprofng's records of resource usage. A sample of a followed process has one.

use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use experiment_format::usage::UsageRecord;

use super::times::{OnCpuTicks, Times};

/// On-CPU time up to a sample, split by the ticks of each span between two samples. A split by the
/// ticks of the whole run could make a part smaller than at the sample before.
#[derive(Debug, Default)]
pub struct Split {
    on_cpu_ns: Nanos,
    ticks: OnCpuTicks,
    parts_ns: [Nanos; 3],
}

impl Split {
    /// Returns the record of a process at an instant. Its times never decrease from record to
    /// record. `start_ns` is the experiment's start, CLOCK_MONOTONIC nanoseconds.
    pub fn usage(
        &mut self,
        start_ns: Nanos,
        at_ns: Nanos,
        times: &Times,
        living: usize,
    ) -> UsageRecord {
        let mut states = times.ns;
        for (part, ns) in self.until(times).into_iter().enumerate() {
            states[part] = ns;
        }
        usage_record(start_ns, at_ns, times, states, living)
    }

    /// Adds the span up to `times`. Returns user, system and trap nanoseconds since the start.
    pub(super) fn until(&mut self, times: &Times) -> [Nanos; 3] {
        let on_cpu_ns = times.ns[Microstate::User.number() as usize];
        let span = OnCpuTicks {
            user: times.ticks.user.saturating_sub(self.ticks.user),
            kernel: times.ticks.kernel.saturating_sub(self.ticks.kernel),
            trap: times.ticks.trap.saturating_sub(self.ticks.trap),
        };
        let parts = span.split(on_cpu_ns.saturating_sub(self.on_cpu_ns));
        for (sum, part) in self.parts_ns.iter_mut().zip(parts) {
            *sum += part;
        }
        (self.on_cpu_ns, self.ticks) = (on_cpu_ns.max(self.on_cpu_ns), times.ticks);
        self.parts_ns
    }
}

/// Returns gprofng's record of an instant of an experiment. Messages, signals and swaps stay 0,
/// since Linux does not count them for a thread. System calls are those that read and write, the
/// only ones that it counts.
pub(super) fn usage_record(
    start_ns: Nanos,
    at_ns: Nanos,
    times: &Times,
    states: [Nanos; Microstate::PER_THREAD],
    living: usize,
) -> UsageRecord {
    const BLOCK_BYTES: u64 = 512;
    let counts = times.counts;
    UsageRecord {
        threads: u32::try_from(living).unwrap_or(u32::MAX),
        // A reader assigns ticks to samples by this, not by the time of the sample's event.
        time_ns: at_ns,
        created_ns: start_ns,
        real_ns: times.tracked_ns,
        states_ns: states,
        minor_faults: counts.minor_faults,
        major_faults: counts.major_faults,
        blocks_in: counts.read_bytes / BLOCK_BYTES,
        blocks_out: counts.written_bytes / BLOCK_BYTES,
        voluntary_switches: counts.voluntary_switches,
        involuntary_switches: counts.involuntary_switches,
        system_calls: counts.read_calls + counts.write_calls,
        io_chars: counts.read_chars + counts.written_chars,
        ..UsageRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use experiment_format::units::Ticks;

    use super::*;

    fn until(user: u64, kernel: u64, on_cpu: u64) -> Times {
        let mut times = Times {
            ticks: OnCpuTicks {
                user: Ticks(user),
                kernel: Ticks(kernel),
                trap: Ticks::ZERO,
            },
            ..Times::default()
        };
        times.ns[0] = Nanos(on_cpu);
        times
    }

    #[test]
    fn no_part_of_the_time_on_a_cpu_shrinks_and_the_sum_is_exact() {
        let mut split = Split::default();
        assert_eq!(split.until(&until(10, 0, 1000)), [1000, 0, 0].map(Nanos));
        // All ticks of this span are in the kernel: split by the ticks of the whole run, user time
        // would shrink.
        assert_eq!(split.until(&until(10, 30, 1100)), [1000, 100, 0].map(Nanos));
        assert_eq!(split.until(&until(10, 30, 1107)), [1000, 107, 0].map(Nanos));
    }
}
