//! Readings of counters, and the arithmetic of counts.
//!
//! The kernel keeps all counters with 64 bits, whatever the hardware has. Sums and differences wrap
//! at 2^64, so the difference of a counter with a preset near 2^64 is right after it has wrapped.
//!
//! Where there are fewer counters than events, the kernel multiplexes them, and an event is counted
//! for a part of the time. Every count comes with the time for which the event was enabled and the
//! time for which it had a counter. A number that was extrapolated from them is marked as such
//! ([`Estimate`]).

use thiserror::Error;
use types::units::Nanos;

/// The reading of one counter, or the difference of two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterValue {
    /// The count, plus the preset.
    pub count: u64,
    /// How long the counter was enabled while its thread ran, or its CPU was online, in
    /// nanoseconds.
    pub enabled_ns: Nanos,
    /// How long of that the event had a counter of the hardware, in nanoseconds; less where the
    /// kernel multiplexed it.
    pub running_ns: Nanos,
}

/// A count, exact or extrapolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimate {
    /// The exact count: the event had a counter all the time.
    Exact(u64),
    /// The event had a counter for a part of the time, and the count was extrapolated.
    Scaled {
        /// The count divided by the share.
        value: u64,
        /// The part of the time, between 0 and 1.
        share: f64,
    },
    /// The event never had a counter, and its count is not known.
    Never,
}

impl Estimate {
    /// Returns the count, where it is known.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        match self {
            Estimate::Exact(value) | Estimate::Scaled { value, .. } => Some(value),
            Estimate::Never => None,
        }
    }
}

impl CounterValue {
    /// Returns the sum of two counters.
    #[must_use]
    pub fn plus(self, other: CounterValue) -> CounterValue {
        CounterValue {
            count: self.count.wrapping_add(other.count),
            enabled_ns: self.enabled_ns.wrapping_add(other.enabled_ns),
            running_ns: self.running_ns.wrapping_add(other.running_ns),
        }
    }

    /// Returns what was counted since an earlier reading.
    #[must_use]
    pub fn minus(self, earlier: CounterValue) -> CounterValue {
        CounterValue {
            count: self.count.wrapping_sub(earlier.count),
            enabled_ns: self.enabled_ns.wrapping_sub(earlier.enabled_ns),
            running_ns: self.running_ns.wrapping_sub(earlier.running_ns),
        }
    }

    /// Returns the sum of one thread's counters of two CPUs. Each of them is enabled for the whole
    /// time, and has a counter while the thread is on its CPU.
    #[must_use]
    pub fn plus_other_cpu(self, other: CounterValue) -> CounterValue {
        CounterValue {
            count: self.count.wrapping_add(other.count),
            enabled_ns: self.enabled_ns.max(other.enabled_ns),
            running_ns: self.running_ns.wrapping_add(other.running_ns),
        }
    }

    /// Returns the count that this reading stands for. For a counter with a preset only a
    /// difference of two readings is meaningful.
    #[must_use]
    pub fn estimate(self) -> Estimate {
        // Counters of several CPUs are not enabled at the same instant, so their times differ
        // without multiplexing.
        let slack_ns = self.enabled_ns / 1000 + Nanos::from_micros(10);
        if self.running_ns.saturating_add(slack_ns) >= self.enabled_ns {
            return Estimate::Exact(self.count);
        }
        if self.running_ns == Nanos::ZERO {
            return Estimate::Never;
        }
        let scaled = u128::from(self.count) * u128::from(self.enabled_ns.0);
        let scaled = scaled / u128::from(self.running_ns.0);
        Estimate::Scaled {
            value: u64::try_from(scaled).unwrap_or(u64::MAX),
            share: self.running_ns.0 as f64 / self.enabled_ns.0 as f64,
        }
    }
}

/// The reading of all counters of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetReading {
    /// When it was read, in CLOCK_MONOTONIC nanoseconds. A sum or a difference has the later time.
    pub time_ns: Nanos,
    /// One value for each request of the set, in order.
    pub values: Vec<CounterValue>,
}

/// The error of combining readings of sets of different sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("readings of {0} and of {1} counters have no sum and no difference")]
pub struct SizeMismatch(
    /// The counters of the first.
    pub usize,
    /// The counters of the second.
    pub usize,
);

impl SetReading {
    /// Returns the reading of counters that have counted nothing.
    #[must_use]
    pub fn zero(counters: usize) -> SetReading {
        SetReading {
            time_ns: Nanos::ZERO,
            values: vec![CounterValue::default(); counters],
        }
    }

    /// Adds two readings, for example of two threads.
    ///
    /// # Errors
    /// When the sets have different sizes.
    pub fn plus(&self, other: &SetReading) -> Result<SetReading, SizeMismatch> {
        self.with(other, CounterValue::plus)
    }

    /// Returns what was counted since an earlier reading of the same set.
    ///
    /// # Errors
    /// When the sets have different sizes.
    pub fn minus(&self, earlier: &SetReading) -> Result<SetReading, SizeMismatch> {
        self.with(earlier, CounterValue::minus)
    }

    fn with(
        &self,
        other: &SetReading,
        both: impl Fn(CounterValue, CounterValue) -> CounterValue,
    ) -> Result<SetReading, SizeMismatch> {
        if self.values.len() != other.values.len() {
            return Err(SizeMismatch(self.values.len(), other.values.len()));
        }
        let pairs = self.values.iter().zip(&other.values);
        Ok(SetReading {
            time_ns: self.time_ns.max(other.time_ns),
            values: pairs.map(|(one, other)| both(*one, *other)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(count: u64, enabled_ns: Nanos, running_ns: Nanos) -> CounterValue {
        CounterValue {
            count,
            enabled_ns,
            running_ns,
        }
    }

    #[test]
    fn differences_wrap_at_64_bits_and_not_at_32() {
        let near = value(u64::MAX - 9, Nanos::ZERO, Nanos::ZERO);
        assert_eq!(value(5, Nanos::ZERO, Nanos::ZERO).minus(near).count, 15);
        let below = value((1 << 32) - 1, Nanos::ZERO, Nanos::ZERO);
        assert_eq!(
            value((1 << 32) + 1, Nanos::ZERO, Nanos::ZERO)
                .minus(below)
                .count,
            2
        );
    }

    #[test]
    fn multiplexed_counts_are_scaled_and_marked() {
        const S: u64 = 1_000_000_000;
        assert_eq!(value(7, Nanos(S), Nanos(S)).estimate(), Estimate::Exact(7));
        assert_eq!(
            value(7, Nanos::ZERO, Nanos::ZERO).estimate(),
            Estimate::Exact(7)
        );
        let quarter = value(1 << 63, Nanos(4 * S), Nanos(S)).estimate();
        assert_eq!(
            quarter,
            Estimate::Scaled {
                value: u64::MAX,
                share: 0.25
            }
        );
        assert_eq!(
            value(100, Nanos(4 * S), Nanos(S)).estimate().number(),
            Some(400)
        );
        assert_eq!(value(0, Nanos(S), Nanos::ZERO).estimate(), Estimate::Never);
        // A thread that ran on two CPUs, with a counter on each.
        let both =
            value(3, Nanos(S), Nanos(S / 4)).plus_other_cpu(value(4, Nanos(S), Nanos(3 * S / 4)));
        assert_eq!(both.estimate(), Estimate::Exact(7));
    }

    #[test]
    fn readings_of_different_sets_are_not_combined() {
        let two = SetReading::zero(2);
        assert_eq!(two.plus(&SetReading::zero(3)), Err(SizeMismatch(2, 3)));
    }

    proptest! {
        #[test]
        fn readings_are_added_and_subtracted(a: [u64; 3], b: [u64; 3]) {
            let (a, b) = (value(a[0], Nanos(a[1]), Nanos(a[2])), value(b[0], Nanos(b[1]), Nanos(b[2])));
            prop_assert_eq!(a.plus(b).minus(b), a);
            let _ = a.estimate();
        }
    }
}
