//! Replaces ticks by traced events, so that pictures and exports draw them like ticks.

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
    /// Memory that was allocated (`-H`), by its bytes.
    Allocated,
    /// The part of it that was not freed by the end.
    Live,
}

/// What the rows of a model add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownUnit {
    /// Microseconds.
    Time,
    /// Bytes, instead of microseconds.
    Bytes,
}

impl ShownUnit {
    /// Returns a sum with its unit, for people.
    #[must_use]
    pub fn amount(self, sum: i64) -> String {
        match self {
            ShownUnit::Time => format!("{:.3} seconds", sum as f64 / 1e6),
            ShownUnit::Bytes => format!("{sum} bytes"),
        }
    }
}

impl TracedEvents {
    /// Returns the name of the events, for titles.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            TracedEvents::Locks => "waits for locks",
            TracedEvents::Io => "calls that do I/O",
            TracedEvents::Allocated => "allocations",
            TracedEvents::Live => "memory that is not freed",
        }
    }

    /// Returns what their rows add up to.
    #[must_use]
    pub fn unit(self) -> ShownUnit {
        match self {
            TracedEvents::Locks | TracedEvents::Io => ShownUnit::Time,
            TracedEvents::Allocated | TracedEvents::Live => ShownUnit::Bytes,
        }
    }

    /// Returns a metric that an experiment has if these events were traced.
    fn metric(self) -> &'static str {
        match self {
            TracedEvents::Locks => "sync",
            TracedEvents::Io => "ioreadtime",
            TracedEvents::Allocated | TracedEvents::Live => "heapallocbytes",
        }
    }

    /// Returns the state in whose place the events are shown. A call that does I/O is blocked,
    /// mostly; memory has none, and is shown without.
    fn state(self) -> Microstate {
        match self {
            TracedEvents::Locks => Microstate::UserLock,
            TracedEvents::Io => Microstate::Sleep,
            TracedEvents::Allocated | TracedEvents::Live => Microstate::User,
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
        let (what, hint) = match events {
            TracedEvents::Locks => (
                "no waits for locks were traced",
                "record them with -s on, of a load or of the processes of -T or -F =REGEXP",
            ),
            TracedEvents::Io => (
                "no I/O was traced",
                "record it with -i on, of a load or of the processes of -T or -F =REGEXP",
            ),
            TracedEvents::Allocated | TracedEvents::Live => (
                "no memory was traced",
                "record it with -H on, of a load or of the processes of -T or -F =REGEXP",
            ),
        };
        Err(Failure::new(ExitKind::Empty, what, hint))
    }

    /// Returns whether events were traced in one of the experiments.
    #[must_use]
    pub fn has(&self, events: TracedEvents) -> bool {
        let mut metrics = self.counters.iter();
        metrics.any(|metric| metric.name == events.metric())
    }

    /// Returns what its rows add up to.
    #[must_use]
    pub fn unit(&self) -> ShownUnit {
        self.shows.map_or(ShownUnit::Time, TracedEvents::unit)
    }

    /// Replaces the ticks by traced events: each is a row in one state, whose ticks are
    /// microseconds, or bytes. An event shorter than a microsecond counts as one.
    ///
    /// # Errors
    /// As [`Model::require`], and when no memory is left.
    pub fn show(&mut self, events: TracedEvents) -> Result<(), Failure> {
        self.require(events)?;
        self.shows = Some(events);
        self.weighed = false;
        for info in &mut self.experiments {
            info.tick_us = 1;
        }
        let micros = |ns: i64| ns.max(0).cast_unsigned().div_ceil(1000).max(1);
        let (waits, calls) = (self.waits.iter(), self.io_calls.iter());
        let blocks = self.allocations.iter();
        let amounts: Box<dyn Iterator<Item = (TickRow, u64)>> = match events {
            TracedEvents::Locks => Box::new(waits.map(|wait| (wait.row, micros(wait.duration_ns)))),
            TracedEvents::Io => Box::new(calls.map(|call| (call.row, micros(call.duration_ns)))),
            TracedEvents::Allocated => Box::new(blocks.map(|block| (block.row, block.bytes))),
            TracedEvents::Live => Box::new(blocks.map(|block| (block.row, block.live_bytes))),
        };
        let state = events.state() as u8;
        let rows = amounts.flat_map(|(row, amount)| {
            pieces(amount).map(move |ticks| TickRow {
                ticks,
                micros: ticks.into(),
                state,
                ..row
            })
        });
        self.rows = rows.collect();
        if events == TracedEvents::Live && self.rows.is_empty() {
            return Err(Failure::new(
                ExitKind::Empty,
                "all memory that was allocated was freed, too",
                "type --allocated to see where it came from",
            ));
        }
        Ok(())
    }
}

/// Splits a number into parts that fit into a row: a wait may be longer than half an hour.
pub(crate) fn pieces(mut number: u64) -> impl Iterator<Item = i32> {
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
