//! CPUs that come online or go offline during the recording.

use host::exit::Failure;
use host::machine::{self, CpuSet};

use super::inputs::{Inputs, bpf_failure, no_cpus, refused};
use super::sideband;

/// The event of a CPU that came online or went offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuChange {
    /// When it was noticed, CLOCK_MONOTONIC nanoseconds.
    pub at_ns: u64,
    /// Its id.
    pub cpu: u32,
    /// Whether it came online.
    pub online: bool,
}

impl Inputs {
    /// Opens the inputs of CPUs that came online and closes those of CPUs that went offline.
    /// Returns the changes. The kernel has no event for them, only its list of CPUs, so this is
    /// done once a round.
    ///
    /// # Errors
    /// When the inputs of a CPU that is still online can't be opened.
    pub fn follow_hotplug(&mut self) -> Result<Vec<CpuChange>, Failure> {
        let mut changes = Vec::new();
        let online = machine::online_cpus().map_err(no_cpus)?;
        let clocked: CpuSet = self.programs.clocked_cpus().collect();
        if online == clocked {
            return Ok(changes);
        }
        let now = machine::now();
        for cpu in clocked.difference(&online) {
            self.clock_events.remove(cpu);
            self.programs.went_offline(*cpu).map_err(bpf_failure)?;
            // The CPU's last tick is closer to the time it went offline than the present is.
            let last = self.programs.cpu_stats(*cpu).map_err(bpf_failure)?.last_ns;
            let time = self.cpus.entry(*cpu).or_default();
            time.has_clock = false;
            time.change(last.max(time.since_ns.unwrap_or(0)), false);
            self.reader.unlisten(*cpu);
            changes.push(CpuChange {
                at_ns: now,
                cpu: *cpu,
                online: false,
            });
        }
        let added: Vec<_> = online.difference(&clocked).copied().collect();
        for cpu in &added {
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
                at_ns: now,
                cpu: *cpu,
                online: true,
            });
        }
        if !added.is_empty() {
            // Processes may have been started there before the CPU's side-band was open.
            self.snapshot();
        }
        Ok(changes)
    }
}
