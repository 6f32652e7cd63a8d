//! Following threads without stopping them: counters that are inherited, and the kernel's records
//! of who inherited them.
//!
//! A thread that is followed has, on each CPU, a copy of every counter, and so has everything that
//! it starts: the kernel makes the copies as it makes the thread, before its first instruction, and
//! ends them after its last. Nothing is missed, however short a life was. When a thread ends, each
//! copy says what it counted (`PERF_RECORD_READ`), which is where the figures of single threads
//! come from. The copies are one for each CPU because the kernel has no ring for inherited counters
//! that are not.
//!
//! Even so those rings are written by several CPUs at once, which the kernel's rings are not made
//! for: [`crate::perf::exit_counts`] says what comes of it. So births and ends have rings of their own,
//! which only their CPU writes into; each counter has one on each CPU, which makes a collision
//! rare; and last words are believed only if they agree with each other ([`crate::track::lifetimes`]). Where
//! two threads end in the same tenth of a microsecond the row of one may be incomplete, and says
//! so; the total never is.
//!
//! What a thread has counted *so far* the kernel tells of nobody but the one that was opened: its
//! reading is the sum over all its descendants. So each thread gets a counter of its own besides
//! ([`Follow::own`]), as soon as it is heard of, for the rows in the middle of its life. Of a
//! thread that was followed from the beginning it is as exact as the last word; of one that was
//! born meanwhile it begins some milliseconds late.
//!
//! That counter of its own has a second effect, without which nothing here would be right: a
//! context that has an event which is not inherited is never swapped with another thread's at a
//! context switch, which the kernel else does with copies that are alike, and the thread's own
//! counter with them.
//!
//! A thread is opened counter by counter. What it starts meanwhile inherits those that are there by
//! then, and would be counted on some CPUs or twice; so a process that did that is opened once more
//! ([`Follow::process`]).
//!
//! What cannot be known:
//!
//! * what a thread counted while it was on a CPU that was offline when it was first followed;
//! * how much of a living thread's count belongs to the moments before it was heard of; the sum of
//!   all has it;
//! * what a program does after an exec that changes the user or may not be read: the kernel ends
//!   all counters there, as it did on Solaris. The thread's row says that it ended;
//! * single threads' last words on kernels from 5.13 on that lack the correction "perf/core: Fix
//!   missing read event generation on task exit" of 2025: Debian's 6.1.192 and 6.12.117 send none,
//!   6.18.44 does. Rows of threads that were born meanwhile then have what the thread's own counter
//!   saw, or nothing, and say that they are incomplete. The total is exact everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};

use host::machine::{now, page_size};
use perf_event_open_sys::bindings as sys;

use crate::names::event::{Encoding, Event};
use crate::perf::counter::{self, Begin, Counter, Inherit, Opening, Place, told};
use crate::perf::exit_counts::LastWords;
use crate::perf::order::Order;
use crate::perf::overflow;
use crate::perf::reading::Value;
use crate::perf::records::{Record, decode};
use crate::perf::refusal::{Asked, Machine, Refusal};
use crate::perf::ring::PerfRing;
use crate::perf::set::threads_of;
use crate::track::lifetimes::Reading;

/// Pages of a CPU's ring for births and ends, as a power of two.
const ORDER: u32 = 5;

/// A record is in its ring that much after its time, at the latest, nanoseconds.
const MARGIN: u64 = 2_000_000;

/// A thread that has two events for births, execs and ends, one of them inherited, is told of
/// twice, one behind the other. Nothing happens to a thread twice within so many nanoseconds.
const TWICE: u64 = 100_000;

/// How often a process is opened that starts threads meanwhile.
const ATTEMPTS: u32 = 20;

/// Followed threads, and what is heard of them.
#[derive(Debug)]
pub struct Follow {
    events: Vec<Event>,
    cpus: BTreeSet<u32>,
    inherit: Inherit,
    /// By CPU, with the last record that each had.
    rings: BTreeMap<u32, (PerfRing, Option<(u64, Record)>)>,
    /// By CPU and event; the first root's counter is who has it.
    words: BTreeMap<(u32, usize), LastWords>,
    roots: BTreeMap<u32, Root>,
    /// The event of a counter, by the id that records have.
    ids: HashMap<u64, usize>,
    order: Order<Record>,
    buffer: Vec<u8>,
}

/// A thread that was opened, not inherited.
#[derive(Debug)]
struct Root {
    /// Births, execs and ends, from each CPU; not those whose rings they are.
    _told: Vec<OwnedFd>,
    counters: Vec<Copy>,
    /// From before the first of these was opened until after the last was, CLOCK_MONOTONIC
    /// nanoseconds.
    opening: Range<u64>,
}

/// A counter of a root on one CPU.
#[derive(Debug)]
struct Copy {
    /// The number of its event.
    number: usize,
    id: u64,
    counter: Counter,
}

/// A thread's own counters, for readings while it lives.
pub type Own = Vec<Counter>;

impl Reading for Own {
    fn values(&self) -> Option<Vec<Value>> {
        self.iter().map(|counter| counter.read().ok()).collect()
    }
}

impl Follow {
    /// Nobody yet, on these CPUs. With [`Inherit::All`] processes that are forked are followed,
    /// else threads alone.
    #[must_use]
    pub fn new(events: Vec<Event>, cpus: BTreeSet<u32>, inherit: Inherit) -> Follow {
        Follow {
            events,
            cpus,
            inherit,
            rings: BTreeMap::new(),
            words: BTreeMap::new(),
            roots: BTreeMap::new(),
            ids: HashMap::new(),
            order: Order::default(),
            buffer: Vec::new(),
        }
    }

    /// How many last words a thread has.
    #[must_use]
    pub fn last_words(&self) -> usize {
        self.roots
            .values()
            .next()
            .map_or(0, |root| root.counters.len())
    }

    /// Which event a counter is of, by the id that a record has.
    #[must_use]
    pub fn event_of(&self, id: u64) -> Option<usize> {
        self.ids.get(&id).copied()
    }

    /// Follows a thread, and whatever it starts from now on.
    ///
    /// # Errors
    /// A [`Refusal`]; the thread is not followed then.
    pub fn root(&mut self, tid: u32, begin: Begin) -> Result<Own, Refusal> {
        // First, so that there is no moment at which the thread could be swapped with one that it
        // starts.
        let own = self.own(tid, begin)?;
        let mut root = Root {
            _told: Vec::new(),
            counters: Vec::new(),
            opening: now()..u64::MAX,
        };
        // On all CPUs before the first counter: of whoever inherits one the birth is told.
        for cpu in self.cpus.clone() {
            root._told.extend(self.listen(tid, cpu)?);
        }
        for cpu in self.cpus.clone() {
            for (number, event) in self.events.iter().enumerate() {
                let elsewhere = |cpus: &Vec<u32>| !cpus.contains(&cpu);
                if event.cpus.as_ref().is_some_and(elsewhere) {
                    continue;
                }
                let place = Place::ThreadOn(tid, cpu);
                let counter = Opening {
                    inherit: self.inherit,
                    begin,
                    last_words: true,
                    ..Opening::of(event, place)
                }
                .open()?;
                let refused = |error: io::Error| refusal(event, place, &error);
                let id = counter.id().map_err(refused)?;
                speak(&mut self.words, (cpu, number), &counter).map_err(refused)?;
                root.counters.push(Copy {
                    number,
                    id,
                    counter,
                });
            }
        }
        root.opening.end = now();
        let ids = root.counters.iter().map(|copy| (copy.id, copy.number));
        self.ids.extend(ids);
        self.roots.insert(tid, root);
        Ok(own)
    }

    /// Follows all threads of a process, each with its own counters, and nobody else. Births are
    /// told as soon as the first is followed, so that a thread which is listed is known to have
    /// inherited its counters, or to have none. Where it may have inherited some of them, all
    /// begins anew. A process that never stops starting threads is followed as it is in the end;
    /// the rows of those then say that they are incomplete.
    ///
    /// # Errors
    /// A [`Refusal`]; [`Refusal::NoThread`] of a process that is not there.
    pub fn process(&mut self, pid: u32, begin: Begin) -> Result<BTreeMap<u32, Own>, Refusal> {
        for _ in 1..ATTEMPTS {
            let owns = self.threads(pid, begin)?;
            if !self.torn() {
                return Ok(owns);
            }
            // Before the threads' own counters go, without which they could be swapped.
            *self = Follow::new(self.events.clone(), self.cpus.clone(), self.inherit);
        }
        self.threads(pid, begin)
    }

    /// Whether somebody was born to a thread that was just being opened.
    fn torn(&self) -> bool {
        self.order.waiting().any(|(time, record)| match record {
            Record::Fork { parent_tid, .. } => {
                let parent = self.roots.get(parent_tid);
                parent.is_some_and(|parent| parent.opening.contains(time))
            }
            _ => false,
        })
    }

    /// One attempt of [`Follow::process`].
    fn threads(&mut self, pid: u32, begin: Begin) -> Result<BTreeMap<u32, Own>, Refusal> {
        let gone = Refusal::NoThread { tid: pid };
        let mut owns = BTreeMap::new();
        let mut seen = BTreeSet::new();
        loop {
            let listed = threads_of(pid).map_err(|_| gone.clone())?;
            self.drain(now());
            let born = self.born();
            let mut more = false;
            for tid in listed {
                if born.contains(&tid) || !seen.insert(tid) {
                    continue;
                }
                more = true;
                match self.root(tid, begin) {
                    Ok(own) => drop(owns.insert(tid, own)),
                    Err(Refusal::NoThread { .. }) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            if !more {
                break;
            }
        }
        // A thread is listed a moment before its birth is told. Whoever was opened in that moment
        // has the counters twice.
        for tid in self.born() {
            self.forget(tid);
            owns.remove(&tid);
        }
        match self.roots.is_empty() {
            true => Err(gone),
            false => Ok(owns),
        }
    }

    /// Threads whose birth was told and that wait to be taken.
    fn born(&self) -> BTreeSet<u32> {
        let born = self.order.waiting().filter_map(|(_, record)| match record {
            Record::Fork { tid, .. } => Some(*tid),
            _ => None,
        });
        born.collect()
    }

    /// Takes back what [`Follow::root`] did, of a thread that had inherited its counters.
    pub fn forget(&mut self, tid: u32) {
        let copies = self.roots.remove(&tid).into_iter();
        for copy in copies.flat_map(|root| root.counters) {
            self.ids.remove(&copy.id);
        }
    }

    /// Counters of a thread alone, from now on.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub fn own(&self, tid: u32, begin: Begin) -> Result<Own, Refusal> {
        let open = |event| {
            let opening = Opening {
                begin,
                ..Opening::of(event, Place::Thread(tid))
            };
            opening.open()
        };
        self.events.iter().map(open).collect()
    }

    /// Births, execs and ends of a thread and its descendants, on one CPU. The first thread's event
    /// has the ring, which all others share.
    fn listen(&mut self, tid: u32, cpu: u32) -> Result<Option<OwnedFd>, Refusal> {
        let event = Event {
            name: "the record of threads".to_owned(),
            title: String::new(),
            encoding: Encoding::software(sys::PERF_COUNT_SW_DUMMY),
            cpus: None,
            scale: 1.0,
            unit: String::new(),
            is_time: false,
        };
        let place = Place::ThreadOn(tid, cpu);
        let mut attr = event.encoding.attribute();
        told(&mut attr);
        attr.set_disabled(0);
        attr.set_inherit(1);
        attr.set_inherit_thread((self.inherit == Inherit::Threads).into());
        attr.set_task(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        // User mode or not is no question of it, but of who may open it.
        attr.set_exclude_kernel(1);
        let refused = |error: io::Error| refusal(&event, place, &error);
        let fd = counter::open(&mut attr, place, None).map_err(refused)?;
        match self.rings.get(&cpu) {
            Some((ring, _)) => {
                let counter = Counter::from_fd(fd);
                counter.tell(ring.as_fd()).map_err(refused)?;
                Ok(Some(counter.into_fd()))
            }
            None => {
                let ring = PerfRing::new(fd, page_size(), ORDER);
                let ring = ring.map_err(|_| Refusal::NoMemory {
                    event: event.name.clone(),
                })?;
                self.rings.insert(cpu, (ring, None));
                Ok(None)
            }
        }
    }

    /// What is there at this time; last words that were written before it.
    fn drain(&mut self, now: u64) {
        for (ring, last) in self.rings.values_mut() {
            self.buffer.clear();
            ring.take(&mut self.buffer);
            for (time, record) in overflow::records(&self.buffer).filter_map(decode) {
                let again = |(before, same): &(u64, Record)| {
                    *same == record && time.saturating_sub(*before) < TWICE
                };
                if last.as_ref().is_some_and(again) {
                    continue;
                }
                *last = Some((time, record.clone()));
                self.order.push(time, record);
            }
        }
        for ring in self.words.values_mut() {
            ring.take(now, |time, record| self.order.push(time, record));
        }
    }

    /// What was heard, in the order of time: all that is old enough to be complete, or at the end
    /// all.
    pub fn take(&mut self, all: bool) -> Vec<(u64, Record)> {
        let time = now();
        self.drain(if all { u64::MAX } else { time });
        let until = time.saturating_sub(MARGIN);
        self.order.release(if all { u64::MAX } else { until })
    }

    /// What everybody counted together, living and dead, in the order of the events. Times are not
    /// in it: the kernel does not keep those of the dead up to date.
    ///
    /// # Errors
    /// What `read(2)` says.
    pub fn total(&self) -> io::Result<Vec<Value>> {
        let mut total = vec![Value::default(); self.events.len()];
        for copy in self.roots.values().flat_map(|root| &root.counters) {
            let count = copy.counter.read()?.count;
            let sum = &mut total[copy.number].count;
            *sum = sum.wrapping_add(count);
        }
        Ok(total)
    }
}

/// Gives a counter the ring for its last words: that of its CPU and event, or the first one there.
fn speak(
    rings: &mut BTreeMap<(u32, usize), LastWords>,
    key: (u32, usize),
    counter: &Counter,
) -> io::Result<()> {
    if let Some(ring) = rings.get(&key) {
        return counter.tell(ring.as_fd());
    }
    rings.insert(key, LastWords::of(counter)?);
    Ok(())
}

fn refusal(event: &Event, place: Place, error: &io::Error) -> Refusal {
    let asked = Asked {
        event,
        place,
        overflows: false,
    };
    Refusal::of(error.raw_os_error().unwrap_or(0), &asked, &Machine::read())
}
