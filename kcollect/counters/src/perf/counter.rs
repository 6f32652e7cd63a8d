//! One event, bound to a thread or to a CPU: an open file of `perf_event_open(2)`.
//!
//! The crates that wrap this system call (perf-event2, perf-event-open) bring builders and bindings
//! of their own. Here the attribute is made already, by [`Encoding`](crate::names::event::Encoding); what
//! is left is one read and six ioctls, and the errors, which are the greater part and which those
//! crates leave as numbers.
//!
//! A counter of a thread and one of a CPU do not exclude each other on Linux, and neither do
//! counters of two users: where the hardware has too few, the kernel takes turns. So nothing here
//! locks anybody out, or can be invalidated by others, as a set of libcpc's is when somebody starts
//! cpustat.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use host::machine::online_cpus;
use nix::unistd::read;
use perf_event_open_sys::bindings as sys;
use perf_event_open_sys::{ioctls, perf_event_open};

use crate::names::event::Event;
use crate::perf::reading::Value;
use crate::perf::refusal::{Asked, Machine, Refusal};

/// Where a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A thread, wherever it runs; 0 is the calling one.
    Thread(u32),
    /// A thread, when it is on this CPU.
    ThreadOn(u32, u32),
    /// A CPU, whoever runs on it.
    Cpu(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Thread(tid) | Place::ThreadOn(tid, _) => write!(f, "on thread {tid}"),
            Place::Cpu(cpu) => write!(f, "on CPU {cpu}"),
        }
    }
}

/// Who counts with a thread: what it starts after the counter was opened, and what those start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// Nobody.
    #[default]
    Nobody,
    /// Threads of the same process (Linux 5.13).
    Threads,
    /// Threads and processes.
    All,
}

/// When it begins to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// When it is told to: [`Counter::enable`], [`Counter::refresh`].
    #[default]
    Later,
    /// At once.
    Now,
    /// At the thread's next exec: with a program's first instruction.
    Exec,
}

/// All that is asked of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The event.
    pub event: &'a Event,
    /// Where.
    pub place: Place,
    /// For whom else.
    pub inherit: Inherit,
    /// From when.
    pub begin: Begin,
    /// A record of every inherited counter's value when its thread ends (`PERF_RECORD_READ`), which
    /// needs [`Counter::tell`].
    pub last_words: bool,
    /// It overflows after so many, with a record each time.
    pub period: Option<u64>,
    /// It counts when this one does, and not else.
    pub leader: Option<BorrowedFd<'a>>,
}

impl<'a> Opening<'a> {
    /// An event at a place, for nobody else, disabled.
    #[must_use]
    pub fn of(event: &'a Event, place: Place) -> Opening<'a> {
        Opening {
            event,
            place,
            inherit: Inherit::Nobody,
            begin: Begin::Later,
            last_words: false,
            period: None,
            leader: None,
        }
    }

    fn attribute(&self) -> sys::perf_event_attr {
        let mut attr = self.event.encoding.attribute();
        let format = sys::PERF_FORMAT_TOTAL_TIME_ENABLED
            | sys::PERF_FORMAT_TOTAL_TIME_RUNNING
            | sys::PERF_FORMAT_ID;
        attr.read_format = format.into();
        attr.set_disabled((self.begin != Begin::Now).into());
        attr.set_enable_on_exec((self.begin == Begin::Exec).into());
        attr.set_inherit((self.inherit != Inherit::Nobody).into());
        attr.set_inherit_thread((self.inherit == Inherit::Threads).into());
        attr.set_inherit_stat(self.last_words.into());
        told(&mut attr);
        if let Some(period) = self.period {
            attr.__bindgen_anon_1.sample_period = period;
            attr.__bindgen_anon_2.wakeup_events = 1;
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_IP);
        }
        attr
    }

    /// Opens it.
    ///
    /// # Errors
    /// A [`Refusal`] that names the event and the place.
    pub fn open(&self) -> Result<Counter, Refusal> {
        let errno = match open(&mut self.attribute(), self.place, self.leader) {
            Ok(fd) => return Ok(Counter { fd }),
            Err(error) => error.raw_os_error().unwrap_or(0),
        };
        Err(self.why(errno))
    }

    /// EINVAL has several meanings that can be told apart by asking for less.
    fn why(&self, errno: i32) -> Refusal {
        let event = || self.event.name.clone();
        let without = |change: &dyn Fn(&mut Opening<'a>)| {
            let mut less = *self;
            change(&mut less);
            open(&mut less.attribute(), less.place, less.leader).is_ok()
        };
        if errno == libc::EINVAL {
            // Of a number that no CPU can have.
            if let Place::Cpu(cpu) = self.place
                && online_cpus().is_ok_and(|online| !online.contains(&cpu))
            {
                return Refusal::Offline { cpu };
            }
            if self.period.is_some() && without(&|less| less.period = None) {
                return Refusal::NoInterrupt { event: event() };
            }
            if self.leader.is_some() && without(&|less| less.leader = None) {
                return Refusal::TooMany { event: event() };
            }
            if !matches!(self.place, Place::Cpu(_)) && self.event.cpus.is_some() {
                return Refusal::OfCpus {
                    event: event(),
                    place: self.place,
                };
            }
        }
        let asked = Asked {
            event: self.event,
            place: self.place,
            overflows: self.period.is_some(),
        };
        Refusal::of(errno, &asked, &Machine::read())
    }
}

/// Every record says whose it is and when it was made, by CLOCK_MONOTONIC; the same for all that
/// share a ring.
pub(crate) fn told(attr: &mut sys::perf_event_attr) {
    attr.sample_type = u64::from(sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
}

pub(crate) fn open(
    attr: &mut sys::perf_event_attr,
    place: Place,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let number =
        |number: u32, error| i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(error));
    let (pid, cpu) = match place {
        Place::Thread(tid) => (number(tid, libc::ESRCH)?, -1),
        Place::ThreadOn(tid, cpu) => (number(tid, libc::ESRCH)?, number(cpu, libc::ENODEV)?),
        Place::Cpu(cpu) => (-1, number(cpu, libc::ENODEV)?),
    };
    let leader = leader.map_or(-1, |leader| leader.as_raw_fd());
    // SAFETY: `attr` is an initialised perf_event_attr that lives through the call.
    let fd = unsafe { perf_event_open(attr, pid, cpu, leader, sys::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An open counter. Dropped, it is closed: the kernel then forgets it, and what it counted.
#[derive(Debug)]
pub struct Counter {
    fd: OwnedFd,
}

impl Counter {
    /// What it has counted, with all who count with it.
    ///
    /// # Errors
    /// What `read(2)` says; `UnexpectedEof` of one that has lost its counter for good.
    pub fn read(&self) -> io::Result<Value> {
        Ok(self.words()?.0)
    }

    /// The number by which records name it.
    ///
    /// # Errors
    /// As [`Counter::read`].
    pub fn id(&self) -> io::Result<u64> {
        Ok(self.words()?.1)
    }

    /// `{ u64 value, time_enabled, time_running, id; }`, as the read format says.
    fn words(&self) -> io::Result<(Value, u64)> {
        let mut bytes = [0; 32];
        if read(&self.fd, &mut bytes)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(word)
        };
        let value = Value {
            count: word(0),
            enabled_ns: word(1),
            running_ns: word(2),
        };
        Ok((value, word(3)))
    }

    /// Begins to count, or goes on.
    ///
    /// # Errors
    /// What `ioctl(2)` says, as all that follow.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        said(unsafe { ioctls::ENABLE(self.fd.as_raw_fd(), 0) })
    }

    /// Stops to count.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        said(unsafe { ioctls::DISABLE(self.fd.as_raw_fd(), 0) })
    }

    /// Back to zero: the count, not the times.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    pub fn reset(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        said(unsafe { ioctls::RESET(self.fd.as_raw_fd(), 0) })
    }

    /// Counts on, up to its next overflow, at which it stops by itself.
    ///
    /// # Errors
    /// What `ioctl(2)` says; EINVAL where it was opened without a period.
    pub fn refresh(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a number of overflows.
        said(unsafe { ioctls::REFRESH(self.fd.as_raw_fd(), 1) })
    }

    /// The next overflow is after so many from now on.
    ///
    /// # Errors
    /// What `ioctl(2)` says; EINVAL of none and of 2^63 and more.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        // The kernel takes the number by its address, which the bindings' type hides.
        // SAFETY: a perf event's descriptor, and the address of a u64 that lives through the call.
        said(unsafe { ioctls::PERIOD(self.fd.as_raw_fd(), (&raw const period) as u64) })
    }

    /// Its records go into the ring of another counter, of the same thread or CPU.
    ///
    /// # Errors
    /// What `ioctl(2)` says; EINVAL where they are not of the same CPU or have other clocks.
    pub fn tell(&self, ring: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: two descriptors of perf events.
        said(unsafe { ioctls::SET_OUTPUT(self.fd.as_raw_fd(), ring.as_raw_fd()) })
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Counter {
        Counter { fd }
    }

    /// Another descriptor of the same counter.
    pub(crate) fn again(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl AsFd for Counter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn said(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::page_faults;

    #[test]
    fn the_attribute_says_what_was_asked() {
        let event = page_faults();
        let mut opening = Opening::of(&event, Place::Thread(0));
        let attr = opening.attribute();
        assert_eq!(
            (attr.disabled(), attr.inherit(), attr.inherit_stat()),
            (1, 0, 0)
        );
        opening.inherit = Inherit::Threads;
        opening.begin = Begin::Exec;
        opening.last_words = true;
        let attr = opening.attribute();
        assert_eq!((attr.disabled(), attr.enable_on_exec()), (1, 1));
        assert_eq!(
            (attr.inherit(), attr.inherit_thread(), attr.inherit_stat()),
            (1, 1, 1)
        );
        opening.begin = Begin::Now;
        assert_eq!(opening.attribute().disabled(), 0);
    }

    #[test]
    fn a_thread_that_cannot_be_is_no_thread() {
        let event = page_faults();
        let gone = Opening::of(&event, Place::Thread(u32::MAX));
        assert_eq!(
            gone.open().unwrap_err(),
            Refusal::NoThread { tid: u32::MAX }
        );
    }
}
