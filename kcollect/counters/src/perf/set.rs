//! Sets of counters that are opened together, for one thread, process or CPU.
//!
//! A [`CounterSet`] is a list of requests, each an event with a preset. Bound to a
//! [`CounterTarget`] it counts ([`BoundSet`]); [`BoundSet::read`] reads it, with the time of the
//! reading; dropping it, or [`BoundSet::release`], closes the counters. The model is libcpc's, with
//! three differences due to Linux: sets of CPUs and of threads do not exclude each other, a bound
//! set never becomes invalid because of other sets, and the kernel multiplexes events for which
//! there is no counter instead of refusing them, unless they are a group.
//!
//! Overflows of threads that do not exist yet are refused ([`Refusal::InheritedOverflow`]), since
//! the kernel has no ring for them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;

use types::ids::{Pid, Tid};

use crate::names::event::PerfEvent;
use crate::perf::bound_set::{BoundSet, stop_at_overflow};
use crate::perf::counter::{Inherit, OpenCounter, OpenOptions, Start};
use crate::perf::overflow::OverflowRing;
use crate::perf::refusal::Refusal;
use crate::perf::scope::CounterScope;

/// Maximum number of times that the threads of a process are listed until none is new.
const MAX_LISTINGS: u32 = 100;

/// One counter of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetRequest {
    /// The event, with its modes and attributes.
    pub event: PerfEvent,
    /// The value from which the counter counts, usually 0. [`BoundSet::read`] returns it plus the
    /// count, modulo 2^64.
    pub preset: u64,
    /// Whether the counter stops at 2^64, with an overflow. The preset is then above 2^63.
    pub notify: bool,
}

impl SetRequest {
    /// Returns a request for an event that is counted from zero, without overflow.
    #[must_use]
    pub fn new(event: PerfEvent) -> SetRequest {
        SetRequest {
            event,
            preset: 0,
            notify: false,
        }
    }

    /// Returns a request for an event that overflows after `count` events, 1 to 2^63 - 1.
    #[must_use]
    pub fn overflow_after(event: PerfEvent, count: u64) -> SetRequest {
        SetRequest {
            event,
            preset: 0_u64.wrapping_sub(count),
            notify: true,
        }
    }

    fn period(&self) -> Result<Option<u64>, Refusal> {
        let period = 0_u64.wrapping_sub(self.preset);
        match self.notify {
            true if !(1..1 << 63).contains(&period) => Err(Refusal::PresetTooFar {
                event: self.event.name.clone(),
                preset: self.preset,
            }),
            notify => Ok(notify.then_some(period)),
        }
    }
}

/// The threads or the CPU that a set counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterTarget {
    /// One thread; 0 is the calling thread.
    Thread(Tid),
    /// A process: its threads, and those that it starts later.
    Process(Pid),
    /// A process, its threads, and all threads and processes that they start later.
    ProcessTree(Pid),
    /// A CPU, with all threads that run there.
    Cpu(u32),
}

/// A list of counters that are bound to the same target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterSet {
    requests: Vec<SetRequest>,
    grouped: bool,
}

impl CounterSet {
    /// Returns an empty set, whose counters the kernel multiplexes where the hardware has too few.
    #[must_use]
    pub fn new() -> CounterSet {
        CounterSet::default()
    }

    /// Returns an empty set, whose counters count at the same time or not at all. Too many of them
    /// are refused.
    #[must_use]
    pub fn grouped() -> CounterSet {
        CounterSet {
            grouped: true,
            ..CounterSet::default()
        }
    }

    /// Adds a request. Its number is its position, from 0.
    pub fn add(&mut self, request: SetRequest) {
        self.requests.push(request);
    }

    /// Returns the requests in order.
    #[must_use]
    pub fn requests(&self) -> &[SetRequest] {
        &self.requests
    }

    /// Opens the counters.
    ///
    /// # Errors
    /// The [`Refusal`] of the first request that is refused; nothing is bound then.
    pub fn bind(&self, target: CounterTarget, start: Start) -> Result<BoundSet, Refusal> {
        match target {
            CounterTarget::Thread(tid) => {
                self.bind_at(&[CounterScope::Thread(tid)], Inherit::None, start)
            }
            CounterTarget::Cpu(cpu) => {
                self.bind_at(&[CounterScope::Cpu(cpu)], Inherit::None, start)
            }
            CounterTarget::Process(pid) => self.bind_process(pid, Inherit::Threads, start),
            CounterTarget::ProcessTree(pid) => self.bind_process(pid, Inherit::All, start),
        }
    }

    /// Binds all threads of a process. Threads inherit the counters of a thread that is bound, but
    /// not of one that is not bound yet. So all are bound, disabled, between two listings of the
    /// threads: when the listings are the same, no thread was started that is not counted or
    /// counted twice.
    fn bind_process(&self, pid: Pid, inherit: Inherit, start: Start) -> Result<BoundSet, Refusal> {
        if let Some(request) = self.requests.iter().find(|request| request.notify) {
            return Err(Refusal::InheritedOverflow {
                event: request.event.name.clone(),
            });
        }
        let held = match start {
            Start::Now => Start::Disabled,
            other => other,
        };
        let list = || threads_of(pid).map_err(|_| Refusal::NoThread { tid: pid.leader() });
        let mut before = list()?;
        for _ in 0..MAX_LISTINGS {
            let scopes: Vec<_> = before.iter().copied().map(CounterScope::Thread).collect();
            let bound = self.bind_at(&scopes, inherit, held);
            let after = list()?;
            match bound {
                Ok(bound) if after == before => {
                    if start == Start::Now {
                        bound
                            .enable()
                            .map_err(|error| self.other_error(&error, pid.leader()))?;
                    }
                    return Ok(bound);
                }
                Ok(_) | Err(Refusal::NoThread { .. }) => before = after,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::TooManyNewThreads { pid })
    }

    fn bind_at(
        &self,
        scopes: &[CounterScope],
        inherit: Inherit,
        start: Start,
    ) -> Result<BoundSet, Refusal> {
        let presets = self.requests.iter().map(|request| request.preset);
        let mut bound = BoundSet::new(presets.collect());
        for scope in scopes {
            let mut counters: Vec<OpenCounter> = Vec::new();
            for (number, request) in self.requests.iter().enumerate() {
                let period = request.period()?;
                let leader = counters.first().filter(|_| self.grouped);
                let counter = OpenOptions {
                    inherit,
                    period,
                    // A member of a group counts when its leader does. A counter that stops at its
                    // overflow is started by `refresh`.
                    start: match (leader, period, start) {
                        (Some(_), ..) => Start::Now,
                        (None, Some(_), Start::Now) => Start::Disabled,
                        _ => start,
                    },
                    leader: leader.map(OpenCounter::as_fd),
                    ..OpenOptions::new(&request.event, *scope)
                }
                .open()?;
                if period.is_some() {
                    let ring = OverflowRing::new(&counter).map_err(|_| Refusal::NoMemory {
                        event: request.event.name.clone(),
                    })?;
                    bound.overflow_rings.push((number, ring));
                    let armed = match start {
                        Start::Now => counter.refresh(),
                        // It has to stop at its first overflow, however it is enabled.
                        Start::Disabled | Start::OnExec => {
                            stop_at_overflow(&counter, period.unwrap_or(1))
                        }
                    };
                    armed.map_err(|error| self.other_error(&error, Tid(0)))?;
                }
                counters.push(counter);
            }
            bound.counters.push(counters);
        }
        Ok(bound)
    }

    fn other_error(&self, error: &io::Error, tid: Tid) -> Refusal {
        let first = self.requests.first();
        Refusal::Other {
            event: first.map_or_else(String::new, |request| request.event.name.clone()),
            scope: CounterScope::Thread(tid),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }
}

/// Returns the threads that a process has now.
///
/// # Errors
/// When there is no such process.
pub fn threads_of(pid: Pid) -> io::Result<BTreeSet<Tid>> {
    // The library procfs opens the directory of each thread, and leaves out a thread for which that
    // fails, such as at the limit of open files: it would not be counted, and nothing would say so.
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<Tid>().ok()));
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::page_faults;

    #[test]
    fn presets_are_counted_down() {
        let period = |preset, notify| {
            SetRequest {
                preset,
                notify,
                ..SetRequest::new(page_faults())
            }
            .period()
        };
        assert_eq!(
            SetRequest::overflow_after(page_faults(), 1000).preset,
            u64::MAX - 999
        );
        assert_eq!(period(u64::MAX - 999, true), Ok(Some(1000)));
        assert_eq!(period(u64::MAX - 999, false), Ok(None));
        assert_eq!(period(0, false), Ok(None));
        for far in [0, 1, 1 << 63] {
            assert!(matches!(
                period(far, true),
                Err(Refusal::PresetTooFar { .. })
            ));
        }
    }

    #[test]
    fn overflows_of_later_threads_are_refused() {
        let mut set = CounterSet::new();
        set.add(SetRequest::overflow_after(page_faults(), 10));
        let refused = set.bind(CounterTarget::Process(Pid(std::process::id())), Start::Now);
        assert!(matches!(refused, Err(Refusal::InheritedOverflow { .. })));
    }
}
