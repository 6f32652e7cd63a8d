//! Counters that overflow: attaches the programs of `c/overflow.bpf.c` to perf events, and reads
//! how many events there were.
//!
//! A counter is a number below [`MAX_COUNTERS`](bpf_abi::layout::MAX_COUNTERS) and has an event on
//! each CPU, or, if it is a tracepoint, one event for all of them, because the kernel runs its
//! program wherever it is hit. Events count only while recording is on; their final counts are
//! compared with what the records stand for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

use libbpf_rs::{Link, MapCore as _, MapFlags, PerfEventOpts};
use perf_event_open_sys::ioctls::{DISABLE, ENABLE, RESET};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use bpf_abi::CounterStats;

use crate::error::step;
use crate::{Error, Programs};

/// The perf events of all counters.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// By counter and CPU; a tracepoint has the first CPU.
    events: BTreeMap<(u32, u32), OpenedEvent>,
    /// The counts of events that are closed, by counter.
    closed: BTreeMap<u32, Reading>,
}

#[derive(Debug)]
struct OpenedEvent {
    // Before the file, which reads what the link holds open.
    _link: Link,
    file: File,
    tracepoint: bool,
}

/// What a read of an event returns (`PERF_FORMAT_TOTAL_TIME_ENABLED`, `…_RUNNING`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct Reading {
    events: u64,
    enabled_ns: u64,
    running_ns: u64,
}

/// A counter's events by what became of them, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowCounts {
    /// All events while recording was on. Where the counter shared the hardware with others, only
    /// the events during the time in which it was scheduled.
    pub events: u64,
    /// Events that records stand for.
    pub recorded: u64,
    /// Events of records that found the ring full.
    pub lost: u64,
    /// For how long it was enabled, of all CPUs together.
    pub enabled_ns: u64,
    /// For how long it was scheduled: less where the hardware was shared.
    pub running_ns: u64,
}

/// The counters that overflow.
#[derive(Debug)]
pub struct OverflowCounters<'a> {
    pub(crate) programs: &'a mut Programs,
}

impl OverflowCounters<'_> {
    /// Attaches a counter's event on a CPU, which has to be disabled. It counts from the next
    /// [`Programs::set_recording`] on. The event's read format has to be
    /// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `…_RUNNING`. A `tracepoint` is attached once, on any
    /// CPU.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub fn attach(
        &mut self,
        counter: u32,
        cpu: u32,
        event: OwnedFd,
        tracepoint: bool,
    ) -> Result<(), Error> {
        let what = || format!("attach counter {counter} on CPU {cpu}");
        let file = event.try_clone().map(File::from);
        let file = file.map_err(|error| step(what())(error.into()))?;
        let program = if tracepoint {
            &self.programs.skel.progs.kc_tracepoint
        } else {
            &self.programs.skel.progs.kc_overflow
        };
        let options = PerfEventOpts {
            cookie: counter.into(),
            ..Default::default()
        };
        let link = program
            .attach_perf_event_with_opts(event.as_raw_fd(), options)
            .map_err(step(what()))?;
        // The link closes it from now on.
        let _ = event.into_raw_fd();
        let event = OpenedEvent {
            _link: link,
            file,
            tracepoint,
        };
        // Attaching has enabled it.
        if !self.programs.is_recording() {
            let begun = event.enable(false).and_then(|()| event.reset());
            begun.map_err(|error| step(what())(error.into()))?;
        }
        self.programs.attached.events.insert((counter, cpu), event);
        Ok(())
    }

    /// Closes the events of a CPU that has gone offline, and keeps their counts.
    pub(crate) fn close_cpu(&mut self, cpu: u32) {
        let attached = &mut self.programs.attached;
        let on_cpu = |key: &(u32, u32), event: &OpenedEvent| key.1 == cpu && !event.tracepoint;
        let events = std::mem::take(&mut attached.events);
        let (offline, kept): (BTreeMap<_, _>, _) = events
            .into_iter()
            .partition(|(key, event)| on_cpu(key, event));
        attached.events = kept;
        for ((counter, _), event) in offline {
            let closed = attached.closed.entry(counter).or_default();
            closed.add(event.read().unwrap_or_default());
        }
    }

    /// Enables all events, or disables them.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub(crate) fn enable(&self, on: bool) -> Result<(), Error> {
        let mut events = self.programs.attached.events.values();
        events
            .try_for_each(|event| event.enable(on))
            .map_err(|error| step("switch the counters")(error.into()))
    }
}

impl Programs {
    /// Returns the events of a counter until now.
    ///
    /// # Errors
    /// [`Error::Step`] when an event or the kernel's map can't be read.
    pub fn overflow_counts(&self, counter: u32) -> Result<OverflowCounts, Error> {
        let what = || format!("read counter {counter}");
        let mut reading = self
            .attached
            .closed
            .get(&counter)
            .copied()
            .unwrap_or_default();
        let mut tracepoint = false;
        for (_, event) in self.attached.events.range((counter, 0)..(counter + 1, 0)) {
            tracepoint |= event.tracepoint;
            reading.add(event.read().map_err(|error| step(what())(error.into()))?);
        }
        let values = self
            .skel
            .maps
            .kc_counters
            .lookup_percpu(&counter.to_ne_bytes(), MapFlags::ANY)
            .map_err(step(what()))?;
        let (mut hits, mut recorded, mut lost) = (0, 0, 0);
        for bytes in values.into_iter().flatten() {
            if let Ok((stats, _)) = CounterStats::read_from_prefix(&bytes) {
                hits += stats.events;
                recorded += stats.recorded;
                lost += stats.lost;
            }
        }
        Ok(OverflowCounts {
            // A tracepoint's perf event counts the hits of one CPU.
            events: if tracepoint { hits } else { reading.events },
            recorded,
            lost,
            enabled_ns: reading.enabled_ns,
            running_ns: reading.running_ns,
        })
    }
}

impl OpenedEvent {
    fn enable(&self, on: bool) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        result_of(if on {
            // SAFETY: the descriptor is an open perf event, and the call takes no memory of ours.
            unsafe { ENABLE(fd, 0) }
        } else {
            // SAFETY: as above.
            unsafe { DISABLE(fd, 0) }
        })
    }

    /// Sets its count to zero.
    fn reset(&self) -> io::Result<()> {
        // SAFETY: as above.
        result_of(unsafe { RESET(self.file.as_raw_fd(), 0) })
    }

    fn read(&self) -> io::Result<Reading> {
        let mut reading = Reading::default();
        (&self.file).read_exact(reading.as_mut_bytes())?;
        Ok(reading)
    }
}

/// Returns the result of an ioctl.
fn result_of(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Reading {
    fn add(&mut self, other: Reading) {
        self.events += other.events;
        self.enabled_ns += other.enabled_ns;
        self.running_ns += other.running_ns;
    }
}
