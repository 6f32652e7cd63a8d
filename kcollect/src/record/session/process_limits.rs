//! The limits of the process (open files, address space), compared with what a recording needs.

use std::io;

use host::exit::{ExitKind, Failure};
use host::machine::{self, CpuSet};
use host::memory;

use crate::doctor;

/// Passes if the limit of open files suffices for a recording with `counters` counters, in addition
/// to the files that the caller left open.
pub(super) fn enough_descriptors(counters: usize) -> Result<(), Failure> {
    let number = |cpus: io::Result<CpuSet>| cpus.map_or(1, |cpus| cpus.len() as u64);
    let (online, possible) = (machine::online_cpus(), machine::possible_cpus());
    let needed = doctor::descriptors_needed(number(online), number(possible), counters as u64);
    let (limit, inherited) = machine::descriptors();
    if limit >= inherited.saturating_add(needed) {
        return Ok(());
    }
    let message = format!(
        "open files: the limit is {limit}, and a recording needs {needed} in addition to the {inherited} left open by its caller"
    );
    let hint = doctor::raise_open_files(inherited + needed);
    Err(Failure::new(ExitKind::Unavailable, message, hint))
}

/// Passes if the address space is not limited, or has space for the rings and for all that may wait
/// in memory.
pub(super) fn enough_address_space() -> Result<(), Failure> {
    /// The rings of a CPU, which are mapped twice, and its stacks.
    const BYTES_PER_CPU: u64 = 16 << 20;
    /// Records and stack copies that wait, unwind tables, names, and the stacks of threads.
    const SHARED_BYTES: u64 = 1 << 30;
    let Some((limit, used)) = memory::address_space() else {
        return Ok(());
    };
    let cpus = machine::possible_cpus().map_or(1, |cpus| cpus.len() as u64);
    let needed = used + SHARED_BYTES + cpus * BYTES_PER_CPU;
    if limit >= needed {
        return Ok(());
    }
    let (limit, needed) = (limit >> 10, needed.div_ceil(1 << 10));
    Err(Failure::new(
        ExitKind::Unavailable,
        format!("address space: {limit} KB at most, and a recording may need {needed}"),
        format!("raise the limit: ulimit -v {needed}, or unlimited"),
    ))
}
