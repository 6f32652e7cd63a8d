//! What kcollect claims of the machine for itself, and what it drops: priority, capabilities,
//! system calls.

pub mod priority;
pub mod privileges;
pub mod seccomp;
