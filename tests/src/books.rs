//! kcollect's own account of a run: what `--json` prints and `kcollect.json` in the experiment holds.
//!
//! Only what the checks compare with other witnesses is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The account.
#[derive(Clone, Debug, Deserialize)]
pub struct Books {
    /// The clock interval, microseconds.
    pub interval_us: f64,
    /// From the first to the last instant of the run, seconds.
    pub elapsed_s: f64,
    /// What each CPU lived through.
    pub cpus: Vec<CpuBooks>,
    /// Ticks in the experiment.
    pub ticks: u64,
    /// What is missing or impaired, by cause.
    pub losses: BTreeMap<String, i64>,
}

/// The account of one CPU, in ticks.
#[derive(Clone, Debug, Deserialize)]
pub struct CpuBooks {
    /// Its id.
    pub cpu: usize,
    /// For how long its ticks were taken, nanoseconds.
    pub recorded_ns: f64,
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub kernel: u64,
    /// In the idle task.
    pub idle: u64,
    /// That found no room.
    pub lost: u64,
}

/// Losses that take ticks or events away. The others say what is impaired.
const LOSSES: [&str; 4] = ["ring_full", "not_written", "unaccounted", "sideband"];

impl Books {
    /// Those of an experiment.
    ///
    /// # Errors
    /// When there are none, or they are not of this form.
    pub fn of(experiment: &Path) -> Result<Self> {
        let path = experiment.join("kcollect.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Those that were printed.
    ///
    /// # Errors
    /// When they are not of this form.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// One CPU's.
    ///
    /// # Errors
    /// When there are none.
    pub fn cpu(&self, cpu: usize) -> Result<&CpuBooks> {
        self.cpus
            .iter()
            .find(|books| books.cpu == cpu)
            .with_context(|| format!("no books of CPU {cpu}: {self:?}"))
    }

    /// Passes when nothing was lost.
    ///
    /// # Errors
    /// When something was.
    pub fn complete(&self) -> Result<()> {
        for loss in LOSSES {
            ensure!(
                self.losses.get(loss) == Some(&0),
                "{loss} is not 0: {:?}",
                self.losses
            );
        }
        Ok(())
    }
}

impl CpuBooks {
    /// All ticks of the CPU.
    pub fn ticks(&self) -> u64 {
        self.user + self.kernel + self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_are_read_and_losses_are_seen() {
        let text = r#"{"version": "0", "interval_us": 997, "elapsed_s": 2.5, "ticks": 5,
            "cpus": [{"cpu": 1, "recorded_ns": 4985, "user": 1, "kernel": 2, "idle": 2, "lost": 0, "made_up": 0}],
            "losses": {"ring_full": 0, "not_written": 0, "unaccounted": 0, "sideband": 0, "unnamed": 3}}"#;
        let mut books = Books::parse(text).unwrap();
        assert_eq!(books.cpu(1).unwrap().ticks(), 5);
        assert!(books.cpu(0).is_err());
        books.complete().unwrap();
        books.losses.insert("ring_full".into(), 1);
        assert!(books.complete().is_err());
    }
}
