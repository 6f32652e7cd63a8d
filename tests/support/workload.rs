//! The workloads: how they are started, and what they print about themselves. Their sources are in
//! `workloads/`.

pub mod broken_elf;
pub mod bursts;
pub mod compat32;
pub mod counted;
pub mod counts;
pub mod io_calls;
pub mod loads;
pub mod locked;
pub mod memory;
pub mod naps;
pub mod proctorture;
pub mod thread_times;
pub mod traced;
pub mod truth;
pub mod waits;
