//! Times and ticks, as types that cannot be taken for each other or for a count of anything else.
//!
//! A field keeps the unit in its name (`time_ns`), since it has that name in C, in JSON and in the
//! files too. The declaration of a time says which clock it is from.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time or a length of time in nanoseconds.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Nanos(pub u64);

/// A number of ticks: profiling intervals.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Ticks(pub u64);

impl Nanos {
    /// The origin of a clock, and no time at all.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than any time.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A length in microseconds; [`Nanos::MAX`] if it is too long.
    #[inline]
    #[must_use]
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// A length in milliseconds; [`Nanos::MAX`] if it is too long.
    #[inline]
    #[must_use]
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A length in seconds; [`Nanos::MAX`] if it is too long.
    #[inline]
    #[must_use]
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs.saturating_mul(1_000_000_000))
    }

    /// Returns it in seconds. Above 2^53 nanoseconds, 104 days, the last digits are rounded.
    #[inline]
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the sum, [`Nanos::MAX`] if it is too long.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }

    /// Returns the sum, modulo 2^64: of counters that wrap.
    #[inline]
    #[must_use]
    pub const fn wrapping_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.wrapping_add(other.0))
    }

    /// Returns the difference, modulo 2^64: of counters that wrap.
    #[inline]
    #[must_use]
    pub const fn wrapping_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.wrapping_sub(other.0))
    }

    /// Multiplies it; [`Nanos::MAX`] if that is too long.
    #[inline]
    #[must_use]
    pub const fn saturating_mul(self, times: u64) -> Nanos {
        Nanos(self.0.saturating_mul(times))
    }

    /// Returns the sum, if it is not too long.
    #[inline]
    #[must_use]
    pub fn checked_add(self, other: Nanos) -> Option<Nanos> {
        self.0.checked_add(other.0).map(Nanos)
    }

    /// Returns the time between the two.
    #[inline]
    #[must_use]
    pub const fn abs_diff(self, other: Nanos) -> Nanos {
        Nanos(self.0.abs_diff(other.0))
    }
}

impl Ticks {
    /// No tick.
    pub const ZERO: Ticks = Ticks(0);

    /// Subtracts `others`; zero if that would be negative.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, others: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(others.0))
    }
}

macro_rules! quantity {
    ($unit:ident) => {
        /// The number, without the unit.
        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Add for $unit {
            type Output = $unit;
            fn add(self, other: $unit) -> $unit {
                $unit(self.0 + other.0)
            }
        }

        impl Sub for $unit {
            type Output = $unit;
            fn sub(self, other: $unit) -> $unit {
                $unit(self.0 - other.0)
            }
        }

        impl AddAssign for $unit {
            fn add_assign(&mut self, other: $unit) {
                self.0 += other.0;
            }
        }

        impl SubAssign for $unit {
            fn sub_assign(&mut self, other: $unit) {
                self.0 -= other.0;
            }
        }

        impl Sum for $unit {
            fn sum<All: Iterator<Item = $unit>>(all: All) -> $unit {
                $unit(all.map(|one| one.0).sum())
            }
        }

        impl<'a> Sum<&'a $unit> for $unit {
            fn sum<All: Iterator<Item = &'a $unit>>(all: All) -> $unit {
                all.copied().sum()
            }
        }
    };
}

quantity!(Nanos);
quantity!(Ticks);

impl Mul<u64> for Nanos {
    type Output = Nanos;
    #[inline]
    fn mul(self, times: u64) -> Nanos {
        Nanos(self.0 * times)
    }
}

impl Div<u64> for Nanos {
    type Output = Nanos;
    #[inline]
    fn div(self, parts: u64) -> Nanos {
        Nanos(self.0 / parts)
    }
}

/// How many times a length goes into another one.
impl Div for Nanos {
    type Output = u64;
    #[inline]
    fn div(self, length: Nanos) -> u64 {
        self.0 / length.0
    }
}

impl Rem for Nanos {
    type Output = Nanos;
    #[inline]
    fn rem(self, length: Nanos) -> Nanos {
        Nanos(self.0 % length.0)
    }
}

impl From<Nanos> for Duration {
    #[inline]
    fn from(length: Nanos) -> Duration {
        Duration::from_nanos(length.0)
    }
}

/// [`Nanos::MAX`] for what is longer than 584 years.
impl From<Duration> for Nanos {
    #[inline]
    fn from(length: Duration) -> Nanos {
        Nanos(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_are_too_long_are_the_longest() {
        assert_eq!(Nanos::from_secs(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX);
        assert_eq!(Nanos(1).saturating_sub(Nanos(2)), Nanos::ZERO);
    }

    #[test]
    fn units_are_what_they_say() {
        assert_eq!(Nanos::from_millis(2), Nanos::from_micros(2_000));
        assert_eq!(Nanos::from_secs(3) / Nanos::from_millis(2), 1_500);
        assert_eq!(Duration::from(Nanos::from_secs(3)), Duration::from_secs(3));
        assert_eq!(
            [Nanos(1), Nanos(2)].iter().sum::<Nanos>().as_secs_f64(),
            3e-9
        );
    }
}
