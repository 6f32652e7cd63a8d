//! Starts and stops recording, and iterates over all threads.

use std::io::Read as _;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use bpf_abi::Record;
use bpf_abi::layout::ITERATOR_READ_BYTES;
use libbpf_rs::{ErrorKind, Iter, ProgramMut};

use crate::clocks::run_on;
use crate::error::step;
use crate::{Error, Programs};

/// How long before the end of recording it is set: enough for all CPUs to see the store in time.
const END_AHEAD_NS: u64 = 200_000;

impl Programs {
    /// Starts or stops recording on all CPUs. Returns the instant, by `clock`, which returns
    /// CLOCK_MONOTONIC in nanoseconds: boundaries before the start and after the end do not count,
    /// whenever a CPU counts them. [`Programs::track_threads`] or [`Programs::close_threads`] has
    /// to follow at once.
    ///
    /// # Errors
    /// [`Error::Step`] when the threads can't be iterated over, or a CPU's idle time until now
    /// can't be counted.
    pub fn set_recording(&mut self, on: bool, clock: impl Fn() -> u64) -> Result<u64, Error> {
        // The kernel keeps space for one thread's storage ready on each CPU, and makes more in an
        // interrupt: at the first context switches after the beginning it would not suffice.
        if on {
            iterate(&self.skel.progs.kc_track_all)?;
            let now = clock();
            self.begin_at(now)?;
            return Ok(now);
        }
        // Events are counted only while their overflows are recorded.
        self.counters().enable(false)?;
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(clock());
        };
        if !bss.recording {
            return Ok(clock());
        }
        let until = end_at(clock, |at| {
            // SAFETY: a reference is valid; the store is seen by programs on other CPUs.
            unsafe { std::ptr::write_volatile(&raw mut bss.until_ns, at) };
        });
        self.run_on_all(&self.skel.progs.kc_grid_settle)?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.recording = false;
        }
        // Nothing counts any more, but only after this, no program that still saw recording on runs
        // on any CPU.
        self.run_on_all(&self.skel.progs.kc_grid_settle)?;
        Ok(until)
    }

    /// Runs a program that counts boundaries, on each CPU. Programs that were running there have
    /// ended by then.
    fn run_on_all(&self, program: &ProgramMut<'_>) -> Result<(), Error> {
        for cpu in self.clocks.keys() {
            match run_on(program, *cpu) {
                // The CPU has just gone offline and has no idle time.
                Err(error) if error.kind() == ErrorKind::Other => {}
                other => other.map_err(step(format!("count the idle time of CPU {cpu}")))?,
            }
        }
        Ok(())
    }

    /// Ends an experiment while recording is on, and begins the next one at the same instant.
    /// Returns that instant, by `clock` as in [`Programs::set_recording`]. Counters are stopped
    /// until [`Programs::begin_experiment`], which has to follow at once.
    ///
    /// # Errors
    /// As [`Programs::set_recording`].
    pub fn end_experiment(&mut self, clock: impl Fn() -> u64) -> Result<u64, Error> {
        self.counters().enable(false)?;
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(clock());
        };
        let rotation = end_at(clock, |at| {
            // SAFETY: a reference is valid; the store is seen by programs on other CPUs.
            unsafe { std::ptr::write_volatile(&raw mut bss.rotation_ns, at) };
        });
        self.run_on_all(&self.skel.progs.kc_grid_rotate)?;
        Ok(rotation)
    }

    /// Returns what threads did until the rotation of [`Programs::end_experiment`], as
    /// [`Programs::close_threads`] does. The records of threads that were switched since then are
    /// in the rings. All these records have the instant of the rotation as their time.
    ///
    /// # Errors
    /// As [`Programs::close_threads`], and when a counter can't be enabled.
    pub fn begin_experiment(&mut self) -> Result<Vec<Record>, Error> {
        self.counters().enable(true)?;
        let records = self.close_threads()?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.recording_start_ns = bss.rotation_ns;
        }
        Ok(records)
    }

    /// Starts recording at an instant of CLOCK_MONOTONIC that has passed.
    fn begin_at(&mut self, at_ns: u64) -> Result<(), Error> {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(());
        };
        // Each store has to be visible after the one before it.
        bss.recording_start_ns = at_ns;
        bss.rotation_ns = at_ns;
        fence(Ordering::Release);
        bss.recording = true;
        fence(Ordering::Release);
        bss.until_ns = 0;
        self.counters().enable(true)
    }

    /// Copies stacks only to find out which table is missing, or whenever one is.
    pub fn set_few_copies(&mut self, few: bool) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.few_copies = few;
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.skel
            .maps
            .bss_data
            .as_deref()
            .is_some_and(|bss| bss.recording)
    }

    /// Begins to track all threads that exist. Call it when recording has started.
    ///
    /// # Errors
    /// [`Error::Step`] when the threads can't be iterated over.
    pub fn track_threads(&mut self) -> Result<(), Error> {
        iterate(&self.skel.progs.kc_track_all).map(drop)
    }

    /// Returns the times and counts of each living thread until an instant, CLOCK_MONOTONIC
    /// nanoseconds, that has just passed. The records of threads that have exited are in the rings.
    ///
    /// # Errors
    /// [`Error::Step`] when the threads can't be iterated over, [`Error::Record`] as
    /// [`Record::decode_all`].
    pub fn report_threads(&mut self, now_ns: u64) -> Result<Vec<Record>, Error> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.report_ns = now_ns;
        }
        iterate(&self.skel.progs.kc_report_all)
    }

    /// Closes the accounts of all living threads when recording has stopped. Returns their times
    /// and counts and the off-CPU intervals that continue.
    ///
    /// # Errors
    /// As [`Programs::report_threads`].
    pub fn close_threads(&mut self) -> Result<Vec<Record>, Error> {
        iterate(&self.skel.progs.kc_close_all)
    }
}

/// Sets the end of recording to an instant in the near future, waits for it and returns it. If the
/// instant had passed when the programs see it, because this thread was preempted, it would be too
/// late: they would have counted boundaries after it.
fn end_at(clock: impl Fn() -> u64, mut set: impl FnMut(u64)) -> u64 {
    loop {
        let until = clock() + END_AHEAD_NS;
        set(until);
        fence(Ordering::SeqCst);
        if clock() < until {
            while let left @ 1.. = until.saturating_sub(clock()) {
                std::thread::sleep(Duration::from_nanos(left));
            }
            return until;
        }
    }
}

/// Runs an iterator over all threads, and decodes what it writes.
fn iterate(program: &ProgramMut<'_>) -> Result<Vec<Record>, Error> {
    let link = program.attach().map_err(step("iterate over the threads"))?;
    let mut iterator = Iter::new(&link).map_err(step("iterate over the threads"))?;
    let (mut bytes, mut part) = (Vec::new(), [0; ITERATOR_READ_BYTES]);
    loop {
        match iterator.read(&mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Many adjacent threads had no record.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(step("iterate over the threads")(error.into())),
        }
    }
    Ok(Record::decode_all(&bytes).collect::<Result<_, _>>()?)
}
