//! What a process has used, by the kernel.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Returns the CPU time of a process.
///
/// # Errors
/// When it has ended.
pub fn cpu_time(pid: Pid) -> Result<Duration> {
    Ok(clock_gettime(clock_getcpuclockid(pid)?)?.into())
}

/// Returns a line of a process's status, such as `VmRSS:`, in bytes.
///
/// # Errors
/// When it has ended, or there is no such line.
pub fn memory(pid: Pid, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kib: u64 = kib.context(name.to_owned())?.trim().parse()?;
    Ok(kib << 10)
}
