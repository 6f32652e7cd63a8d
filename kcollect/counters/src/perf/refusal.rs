//! Why the kernel did not open a counter, and what to do about it.
//!
//! `perf_event_open(2)` has one error number for many reasons: EINVAL is a sampling period where
//! there is no interrupt, one event too many in a group, or an uncore event on a thread. So the
//! number is combined with what was requested ([`OpenAttempt`]) and with what the machine has
//! ([`PerfSettings`]). Where that is not enough, [`crate::perf::counter`] tries again with less.
//!
//! A name that does not exist is a [`CounterError`](crate::names::CounterError), found earlier.

use std::io;

use host::Root;
use host::exit::{ExitKind, Failure};
use perf_event_open_sys::bindings as sys;
use thiserror::Error;
use types::ids::{Pid, Tid};

use crate::names::event::PerfEvent;
use crate::perf::scope::CounterScope;

/// A counter that the kernel did not open, by reason. Displayed without its hint, which is
/// [`Refusal::hint`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// EACCES or EPERM: `kernel.perf_event_paranoid`, a capability, a security module, or another
    /// user's process.
    #[error("{event} may not be counted {scope}{}", setting(*.paranoid))]
    Denied {
        /// The event's name.
        event: String,
        /// The thread or CPU.
        scope: CounterScope,
        /// `kernel.perf_event_paranoid`, if it can be read.
        paranoid: Option<i32>,
    },
    /// EBUSY: another program has the counter for itself. A later attempt may succeed: see
    /// [`crate::perf::retry`].
    #[error("{event} is busy: another program has its counter")]
    Busy {
        /// The event's name.
        event: String,
    },
    /// ENOENT or EOPNOTSUPP: this kernel, or this CPU, does not have the event.
    #[error("{event} does not exist on this machine")]
    NoSuchEvent {
        /// The event's name.
        event: String,
    },
    /// ENOENT, EOPNOTSUPP or ENODEV of an event of the CPU, on a machine without a core PMU.
    #[error(
        "{event} needs hardware counters, and this machine has none (virtual machines seldom have them)"
    )]
    NoPmu {
        /// The event's name.
        event: String,
    },
    /// The event can be counted, but does not interrupt at an overflow.
    #[error("{event} cannot overflow here: its counter has no interrupt")]
    NoInterrupt {
        /// The event's name.
        event: String,
    },
    /// The event is counted for CPUs only, not for threads.
    #[error("{event} cannot be counted {scope}: it is counted for CPUs only")]
    CpusOnly {
        /// The event's name.
        event: String,
        /// The thread or CPU.
        scope: CounterScope,
    },
    /// ENOSPC, or a group that is too large for the counters.
    #[error("{event} is one event too many: all counters for it are in use")]
    TooMany {
        /// The event's name.
        event: String,
    },
    /// EMFILE or ENFILE: each counter is an open file.
    #[error("{event} {scope}: too many files are open")]
    TooManyFiles {
        /// The event's name.
        event: String,
        /// The thread or CPU.
        scope: CounterScope,
    },
    /// ENOMEM, or EPERM of a ring: an unprivileged user may lock little memory.
    #[error("{event}: no memory for the counter's records")]
    NoMemory {
        /// The event's name.
        event: String,
    },
    /// ENODEV: there is no such CPU, or it is offline.
    #[error("CPU {cpu} is not online")]
    Offline {
        /// The CPU.
        cpu: u32,
    },
    /// ESRCH: the thread has exited, or never existed.
    #[error("there is no thread {tid}")]
    NoThread {
        /// The thread.
        tid: Tid,
    },
    /// The threads of a process start and exit faster than they can be listed.
    #[error("process {pid} starts threads faster than counters can be opened for them")]
    TooManyNewThreads {
        /// The process.
        pid: Pid,
    },
    /// Overflows were requested for threads that start later: the kernel has no ring for records of
    /// several threads.
    #[error("overflows of {event} cannot be recorded for threads that do not exist yet")]
    InheritedOverflow {
        /// The event's name.
        event: String,
    },
    /// The requested overflow is more events away than the kernel supports.
    #[error("{event} with preset {preset} would overflow after more than 2^63 events")]
    PresetTooFar {
        /// The event's name.
        event: String,
        /// The value from which the counter was to count.
        preset: u64,
    },
    /// An error number without a known meaning.
    #[error("{event} cannot be counted {scope}: {}", io::Error::from_raw_os_error(*.errno))]
    Other {
        /// The event's name.
        event: String,
        /// The thread or CPU.
        scope: CounterScope,
        /// The error number.
        errno: i32,
    },
}

fn setting(paranoid: Option<i32>) -> String {
    paranoid.map_or_else(String::new, |level| {
        format!(" (kernel.perf_event_paranoid is {level})")
    })
}

/// A request to open a counter, as far as the meaning of an error depends on it.
#[derive(Clone, Copy, Debug)]
pub struct OpenAttempt<'a> {
    /// The event.
    pub event: &'a PerfEvent,
    /// The thread or CPU.
    pub scope: CounterScope,
    /// Whether overflows were requested.
    pub overflows: bool,
}

/// The settings of the machine that the meaning of an error depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfSettings {
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
    /// Whether sysfs has a core PMU, which is `cpu`, or has another name on some machines.
    pub has_pmu: bool,
}

impl PerfSettings {
    /// Reads the settings of this machine.
    #[must_use]
    pub fn read() -> PerfSettings {
        let root = Root::machine();
        PerfSettings {
            paranoid: root.number("/proc/sys/kernel/perf_event_paranoid"),
            has_pmu: core_pmu(&root).is_some(),
        }
    }
}

/// Returns the name in sysfs of the PMU that counts events of the CPU. None: this machine has no
/// hardware counters.
#[must_use]
pub fn core_pmu(root: &Root) -> Option<&'static str> {
    const NAMES: [&str; 4] = ["cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"];
    let exists = |name: &&str| root.exists(&format!("/sys/bus/event_source/devices/{name}"));
    NAMES.into_iter().find(exists)
}

impl Refusal {
    /// Returns the refusal that an error number of `perf_event_open(2)` means.
    #[must_use]
    pub fn from_errno(errno: i32, attempt: &OpenAttempt<'_>, settings: &PerfSettings) -> Refusal {
        let OpenAttempt { event, scope, .. } = *attempt;
        let of_cpu = matches!(
            event.encoding.kind,
            sys::PERF_TYPE_HARDWARE | sys::PERF_TYPE_HW_CACHE | sys::PERF_TYPE_RAW
        );
        let event = event.name.clone();
        match (errno, scope) {
            (libc::EACCES | libc::EPERM, _) => Refusal::Denied {
                event,
                scope,
                paranoid: settings.paranoid,
            },
            (libc::EBUSY, _) => Refusal::Busy { event },
            (libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV, _) if of_cpu && !settings.has_pmu => {
                Refusal::NoPmu { event }
            }
            (libc::EOPNOTSUPP, _) if attempt.overflows => Refusal::NoInterrupt { event },
            (libc::ENODEV, CounterScope::Cpu(cpu) | CounterScope::ThreadOn(_, cpu)) => {
                Refusal::Offline { cpu }
            }
            (libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV, _) => Refusal::NoSuchEvent { event },
            (libc::ENOSPC, _) => Refusal::TooMany { event },
            (libc::EMFILE | libc::ENFILE, _) => Refusal::TooManyFiles { event, scope },
            (libc::ENOMEM, _) => Refusal::NoMemory { event },
            (libc::ESRCH, CounterScope::Thread(tid) | CounterScope::ThreadOn(tid, _)) => {
                Refusal::NoThread { tid }
            }
            _ => Refusal::Other {
                event,
                scope,
                errno,
            },
        }
    }

    /// Whether another attempt may succeed a moment later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Refusal::Busy { .. } | Refusal::TooManyNewThreads { .. }
        )
    }

    /// Returns the kind of failure, which decides the exit code.
    #[must_use]
    pub fn kind(&self) -> ExitKind {
        match self {
            Refusal::Denied { .. } => ExitKind::NoPerm,
            Refusal::NoThread { .. } => ExitKind::NoInput,
            _ => ExitKind::Unavailable,
        }
    }

    /// Returns what the user can do, as an instruction or a command to type.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Refusal::Denied {
                scope, paranoid, ..
            } => {
                let root = "run with sudo, or with CAP_PERFMON";
                // Above 1 the kernel cannot be counted, above 2 (Debian's) nothing can; counting
                // CPUs always needs a privilege.
                match (scope, paranoid) {
                    (CounterScope::Cpu(_), _) => format!("{root}; or: sysctl kernel.perf_event_paranoid=0"),
                    (_, Some(2..)) => format!("{root}; or: sysctl kernel.perf_event_paranoid=1"),
                    _ => format!("{root}; otherwise only your own processes can be counted"),
                }
            }
            Refusal::Busy { .. } => "end other programs that count, such as perf, or the watchdog (sysctl kernel.nmi_watchdog=0), \
                                     and try again"
                .to_owned(),
            Refusal::NoSuchEvent { .. } => {
                "kcollect -h lists what this machine can count".to_owned()
            }
            Refusal::NoPmu { .. } => "use events of the kernel, such as task-clock, page-faults and context-switches, or give the \
                                      virtual machine a PMU"
                .to_owned(),
            Refusal::NoInterrupt { .. } => {
                "count it without overflows, or record ticks of the clock with -p".to_owned()
            }
            Refusal::CpusOnly { .. } => "count it with kcollect stat".to_owned(),
            Refusal::TooMany { .. } => "ask for fewer events at once".to_owned(),
            Refusal::TooManyFiles { .. } => {
                "ask for fewer events, or raise the limit: ulimit -n".to_owned()
            }
            Refusal::NoMemory { .. } => {
                "run with sudo, or raise kernel.perf_event_mlock_kb".to_owned()
            }
            Refusal::Offline { cpu } => {
                format!(
                    "if the CPU exists: echo 1 | sudo tee /sys/devices/system/cpu/cpu{cpu}/online"
                )
            }
            Refusal::NoThread { .. } => "`ps -eLo pid,tid,comm` lists all threads".to_owned(),
            Refusal::InheritedOverflow { .. } => "bind a set to each thread".to_owned(),
            Refusal::PresetTooFar { .. } => {
                "use 2^64 minus the number of events as the preset".to_owned()
            }
            Refusal::TooManyNewThreads { .. } => "try again when it has started its threads".to_owned(),
            Refusal::Other { .. } => "report this as a bug, with the version of the kernel".to_owned(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::new(refusal.kind(), refusal.to_string(), refusal.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::page_faults;

    const DEBIAN: PerfSettings = PerfSettings {
        paranoid: Some(3),
        has_pmu: false,
    };

    fn attempt(event: &PerfEvent, scope: CounterScope) -> OpenAttempt<'_> {
        OpenAttempt {
            event,
            scope,
            overflows: false,
        }
    }

    #[test]
    fn each_reason_has_its_message_and_hint() {
        let soft = page_faults();
        let mut cycles = page_faults();
        cycles.name = "cycles".to_owned();
        cycles.encoding.kind = sys::PERF_TYPE_HARDWARE;
        let thread = CounterScope::Thread(Tid(7));
        let refusals = [
            (libc::EACCES, attempt(&soft, thread)),
            (libc::EPERM, attempt(&soft, CounterScope::Cpu(1))),
            (libc::EBUSY, attempt(&cycles, thread)),
            (libc::ENOENT, attempt(&soft, thread)),
            (libc::ENOENT, attempt(&cycles, thread)),
            (
                libc::EOPNOTSUPP,
                OpenAttempt {
                    overflows: true,
                    ..attempt(&soft, thread)
                },
            ),
            (libc::ENOSPC, attempt(&soft, thread)),
            (libc::EMFILE, attempt(&soft, thread)),
            (libc::ENODEV, attempt(&soft, CounterScope::Cpu(3))),
            (libc::ESRCH, attempt(&soft, thread)),
            (libc::E2BIG, attempt(&soft, thread)),
        ];
        let refusals = refusals
            .map(|(errno, attempt)| Failure::from(Refusal::from_errno(errno, &attempt, &DEBIAN)));
        let lines = refusals.map(|failure| format!("{} {failure}", failure.kind.code()));
        insta::assert_snapshot!(lines.join("\n"), @r"
        77 page-faults may not be counted on thread 7 (kernel.perf_event_paranoid is 3): run with sudo, or with CAP_PERFMON; or: sysctl kernel.perf_event_paranoid=1
        77 page-faults may not be counted on CPU 1 (kernel.perf_event_paranoid is 3): run with sudo, or with CAP_PERFMON; or: sysctl kernel.perf_event_paranoid=0
        69 cycles is busy: another program has its counter: end other programs that count, such as perf, or the watchdog (sysctl kernel.nmi_watchdog=0), and try again
        69 page-faults does not exist on this machine: kcollect -h lists what this machine can count
        69 cycles needs hardware counters, and this machine has none (virtual machines seldom have them): use events of the kernel, such as task-clock, page-faults and context-switches, or give the virtual machine a PMU
        69 page-faults cannot overflow here: its counter has no interrupt: count it without overflows, or record ticks of the clock with -p
        69 page-faults is one event too many: all counters for it are in use: ask for fewer events at once
        69 page-faults on thread 7: too many files are open: ask for fewer events, or raise the limit: ulimit -n
        69 CPU 3 is not online: if the CPU exists: echo 1 | sudo tee /sys/devices/system/cpu/cpu3/online
        66 there is no thread 7: `ps -eLo pid,tid,comm` lists all threads
        69 page-faults cannot be counted on thread 7: Argument list too long (os error 7): report this as a bug, with the version of the kernel
        ");
    }

    #[test]
    fn only_temporary_refusals_are_retried() {
        let event = page_faults();
        let of = |errno| {
            Refusal::from_errno(
                errno,
                &attempt(&event, CounterScope::Thread(Tid(7))),
                &DEBIAN,
            )
        };
        assert!(of(libc::EBUSY).is_temporary());
        assert!(!of(libc::EACCES).is_temporary());
        assert!(!of(libc::ENOSPC).is_temporary());
    }
}
