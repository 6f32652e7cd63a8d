//! Puts traced events in the place of ticks, so that pictures and exports draw them as they are.

use experiment_format::microstate::Microstate;
use host::exit::{ExitKind, Failure};

use super::{Model, TickRow};

/// A kind of events that a recording traces on request, each with its time and stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedEvents {
    /// Waits for locks (`-s`).
    Locks,
    /// System calls that do I/O (`-i`).
    Io,
    /// Memory that was allocated (`-H`). It takes no time, so it is not shown in place of ticks.
    Memory,
}

impl TracedEvents {
    /// Returns the name of the events, for titles.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            TracedEvents::Locks => "waits for locks",
            TracedEvents::Io => "calls that do I/O",
            TracedEvents::Memory => "allocations",
        }
    }

    /// Returns a metric that an experiment has if these events were traced.
    fn metric(self) -> &'static str {
        match self {
            TracedEvents::Locks => "sync",
            TracedEvents::Io => "ioreadtime",
            TracedEvents::Memory => "heapallocbytes",
        }
    }

    /// Returns the state in whose place the events are shown. A call that does I/O is blocked,
    /// mostly.
    fn state(self) -> Microstate {
        match self {
            TracedEvents::Locks => Microstate::UserLock,
            TracedEvents::Io | TracedEvents::Memory => Microstate::Sleep,
        }
    }
}

impl Model {
    /// Checks that events were traced in one of the experiments.
    ///
    /// # Errors
    /// When they were not.
    pub fn require(&self, events: TracedEvents) -> Result<(), Failure> {
        if self.has(events) {
            return Ok(());
        }
        let (what, cure) = match events {
            TracedEvents::Locks => (
                "no waits for locks were traced",
                "record them with -s on, of a load or of the processes of -T or -F =REGEXP",
            ),
            TracedEvents::Io => (
                "no I/O was traced",
                "record it with -i on, of a load or of the processes of -T or -F =REGEXP",
            ),
            TracedEvents::Memory => (
                "no memory was traced",
                "record it with -H growth, of a load or of the processes of -T or -F =REGEXP",
            ),
        };
        Err(Failure::new(ExitKind::Empty, what, cure))
    }

    /// Returns whether events were traced in one of the experiments.
    #[must_use]
    pub fn has(&self, events: TracedEvents) -> bool {
        let mut metrics = self.counters.iter();
        metrics.any(|metric| metric.name == events.metric())
    }

    /// Puts traced events in the place of the ticks: each is a row in one state, whose ticks are
    /// microseconds. What is shorter than a microsecond counts as one.
    ///
    /// # Errors
    /// As [`Model::require`].
    pub fn show(&mut self, events: TracedEvents) -> Result<(), Failure> {
        self.require(events)?;
        self.shows = Some(events);
        for info in &mut self.experiments {
            info.tick_us = 1;
        }
        let rows = |(row, duration_ns): (TickRow, i64)| {
            let micros = duration_ns.max(0).cast_unsigned().div_ceil(1000).max(1);
            pieces(micros).map(move |ticks| TickRow {
                ticks,
                state: events.state() as u8,
                ..row
            })
        };
        self.rows = match events {
            TracedEvents::Locks => {
                let waits = self.waits.iter();
                waits
                    .flat_map(|wait| rows((wait.row, wait.duration_ns)))
                    .collect()
            }
            TracedEvents::Io => {
                let calls = self.io_calls.iter();
                calls
                    .flat_map(|call| rows((call.row, call.duration_ns)))
                    .collect()
            }
            TracedEvents::Memory => Vec::new(),
        };
        Ok(())
    }
}

/// Returns parts of a number, each of which is no more than a row can hold: a wait may be longer
/// than half an hour.
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
