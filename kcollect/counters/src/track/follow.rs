//! Follows threads without stopping them: threads inherit counters, and the kernel's records say
//! which ones did.
//!
//! A followed thread has a copy of every counter on each CPU, and so have all threads that it
//! starts: the kernel makes the copies when it creates the thread, before its first instruction,
//! and closes them after its last. So nothing is missed, however short-lived a thread is. When a
//! thread exits, each copy reports its count (`PERF_RECORD_READ`): these exit counts are the counts
//! of single threads. There is a copy for each CPU since the kernel has no ring for inherited
//! counters of all CPUs.
//!
//! Still, several CPUs write to the rings of exit counts, which rings of the kernel are not made
//! for: [`crate::perf::exit_counts`] describes the consequences. So forks and exits have rings of
//! their own, which only their CPU writes to; each counter has a ring on each CPU, so that
//! collisions are rare; and exit counts are used only if they agree with each other
//! ([`super::lifetimes`]). Where two threads exit within a tenth of a microsecond, the row of one
//! may be incomplete, and is marked as such; the total never is.
//!
//! What a thread has counted *so far* can be read only of the thread that was opened, and the value
//! is the sum over all its descendants. So each thread also gets a counter of its own as soon as
//! its fork was recorded ([`ThreadFollower::open_own_counters`]); rows use it while the thread
//! runs. For a thread that was followed from its start it is as exact as its exit counts; for one
//! that was created later it starts some milliseconds late.
//!
//! That counter has a second effect, which everything here depends on: at a context switch the
//! kernel swaps the perf contexts of two threads with the same inherited copies, and with them a
//! thread's own counter, but never swaps a context that has an event which is not inherited.
//!
//! A thread is opened counter by counter. A thread that it starts meanwhile inherits only those
//! that are open by then, and would be counted on some CPUs only, or twice. So a process with such
//! a thread is opened again ([`ThreadFollower::open_process`]).
//!
//! These are not known:
//!
//! * what a thread counted on a CPU that was offline when the thread was first followed;
//! * how much of a running thread's count is from before it had its own counter; the total has it;
//! * what a program does after an exec that changes the user or is of an unreadable file: the
//!   kernel closes all counters there, as Solaris does. The thread's row shows an exit;
//! * the exit counts of single threads on kernels from 5.13 on without the fix "perf/core: Fix
//!   missing read event generation on task exit" of 2025: Debian's 6.1.192 and 6.12.117 report
//!   none, 6.18.44 does. Rows of threads that were created since then have what the thread's own
//!   counter has, or nothing, and are marked as incomplete. The total is exact everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};

use host::machine::{now, page_size};
use perf_event_open_sys::bindings as sys;
use types::ids::{Pid, Tid};
use types::units::Nanos;

use super::lifetimes::LiveCounters;
use crate::names::event::{Encoding, PerfEvent};
use crate::perf::counter::{
    Inherit, OpenCounter, OpenOptions, Start, add_thread_and_time, open_event,
};
use crate::perf::exit_counts::ExitCountRing;
use crate::perf::order::TimeOrder;
use crate::perf::reading::CounterValue;
use crate::perf::records::{TaskRecord, decode, split_records};
use crate::perf::refusal::{OpenAttempt, PerfSettings, Refusal};
use crate::perf::ring::PerfRing;
use crate::perf::scope::CounterScope;
use crate::perf::set::threads_of;

/// The pages of a CPU's ring for forks, execs and exits, as a power of two.
const RING_PAGES_LOG2: u32 = 5;

/// Maximum time between the time of a record and its arrival in the ring.
const MAX_RECORD_DELAY_NS: Nanos = Nanos::from_millis(2);

/// Equal records of one CPU within this time are one record. A thread with two events
/// for forks, execs and exits, one of them inherited, has each record twice; nothing happens to a
/// thread twice within this time.
const DUPLICATE_NS: Nanos = Nanos::from_micros(100);

/// Maximum number of times that a process is opened which starts threads meanwhile.
const MAX_OPEN_ATTEMPTS: u32 = 20;

/// An event on one CPU: its exit counts have a ring of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventOnCpu {
    cpu: u32,
    /// The number of the event.
    event: usize,
}

/// The followed threads, with their counters and the rings of their records.
#[derive(Debug)]
pub struct ThreadFollower {
    events: Vec<PerfEvent>,
    cpus: BTreeSet<u32>,
    inherit: Inherit,
    /// The rings of forks, execs and exits by CPU, each with its last record.
    rings: BTreeMap<u32, (PerfRing, Option<(Nanos, TaskRecord)>)>,
    /// The rings of exit counts. The counter of the first opened thread has the ring.
    exit_counts: BTreeMap<EventOnCpu, ExitCountRing>,
    opened: BTreeMap<Tid, OpenedThread>,
    /// The number of a counter's event, by the id that records have.
    ids: HashMap<u64, usize>,
    order: TimeOrder<TaskRecord>,
    buffer: Vec<u8>,
}

/// A thread whose counters were opened, not inherited.
#[derive(Debug)]
struct OpenedThread {
    /// Its events for forks, execs and exits on each CPU, but those that have the rings.
    _record_events: Vec<OwnedFd>,
    counters: Vec<CpuCounter>,
    /// From before the first of these was opened until after the last was, CLOCK_MONOTONIC
    /// nanoseconds.
    opening_ns: Range<Nanos>,
}

/// A counter of an opened thread on one CPU.
#[derive(Debug)]
struct CpuCounter {
    /// The number of its event.
    number: usize,
    id: u64,
    counter: OpenCounter,
}

/// A thread's own counters, which are read while it runs.
pub type ThreadCounters = Vec<OpenCounter>;

impl LiveCounters for ThreadCounters {
    fn values(&self) -> Option<Vec<CounterValue>> {
        self.iter().map(|counter| counter.read().ok()).collect()
    }
}

impl ThreadFollower {
    /// Returns a follower without threads, for these CPUs. With [`Inherit::All`] forked processes
    /// are followed, otherwise threads only.
    #[must_use]
    pub fn new(events: Vec<PerfEvent>, cpus: BTreeSet<u32>, inherit: Inherit) -> ThreadFollower {
        ThreadFollower {
            events,
            cpus,
            inherit,
            rings: BTreeMap::new(),
            exit_counts: BTreeMap::new(),
            opened: BTreeMap::new(),
            ids: HashMap::new(),
            order: TimeOrder::default(),
            buffer: Vec::new(),
        }
    }

    /// Returns the number of exit counts of each thread.
    #[must_use]
    pub fn exit_counts_per_thread(&self) -> usize {
        self.opened
            .values()
            .next()
            .map_or(0, |thread| thread.counters.len())
    }

    /// Returns the number of a counter's event, by the id that a record has.
    #[must_use]
    pub fn event_of(&self, id: u64) -> Option<usize> {
        self.ids.get(&id).copied()
    }

    /// Follows a thread, and all threads that it starts from now on. Returns its own counters.
    ///
    /// # Errors
    /// A [`Refusal`]; the thread is not followed then.
    pub fn open_thread(&mut self, tid: Tid, start: Start) -> Result<ThreadCounters, Refusal> {
        // They come first: without them the thread's context could be swapped with the context of a
        // thread that it starts.
        let own = self.open_own_counters(tid, start)?;
        let mut thread = OpenedThread {
            _record_events: Vec::new(),
            counters: Vec::new(),
            opening_ns: now()..Nanos::MAX,
        };
        // On all CPUs before the first counter, so that no thread inherits a counter without a
        // record of its fork.
        for cpu in self.cpus.clone() {
            thread
                ._record_events
                .extend(self.open_record_event(tid, cpu)?);
        }
        for cpu in self.cpus.clone() {
            for (number, event) in self.events.iter().enumerate() {
                let elsewhere = |cpus: &Vec<u32>| !cpus.contains(&cpu);
                if event.cpus.as_ref().is_some_and(elsewhere) {
                    continue;
                }
                let scope = CounterScope::ThreadOn(tid, cpu);
                let counter = OpenOptions {
                    inherit: self.inherit,
                    start,
                    exit_counts: true,
                    ..OpenOptions::new(event, scope)
                }
                .open()?;
                let refused = |error: io::Error| refusal(event, scope, &error);
                let id = counter.id().map_err(refused)?;
                let on_cpu = EventOnCpu { cpu, event: number };
                set_exit_ring(&mut self.exit_counts, on_cpu, &counter).map_err(refused)?;
                thread.counters.push(CpuCounter {
                    number,
                    id,
                    counter,
                });
            }
        }
        thread.opening_ns.end = now();
        let ids = thread
            .counters
            .iter()
            .map(|counter| (counter.id, counter.number));
        self.ids.extend(ids);
        self.opened.insert(tid, thread);
        Ok(own)
    }

    /// Follows all threads of a process, and no others. Returns the own counters of each.
    ///
    /// Forks are recorded as soon as the first thread is followed, so a thread that is listed is
    /// known to have inherited its counters, or to have none. Where it may have inherited some of
    /// them, all are opened again. A process that does not stop starting threads is followed as it
    /// is after the last attempt; the rows of those threads are then marked as incomplete.
    ///
    /// # Errors
    /// A [`Refusal`]; [`Refusal::NoThread`] where there is no such process.
    pub fn open_process(
        &mut self,
        pid: Pid,
        start: Start,
    ) -> Result<BTreeMap<Tid, ThreadCounters>, Refusal> {
        for _ in 1..MAX_OPEN_ATTEMPTS {
            let threads = self.open_threads(pid, start)?;
            if !self.forked_while_opening() {
                return Ok(threads);
            }
            // The inherited counters are closed first: without the threads' own counters, contexts
            // could be swapped.
            *self = ThreadFollower::new(self.events.clone(), self.cpus.clone(), self.inherit);
        }
        self.open_threads(pid, start)
    }

    /// Whether a thread was created by one that was just being opened.
    fn forked_while_opening(&self) -> bool {
        self.order.pending().any(|(time_ns, record)| match record {
            TaskRecord::Fork { parent_tid, .. } => {
                let parent = self.opened.get(parent_tid);
                parent.is_some_and(|parent| parent.opening_ns.contains(time_ns))
            }
            _ => false,
        })
    }

    /// Makes one attempt of [`ThreadFollower::open_process`].
    fn open_threads(
        &mut self,
        pid: Pid,
        start: Start,
    ) -> Result<BTreeMap<Tid, ThreadCounters>, Refusal> {
        let no_process = Refusal::NoThread { tid: pid.leader() };
        let mut threads = BTreeMap::new();
        let mut seen = BTreeSet::new();
        loop {
            let listed = threads_of(pid).map_err(|_| no_process.clone())?;
            self.read_rings(now());
            let forked = self.forked();
            let mut more = false;
            for tid in listed {
                if forked.contains(&tid) || !seen.insert(tid) {
                    continue;
                }
                more = true;
                match self.open_thread(tid, start) {
                    Ok(own) => drop(threads.insert(tid, own)),
                    Err(Refusal::NoThread { .. }) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            if !more {
                break;
            }
        }
        // A thread is listed a moment before its fork is recorded. A thread that was opened in that
        // moment has the counters twice.
        for tid in self.forked() {
            self.close_thread(tid);
            threads.remove(&tid);
        }
        if self.opened.is_empty() {
            Err(no_process)
        } else {
            Ok(threads)
        }
    }

    /// Returns the threads whose forks were read from a ring and not yet taken.
    fn forked(&self) -> BTreeSet<Tid> {
        let forked = self.order.pending().filter_map(|(_, record)| match record {
            TaskRecord::Fork { tid, .. } => Some(*tid),
            _ => None,
        });
        forked.collect()
    }

    /// Closes what [`ThreadFollower::open_thread`] opened, for a thread that has inherited its
    /// counters.
    pub fn close_thread(&mut self, tid: Tid) {
        let counters = self.opened.remove(&tid).into_iter();
        for counter in counters.flat_map(|thread| thread.counters) {
            self.ids.remove(&counter.id);
        }
    }

    /// Opens counters of one thread, which are not inherited.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn open_own_counters(&self, tid: Tid, start: Start) -> Result<ThreadCounters, Refusal> {
        let open = |event| {
            let options = OpenOptions {
                start,
                ..OpenOptions::new(event, CounterScope::Thread(tid))
            };
            options.open()
        };
        self.events.iter().map(open).collect()
    }

    /// Opens an event for the forks, execs and exits of a thread and its descendants on one CPU.
    /// The event of the first thread has the ring, which all others share.
    fn open_record_event(&mut self, tid: Tid, cpu: u32) -> Result<Option<OwnedFd>, Refusal> {
        let event = PerfEvent {
            name: "the record of threads".to_owned(),
            title: String::new(),
            encoding: Encoding::software(sys::PERF_COUNT_SW_DUMMY),
            cpus: None,
            scale: 1.0,
            unit: String::new(),
            is_time: false,
        };
        let scope = CounterScope::ThreadOn(tid, cpu);
        let mut attr = event.encoding.attribute();
        add_thread_and_time(&mut attr);
        attr.set_disabled(0);
        attr.set_inherit(1);
        attr.set_inherit_thread((self.inherit == Inherit::Threads).into());
        attr.set_task(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        // Records are of all modes, but an event that includes the kernel needs a privilege.
        attr.set_exclude_kernel(1);
        let refused = |error: io::Error| refusal(&event, scope, &error);
        let fd = open_event(&mut attr, scope, None).map_err(refused)?;
        match self.rings.get(&cpu) {
            Some((ring, _)) => {
                let counter = OpenCounter::from_fd(fd);
                counter.set_output(ring.as_fd()).map_err(refused)?;
                Ok(Some(counter.into_fd()))
            }
            None => {
                let ring = PerfRing::new(fd, page_size(), RING_PAGES_LOG2);
                let ring = ring.map_err(|_| Refusal::NoMemory {
                    event: event.name.clone(),
                })?;
                self.rings.insert(cpu, (ring, None));
                Ok(None)
            }
        }
    }

    /// Reads all records, and the exit counts that were written before this time.
    fn read_rings(&mut self, now_ns: Nanos) {
        for (ring, last) in self.rings.values_mut() {
            self.buffer.clear();
            ring.take(&mut self.buffer);
            for (time_ns, record) in split_records(&self.buffer).filter_map(decode) {
                let is_duplicate = |(last_ns, last): &(Nanos, TaskRecord)| {
                    *last == record && time_ns.saturating_sub(*last_ns) < DUPLICATE_NS
                };
                if last.as_ref().is_some_and(is_duplicate) {
                    continue;
                }
                *last = Some((time_ns, record.clone()));
                self.order.push(time_ns, record);
            }
        }
        for ring in self.exit_counts.values_mut() {
            ring.take(now_ns, |time_ns, record| self.order.push(time_ns, record));
        }
    }

    /// Returns the records in the order of time: those that are complete by their age, or at the
    /// end all.
    pub fn take_records(&mut self, all: bool) -> Vec<(Nanos, TaskRecord)> {
        let now_ns = now();
        self.read_rings(if all { Nanos::MAX } else { now_ns });
        let until_ns = now_ns.saturating_sub(MAX_RECORD_DELAY_NS);
        self.order.release(if all { Nanos::MAX } else { until_ns })
    }

    /// Returns what all threads counted together, in the order of the events. The times are zero:
    /// the kernel does not keep them up to date for exited threads.
    ///
    /// # Errors
    /// The error of `read(2)`.
    pub fn total(&self) -> io::Result<Vec<CounterValue>> {
        let mut total = vec![CounterValue::default(); self.events.len()];
        for counter in self.opened.values().flat_map(|thread| &thread.counters) {
            let count = counter.counter.read()?.count;
            let sum = &mut total[counter.number].count;
            *sum = sum.wrapping_add(count);
        }
        Ok(total)
    }
}

/// Writes the exit counts of a counter to the ring of its CPU and event. The first counter gets a
/// new ring.
fn set_exit_ring(
    rings: &mut BTreeMap<EventOnCpu, ExitCountRing>,
    on_cpu: EventOnCpu,
    counter: &OpenCounter,
) -> io::Result<()> {
    if let Some(ring) = rings.get(&on_cpu) {
        return counter.set_output(ring.as_fd());
    }
    rings.insert(on_cpu, ExitCountRing::new(counter)?);
    Ok(())
}

fn refusal(event: &PerfEvent, scope: CounterScope, error: &io::Error) -> Refusal {
    let attempt = OpenAttempt {
        event,
        scope,
        overflows: false,
    };
    Refusal::from_errno(
        error.raw_os_error().unwrap_or(0),
        &attempt,
        &PerfSettings::read(),
    )
}
