//! The events of the kernel and its PMUs, as sysfs and tracefs list them.

pub mod format;
pub mod pmu;
pub mod tracepoint;
