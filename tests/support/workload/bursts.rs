//! What the workload `bursts` prints about itself.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The functions of the workload.
pub const FUNCTIONS: [&str; 3] = ["burst_one", "burst_two", "burst_four"];

/// CPU time of the workload, by the kernel's clocks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct BurstTruth {
    /// Its pid.
    pub pid: u32,
    /// CPU time of each of [`FUNCTIONS`], nanoseconds of `CLOCK_THREAD_CPUTIME_ID`.
    pub functions_ns: [u64; 3],
    /// CPU time of the whole process, microseconds of `getrusage`.
    pub cpu_us: u64,
}

impl BurstTruth {
    /// Finds it in what the workload printed.
    ///
    /// # Errors
    /// The output has no such line.
    pub fn find(stdout: &str) -> Result<BurstTruth> {
        let mut lines = stdout.lines();
        let found = lines.find_map(|line| serde_json::from_str(line).ok());
        found.with_context(|| format!("no truth in {stdout:?}"))
    }
}
