//! Lengths of naps that keep no step with any clock.
//!
//! A load whose naps are all of one length, or of lengths with an order, returns to the same phase
//! of the profiler's clock after a few naps, and its ticks are then no independent samples
//! (ACCURACY.md). Lengths at random over more than one interval leave no phase the likelier one.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::prctl::set_timerslack;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(3);
/// Any number: each run of a load naps for the same lengths.
const SEED: u64 = 997;
/// The kernel may end a sleep so much later, to handle several timers at once: the least that it
/// accepts. Otherwise most naps would end together with a tick of the profiler's clock.
const TIMER_SLACK_NS: u64 = 1;

/// The lengths of a thread's naps: 1 to 3 ms.
#[derive(Debug)]
pub struct Naps(fastrand::Rng);

impl Naps {
    /// Returns the lengths, the same ones each time, and sets the calling thread's timer slack,
    /// which its threads and children inherit.
    ///
    /// # Errors
    /// When the kernel refuses the timer slack.
    pub fn new() -> Result<Naps> {
        end_exactly()?;
        Ok(Naps(fastrand::Rng::with_seed(SEED)))
    }

    /// Returns the length of the next nap.
    pub fn next_length(&mut self) -> Duration {
        SHORTEST + (LONGEST - SHORTEST).mul_f64(self.0.f64())
    }
}

/// Sets the calling thread's timer slack, which its threads and children inherit, so that a nap
/// ends when it is over.
///
/// # Errors
/// When the kernel refuses it.
pub fn end_exactly() -> Result<()> {
    set_timerslack(TIMER_SLACK_NS).context("timer slack")
}
