//! What was counted up to a moment, and the arithmetic on it.
//!
//! Counters have 64 bits whatever the hardware has: the kernel keeps them. Sums and differences
//! wrap at 2^64, so that a counter with a preset near its end is subtracted right across that end.
//!
//! Where there are fewer counters than events, the kernel takes turns, and an event was counted for
//! a part of the time only. How long it was wanted and how long it had a counter stand beside every
//! count, and a figure that was extrapolated from them says so ([`Estimate`]). Refused: a scaled
//! figure that looks like a count.

use thiserror::Error;

/// One counter at a moment, or the difference of two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// What was counted, and the preset with it.
    pub count: u64,
    /// For how long it was enabled while its thread ran, or its CPU was online, nanoseconds.
    pub enabled_ns: u64,
    /// For how long of that it had a counter, nanoseconds. Less means that it took turns with
    /// others.
    pub running_ns: u64,
}

/// A count as it is, or as it probably was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Estimate {
    /// It had its counter all the time: so many, exactly.
    Exact(u64),
    /// It had a counter for a part of the time, and this is what it would have been.
    Scaled {
        /// The count divided by the share.
        value: u64,
        /// The part of the time, between 0 and 1.
        share: f64,
    },
    /// It never had a counter. Nothing is known.
    Never,
}

impl Estimate {
    /// The number, where there is one.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        match self {
            Estimate::Exact(value) | Estimate::Scaled { value, .. } => Some(value),
            Estimate::Never => None,
        }
    }
}

impl Value {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Value) -> Value {
        Value {
            count: self.count.wrapping_add(other.count),
            enabled_ns: self.enabled_ns.wrapping_add(other.enabled_ns),
            running_ns: self.running_ns.wrapping_add(other.running_ns),
        }
    }

    /// Since an earlier moment.
    #[must_use]
    pub fn minus(self, earlier: Value) -> Value {
        Value {
            count: self.count.wrapping_sub(earlier.count),
            enabled_ns: self.enabled_ns.wrapping_sub(earlier.enabled_ns),
            running_ns: self.running_ns.wrapping_sub(earlier.running_ns),
        }
    }

    /// The same thread's on another CPU. It is on one at a time: it has a counter on either, and is
    /// enabled once.
    #[must_use]
    pub fn beside(self, other: Value) -> Value {
        Value {
            count: self.count.wrapping_add(other.count),
            enabled_ns: self.enabled_ns.max(other.enabled_ns),
            running_ns: self.running_ns.wrapping_add(other.running_ns),
        }
    }

    /// What it means. Of a counter with a preset only a difference means something here.
    #[must_use]
    pub fn estimate(self) -> Estimate {
        // Counters of several CPUs are not enabled in the same instant: that is not taking turns.
        let slack = self.enabled_ns / 1000 + 10_000;
        if self.running_ns.saturating_add(slack) >= self.enabled_ns {
            return Estimate::Exact(self.count);
        }
        if self.running_ns == 0 {
            return Estimate::Never;
        }
        let scaled = u128::from(self.count) * u128::from(self.enabled_ns);
        let scaled = scaled / u128::from(self.running_ns);
        Estimate::Scaled {
            value: u64::try_from(scaled).unwrap_or(u64::MAX),
            share: self.running_ns as f64 / self.enabled_ns as f64,
        }
    }
}

/// All counters of a set at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// CLOCK_MONOTONIC when it was read, nanoseconds; of a sum or a difference that of the later
    /// one.
    pub time_ns: u64,
    /// In the order of the set's requests.
    pub values: Vec<Value>,
}

/// Two samples that are not of sets of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("samples of {0} and of {1} counters have no sum and no difference")]
pub struct Mismatch(
    /// Counters of the first.
    pub usize,
    /// Counters of the second.
    pub usize,
);

impl Sample {
    /// Of so many counters that have not counted.
    #[must_use]
    pub fn zero(counters: usize) -> Sample {
        Sample {
            time_ns: 0,
            values: vec![Value::default(); counters],
        }
    }

    /// Both together: of two threads, say.
    ///
    /// # Errors
    /// When they are of different sets.
    pub fn plus(&self, other: &Sample) -> Result<Sample, Mismatch> {
        self.with(other, Value::plus)
    }

    /// What was counted since an earlier sample of the same set.
    ///
    /// # Errors
    /// When they are of different sets.
    pub fn minus(&self, earlier: &Sample) -> Result<Sample, Mismatch> {
        self.with(earlier, Value::minus)
    }

    fn with(
        &self,
        other: &Sample,
        both: impl Fn(Value, Value) -> Value,
    ) -> Result<Sample, Mismatch> {
        if self.values.len() != other.values.len() {
            return Err(Mismatch(self.values.len(), other.values.len()));
        }
        let pairs = self.values.iter().zip(&other.values);
        Ok(Sample {
            time_ns: self.time_ns.max(other.time_ns),
            values: pairs.map(|(one, other)| both(*one, *other)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(count: u64, enabled_ns: u64, running_ns: u64) -> Value {
        Value {
            count,
            enabled_ns,
            running_ns,
        }
    }

    #[test]
    fn a_difference_goes_over_the_end_of_64_and_of_32_bits() {
        let near = value(u64::MAX - 9, 0, 0);
        assert_eq!(value(5, 0, 0).minus(near).count, 15);
        let below = value((1 << 32) - 1, 0, 0);
        assert_eq!(value((1 << 32) + 1, 0, 0).minus(below).count, 2);
    }

    #[test]
    fn what_took_turns_is_scaled_and_says_so() {
        const S: u64 = 1_000_000_000;
        assert_eq!(value(7, S, S).estimate(), Estimate::Exact(7));
        assert_eq!(value(7, 0, 0).estimate(), Estimate::Exact(7));
        let quarter = value(1 << 63, 4 * S, S).estimate();
        assert_eq!(
            quarter,
            Estimate::Scaled {
                value: u64::MAX,
                share: 0.25
            }
        );
        assert_eq!(value(100, 4 * S, S).estimate().number(), Some(400));
        assert_eq!(value(0, S, 0).estimate(), Estimate::Never);
        // A thread that ran on two CPUs, with a counter on each.
        let both = value(3, S, S / 4).beside(value(4, S, 3 * S / 4));
        assert_eq!(both.estimate(), Estimate::Exact(7));
    }

    #[test]
    fn samples_of_other_sets_do_not_mix() {
        let two = Sample::zero(2);
        assert_eq!(two.plus(&Sample::zero(3)), Err(Mismatch(2, 3)));
    }

    proptest! {
        #[test]
        fn what_is_added_can_be_subtracted(a: [u64; 3], b: [u64; 3]) {
            let (a, b) = (value(a[0], a[1], a[2]), value(b[0], b[1], b[2]));
            prop_assert_eq!(a.plus(b).minus(b), a);
            let _ = a.estimate();
        }
    }
}
