//! Programs that are profiled: what they print about themselves, and how they are started. Their
//! sources are in `workloads/`.

pub mod broken_elf;
pub mod compat32;
pub mod counted;
pub mod counts;
pub mod io_calls;
pub mod loads;
pub mod locked;
pub mod proctorture;
pub mod thread_times;
pub mod traced;
pub mod truth;
