//! Sets of counters: what is wanted, bound to somebody, sampled, released.
//!
//! A [`Set`] is a list of requests, each an event with a preset. Bound to a [`Target`] it counts ([`Bound`]); `sample` reads
//! it, with the time of the reading; dropping it, or `release`, takes the counters back. The model is libcpc's, with
//! three differences that are Linux's: a set of a CPU and a set of a thread do not exclude each other, a bound set is never
//! invalidated by others, and events that find no counter take turns instead of being refused, unless they are wanted
//! together.
//!
//! Refused: overflows of threads to come ([`Refusal::Inherited`]), for the kernel has no ring for them.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::binding::{Begin, Counter, Inherit, Opening, Place};
use super::event::Event;
use super::overflow::{Alarm, Overflow};
use super::refusal::Refusal;
use super::sample::{Sample, Value};
use crate::machine::now;

/// How often the threads of a process are listed until no new one is there.
const LISTINGS: u32 = 100;

/// One counter that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What it counts: the event, in user mode or the kernel, its attributes.
    pub event: Event,
    /// Where it begins; 0 where nothing else is to be said. [`Bound::sample`] gives it with what was counted, modulo 2^64.
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

    /// An empty set, whose counters count over the same time or not at all. Too many of them are refused.
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

    /// A thread that is bound gives its counters to those it starts; one that is not yet does not. So all are bound, disabled,
    /// between two listings of the threads, and when these are the same nobody was born in between who is not counted, or
    /// is counted twice.
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
        let mut bound = Bound {
            presets: self.wanted.iter().map(|wanted| wanted.preset).collect(),
            counters: Vec::new(),
            alarms: Vec::new(),
            told: RefCell::default(),
        };
        for place in places {
            let mut row: Vec<Counter> = Vec::new();
            for (number, wanted) in self.wanted.iter().enumerate() {
                let period = wanted.period()?;
                let leader = row.first().filter(|_| self.together);
                let counter = Opening {
                    inherit,
                    period,
                    // A member of a group counts when its leader does. What stops at its overflow is begun by `refresh`.
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

/// A set that counts.
#[derive(Debug)]
pub struct Bound {
    presets: Vec<u64>,
    /// One row for each thread, one counter for each request.
    counters: Vec<Vec<Counter>>,
    alarms: Vec<(usize, Alarm)>,
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

    /// Begins to count, or goes on. What has stopped at its overflow stops next after as many as its preset says.
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

    /// Hears what there is, and gives the requests whose counters have stopped since they were enabled.
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

    /// Each becomes readable when its counter has overflowed; and hangs up when its thread has ended.
    pub fn alarms(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.alarms.iter().map(|(_, alarm)| alarm.as_fd())
    }

    /// The overflows since the last call, each with the number of its request. It does not wait.
    pub fn overflows(&self) -> Vec<(usize, Overflow)> {
        std::mem::take(&mut self.hear().waiting)
    }

    /// Waits for an overflow, at most so long, whole milliseconds. Gives none when the time is over or a thread has ended.
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
fn arm(counter: &Counter, period: u64) -> io::Result<()> {
    counter.refresh()?;
    counter.disable()?;
    counter.reset()?;
    counter.set_period(period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::page_faults;

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
