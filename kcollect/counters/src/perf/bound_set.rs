//! A set of counters that is bound to a target: it is read, restarted and released, and returns the
//! overflows of its counters.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use host::machine::now;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::perf::counter::OpenCounter;
use crate::perf::overflow::{OverflowRecord, OverflowRing};
use crate::perf::reading::{CounterValue, SetReading};

/// A set of open counters, made by [`CounterSet::bind`](crate::perf::set::CounterSet::bind).
#[derive(Debug)]
pub struct BoundSet {
    pub(crate) presets: Vec<u64>,
    /// For each thread, one counter for each request.
    pub(crate) counters: Vec<Vec<OpenCounter>>,
    pub(crate) overflow_rings: Vec<(usize, OverflowRing)>,
    pending: RefCell<PendingOverflows>,
}

/// Overflows that were read from rings.
#[derive(Debug, Default)]
struct PendingOverflows {
    /// Those not yet returned, each with the number of its request.
    overflows: Vec<(usize, OverflowRecord)>,
    /// Requests whose counters have stopped since they were enabled.
    stopped: BTreeSet<usize>,
}

impl BoundSet {
    pub(crate) fn new(presets: Vec<u64>) -> BoundSet {
        BoundSet {
            presets,
            counters: Vec::new(),
            overflow_rings: Vec::new(),
            pending: RefCell::default(),
        }
    }

    /// Reads what was counted so far, by all threads together, with the presets.
    ///
    /// # Errors
    /// The error of `read(2)`. Counts of threads that have exited remain readable.
    pub fn read(&self) -> io::Result<SetReading> {
        let mut reading = SetReading::zero(self.presets.len());
        reading.time_ns = now();
        for row in &self.counters {
            for (value, counter) in reading.values.iter_mut().zip(row) {
                *value = value.plus(counter.read()?);
            }
        }
        for (value, preset) in reading.values.iter_mut().zip(&self.presets) {
            *value = value.plus(CounterValue {
                count: *preset,
                ..CounterValue::default()
            });
        }
        Ok(reading)
    }

    /// Starts or continues to count. A counter that has stopped at its overflow stops next after
    /// the number of events that its preset defines.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn enable(&self) -> io::Result<()> {
        let stopped = self.take_stopped();
        for (number, counter) in self.numbered() {
            if stopped.contains(&number) {
                counter.refresh()?
            } else {
                counter.enable()?
            }
        }
        Ok(())
    }

    /// Stops counting.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn disable(&self) -> io::Result<()> {
        self.numbered()
            .try_for_each(|(_, counter)| counter.disable())
    }

    /// Starts all counters again from their presets, as after an overflow.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn restart(&self) -> io::Result<()> {
        self.disable()?;
        for (number, counter) in self.numbered() {
            counter.reset()?;
            if self.overflow_rings.iter().any(|(ring, _)| *ring == number) {
                counter.set_period(0_u64.wrapping_sub(self.presets[number]))?;
            }
        }
        self.enable()
    }

    /// Returns the requests whose counters have stopped since they were enabled.
    fn take_stopped(&self) -> BTreeSet<usize> {
        std::mem::take(&mut self.read_rings().stopped)
    }

    fn read_rings(&self) -> RefMut<'_, PendingOverflows> {
        let mut pending = self.pending.borrow_mut();
        for (number, ring) in &self.overflow_rings {
            for overflow in ring.take() {
                pending.overflows.push((*number, overflow));
                pending.stopped.insert(*number);
            }
        }
        pending
    }

    /// Returns descriptors that become readable when a counter has overflowed, and hang up when a
    /// thread has exited.
    pub fn overflow_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.overflow_rings.iter().map(|(_, ring)| ring.as_fd())
    }

    /// Returns the overflows since the last call, each with the number of its request. It does not
    /// wait.
    pub fn overflows(&self) -> Vec<(usize, OverflowRecord)> {
        std::mem::take(&mut self.read_rings().overflows)
    }

    /// Waits for an overflow, up to `timeout` in whole milliseconds. Returns none at the timeout,
    /// or when a thread has exited.
    ///
    /// # Errors
    /// The error of `poll(2)`.
    pub fn wait(&self, timeout: Duration) -> io::Result<Vec<(usize, OverflowRecord)>> {
        let fds = self.overflow_fds();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll(
            &mut fds,
            PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
        )?;
        Ok(self.overflows())
    }

    /// Closes the counters.
    pub fn release(self) {}

    /// Returns each counter with the number of its request.
    fn numbered(&self) -> impl Iterator<Item = (usize, &OpenCounter)> {
        self.counters.iter().flat_map(|row| row.iter().enumerate())
    }
}

/// Makes a counter stop at its next overflow, and leaves it disabled and at zero.
pub(crate) fn stop_at_overflow(counter: &OpenCounter, period: u64) -> io::Result<()> {
    counter.refresh()?;
    counter.disable()?;
    counter.reset()?;
    counter.set_period(period)
}
