//! Repeated attempts to open a counter that another program has for itself.
//!
//! The manual of libcpc advises programs to release their counters, sleep for a while and bind
//! again. Here a set that was refused holds no counters. The sleep doubles with each attempt, since
//! programs hold a counter for seconds or for days.

use std::thread::sleep;
use std::time::Duration;

use crate::perf::refusal::Refusal;

/// How often an attempt is repeated, and after which pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The number of attempts, including the first.
    pub attempts: u32,
    /// The pause before the second attempt. It doubles before each further one.
    pub pause: Duration,
}

impl RetryPolicy {
    /// About three seconds in all.
    pub const DEFAULT: RetryPolicy = RetryPolicy {
        attempts: 6,
        pause: Duration::from_millis(100),
    };

    /// Repeats an attempt until it succeeds, is refused for a permanent reason, or was made
    /// `attempts` times.
    ///
    /// # Errors
    /// The last refusal.
    pub fn run<T>(self, attempt: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.run_with(attempt, sleep)
    }

    fn run_with<T>(
        self,
        mut attempt: impl FnMut() -> Result<T, Refusal>,
        mut sleep: impl FnMut(Duration),
    ) -> Result<T, Refusal> {
        let mut pause = self.pause;
        for _ in 1..self.attempts {
            match attempt() {
                Err(refusal) if refusal.is_temporary() => sleep(pause),
                done => return done,
            }
            pause *= 2;
        }
        attempt()
    }
}

#[cfg(test)]
mod tests {
    use types::ids::Tid;

    use super::*;

    fn busy() -> Refusal {
        Refusal::Busy {
            event: "cycles".to_owned(),
        }
    }

    #[test]
    fn pauses_double() {
        let mut answers = vec![Ok(7), Err(busy()), Err(busy())];
        let mut slept = Vec::new();
        let bound = RetryPolicy::DEFAULT.run_with(
            || answers.pop().unwrap(),
            |pause| slept.push(pause.as_millis()),
        );
        assert_eq!(bound, Ok(7));
        assert_eq!(slept, [100, 200]);
    }

    #[test]
    fn permanent_refusals_are_returned_at_once_and_busy_ones_at_last() {
        let mut slept = 0;
        let missing = Refusal::NoThread { tid: Tid(7) };
        let attempt = || Err::<(), _>(missing.clone());
        let bound = RetryPolicy::DEFAULT.run_with(attempt, |_| slept += 1);
        assert_eq!((bound, slept), (Err(missing), 0));
        let attempt = || Err::<(), _>(busy());
        let bound = RetryPolicy::DEFAULT.run_with(attempt, |_| slept += 1);
        assert_eq!((bound, slept), (Err(busy()), 5));
    }
}
