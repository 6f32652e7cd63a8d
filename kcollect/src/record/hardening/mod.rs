//! What kcollect takes from the machine for itself, and what it drops: scheduling priority,
//! capabilities, system calls.

pub mod privileges;
pub mod rt_priority;
pub mod seccomp;
