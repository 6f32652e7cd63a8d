//! The clocks of the CPUs.
//!
//! The only writer, for a CPU that is offline, of the map `kc_cpu_stats`.

use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

use libbpf_rs::{MapCore as _, MapFlags, ProgramInput, ProgramMut};
use libbpf_sys::BPF_F_TEST_RUN_ON_CPU;
use zerocopy::IntoBytes as _;

use crate::error::step;
use crate::{Error, Programs};

/// The clocks of the CPUs: each is a perf event with the tick program attached.
#[derive(Debug)]
pub struct Clocks<'a> {
    pub(crate) programs: &'a mut Programs,
}

impl Clocks<'_> {
    /// Attaches the tick to a CPU's clock event and starts that clock, on a grid of its own.
    /// Returns the grid's beginning, CLOCK_MONOTONIC nanoseconds.
    ///
    /// The event closes when the CPU goes offline, the clocks are stopped or the programs dropped.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub fn start(&mut self, cpu: u32, event: OwnedFd) -> Result<u64, Error> {
        let programs = &self.programs.skel.progs;
        run_on(&programs.kc_grid_begin, cpu)
            .map_err(step(format!("begin the tick grid of CPU {cpu}")))?;
        let link = programs
            .kc_clock_tick
            .attach_perf_event(event.as_raw_fd())
            .map_err(step(format!("attach the tick to the clock of CPU {cpu}")))?;
        // The link closes it from now on.
        let _ = event.into_raw_fd();
        self.programs.clocks.insert(cpu, link);
        Ok(self.programs.cpu_stats(cpu)?.origin_ns)
    }

    /// Stops all clocks.
    pub fn stop(&mut self) {
        self.programs.clocks.clear();
    }
}

impl Programs {
    /// Returns the CPUs that have a clock, in order.
    pub fn clocked_cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.clocks.keys().copied()
    }

    /// Drops the clock, the grid and the counters' events of a CPU that has gone offline, and keeps
    /// what was counted there.
    ///
    /// # Errors
    /// [`Error::Step`] when the statistics can't be written.
    pub fn went_offline(&mut self, cpu: u32) -> Result<(), Error> {
        self.clocks.remove(&cpu);
        self.counters().close_cpu(cpu);
        // Or the time offline would pass on the old grid.
        let counted = self.cpu_stats(cpu)?.without_clock();
        self.skel
            .maps
            .kc_cpu_stats
            .update(&cpu.to_ne_bytes(), counted.as_bytes(), MapFlags::ANY)
            .map_err(step(format!("end the tick grid of CPU {cpu}")))
    }
}

/// Runs a program on a CPU, in its interrupt, and waits for it.
pub(crate) fn run_on(program: &ProgramMut<'_>, cpu: u32) -> libbpf_rs::Result<()> {
    let input = ProgramInput {
        cpu,
        flags: BPF_F_TEST_RUN_ON_CPU,
        ..Default::default()
    };
    program.test_run(input).map(drop)
}
