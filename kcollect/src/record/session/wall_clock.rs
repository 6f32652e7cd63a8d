//! Watches the clock of the day.
//!
//! The times of an experiment are of CLOCK_MONOTONIC; its start has the time of the day too, and
//! `--at` computes all other times from it. If the clock is set meanwhile, or the machine slept,
//! that is wrong for the rest of the experiment. So a series then continues in the next experiment.

use std::time::{SystemTime, UNIX_EPOCH};

use host::machine::now;

/// The least change that is a step, nanoseconds. A clock that is adjusted gradually changes by a
/// tenth of a millisecond from one look to the next.
const MIN_STEP_NS: i128 = 500_000_000;

/// What the clock of the day is ahead of CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct WallClock {
    ahead_ns: i128,
}

impl WallClock {
    /// Returns what it is now.
    pub(super) fn look() -> WallClock {
        let monotonic = i128::from(now().0);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall_ns = wall.map_or(0, |wall| wall.as_nanos().cast_signed());
        WallClock {
            ahead_ns: wall_ns - monotonic,
        }
    }

    /// Compares it with another look, later. Returns by how many seconds the clock of the day was
    /// set forward, or back where it is negative, if it was.
    pub(super) fn step(&mut self, later: WallClock) -> Option<f64> {
        let before = std::mem::replace(self, later);
        let step_ns = self.ahead_ns - before.ahead_ns;
        (step_ns.abs() >= MIN_STEP_NS).then_some(step_ns as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_seen_once_and_one_that_drifts_is_not() {
        let look = |ahead_ns| WallClock { ahead_ns };
        let mut clock = look(1_000_000_000);
        assert_eq!(clock.step(look(1_400_000_000)), None);
        assert_eq!(clock.step(look(1_800_000_000)), None);
        assert_eq!(clock.step(look(4_300_000_000)), Some(2.5));
        assert_eq!(clock.step(look(4_300_000_000)), None);
        assert_eq!(clock.step(look(-700_000_000)), Some(-5.0));
    }

    #[test]
    fn the_clock_of_this_machine_does_not_step_between_two_looks() {
        let mut clock = WallClock::look();
        assert_eq!(clock.step(WallClock::look()), None);
    }
}
