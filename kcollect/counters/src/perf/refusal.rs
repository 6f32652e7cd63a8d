//! Why an event cannot be counted here, and what to do about it.
//!
//! `perf_event_open(2)` has one number for many reasons: EINVAL is a sampling period where there is
//! no interrupt, one event too many in a group, or an uncore event on a thread. Whoever asked is
//! told which, so the number is judged together with what was asked and with what the machine has
//! ([`Asked`], [`Machine`]); where that is not enough, [`crate::perf::counter`] asks the kernel again,
//! for less.
//!
//! Refused here: a name that is none. That is known before anything is opened.

use std::fs;
use std::io;
use std::path::Path;

use host::exit::{Failure, Kind};
use perf_event_open_sys::bindings as sys;
use thiserror::Error;

use crate::names::event::Event;
use crate::perf::counter::Place;

/// A refusal by kind. Displayed without its cure, which is [`Refusal::cure`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// EACCES or EPERM: `kernel.perf_event_paranoid`, a capability, a security module, or somebody
    /// else's process.
    #[error("{event} may not be counted {place}{}", level(*.paranoid))]
    Denied {
        /// The event's name.
        event: String,
        /// Where.
        place: Place,
        /// `kernel.perf_event_paranoid`, where it can be read.
        paranoid: Option<i32>,
    },
    /// EBUSY: somebody else holds the counter. The one refusal that passes by itself: see
    /// [`crate::perf::retry`].
    #[error("{event} is busy: another user holds the counter")]
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
    /// The same of an event of the CPU, on a machine that shows no counters of its CPU.
    #[error(
        "{event} needs hardware counters, and this machine shows none (a virtual machine seldom has them)"
    )]
    NoPmu {
        /// The event's name.
        event: String,
    },
    /// It can be counted, but its overflow interrupts nobody.
    #[error("{event} cannot overflow here: its counter has no interrupt")]
    NoInterrupt {
        /// The event's name.
        event: String,
    },
    /// It counts what CPUs do together, not what a thread does.
    #[error("{event} cannot be counted {place}: it is an event of CPUs")]
    OfCpus {
        /// The event's name.
        event: String,
        /// Where.
        place: Place,
    },
    /// ENOSPC, or a group that is too large: there are not so many counters.
    #[error("{event} is one too many: there is no counter left that can count it")]
    TooMany {
        /// The event's name.
        event: String,
    },
    /// EMFILE or ENFILE: each counter is an open file.
    #[error("{event} {place}: too many files are open")]
    NoFiles {
        /// The event's name.
        event: String,
        /// Where.
        place: Place,
    },
    /// ENOMEM, or EPERM of a ring: an unprivileged user may lock so much memory and no more.
    #[error("{event}: no memory for the counter's records")]
    NoMemory {
        /// The event's name.
        event: String,
    },
    /// ENODEV: there is no such CPU, or it sleeps.
    #[error("no CPU {cpu} is online")]
    Offline {
        /// The CPU.
        cpu: u32,
    },
    /// ESRCH: it has ended, or never was.
    #[error("there is no thread {tid}")]
    NoThread {
        /// The thread.
        tid: u32,
    },
    /// Its threads come and go faster than they can be listed.
    #[error("process {pid} starts threads faster than they can be bound")]
    Restless {
        /// The process.
        pid: u32,
    },
    /// Its overflows are to be told, of threads to come too: the kernel has no ring for records of
    /// several threads.
    #[error("overflows of {event} cannot be told of threads that do not exist yet")]
    Inherited {
        /// The event's name.
        event: String,
    },
    /// It is to tell its overflow, which is farther away than the kernel can wait for.
    #[error("{event} with preset {preset} would overflow after more than 2^63")]
    FarPreset {
        /// The event's name.
        event: String,
        /// Where it was to begin.
        preset: u64,
    },
    /// What the kernel is not known to say.
    #[error("{event} cannot be counted {place}: {}", io::Error::from_raw_os_error(*.errno))]
    Other {
        /// The event's name.
        event: String,
        /// Where.
        place: Place,
        /// The number of the error.
        errno: i32,
    },
}

fn level(paranoid: Option<i32>) -> String {
    paranoid.map_or_else(String::new, |level| {
        format!(" (kernel.perf_event_paranoid is {level})")
    })
}

/// What was asked of the kernel when it refused.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The event.
    pub event: &'a Event,
    /// Where.
    pub place: Place,
    /// With overflows.
    pub overflows: bool,
}

/// What a refusal depends on besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
    /// A PMU of the CPU is registered: `cpu` in sysfs, or on some machines a name of its own.
    pub has_pmu: bool,
}

impl Machine {
    /// This one, now.
    #[must_use]
    pub fn read() -> Machine {
        let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok();
        let pmus = ["cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"];
        let devices = Path::new("/sys/bus/event_source/devices");
        Machine {
            paranoid: paranoid.and_then(|text| text.trim().parse().ok()),
            has_pmu: pmus.iter().any(|pmu| devices.join(pmu).exists()),
        }
    }
}

impl Refusal {
    /// What an error number of `perf_event_open(2)` means.
    #[must_use]
    pub fn of(errno: i32, asked: &Asked<'_>, machine: &Machine) -> Refusal {
        let Asked { event, place, .. } = *asked;
        let of_cpu = matches!(
            event.encoding.kind,
            sys::PERF_TYPE_HARDWARE | sys::PERF_TYPE_HW_CACHE | sys::PERF_TYPE_RAW
        );
        let event = event.name.clone();
        match (errno, place) {
            (libc::EACCES | libc::EPERM, _) => Refusal::Denied {
                event,
                place,
                paranoid: machine.paranoid,
            },
            (libc::EBUSY, _) => Refusal::Busy { event },
            (libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV, _) if of_cpu && !machine.has_pmu => {
                Refusal::NoPmu { event }
            }
            (libc::EOPNOTSUPP, _) if asked.overflows => Refusal::NoInterrupt { event },
            (libc::ENODEV, Place::Cpu(cpu) | Place::ThreadOn(_, cpu)) => Refusal::Offline { cpu },
            (libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV, _) => Refusal::NoSuchEvent { event },
            (libc::ENOSPC, _) => Refusal::TooMany { event },
            (libc::EMFILE | libc::ENFILE, _) => Refusal::NoFiles { event, place },
            (libc::ENOMEM, _) => Refusal::NoMemory { event },
            (libc::ESRCH, Place::Thread(tid) | Place::ThreadOn(tid, _)) => {
                Refusal::NoThread { tid }
            }
            _ => Refusal::Other {
                event,
                place,
                errno,
            },
        }
    }

    /// Whether it is worth while to try again in a moment.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Refusal::Busy { .. } | Refusal::Restless { .. })
    }

    /// The exit code of a run that it ends.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Refusal::Denied { .. } => Kind::NoPerm,
            Refusal::NoThread { .. } => Kind::NoInput,
            _ => Kind::Unavailable,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn cure(&self) -> String {
        match self {
            Refusal::Denied {
                place, paranoid, ..
            } => {
                let root = "run with sudo, or with CAP_PERFMON";
                // Above 1 the kernel's part is barred, above 2 (Debian's) everything; CPUs are for
                // the privileged anyway.
                match (place, paranoid) {
                    (Place::Cpu(_), _) => format!("{root}; or: sysctl kernel.perf_event_paranoid=0"),
                    (_, Some(2..)) => format!("{root}; or: sysctl kernel.perf_event_paranoid=1"),
                    _ => format!("{root}; without them only your own processes can be counted"),
                }
            }
            Refusal::Busy { .. } => "end what else counts, such as perf or the watchdog (sysctl kernel.nmi_watchdog=0), and \
                                     try again"
                .to_owned(),
            Refusal::NoSuchEvent { .. } => {
                "kcollect -h lists what this machine has".to_owned()
            }
            Refusal::NoPmu { .. } => "count events of the kernel, such as task-clock, page-faults and context-switches, or give \
                                      the virtual machine a PMU"
                .to_owned(),
            Refusal::NoInterrupt { .. } => {
                "count it without overflows, or sample by the clock".to_owned()
            }
            Refusal::OfCpus { .. } => "count it with kcollect stat".to_owned(),
            Refusal::TooMany { .. } => "ask for fewer events at once".to_owned(),
            Refusal::NoFiles { .. } => {
                "ask for fewer events, or raise the limit: ulimit -n".to_owned()
            }
            Refusal::NoMemory { .. } => {
                "run with sudo, or raise kernel.perf_event_mlock_kb".to_owned()
            }
            Refusal::Offline { cpu } => {
                format!(
                    "echo 1 > /sys/devices/system/cpu/cpu{cpu}/online brings it, where it exists"
                )
            }
            Refusal::NoThread { .. } => "see `ps -eLo pid,tid,comm` for what runs".to_owned(),
            Refusal::Inherited { .. } => "bind each thread by itself".to_owned(),
            Refusal::FarPreset { .. } => {
                "begin at 2^64 less the number that is waited for".to_owned()
            }
            Refusal::Restless { .. } => "try again when it has its threads".to_owned(),
            Refusal::Other { .. } => "report this, with the kernel's version".to_owned(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::new(refusal.kind(), refusal.to_string(), refusal.cure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::page_faults;

    const DEBIAN: Machine = Machine {
        paranoid: Some(3),
        has_pmu: false,
    };

    fn asked(event: &Event, place: Place) -> Asked<'_> {
        Asked {
            event,
            place,
            overflows: false,
        }
    }

    #[test]
    fn each_kind_has_its_words_and_its_cure() {
        let soft = page_faults();
        let mut cycles = page_faults();
        cycles.name = "cycles".to_owned();
        cycles.encoding.kind = sys::PERF_TYPE_HARDWARE;
        let thread = Place::Thread(7);
        let told = [
            (libc::EACCES, asked(&soft, thread)),
            (libc::EPERM, asked(&soft, Place::Cpu(1))),
            (libc::EBUSY, asked(&cycles, thread)),
            (libc::ENOENT, asked(&soft, thread)),
            (libc::ENOENT, asked(&cycles, thread)),
            (
                libc::EOPNOTSUPP,
                Asked {
                    overflows: true,
                    ..asked(&soft, thread)
                },
            ),
            (libc::ENOSPC, asked(&soft, thread)),
            (libc::EMFILE, asked(&soft, thread)),
            (libc::ENODEV, asked(&soft, Place::Cpu(3))),
            (libc::ESRCH, asked(&soft, thread)),
            (libc::E2BIG, asked(&soft, thread)),
        ];
        let told = told.map(|(errno, asked)| Failure::from(Refusal::of(errno, &asked, &DEBIAN)));
        let lines = told.map(|failure| format!("{} {failure}", failure.kind.code()));
        insta::assert_snapshot!(lines.join("\n"), @r"
        77 page-faults may not be counted on thread 7 (kernel.perf_event_paranoid is 3): run with sudo, or with CAP_PERFMON; or: sysctl kernel.perf_event_paranoid=1
        77 page-faults may not be counted on CPU 1 (kernel.perf_event_paranoid is 3): run with sudo, or with CAP_PERFMON; or: sysctl kernel.perf_event_paranoid=0
        69 cycles is busy: another user holds the counter: end what else counts, such as perf or the watchdog (sysctl kernel.nmi_watchdog=0), and try again
        69 page-faults does not exist on this machine: kcollect -h lists what this machine has
        69 cycles needs hardware counters, and this machine shows none (a virtual machine seldom has them): count events of the kernel, such as task-clock, page-faults and context-switches, or give the virtual machine a PMU
        69 page-faults cannot overflow here: its counter has no interrupt: count it without overflows, or sample by the clock
        69 page-faults is one too many: there is no counter left that can count it: ask for fewer events at once
        69 page-faults on thread 7: too many files are open: ask for fewer events, or raise the limit: ulimit -n
        69 no CPU 3 is online: echo 1 > /sys/devices/system/cpu/cpu3/online brings it, where it exists
        66 there is no thread 7: see `ps -eLo pid,tid,comm` for what runs
        69 page-faults cannot be counted on thread 7: Argument list too long (os error 7): report this, with the kernel's version
        ");
    }

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        let event = page_faults();
        let of = |errno| Refusal::of(errno, &asked(&event, Place::Thread(7)), &DEBIAN);
        assert!(of(libc::EBUSY).passes());
        assert!(!of(libc::EACCES).passes());
        assert!(!of(libc::ENOSPC).passes());
    }
}
