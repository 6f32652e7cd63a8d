//! What is wrong with the name of an event, and what to type or do instead.
//!
//! What the kernel refuses when an event is opened is not here: this is about names alone, and is
//! known before anything is opened.

use host::exit::{Failure, Kind};

/// A counter that cannot be had as it was typed. Displayed without its cure; [`CounterError::cure`]
/// has that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CounterError {
    /// Not of the form that counters have.
    #[error("{typed}: {what}")]
    Form {
        /// What was typed, or the part of it.
        typed: String,
        /// What is wrong with it.
        what: &'static str,
        /// What would have been right.
        cure: &'static str,
    },
    /// No event has this name.
    #[error("no event is called {name}")]
    NoEvent {
        /// The name, without attributes and interval.
        name: String,
        /// Names that look like it, the most likely first; at most three.
        nearest: Vec<String>,
    },
    /// No PMU has this name.
    #[error("no PMU of this machine is called {pmu}")]
    NoPmu {
        /// What stood before the first slash.
        pmu: String,
        /// Names that look like it, the most likely first; at most three.
        nearest: Vec<String>,
    },
    /// A PMU has no such event and no such field.
    #[error("{pmu} knows no {term}")]
    NoTerm {
        /// The PMU.
        pmu: String,
        /// The term that was typed.
        term: String,
        /// Fields and events that look like it, the most likely first; at most three.
        nearest: Vec<String>,
    },
    /// A value that does not fit into its field.
    #[error("{pmu}: {term}={value:#x} is too large")]
    TooLarge {
        /// The PMU.
        pmu: String,
        /// The field.
        term: String,
        /// The value typed.
        value: u64,
        /// The largest that fits.
        most: u64,
    },
    /// An event whose description in sysfs leaves a field to the user.
    #[error("{pmu} needs a value for {term}")]
    Missing {
        /// The PMU.
        pmu: String,
        /// The field.
        term: String,
    },
    /// The kernel's description of a PMU is not understood: a field of a word of `perf_event_attr`
    /// that came later.
    #[error("the kernel describes {term} of {pmu} as {text}, which this version does not know")]
    Unknown {
        /// The PMU.
        pmu: String,
        /// The field or event.
        term: String,
        /// What sysfs says of it.
        text: String,
    },
    /// An event of the hardware where there is no PMU.
    #[error("{name}: this {} has no hardware counters", either(.virtual_machine, "virtual machine", "machine"))]
    NoCounters {
        /// The event.
        name: String,
        /// The machine is a virtual one.
        virtual_machine: bool,
    },
    /// A PMU of the whole package, which counts but cannot interrupt.
    #[error("{name}: it counts for the whole of {pmu}, and cannot say where in a program")]
    NeverOverflows {
        /// The event.
        name: String,
        /// The PMU.
        pmu: String,
    },
    /// The numbers of tracepoints cannot be read.
    #[error("{name}: the kernel's list of tracepoints is {}", either(.denied, "for root alone", "not mounted"))]
    NoTracefs {
        /// The tracepoint.
        name: String,
        /// It is there, but not for us.
        denied: bool,
    },
    /// A symbol of the kernel whose address is hidden, or which does not exist.
    #[error("{symbol}: {}", either(.hidden, "the kernel hides its addresses", "no such symbol in the kernel"))]
    NoSymbol {
        /// The symbol.
        symbol: String,
        /// All addresses read as zero.
        hidden: bool,
    },
}

fn either(one: &bool, yes: &'static str, no: &'static str) -> &'static str {
    if *one { yes } else { no }
}

impl CounterError {
    /// What the user can do, as an instruction or a command to type. No full stop.
    #[must_use]
    pub fn cure(&self) -> String {
        const LIST: &str = "kcollect -h lists what this machine can count";
        let near = |nearest: &[String], else_see: &str| match nearest {
            [] => else_see.to_owned(),
            [one] => format!("the nearest is {one}; {else_see}"),
            more => format!("the nearest are {}; {else_see}", more.join(", ")),
        };
        match self {
            CounterError::Form { cure, .. } => (*cure).to_owned(),
            CounterError::NoEvent { nearest, .. } | CounterError::NoPmu { nearest, .. } => {
                near(nearest, LIST)
            }
            CounterError::NoTerm { pmu, nearest, .. } => {
                let fields = format!("/sys/bus/event_source/devices/{pmu}/format has its fields");
                near(nearest, &fields)
            }
            CounterError::TooLarge { most, .. } => format!("{most:#x} is the most it can be"),
            CounterError::Missing { pmu, term } => {
                format!("type it among the terms, as in {pmu}/EVENT,{term}=1/")
            }
            CounterError::Unknown { .. } => {
                "leave it out, or type the raw values as config=, config1=, config2=, config3="
                    .to_owned()
            }
            CounterError::NoCounters {
                virtual_machine, ..
            } => {
                let software = "count what the kernel counts: task-clock, page-faults, context-switches, or a tracepoint";
                match virtual_machine {
                    true => format!(
                        "{software}; or have the hypervisor pass the PMU through (qemu: -cpu host,pmu=on)"
                    ),
                    false => software.to_owned(),
                }
            }
            CounterError::NeverOverflows { name, .. } => {
                format!("count it, without an interval: kcollect stat -c {name}")
            }
            // Mounted or not, it is for root: the files of numbers have mode 0440.
            CounterError::NoTracefs { denied: true, .. } => "run with sudo".to_owned(),
            CounterError::NoTracefs { .. } => {
                "run with sudo; as root, mount -t tracefs tracefs /sys/kernel/tracing".to_owned()
            }
            CounterError::NoSymbol { hidden, .. } => match hidden {
                true => "run with sudo, or once: sudo sysctl kernel.kptr_restrict=0".to_owned(),
                false => "type its address as mem:0xADDRESS".to_owned(),
            },
        }
    }

    /// What kind of trouble it is: the command line, the machine, or a privilege.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            CounterError::NoCounters { .. } | CounterError::Unknown { .. } => Kind::Unavailable,
            CounterError::NoTracefs { denied: true, .. }
            | CounterError::NoSymbol { hidden: true, .. } => Kind::NoPerm,
            CounterError::NoTracefs { .. } => Kind::Unavailable,
            _ => Kind::Usage,
        }
    }
}

impl From<CounterError> for Failure {
    fn from(error: CounterError) -> Self {
        Failure::new(error.kind(), error.to_string(), error.cure())
    }
}
