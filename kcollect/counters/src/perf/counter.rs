//! One event of a thread or of a CPU, opened with `perf_event_open(2)`.
//!
//! The libraries that wrap this system call (perf-event2, perf-event-open) have builders and
//! bindings of their own. Here [`Encoding`](crate::names::event::Encoding) makes the attribute;
//! what remains is one read, six ioctls, and the errors, which those libraries return as numbers.
//!
//! Counters of threads, of CPUs and of several users do not exclude each other on Linux: where the
//! hardware has too few, the kernel multiplexes them. So no counter here locks out another program,
//! or becomes invalid because of one, as a set of libcpc does when cpustat is started.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use host::machine::online_cpus;
use nix::unistd::read;
use perf_event_open_sys::bindings as sys;
use perf_event_open_sys::{ioctls, perf_event_open};
use types::units::Nanos;

use crate::names::event::PerfEvent;
use crate::perf::reading::CounterValue;
use crate::perf::refusal::{OpenAttempt, PerfSettings, Refusal};
use crate::perf::scope::CounterScope;

/// The threads that inherit a counter: those that a thread starts after the counter was opened, and
/// those that they start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// None.
    #[default]
    None,
    /// Threads of the same process (since Linux 5.13).
    Threads,
    /// Threads of all processes.
    All,
}

/// When a counter starts to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// When it is enabled: [`OpenCounter::enable`], [`OpenCounter::refresh`].
    #[default]
    Disabled,
    /// When it is opened.
    Now,
    /// At the thread's next exec, with the first instruction of a program.
    OnExec,
}

/// How a counter is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions<'a> {
    /// The event.
    pub event: &'a PerfEvent,
    /// The thread or CPU.
    pub scope: CounterScope,
    /// The threads that inherit the counter.
    pub inherit: Inherit,
    /// When it starts to count.
    pub start: Start,
    /// Whether the kernel writes a record of each inherited counter's value when its thread exits
    /// (`PERF_RECORD_READ`); this needs [`OpenCounter::set_output`].
    pub exit_counts: bool,
    /// The number of events between two overflows. Each overflow writes a record.
    pub period: Option<u64>,
    /// The leader of the counter's group. The counter counts only when the leader does.
    pub leader: Option<BorrowedFd<'a>>,
}

impl<'a> OpenOptions<'a> {
    /// Returns options for an event in a scope, not inherited, disabled.
    #[must_use]
    pub fn new(event: &'a PerfEvent, scope: CounterScope) -> OpenOptions<'a> {
        OpenOptions {
            event,
            scope,
            inherit: Inherit::None,
            start: Start::Disabled,
            exit_counts: false,
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
        attr.set_disabled((self.start != Start::Now).into());
        attr.set_enable_on_exec((self.start == Start::OnExec).into());
        attr.set_inherit((self.inherit != Inherit::None).into());
        attr.set_inherit_thread((self.inherit == Inherit::Threads).into());
        attr.set_inherit_stat(self.exit_counts.into());
        add_thread_and_time(&mut attr);
        if let Some(period) = self.period {
            attr.__bindgen_anon_1.sample_period = period;
            attr.__bindgen_anon_2.wakeup_events = 1;
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_IP);
        }
        attr
    }

    /// Opens the counter.
    ///
    /// # Errors
    /// A [`Refusal`] that names the event and the scope.
    pub fn open(&self) -> Result<OpenCounter, Refusal> {
        let errno = match open_event(&mut self.attribute(), self.scope, self.leader) {
            Ok(fd) => return Ok(OpenCounter { fd }),
            Err(error) => error.raw_os_error().unwrap_or(0),
        };
        Err(self.diagnose(errno))
    }

    /// Returns the refusal that an error number means. EINVAL has several meanings, which differ in
    /// what the kernel accepts instead.
    fn diagnose(&self, errno: i32) -> Refusal {
        let event = || self.event.name.clone();
        let without = |change: &dyn Fn(&mut OpenOptions<'a>)| {
            let mut less = *self;
            change(&mut less);
            open_event(&mut less.attribute(), less.scope, less.leader).is_ok()
        };
        if errno == libc::EINVAL {
            // The kernel returns EINVAL for numbers that no CPU can have.
            if let CounterScope::Cpu(cpu) = self.scope
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
            if !matches!(self.scope, CounterScope::Cpu(_)) && self.event.cpus.is_some() {
                return Refusal::CpusOnly {
                    event: event(),
                    scope: self.scope,
                };
            }
        }
        let attempt = OpenAttempt {
            event: self.event,
            scope: self.scope,
            overflows: self.period.is_some(),
        };
        Refusal::from_errno(errno, &attempt, &PerfSettings::read())
    }
}

/// Requests that every record ends with its process, thread and CLOCK_MONOTONIC time. All events
/// that share a ring need the same.
pub(crate) fn add_thread_and_time(attr: &mut sys::perf_event_attr) {
    attr.sample_type = u64::from(sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
}

/// Opens an event. The only call of `perf_event_open(2)`.
///
/// # Errors
/// The error of the kernel; ENODEV and ESRCH of numbers that no CPU and no thread can have.
pub(crate) fn open_event(
    attr: &mut sys::perf_event_attr,
    scope: CounterScope,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let number =
        |number: u32, error| i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(error));
    let (pid, cpu) = match scope {
        CounterScope::Thread(tid) => (number(tid.0, libc::ESRCH)?, -1),
        CounterScope::ThreadOn(tid, cpu) => {
            (number(tid.0, libc::ESRCH)?, number(cpu, libc::ENODEV)?)
        }
        CounterScope::Cpu(cpu) => (-1, number(cpu, libc::ENODEV)?),
    };
    let leader = leader.map_or(-1, |leader| leader.as_raw_fd());
    // SAFETY: `attr` is an initialised perf_event_attr that lives through the call.
    let fd = unsafe { perf_event_open(attr, pid, cpu, leader, sys::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An open counter. Dropping it closes it, and its count is lost.
#[derive(Debug)]
pub struct OpenCounter {
    fd: OwnedFd,
}

impl OpenCounter {
    /// Reads the count, including all threads that inherited the counter.
    ///
    /// # Errors
    /// The error of `read(2)`; `UnexpectedEof` if the kernel has stopped it for good.
    pub fn read(&self) -> io::Result<CounterValue> {
        Ok(self.words()?.0)
    }

    /// Returns the number that records have for the counter.
    ///
    /// # Errors
    /// As [`OpenCounter::read`].
    pub fn id(&self) -> io::Result<u64> {
        Ok(self.words()?.1)
    }

    /// Reads `{ u64 value, time_enabled, time_running, id; }`, as the read format defines.
    fn words(&self) -> io::Result<(CounterValue, u64)> {
        let mut bytes = [0; 32];
        if read(&self.fd, &mut bytes)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(word)
        };
        let value = CounterValue {
            count: word(0),
            enabled_ns: Nanos(word(1)),
            running_ns: Nanos(word(2)),
        };
        Ok((value, word(3)))
    }

    /// Starts or continues to count.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        check(unsafe { ioctls::ENABLE(self.fd.as_raw_fd(), 0) })
    }

    /// Stops counting.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        check(unsafe { ioctls::DISABLE(self.fd.as_raw_fd(), 0) })
    }

    /// Sets the count to zero, but not the times.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
    pub fn reset(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a flag.
        check(unsafe { ioctls::RESET(self.fd.as_raw_fd(), 0) })
    }

    /// Counts until the next overflow, and stops there.
    ///
    /// # Errors
    /// The error of `ioctl(2)`; EINVAL where it was opened without a period.
    pub fn refresh(&self) -> io::Result<()> {
        // SAFETY: a perf event's descriptor, and a number of overflows.
        check(unsafe { ioctls::REFRESH(self.fd.as_raw_fd(), 1) })
    }

    /// Sets the number of events, counted from now, after which it overflows next.
    ///
    /// # Errors
    /// The error of `ioctl(2)`; EINVAL for 0 and for 2^63 and more.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        // The kernel takes the address of the number, although the bindings have an integer here.
        // SAFETY: a perf event's descriptor, and the address of a u64 that lives through the call.
        check(unsafe { ioctls::PERIOD(self.fd.as_raw_fd(), (&raw const period) as u64) })
    }

    /// Writes its records into the ring of another counter, of the same thread or CPU.
    ///
    /// # Errors
    /// The error of `ioctl(2)`; EINVAL where they have different CPUs or clocks.
    pub fn set_output(&self, ring: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: two descriptors of perf events.
        check(unsafe { ioctls::SET_OUTPUT(self.fd.as_raw_fd(), ring.as_raw_fd()) })
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> OpenCounter {
        OpenCounter { fd }
    }

    /// Returns another descriptor of the same counter.
    pub(crate) fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl AsFd for OpenCounter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use types::ids::Tid;

    use super::*;
    use crate::names::page_faults;

    #[test]
    fn options_become_attributes() {
        let event = page_faults();
        let mut options = OpenOptions::new(&event, CounterScope::Thread(Tid(0)));
        let attr = options.attribute();
        assert_eq!(
            (attr.disabled(), attr.inherit(), attr.inherit_stat()),
            (1, 0, 0)
        );
        options.inherit = Inherit::Threads;
        options.start = Start::OnExec;
        options.exit_counts = true;
        let attr = options.attribute();
        assert_eq!((attr.disabled(), attr.enable_on_exec()), (1, 1));
        assert_eq!(
            (attr.inherit(), attr.inherit_thread(), attr.inherit_stat()),
            (1, 1, 1)
        );
        options.start = Start::Now;
        assert_eq!(options.attribute().disabled(), 0);
    }

    #[test]
    fn a_thread_number_out_of_range_is_no_thread() {
        let event = page_faults();
        let gone = OpenOptions::new(&event, CounterScope::Thread(Tid(u32::MAX)));
        assert_eq!(
            gone.open().unwrap_err(),
            Refusal::NoThread { tid: Tid(u32::MAX) }
        );
    }
}
