//! The bounds for the counts of a correct profiler.
//!
//! A tick falls on a thing with the probability of the thing's share of the time, so the number of
//! ticks on it is binomial: of `n` ticks, `n·p` are expected, with a standard deviation of
//! `√(n·p·(1−p))`. Ticks are evenly spaced, not random, which makes the count more exact: a load
//! that holds a CPU from end to end is counted to ±1 tick, and there `p` is 1 and the formula says
//! so too. Only a load in step with the ticks has a count that is less exact: no check counts ticks
//! of one.
//!
//! A count may be off by [`MAX_SIGMAS`] standard deviations and [`SLACK_TICKS`] ticks. The first
//! makes a correct profiler fail less than once in a million checks; the second is for the two ends
//! of the interval that was watched, and for small counts, whose distribution is not normal. A test
//! below holds both against exact binomial tails.

use std::fmt;

/// The standard deviations that are allowed. Beyond five, on both sides of a normal distribution,
/// are 6 in 10⁷.
pub const MAX_SIGMAS: f64 = 5.0;

/// The ticks that are allowed in addition.
pub const SLACK_TICKS: f64 = 4.0;

/// The expected value of a count, and how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// The number of all ticks.
    pub n: f64,
    /// The expected count.
    pub expected: f64,
    /// Standard deviation of the count.
    pub sigma: f64,
    /// Maximum deviation allowed.
    pub allowed: f64,
}

impl Band {
    /// Returns the band for the count of a thing that has a share `p` of `n` ticks.
    pub fn of(n: f64, p: f64) -> Self {
        let p = p.clamp(0.0, 1.0);
        let sigma = (n * p * (1.0 - p)).sqrt();
        Self {
            n,
            expected: n * p,
            sigma,
            allowed: MAX_SIGMAS * sigma + SLACK_TICKS,
        }
    }

    /// Returns the band for the count of a thing that took `part` of a time `whole` (same unit), at
    /// one tick every `interval` of it.
    pub fn time(part: f64, whole: f64, interval: f64) -> Self {
        let whole = whole.max(part);
        Self::of(whole / interval, part / whole)
    }

    /// Widens the band for something that was on a CPU `stints` times, not once. Each time is
    /// rounded to a boundary by chance, which adds a variance of at most ¼ tick².
    #[must_use]
    pub fn with_stints(mut self, stints: f64) -> Self {
        let sigma = (self.sigma.powi(2) + stints / 4.0).sqrt();
        self.allowed += MAX_SIGMAS * (sigma - self.sigma);
        self.sigma = sigma;
        self
    }

    /// Widens the band by ticks that may be lost or won at edges, for example when a CPU goes
    /// offline and comes back.
    #[must_use]
    pub fn with_edges(mut self, ticks: f64) -> Self {
        self.allowed += ticks;
        self
    }

    /// Returns whether a count is within the band.
    pub fn admits(&self, count: f64) -> bool {
        (count - self.expected).abs() <= self.allowed
    }

    /// Judges a count.
    ///
    /// # Errors
    /// When it is outside; the message has all the numbers.
    pub fn judge(&self, what: &str, count: f64) -> anyhow::Result<()> {
        anyhow::ensure!(self.admits(count), "{what}: {count} ticks where {self}");
        Ok(())
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            n,
            expected,
            sigma,
            allowed,
        } = self;
        write!(
            f,
            "{expected:.1} ± {allowed:.1} were expected (n = {n:.0}, σ = {sigma:.1})"
        )
    }
}

/// Two samples of one load: `count` of `n` in each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Count and number of ticks of the first.
    pub first: (f64, f64),
    /// Count and number of ticks of the second.
    pub second: (f64, f64),
}

impl Pair {
    /// Returns the shares of the first and the second.
    pub fn shares(&self) -> (f64, f64) {
        (self.first.0 / self.first.1, self.second.0 / self.second.1)
    }

    /// Returns the standard deviation of the difference of the shares, if both are samples of the
    /// same one.
    pub fn sigma(&self) -> f64 {
        let p = (self.first.0 + self.second.0) / (self.first.1 + self.second.1);
        (p * (1.0 - p) * (1.0 / self.first.1 + 1.0 / self.second.1)).sqrt()
    }

    /// Returns the greatest difference that is allowed between the shares.
    pub fn allowed(&self) -> f64 {
        MAX_SIGMAS * self.sigma() + SLACK_TICKS / self.first.1 + SLACK_TICKS / self.second.1
    }

    /// Returns whether both can be samples of the same share.
    pub fn agree(&self) -> bool {
        let (first, second) = self.shares();
        (first - second).abs() <= self.allowed()
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.shares();
        write!(
            f,
            "{:.2} % of {:.0} against {:.2} % of {:.0} (σ of the difference {:.2} %, allowed {:.2} %)",
            first * 100.0,
            self.first.1,
            second * 100.0,
            self.second.1,
            self.sigma() * 100.0,
            self.allowed() * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;

    /// Probability that a binomial count falls outside the band: the sum of the terms outside.
    fn outside(n: u32, p: f64) -> f64 {
        let band = Band::of(f64::from(n), p);
        let mut log_choose = 0.0;
        let mut sum = 0.0;
        for k in 0..=n {
            if !band.admits(f64::from(k)) {
                sum += (log_choose + f64::from(k) * p.ln() + f64::from(n - k) * (-p).ln_1p()).exp();
            }
            log_choose += f64::from(n - k).ln() - f64::from(k + 1).ln();
        }
        sum
    }

    #[test]
    fn a_correct_profiler_fails_less_than_once_in_a_million() {
        for n in [10, 100, 1000, 8000] {
            for p in [1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.99, 0.999] {
                let probability = outside(n, p);
                assert!(probability < 1e-6, "n = {n}, p = {p}: {probability:e}");
            }
        }
    }

    #[test]
    fn a_wrong_one_fails() {
        // Ten percent too few of five thousand.
        assert!(!Band::of(5000.0, 0.8).admits(3600.0));
        assert!(Band::of(5000.0, 0.8).admits(4000.0 - 141.0));
        // All of the time is all of the ticks.
        assert!(!Band::of(5000.0, 1.0).admits(4995.0));
        assert!(
            Band::of(5000.0, 1.0)
                .judge("all", 4000.0)
                .unwrap_err()
                .to_string()
                .contains("n = 5000, σ = 0.0")
        );
    }

    /// Stints of half an interval each are counted or not, as it happens.
    #[test]
    fn many_short_intervals_are_counted_less_exactly() {
        const STINTS: u64 = 160;
        let whole = STINTS as f64 / 2.0;
        let (one, many) = (
            Band::time(whole, whole, 1.0),
            Band::time(whole, whole, 1.0).with_stints(STINTS as f64),
        );
        let mut random = SplitMix(1);
        let counts = std::iter::repeat_with(|| (0..STINTS).map(|_| random.below(2)).sum::<u64>());
        let counts: Vec<f64> = counts.take(20_000).map(|count| count as f64).collect();
        assert!(counts.iter().all(|count| many.admits(*count)));
        assert!(counts.iter().any(|count| !one.admits(*count)));
    }

    #[test]
    fn two_samples_are_compared_by_both_sizes() {
        assert!(
            Pair {
                first: (500.0, 5000.0),
                second: (90.0, 1000.0)
            }
            .agree()
        );
        assert!(
            !Pair {
                first: (500.0, 5000.0),
                second: (200.0, 1000.0)
            }
            .agree()
        );
    }
}
