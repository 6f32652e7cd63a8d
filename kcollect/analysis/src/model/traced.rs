//! Traced waits for locks in place of ticks, so that pictures and exports draw them as they are.

use experiment_format::microstate::Microstate;
use host::exit::{ExitKind, Failure};

use super::{Model, TickRow};

impl Model {
    /// Checks that waits for locks were traced in one of the experiments.
    ///
    /// # Errors
    /// When they were not.
    pub fn require_waits(&self) -> Result<(), Failure> {
        if self.has_waits() {
            return Ok(());
        }
        Err(Failure::new(
            ExitKind::Empty,
            "no waits for locks were traced",
            "record them with -s on, of a load or of the processes of -T or -F =REGEXP",
        ))
    }

    /// Returns whether waits for locks were traced in one of the experiments.
    #[must_use]
    pub fn has_waits(&self) -> bool {
        self.counters.iter().any(|metric| metric.name == "sync")
    }

    /// Puts the traced waits in the place of the ticks: each is a row in the state lock, whose
    /// ticks are microseconds. What is shorter than a microsecond counts as one.
    ///
    /// # Errors
    /// As [`Model::require_waits`].
    pub fn show_waits(&mut self) -> Result<(), Failure> {
        self.require_waits()?;
        self.shows_waits = true;
        for info in &mut self.experiments {
            info.tick_us = 1;
        }
        self.rows = self
            .waits
            .iter()
            .flat_map(|wait| {
                let micros = wait.nanos.max(0).cast_unsigned().div_ceil(1000).max(1);
                let row = wait.row;
                pieces(micros).map(move |ticks| TickRow {
                    ticks,
                    state: Microstate::UserLock as u8,
                    ..row
                })
            })
            .collect();
        Ok(())
    }
}

/// Returns a number as a sum of what a row has room for: a wait may be longer than half an hour.
fn pieces(mut number: u64) -> impl Iterator<Item = i32> {
    std::iter::from_fn(move || {
        let piece = i32::try_from(number).unwrap_or(i32::MAX);
        number -= u64::from(piece.unsigned_abs());
        (piece > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_several_rows() {
        let max = i32::MAX;
        assert_eq!(pieces(0).count(), 0);
        assert_eq!(pieces(7).collect::<Vec<_>>(), [7]);
        let long = u64::from(max.unsigned_abs()) * 2 + 5;
        assert_eq!(pieces(long).collect::<Vec<_>>(), [max, max, 5]);
    }
}
