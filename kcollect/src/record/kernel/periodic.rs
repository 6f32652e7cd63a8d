//! Which periodic samples of a process, and of a thread, are written.
//!
//! A machine has hundreds of processes that wake up now and then. A sample of each, every second,
//! would be a third of an experiment, for times that hardly change. So a periodic sample is left
//! out while what it counts has changed by less than `MIN_CHANGE` since the last one that was
//! written, but at most `MAX_LEFT_OUT` times in succession. Times are sums since the beginning,
//! so none are lost: the next sample has them. All other samples are written.

use experiment_format::units::Nanos;

/// The label of a periodic sample.
pub const PERIODIC: &str = "periodic";
/// The change for which a sample is due: a tick of `-p on`.
const MIN_CHANGE: Nanos = Nanos::from_millis(10);
/// Max number of samples in succession that are left out.
const MAX_LEFT_OUT: u32 = 9;

/// The time of the last written sample, and how many samples were left out since.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeriodicSamples {
    time: Nanos,
    left_out: u32,
}

impl PeriodicSamples {
    /// Returns the state after a sample of this time that is written.
    #[must_use]
    pub fn written(time: Nanos) -> PeriodicSamples {
        PeriodicSamples { time, left_out: 0 }
    }

    /// Whether a periodic sample of this time has to be written.
    pub fn is_due(&mut self, time: Nanos) -> bool {
        let due = time.saturating_sub(self.time) >= MIN_CHANGE || self.left_out >= MAX_LEFT_OUT;
        if !due {
            self.left_out += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws samples, one for each digit of `ms`: how many milliseconds it comes after the one
    /// before. A written sample is an `x`.
    fn drawn(ms: &str) -> String {
        let mut samples = PeriodicSamples::default();
        let mut time = Nanos::ZERO;
        let written = ms.chars().map(|ms| {
            time += Nanos::from_millis(ms.to_digit(36).map_or(0, u64::from));
            let due = samples.is_due(time);
            if due {
                samples = PeriodicSamples::written(time);
            }
            if due { 'x' } else { '.' }
        });
        written.collect()
    }

    #[test]
    fn a_sample_is_due_after_ten_milliseconds_or_ten_samples() {
        assert_eq!(drawn("zzzzzzzzzzzz"), "xxxxxxxxxxxx");
        assert_eq!(drawn("0000000000000"), ".........x...");
        assert_eq!(drawn("a0000000000000a"), "x.........x...x");
        assert_eq!(drawn("1111111111111"), ".........x...");
        assert_eq!(drawn("555555559109a5"), ".x.x.x.x.x..x.");
    }
}
