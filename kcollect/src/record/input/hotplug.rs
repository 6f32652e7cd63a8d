//! CPUs that come online or go offline during the recording.

use experiment_format::units::Nanos;
use host::exit::Failure;
use host::machine::{self, CpuSet};

use super::event::{CpuChange, InputEvent};
use super::inputs::{Inputs, no_cpus, refused};
use super::load_failure::bpf_failure;
use super::sideband;

impl Inputs {
    /// Opens the inputs of CPUs that came online and closes the inputs of CPUs that went offline.
    /// A later round returns the events. The kernel has no event when a CPU comes or goes, only its
    /// list of CPUs, so this is done once a round.
    ///
    /// # Errors
    /// When the inputs of a CPU that is still online can't be opened.
    pub fn follow_hotplug(&mut self) -> Result<(), Failure> {
        let online = self.online.read().map_err(no_cpus)?;
        let clocked: CpuSet = self.programs.clocked_cpus().collect();
        if online == clocked {
            return Ok(());
        }
        let now_ns = machine::now();
        for cpu in clocked.difference(&online) {
            self.clock_events.remove(cpu);
            self.programs.went_offline(*cpu).map_err(bpf_failure)?;
            // The CPU's last tick is closer to the time it went offline than the present is.
            let stats = self.programs.cpu_stats(*cpu).map_err(bpf_failure)?;
            let time = self.cpus.entry(*cpu).or_default();
            time.has_clock = false;
            let last_ns = Nanos(stats.last_ns).max(time.since_ns.unwrap_or_default());
            time.change(last_ns, false);
            self.reader.unlisten(*cpu);
            self.push_cpu_change(now_ns, *cpu, false);
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
            self.push_cpu_change(now_ns, *cpu, true);
        }
        if !added.is_empty() {
            // Processes may have been started there before the CPU's side-band was open.
            self.snapshot();
        }
        Ok(())
    }

    fn push_cpu_change(&mut self, at_ns: Nanos, cpu: u32, online: bool) {
        let change = CpuChange { cpu, online };
        self.order.push(at_ns, InputEvent::CpuChange(change));
    }
}
