//! Reads the statistics of CPUs.

use bpf_abi::{CpuCounts, CpuStats};
use libbpf_rs::{MapCore, MapFlags};
use zerocopy::FromBytes as _;

use crate::error::step;
use crate::{Error, Programs};

impl Programs {
    /// Returns the statistics of one CPU.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be read, [`Error::NoCpu`] for an id beyond the machine's.
    pub fn cpu_stats(&self, cpu: u32) -> Result<CpuStats, Error> {
        read(&self.skel.maps.kc_cpu_stats, cpu)
    }

    /// Returns whether the hook on context switches has ever run, on any CPU.
    ///
    /// # Errors
    /// As [`Programs::cpu_stats`].
    pub fn has_seen_switches(&self) -> Result<bool, Error> {
        for cpu in 0..self.cpu_ids {
            let stats = self.cpu_stats(cpu)?;
            if stats.unmeasured != 0 || stats.measured_ns != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the counts of every CPU that ever ticked, with its id.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be read.
    pub fn cpu_counts(&self) -> Result<Vec<(u32, CpuCounts)>, Error> {
        self.of_all(|cpu| self.cpu_stats(cpu))
    }

    /// The same, at a rotation. Valid from [`Programs::end_experiment`] on.
    ///
    /// # Errors
    /// As [`Programs::cpu_counts`].
    pub fn ended_cpu_counts(&self, rotation_ns: u64) -> Result<Vec<(u32, CpuCounts)>, Error> {
        self.of_all(|cpu| match self.cpu_stats(cpu)? {
            stats if stats.begun_ns == rotation_ns => read(&self.skel.maps.kc_ended_stats, cpu),
            // It is offline.
            stats => Ok(stats),
        })
    }

    fn of_all(
        &self,
        stats: impl Fn(u32) -> Result<CpuStats, Error>,
    ) -> Result<Vec<(u32, CpuCounts)>, Error> {
        let all = (0..self.cpu_ids).map(|cpu| Ok((cpu, stats(cpu)?)));
        all.filter(|entry| !matches!(entry, Ok((_, stats)) if stats.last_ns == 0))
            .map(|entry| entry.map(|(cpu, stats)| (cpu, stats.counts())))
            .collect()
    }
}

fn read(map: &impl MapCore, cpu: u32) -> Result<CpuStats, Error> {
    let bytes = map
        .lookup(&cpu.to_ne_bytes(), MapFlags::ANY)
        .map_err(step(format!("read the statistics of CPU {cpu}")))?;
    bytes
        .and_then(|bytes| CpuStats::read_from_bytes(&bytes).ok())
        .ok_or(Error::NoCpu { cpu })
}
