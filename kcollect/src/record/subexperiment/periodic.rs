//! Which periodic samples of a followed process are written.
//!
//! A machine has hundreds of processes that wake up now and then. A sample of each, every second,
//! would be a fifth of an experiment, for times that hardly change. So a periodic sample is left
//! out while the process has been on a CPU, waiting for one, or in page faults for less than
//! [`MIN_ACTIVE`] since the last one that was written, but at most [`MAX_LEFT_OUT`] times in
//! succession. The times of a sample are sums since the beginning, so none are lost: the next
//! sample has them. All other samples are written.

use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use experiment_format::usage::UsageRecord;

/// The label of a periodic sample.
pub const PERIODIC: &str = "periodic";
/// The active time for which a sample is due: a tick of `-p on`.
const MIN_ACTIVE: Nanos = Nanos::from_millis(10);
/// The most samples that are left out one after the other.
const MAX_LEFT_OUT: u32 = 9;

/// What the last sample had that was written, and how many were left out since.
#[derive(Debug, Default)]
pub(super) struct PeriodicSamples {
    active: Nanos,
    threads: u32,
    left_out: u32,
}

impl PeriodicSamples {
    /// Returns whether a periodic sample is to be written.
    pub(super) fn is_due(&mut self, usage: &UsageRecord) -> bool {
        let since = active(usage).saturating_sub(self.active);
        let due =
            since >= MIN_ACTIVE || usage.threads != self.threads || self.left_out >= MAX_LEFT_OUT;
        if !due {
            self.left_out += 1;
        }
        due
    }

    /// Notes a sample that is written.
    pub(super) fn written(&mut self, usage: &UsageRecord) {
        *self = PeriodicSamples {
            active: active(usage),
            threads: usage.threads,
            left_out: 0,
        };
    }
}

/// Returns the time in which threads were not blocked for a lock, asleep or stopped.
fn active(usage: &UsageRecord) -> Nanos {
    let states = Microstate::ALL.iter().zip(usage.states_ns);
    let active = states.filter(|(state, _)| {
        !matches!(
            state,
            Microstate::UserLock | Microstate::Sleep | Microstate::Stopped
        )
    });
    active.map(|(_, ns)| ns).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws the samples of a process, one for each character of `ms`, which is for how many
    /// milliseconds it was on a CPU since the one before: `x` those that are written.
    fn drawn(ms: &str, state: Microstate, threads: impl Fn(usize) -> u32) -> String {
        let mut samples = PeriodicSamples::default();
        let mut usage = UsageRecord::default();
        let written = ms.chars().enumerate().map(|(at, ms)| {
            let ms = ms.to_digit(36).map_or(0, u64::from);
            usage.states_ns[state as usize] += Nanos::from_millis(ms);
            usage.threads = threads(at);
            let due = samples.is_due(&usage);
            if due {
                samples.written(&usage);
            }
            if due { 'x' } else { '.' }
        });
        written.collect()
    }

    #[test]
    fn a_sample_is_due_after_ten_milliseconds_or_ten_samples() {
        let one = |ms, state| drawn(ms, state, |_| 1);
        assert_eq!(
            one("a0000000000000000000000a9109a5", Microstate::System),
            "x.........x.........x..x.x..x."
        );
        assert_eq!(one("111111111111", Microstate::WaitCpu), "x.........x.");
        assert_eq!(one("zzzzzzzzzzzz", Microstate::DataFault), "xxxxxxxxxxxx");
        for blocked in [Microstate::UserLock, Microstate::Sleep, Microstate::Stopped] {
            assert_eq!(one("zzzzzzzzzzzz", blocked), "x.........x.");
        }
    }

    #[test]
    fn a_sample_is_due_where_threads_begin_or_end() {
        let threads = |at| if (3..5).contains(&at) { 2 } else { 1 };
        assert_eq!(drawn("0000000", Microstate::Sleep, threads), "x..x.x.");
    }
}
