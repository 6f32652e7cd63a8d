//! Errors in the names of counters, found before anything is opened.
//!
//! An event that the kernel refuses to open is a [`Refusal`](crate::perf::refusal::Refusal).

use host::exit::{ExitKind, Failure};

/// A counter that this machine does not have, or that was mistyped. Displayed without its hint,
/// which is [`CounterError::hint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CounterError {
    /// The text is not of the form of a counter.
    #[error("{typed}: {what}")]
    Form {
        /// The text as typed, or the part that is wrong.
        typed: String,
        /// What is wrong with it.
        what: &'static str,
        /// What to type instead.
        hint: &'static str,
    },
    /// No event has this name.
    #[error("there is no event {name}")]
    NoEvent {
        /// The name, without attributes and interval.
        name: String,
        /// Similar names, the best first; at most three.
        nearest: Vec<String>,
    },
    /// No PMU has this name.
    #[error("this machine has no PMU {pmu}")]
    NoPmu {
        /// The text before the first slash.
        pmu: String,
        /// Similar names, the best first; at most three.
        nearest: Vec<String>,
    },
    /// A PMU has no such event and no such field.
    #[error("the PMU {pmu} has no event or field {term}")]
    NoTerm {
        /// The PMU.
        pmu: String,
        /// The term that was typed.
        term: String,
        /// Similar fields and events, the best first; at most three.
        nearest: Vec<String>,
    },
    /// A value does not fit into its field.
    #[error("{pmu}: {term}={value:#x} is too large")]
    TooLarge {
        /// The PMU.
        pmu: String,
        /// The field.
        term: String,
        /// The value as typed.
        value: u64,
        /// Maximum value that fits.
        max: u64,
    },
    /// A value that sysfs leaves to the user is missing from an event.
    #[error("the PMU {pmu} needs a value for {term}")]
    Missing {
        /// The PMU.
        pmu: String,
        /// The field.
        term: String,
    },
    /// The kernel describes a field or event in a way not known here, such as a field in a word
    /// that `perf_event_attr` was extended by.
    #[error(
        "the kernel describes {term} of the PMU {pmu} as {text}, which this version of kcollect cannot parse"
    )]
    Unknown {
        /// The PMU.
        pmu: String,
        /// The field or event.
        term: String,
        /// Its text in sysfs.
        text: String,
    },
    /// An event of the CPU was typed on a machine without a core PMU.
    #[error("{name}: this {} has no hardware counters", either(.virtual_machine, "virtual machine", "machine"))]
    NoCounters {
        /// The event.
        name: String,
        /// Whether it is a virtual machine.
        virtual_machine: bool,
    },
    /// An event of an uncore PMU was to overflow. Such a PMU counts but does not interrupt.
    #[error(
        "{name} cannot overflow: the PMU {pmu} counts for the whole package, not for a place in a program"
    )]
    NeverOverflows {
        /// The event.
        name: String,
        /// The PMU.
        pmu: String,
    },
    /// The numbers of tracepoints cannot be read.
    #[error("{name}: the kernel's list of tracepoints is {}", either(.denied, "readable by root only", "not mounted"))]
    NoTracefs {
        /// The tracepoint.
        name: String,
        /// Whether the list exists, but may not be read.
        denied: bool,
    },
    /// A symbol of the kernel does not exist, or its address is hidden.
    #[error("{symbol}: {}", either(.hidden, "the kernel hides its addresses", "the kernel has no such symbol"))]
    NoSymbol {
        /// The symbol.
        symbol: String,
        /// Whether its address reads as zero.
        hidden: bool,
    },
}

fn either(one: &bool, yes: &'static str, no: &'static str) -> &'static str {
    if *one { yes } else { no }
}

impl CounterError {
    /// Returns what the user can do, as an instruction or a command to type, without a full stop.
    #[must_use]
    pub fn hint(&self) -> String {
        const LIST: &str = "kcollect -h lists what this machine can count";
        let near = |nearest: &[String], otherwise: &str| match nearest {
            [] => otherwise.to_owned(),
            [one] => format!("did you mean {one}? {otherwise}"),
            [first @ .., last] => {
                format!("did you mean {} or {last}? {otherwise}", first.join(", "))
            }
        };
        match self {
            CounterError::Form { hint, .. } => (*hint).to_owned(),
            CounterError::NoEvent { nearest, .. } | CounterError::NoPmu { nearest, .. } => {
                near(nearest, LIST)
            }
            CounterError::NoTerm { pmu, nearest, .. } => {
                let fields =
                    format!("its fields are in /sys/bus/event_source/devices/{pmu}/format");
                near(nearest, &fields)
            }
            CounterError::TooLarge { max, .. } => format!("the largest value is {max:#x}"),
            CounterError::Missing { pmu, term } => {
                format!("add it to the terms, as in {pmu}/EVENT,{term}=1/")
            }
            CounterError::Unknown { .. } => {
                "leave it out, or type the raw values as config=, config1=, config2= and config3="
                    .to_owned()
            }
            CounterError::NoCounters {
                virtual_machine, ..
            } => {
                let software = "use an event of the kernel instead: task-clock, page-faults, context-switches, or a tracepoint";
                if *virtual_machine {
                    format!(
                        "{software}; or let the hypervisor pass the PMU through (qemu: -cpu host,pmu=on)"
                    )
                } else {
                    software.to_owned()
                }
            }
            CounterError::NeverOverflows { name, .. } => {
                format!("count it without an interval: kcollect stat -c {name}")
            }
            // Root is needed in either case: the files of the numbers have mode 0440.
            CounterError::NoTracefs { denied: true, .. } => "run with sudo".to_owned(),
            CounterError::NoTracefs { .. } => {
                "run with sudo; as root, mount -t tracefs tracefs /sys/kernel/tracing".to_owned()
            }
            CounterError::NoSymbol { hidden, .. } => {
                if *hidden {
                    "run with sudo, or once: sudo sysctl kernel.kptr_restrict=0".to_owned()
                } else {
                    "type its address as mem:0xADDRESS".to_owned()
                }
            }
        }
    }

    /// Returns the kind of failure: the command line, the machine, or a privilege.
    #[must_use]
    pub fn kind(&self) -> ExitKind {
        match self {
            CounterError::NoCounters { .. } | CounterError::Unknown { .. } => ExitKind::Unavailable,
            CounterError::NoTracefs { denied: true, .. }
            | CounterError::NoSymbol { hidden: true, .. } => ExitKind::NoPerm,
            CounterError::NoTracefs { .. } => ExitKind::Unavailable,
            _ => ExitKind::Usage,
        }
    }
}

impl From<CounterError> for Failure {
    fn from(error: CounterError) -> Self {
        Failure::new(error.kind(), error.to_string(), error.hint())
    }
}
