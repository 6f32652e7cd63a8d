//! A set that counts: sampled, restarted, released, and heard of when a counter overflows.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use host::machine::now;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::perf::counter::Counter;
use crate::perf::overflow::{Alarm, Overflow};
use crate::perf::reading::{Sample, Value};

/// Counters that are held; made by [`Set::bind`](crate::perf::set::Set::bind).
#[derive(Debug)]
pub struct Bound {
    pub(crate) presets: Vec<u64>,
    /// One row for each thread, one counter for each request.
    pub(crate) counters: Vec<Vec<Counter>>,
    pub(crate) alarms: Vec<(usize, Alarm)>,
    told: RefCell<Told>,
}

/// What was heard of overflows.
#[derive(Debug, Default)]
struct Told {
    /// Heard, and not yet given away.
    waiting: Vec<(usize, Overflow)>,
    /// Requests whose counters have stopped. Who enables them has to tell them to stop once more.
    stopped: BTreeSet<usize>,
}

impl Bound {
    pub(crate) fn of(presets: Vec<u64>) -> Bound {
        Bound {
            presets,
            counters: Vec::new(),
            alarms: Vec::new(),
            told: RefCell::default(),
        }
    }

    /// What was counted so far, of all threads together, with the presets.
    ///
    /// # Errors
    /// What `read(2)` says. A thread's end is none: its counts stay.
    pub fn sample(&self) -> io::Result<Sample> {
        let mut sample = Sample::zero(self.presets.len());
        sample.time_ns = now();
        for row in &self.counters {
            for (value, counter) in sample.values.iter_mut().zip(row) {
                *value = value.plus(counter.read()?);
            }
        }
        for (value, preset) in sample.values.iter_mut().zip(&self.presets) {
            *value = value.plus(Value {
                count: *preset,
                ..Value::default()
            });
        }
        Ok(sample)
    }

    /// Begins to count, or goes on. What has stopped at its overflow stops next after as many as
    /// its preset says.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    pub fn enable(&self) -> io::Result<()> {
        let stopped = self.listen();
        for (number, counter) in self.numbered() {
            match stopped.contains(&number) {
                true => counter.refresh()?,
                false => counter.enable()?,
            }
        }
        Ok(())
    }

    /// Stops to count.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    pub fn disable(&self) -> io::Result<()> {
        self.numbered()
            .try_for_each(|(_, counter)| counter.disable())
    }

    /// Everything from the presets on, again: what to do after an overflow.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    pub fn restart(&self) -> io::Result<()> {
        self.disable()?;
        for (number, counter) in self.numbered() {
            counter.reset()?;
            if self.alarms.iter().any(|(alarmed, _)| *alarmed == number) {
                counter.set_period(0_u64.wrapping_sub(self.presets[number]))?;
            }
        }
        self.enable()
    }

    /// Hears what there is, and gives the requests whose counters have stopped since they were
    /// enabled.
    fn listen(&self) -> BTreeSet<usize> {
        std::mem::take(&mut self.hear().stopped)
    }

    fn hear(&self) -> RefMut<'_, Told> {
        let mut told = self.told.borrow_mut();
        for (number, alarm) in &self.alarms {
            for overflow in alarm.take() {
                told.waiting.push((*number, overflow));
                told.stopped.insert(*number);
            }
        }
        told
    }

    /// Each becomes readable when its counter has overflowed; and hangs up when its thread has
    /// ended.
    pub fn alarms(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.alarms.iter().map(|(_, alarm)| alarm.as_fd())
    }

    /// The overflows since the last call, each with the number of its request. It does not wait.
    pub fn overflows(&self) -> Vec<(usize, Overflow)> {
        std::mem::take(&mut self.hear().waiting)
    }

    /// Waits for an overflow, at most so long, whole milliseconds. Gives none when the time is over
    /// or a thread has ended.
    ///
    /// # Errors
    /// What `poll(2)` says.
    pub fn wait(&self, timeout: Duration) -> io::Result<Vec<(usize, Overflow)>> {
        let fds = self.alarms();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        poll(
            &mut fds,
            PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
        )?;
        Ok(self.overflows())
    }

    /// Gives the counters back.
    pub fn release(self) {}

    /// Each counter with the number of its request.
    fn numbered(&self) -> impl Iterator<Item = (usize, &Counter)> {
        self.counters.iter().flat_map(|row| row.iter().enumerate())
    }
}

/// Makes a counter stop at its next overflow, and leaves it disabled and at zero.
pub(crate) fn arm(counter: &Counter, period: u64) -> io::Result<()> {
    counter.refresh()?;
    counter.disable()?;
    counter.reset()?;
    counter.set_period(period)
}
