//! Reads the statistics of CPUs.

use bpf_abi::CpuStats;
use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::error::step;
use crate::{Error, Programs};

impl Programs {
    /// Returns the statistics of one CPU.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be read, [`Error::NoCpu`] for an id beyond the machine's.
    pub fn cpu_stats(&self, cpu: u32) -> Result<CpuStats, Error> {
        let bytes = self
            .skel
            .maps
            .kc_cpu_stats
            .lookup(&cpu.to_ne_bytes(), MapFlags::ANY)
            .map_err(step(format!("read the statistics of CPU {cpu}")))?;
        bytes
            .and_then(|bytes| CpuStats::read_from_bytes(&bytes).ok())
            .ok_or(Error::NoCpu { cpu })
    }

    /// Returns the statistics of every CPU that ever ticked, with its id.
    ///
    /// # Errors
    /// As [`Programs::cpu_stats`].
    pub fn all_cpu_stats(&self) -> Result<Vec<(u32, CpuStats)>, Error> {
        (0..self.cpu_ids)
            .map(|cpu| Ok((cpu, self.cpu_stats(cpu)?)))
            .filter(|entry| !matches!(entry, Ok((_, stats)) if stats.last_ns == 0))
            .collect()
    }
}
