//! CPUs that come online or go offline during the recording.

use host::exit::Failure;
use host::machine::{self, CpuSet};

use super::inputs::{Inputs, bpf_failure, no_cpus, refused};
use super::sideband;

/// A CPU came online or went offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuChange {
    /// When it was noticed, CLOCK_MONOTONIC nanoseconds.
    pub at: u64,
    /// Its id.
    pub cpu: u32,
    /// Which of both.
    pub online: bool,
}

impl Inputs {
    /// Opens the inputs of CPUs that came online and closes those of CPUs that went. Returns the
    /// changes. The kernel reports them in its list of CPUs alone, so this is done once a round.
    ///
    /// # Errors
    /// When a CPU that came can't be opened for another reason than that it went again.
    pub fn follow_hotplug(&mut self) -> Result<Vec<CpuChange>, Failure> {
        let mut changes = Vec::new();
        let online = machine::online_cpus().map_err(no_cpus)?;
        let clocked: CpuSet = self.collector.cpus().collect();
        if online == clocked {
            return Ok(changes);
        }
        let now = machine::now();
        for cpu in clocked.difference(&online) {
            self.collector.went_offline(*cpu).map_err(bpf_failure)?;
            // It ticked for the last time shortly before it went: nearer than now.
            let last = self.collector.books(*cpu).map_err(bpf_failure)?.last;
            let time = self.cpus.entry(*cpu).or_default();
            time.has_clock = false;
            time.change(last.max(time.since.unwrap_or(0)), false);
            self.reader.unlisten(*cpu);
            changes.push(CpuChange {
                at: now,
                cpu: *cpu,
                online: false,
            });
        }
        let came: Vec<_> = online.difference(&clocked).copied().collect();
        for cpu in &came {
            match sideband::listen(*cpu, machine::page_size()) {
                Ok(ring) => {
                    self.reader.listen(*cpu, ring);
                    self.start_clock(*cpu)?;
                    for number in 0..self.counters.len() {
                        self.open_counter(number, *cpu, false)?;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(refused("the side-band", *cpu, &error)),
            }
            changes.push(CpuChange {
                at: now,
                cpu: *cpu,
                online: true,
            });
        }
        if !came.is_empty() {
            // What was started there before its side-band was open.
            self.snapshot();
        }
        Ok(changes)
    }
}
