//! What the kernel says of its events in sysfs and tracefs.

pub mod format;
pub mod pmu;
pub mod tracepoint;
