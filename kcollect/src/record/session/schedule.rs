//! What is due when, by the clock.

use std::time::Duration;

use experiment_format::units::Nanos;
use host::machine::after;

use crate::plan::Timing;

/// When a recording does what the plan says.
#[derive(Debug)]
pub(super) struct Schedule {
    /// When data are recorded from (`-t`), until that time has come.
    start_ns: Option<Nanos>,
    end_ns: Option<Nanos>,
    samples: Option<Periodic>,
    rotations: Option<Periodic>,
}

/// What is due once a period.
#[derive(Clone, Copy, Debug)]
struct Periodic {
    period_ns: Nanos,
    next_ns: Nanos,
}

impl Schedule {
    /// The schedule of a recording that could first start at `started_ns`, whose experiments follow
    /// each other after `rotate`.
    pub(super) fn new(timing: Timing, rotate: Option<Duration>, started_ns: Nanos) -> Schedule {
        let periodic = |period| Periodic::new(started_ns, period);
        Schedule {
            start_ns: (!timing.start.is_zero()).then(|| after(started_ns, timing.start)),
            end_ns: timing.end.map(|end| after(started_ns, end)),
            samples: timing.sample_period.map(periodic),
            rotations: rotate.map(periodic),
        }
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let next = |periodic: Periodic| periodic.next_ns;
        let (sample, rotation) = (self.samples.map(next), self.rotations.map(next));
        let due = [self.start_ns, self.end_ns, sample, rotation];
        due.into_iter().flatten().min()
    }

    /// Whether it is time to start recording data (`-t`). True once.
    pub(super) fn take_start(&mut self, time_ns: Nanos) -> bool {
        self.start_ns.take_if(|start| time_ns >= *start).is_some()
    }

    /// Whether it is time to end the recording (`-t`).
    pub(super) fn is_over(&self, time_ns: Nanos) -> bool {
        self.end_ns.is_some_and(|end| time_ns >= end)
    }

    /// Whether a sample is due (`-S`). True once for each.
    pub(super) fn take_sample(&mut self, time_ns: Nanos) -> bool {
        self.samples
            .as_mut()
            .is_some_and(|samples| samples.take(time_ns))
    }

    /// Whether the next experiment is due (`--rotate`). True once for each.
    pub(super) fn take_rotation(&mut self, time_ns: Nanos) -> bool {
        self.rotations
            .as_mut()
            .is_some_and(|rotations| rotations.take(time_ns))
    }

    /// Makes the next experiment of a series due. Returns whether there is a series.
    pub(super) fn rotate_at(&mut self, time_ns: Nanos) -> bool {
        if let Some(rotations) = &mut self.rotations {
            rotations.next_ns = time_ns;
        }
        self.rotations.is_some()
    }
}

impl Periodic {
    fn new(started_ns: Nanos, period: Duration) -> Periodic {
        Periodic {
            period_ns: Nanos::from(period).max(Nanos(1)),
            next_ns: after(started_ns, period),
        }
    }

    /// Whether it is due. The next time is on the grid of this one, however late it is taken.
    fn take(&mut self, time_ns: Nanos) -> bool {
        if time_ns < self.next_ns {
            return false;
        }
        let passed = (time_ns - self.next_ns) / self.period_ns;
        let step_ns = self.period_ns.saturating_mul(passed + 1);
        self.next_ns = self.next_ns.saturating_add(step_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periodic(next_ns: Nanos) -> Periodic {
        Periodic {
            period_ns: Nanos(10),
            next_ns,
        }
    }

    #[test]
    fn what_is_late_moves_none_after_it() {
        for (time, next) in [(100, 110), (109, 110), (110, 120), (137, 140)] {
            let mut periodic = periodic(Nanos(100));
            assert!(periodic.take(Nanos(time)));
            assert_eq!(periodic.next_ns, Nanos(next));
            assert!(!periodic.take(Nanos(time)));
        }
        assert!(!periodic(Nanos(100)).take(Nanos(99)));
    }

    #[test]
    fn the_last_time_is_never_past() {
        let mut last = periodic(Nanos(u64::MAX - 5));
        assert!(last.take(Nanos::MAX));
        assert_eq!(last.next_ns, Nanos::MAX);
    }
}
