//! Counters that overflow: attaches the programs of `c/overflow.h` to perf events, and knows what
//! they were not called for.
//!
//! A counter is a number below [`MOST_COUNTERS`] and has an event on each CPU, or, if it is a
//! tracepoint, one event for all of them, because the kernel runs its program wherever it is hit.
//! Events count only while data are taken; what they have counted in the end is held against what
//! was told of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

use libbpf_rs::{Link, MapCore as _, MapFlags, PerfEventOpts};
use perf_event_open_sys::ioctls::{DISABLE, ENABLE, RESET};

use crate::Error;
use crate::load::{TickCollector, step};
use crate::wire::word;

/// As many counters as there can be; as in `c/overflow.h`.
pub const MOST_COUNTERS: usize = 16;

/// Bytes of `struct counted`.
const COUNTED: usize = 32;

/// A counter's events.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// By counter and CPU; a tracepoint is with the first CPU.
    events: BTreeMap<(u32, u32), Event>,
    /// What events had counted that are closed.
    closed: BTreeMap<u32, Reading>,
}

#[derive(Debug)]
struct Event {
    // Before the file, which reads what the link holds open.
    _link: Link,
    file: File,
    tracepoint: bool,
}

/// What an event has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    events: u64,
    enabled_ns: u64,
    running_ns: u64,
}

/// What became of a counter's events, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All that there were while data were taken. Where the counter shared the hardware with
    /// others, those of the time in which it had it.
    pub events: u64,
    /// Those that records stand for.
    pub recorded: u64,
    /// Those of records that found no room in the ring.
    pub lost: u64,
    /// For how long it was to count, nanoseconds, of all CPUs together.
    pub enabled_ns: u64,
    /// For how long it did: less where the hardware was shared.
    pub running_ns: u64,
}

impl TickCollector {
    /// Attaches a counter's event on a CPU, which has to be disabled. It counts from the next
    /// [`TickCollector::set_recording`] on. The event has to read as
    /// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `…_RUNNING` say. A `tracepoint` is attached once, on
    /// any CPU.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub fn attach_counter(
        &mut self,
        counter: u32,
        cpu: u32,
        event: OwnedFd,
        tracepoint: bool,
    ) -> Result<(), Error> {
        let what = || format!("attach counter {counter} on CPU {cpu}");
        let file = event.try_clone().map(File::from);
        let file = file.map_err(|error| step(what())(error.into()))?;
        let program = match tracepoint {
            true => &self.skel.progs.hit,
            false => &self.skel.progs.overflow,
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
        let event = Event {
            _link: link,
            file,
            tracepoint,
        };
        // Attaching has enabled it.
        if !self.is_recording() {
            let begun = event.enable(false).and_then(|()| event.reset());
            begun.map_err(|error| step(what())(error.into()))?;
        }
        self.attached.events.insert((counter, cpu), event);
        Ok(())
    }

    /// A CPU has gone offline: its events are closed, what they had counted is kept.
    pub(crate) fn close_counters(&mut self, cpu: u32) {
        let gone = |key: &(u32, u32), event: &Event| key.1 == cpu && !event.tracepoint;
        let events = std::mem::take(&mut self.attached.events);
        let (gone, kept): (BTreeMap<_, _>, _) = events
            .into_iter()
            .partition(|(key, event)| gone(key, event));
        self.attached.events = kept;
        for ((counter, _), event) in gone {
            let closed = self.attached.closed.entry(counter).or_default();
            closed.add(event.read().unwrap_or_default());
        }
    }

    /// All events count from now on, or no longer.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub(crate) fn enable_counters(&self, on: bool) -> Result<(), Error> {
        let mut events = self.attached.events.values();
        events
            .try_for_each(|event| event.enable(on))
            .map_err(|error| step("switch the counters")(error.into()))
    }

    /// What became of a counter's events until now.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel's side can't be read.
    pub fn counted(&self, counter: u32) -> Result<Counted, Error> {
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
            .counters
            .lookup_percpu(&counter.to_ne_bytes(), MapFlags::ANY)
            .map_err(step(what()))?;
        let (mut hits, mut recorded, mut lost) = (0, 0, 0);
        for bytes in values.into_iter().flatten() {
            if bytes.len() >= COUNTED {
                hits += word(&bytes, 8);
                recorded += word(&bytes, 16);
                lost += word(&bytes, 24);
            }
        }
        Ok(Counted {
            // The event of a tracepoint is one CPU's.
            events: if tracepoint { hits } else { reading.events },
            recorded,
            lost,
            enabled_ns: reading.enabled_ns,
            running_ns: reading.running_ns,
        })
    }
}

impl Event {
    fn enable(&self, on: bool) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        told(match on {
            // SAFETY: the descriptor is an open perf event, and the call takes no memory of ours.
            true => unsafe { ENABLE(fd, 0) },
            // SAFETY: as above.
            false => unsafe { DISABLE(fd, 0) },
        })
    }

    /// Its count is zero again.
    fn reset(&self) -> io::Result<()> {
        // SAFETY: as above.
        told(unsafe { RESET(self.file.as_raw_fd(), 0) })
    }

    fn read(&self) -> io::Result<Reading> {
        let mut bytes = [0; 24];
        (&self.file).read_exact(&mut bytes)?;
        Ok(Reading {
            events: word(&bytes, 0),
            enabled_ns: word(&bytes, 8),
            running_ns: word(&bytes, 16),
        })
    }
}

/// What an ioctl said.
fn told(result: i32) -> io::Result<()> {
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
