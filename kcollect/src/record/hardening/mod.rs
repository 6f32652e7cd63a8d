//! What kcollect claims of the machine for itself, and what it drops: real-time priority,
//! capabilities, system calls.

pub mod privileges;
pub mod rt_priority;
pub mod seccomp;
