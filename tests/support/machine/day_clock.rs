//! The wall clock, set for a check. Dropping this value restores it as if it had never been set.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

/// The clock of the day, by what it is ahead of CLOCK_MONOTONIC, which cannot be set.
#[derive(Debug)]
pub struct DayClock {
    ahead: Duration,
}

impl DayClock {
    /// Notes what time it is.
    ///
    /// # Errors
    /// When the clocks cannot be read.
    pub fn look() -> Result<Self> {
        let wall = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME)?);
        let ahead = wall - Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        Ok(Self { ahead })
    }

    /// Sets it so much ahead of the right time.
    ///
    /// # Errors
    /// When this process may not.
    pub fn set_ahead(&self, step: Duration) -> Result<()> {
        let monotonic = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
        let wall = TimeSpec::from_duration(monotonic + self.ahead + step);
        clock_settime(ClockId::CLOCK_REALTIME, wall).context("the clock of the day cannot be set")
    }
}

impl Drop for DayClock {
    fn drop(&mut self) {
        let _ = self.set_ahead(Duration::ZERO);
    }
}
