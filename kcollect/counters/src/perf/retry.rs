//! Waiting for a counter that somebody else holds.
//!
//! libcpc's pages advise robust programs to give up what they have, sleep for a while and bind
//! again. Here a set that could not be bound holds nothing, so what is left is to sleep: twice as
//! long each time, since whoever holds a counter holds it for seconds or for days.

use std::thread::sleep;
use std::time::Duration;

use crate::perf::refusal::Refusal;

/// How often, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Attempts, the first one included.
    pub attempts: u32,
    /// Before the second attempt. Before each further one it is twice as long as before the last.
    pub pause: Duration,
}

impl Patience {
    /// Some three seconds in all.
    pub const USUAL: Patience = Patience {
        attempts: 6,
        pause: Duration::from_millis(100),
    };

    /// Tries until it succeeds, is refused for a reason that stays, or has been tried often enough.
    ///
    /// # Errors
    /// The last refusal.
    pub fn bind<T>(self, attempt: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.bind_with(attempt, sleep)
    }

    fn bind_with<T>(
        self,
        mut attempt: impl FnMut() -> Result<T, Refusal>,
        mut sleep: impl FnMut(Duration),
    ) -> Result<T, Refusal> {
        let mut pause = self.pause;
        for _ in 1..self.attempts {
            match attempt() {
                Err(refusal) if refusal.passes() => sleep(pause),
                done => return done,
            }
            pause *= 2;
        }
        attempt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Refusal {
        Refusal::Busy {
            event: "cycles".to_owned(),
        }
    }

    #[test]
    fn a_busy_counter_is_waited_for_longer_each_time() {
        let mut answers = vec![Ok(7), Err(busy()), Err(busy())];
        let mut slept = Vec::new();
        let bound = Patience::USUAL.bind_with(
            || answers.pop().unwrap(),
            |pause| slept.push(pause.as_millis()),
        );
        assert_eq!(bound, Ok(7));
        assert_eq!(slept, [100, 200]);
    }

    #[test]
    fn what_stays_is_said_at_once_and_what_is_busy_at_last() {
        let mut slept = 0;
        let gone = Refusal::NoThread { tid: 7 };
        let attempt = || Err::<(), _>(gone.clone());
        let bound = Patience::USUAL.bind_with(attempt, |_| slept += 1);
        assert_eq!((bound, slept), (Err(gone), 0));
        let attempt = || Err::<(), _>(busy());
        let bound = Patience::USUAL.bind_with(attempt, |_| slept += 1);
        assert_eq!((bound, slept), (Err(busy()), 5));
    }
}
