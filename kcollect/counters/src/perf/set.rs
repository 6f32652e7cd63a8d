//! Sets of counters: what is wanted, bound to somebody, sampled, released.
//!
//! A [`Set`] is a list of requests, each an event with a preset. Bound to a [`Target`] it counts
//! ([`Bound`]); `sample` reads it, with the time of the reading; dropping it, or `release`, takes
//! the counters back. The model is libcpc's, with three differences that are Linux's: a set of a
//! CPU and a set of a thread do not exclude each other, a bound set is never invalidated by others,
//! and events that find no counter take turns instead of being refused, unless they are wanted
//! together.
//!
//! Refused: overflows of threads to come ([`Refusal::Inherited`]), for the kernel has no ring for
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd as _;

use crate::names::event::Event;
use crate::perf::bound_set::{Bound, arm};
use crate::perf::counter::{Begin, Counter, Inherit, Opening, Place};
use crate::perf::overflow::Alarm;
use crate::perf::refusal::Refusal;

/// How often the threads of a process are listed until no new one is there.
const LISTINGS: u32 = 100;

/// One counter that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What it counts: the event, in user mode or the kernel, its attributes.
    pub event: Event,
    /// Where it begins; 0 where nothing else is to be said. [`Bound::sample`] gives it with what
    /// was counted, modulo 2^64.
    pub preset: u64,
    /// When it reaches 2^64 it stops, and says so. The preset is then above 2^63.
    pub notify: bool,
}

impl Wanted {
    /// An event, from zero, without overflow.
    #[must_use]
    pub fn new(event: Event) -> Wanted {
        Wanted {
            event,
            preset: 0,
            notify: false,
        }
    }

    /// An event that says when it has happened so many times, 1 to 2^63 - 1.
    #[must_use]
    pub fn after(event: Event, times: u64) -> Wanted {
        Wanted {
            event,
            preset: 0_u64.wrapping_sub(times),
            notify: true,
        }
    }

    fn period(&self) -> Result<Option<u64>, Refusal> {
        let period = 0_u64.wrapping_sub(self.preset);
        match self.notify {
            true if !(1..1 << 63).contains(&period) => Err(Refusal::FarPreset {
                event: self.event.name.clone(),
                preset: self.preset,
            }),
            notify => Ok(notify.then_some(period)),
        }
    }
}

/// For whom a set counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One thread; 0 is the calling one.
    Thread(u32),
    /// A process: its threads, and those to come.
    Process(u32),
    /// A process, its threads, and all processes and threads that come from them.
    Family(u32),
    /// A CPU, whoever runs there.
    Cpu(u32),
}

/// Counters that are wanted for the same target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Set {
    wanted: Vec<Wanted>,
    together: bool,
}

impl Set {
    /// An empty set, whose counters take turns where they have to.
    #[must_use]
    pub fn new() -> Set {
        Set::default()
    }

    /// An empty set, whose counters count over the same time or not at all. Too many of them are
    /// refused.
    #[must_use]
    pub fn together() -> Set {
        Set {
            together: true,
            ..Set::default()
        }
    }

    /// Adds a request. Its number in samples is how many were there before.
    pub fn add(&mut self, wanted: Wanted) {
        self.wanted.push(wanted);
    }

    /// What is wanted, in order.
    #[must_use]
    pub fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    /// Binds it.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing is bound then. Of several, the first request's.
    pub fn bind(&self, target: Target, begin: Begin) -> Result<Bound, Refusal> {
        match target {
            Target::Thread(tid) => self.at(&[Place::Thread(tid)], Inherit::Nobody, begin),
            Target::Cpu(cpu) => self.at(&[Place::Cpu(cpu)], Inherit::Nobody, begin),
            Target::Process(pid) => self.process(pid, Inherit::Threads, begin),
            Target::Family(pid) => self.process(pid, Inherit::All, begin),
        }
    }

    /// A thread that is bound gives its counters to those it starts; one that is not yet does not.
    /// So all are bound, disabled, between two listings of the threads, and when these are the same
    /// nobody was born in between who is not counted, or is counted twice.
    fn process(&self, pid: u32, inherit: Inherit, begin: Begin) -> Result<Bound, Refusal> {
        if let Some(told) = self.wanted.iter().find(|wanted| wanted.notify) {
            return Err(Refusal::Inherited {
                event: told.event.name.clone(),
            });
        }
        let held = match begin {
            Begin::Now => Begin::Later,
            other => other,
        };
        let list = || threads_of(pid).map_err(|_| Refusal::NoThread { tid: pid });
        let mut before = list()?;
        for _ in 0..LISTINGS {
            let places: Vec<_> = before.iter().copied().map(Place::Thread).collect();
            let bound = self.at(&places, inherit, held);
            let after = list()?;
            match bound {
                Ok(bound) if after == before => {
                    if begin == Begin::Now {
                        bound.enable().map_err(|error| self.other(&error, pid))?;
                    }
                    return Ok(bound);
                }
                Ok(_) | Err(Refusal::NoThread { .. }) => before = after,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Restless { pid })
    }

    fn at(&self, places: &[Place], inherit: Inherit, begin: Begin) -> Result<Bound, Refusal> {
        let presets = self.wanted.iter().map(|wanted| wanted.preset);
        let mut bound = Bound::of(presets.collect());
        for place in places {
            let mut row: Vec<Counter> = Vec::new();
            for (number, wanted) in self.wanted.iter().enumerate() {
                let period = wanted.period()?;
                let leader = row.first().filter(|_| self.together);
                let counter = Opening {
                    inherit,
                    period,
                    // A member of a group counts when its leader does. What stops at its overflow
                    // is begun by `refresh`.
                    begin: match (leader, period, begin) {
                        (Some(_), ..) => Begin::Now,
                        (None, Some(_), Begin::Now) => Begin::Later,
                        _ => begin,
                    },
                    leader: leader.map(Counter::as_fd),
                    ..Opening::of(&wanted.event, *place)
                }
                .open()?;
                if period.is_some() {
                    let alarm = Alarm::of(&counter).map_err(|_| Refusal::NoMemory {
                        event: wanted.event.name.clone(),
                    })?;
                    bound.alarms.push((number, alarm));
                    let armed = match begin {
                        Begin::Now => counter.refresh(),
                        // It is to stop at its first overflow, whoever enables it.
                        Begin::Later | Begin::Exec => arm(&counter, period.unwrap_or(1)),
                    };
                    armed.map_err(|error| self.other(&error, 0))?;
                }
                row.push(counter);
            }
            bound.counters.push(row);
        }
        Ok(bound)
    }

    fn other(&self, error: &io::Error, tid: u32) -> Refusal {
        let first = self.wanted.first();
        Refusal::Other {
            event: first.map_or_else(String::new, |wanted| wanted.event.name.clone()),
            place: Place::Thread(tid),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }
}

/// The threads of a process that exist now.
///
/// # Errors
/// When `/proc` does not list them: there is no such process.
pub fn threads_of(pid: u32) -> io::Result<BTreeSet<u32>> {
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        threads.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok()),
        );
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
            Wanted {
                preset,
                notify,
                ..Wanted::new(page_faults())
            }
            .period()
        };
        assert_eq!(Wanted::after(page_faults(), 1000).preset, u64::MAX - 999);
        assert_eq!(period(u64::MAX - 999, true), Ok(Some(1000)));
        assert_eq!(period(u64::MAX - 999, false), Ok(None));
        assert_eq!(period(0, false), Ok(None));
        for far in [0, 1, 1 << 63] {
            assert!(matches!(period(far, true), Err(Refusal::FarPreset { .. })));
        }
    }

    #[test]
    fn overflows_of_threads_to_come_are_refused() {
        let mut set = Set::new();
        set.add(Wanted::after(page_faults(), 10));
        let refused = set.bind(Target::Process(std::process::id()), Begin::Now);
        assert!(matches!(refused, Err(Refusal::Inherited { .. })));
    }
}
