//! `perf record -a -g -e cpu-clock` as a second witness of the same load.
//!
//! perf's own choice among the aliases of a function is not kcollect's, so only the addresses of its samples are
//! taken, and [`crate::kallsyms`] names them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::command::{Running, run};

/// A recording that is on its way.
#[derive(Debug)]
pub struct Watch {
    directory: TempDir,
    running: Running,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process. 0 is idle.
    pub pid: i32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Addresses, leaf first: kernel's, then user's.
    pub stack: Vec<u64>,
}

impl Watch {
    /// Starts recording all CPUs, so many samples a second each.
    ///
    /// # Errors
    /// When perf does not start recording.
    pub fn start(frequency: u32, limit: Duration) -> Result<Self> {
        let directory = TempDir::new()?;
        let path = data(&directory);
        let mut command = Command::new("perf");
        command.args([
            "record",
            "-q",
            "-a",
            "-g",
            "-e",
            "cpu-clock",
            "-k",
            "CLOCK_MONOTONIC",
        ]);
        command
            .args(["-F", &frequency.to_string(), "-o"])
            .arg(&path);
        let mut running = Running::start(&mut command, limit).context("perf")?;
        // The events count from shortly after the file is there; the load is started after that.
        running.until("perf.data", || {
            path.metadata().is_ok_and(|file| file.len() > 0)
        })?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self { directory, running })
    }

    /// Ends the recording and reads it.
    ///
    /// # Errors
    /// When perf fails.
    pub fn end(self) -> Result<Vec<Sample>> {
        self.running.signal(Signal::SIGINT)?;
        self.running.finish()?;
        let mut command = Command::new("perf");
        command
            .args(["script", "--ns", "-F", "pid,time,ip", "-i"])
            .arg(data(&self.directory));
        Ok(parse(
            &run(&mut command, Duration::from_secs(60))?
                .succeeded()?
                .stdout,
        ))
    }
}

fn data(directory: &TempDir) -> PathBuf {
    directory.path().join("perf.data")
}

/// Samples are blocks of lines: a head `PID SECONDS.NANOSECONDS:`, then one address a line.
fn parse(text: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.lines() {
        if let Some(head) = head(line) {
            samples.push(head);
        } else if let (Some(sample), Ok(address)) =
            (samples.last_mut(), u64::from_str_radix(line.trim(), 16))
        {
            sample.stack.push(address);
        }
    }
    samples
}

fn head(line: &str) -> Option<Sample> {
    let (pid, time) = line.trim().strip_suffix(':')?.split_once(' ')?;
    let (seconds, nanoseconds) = time.trim().split_once('.')?;
    let time_ns = seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds.parse().ok()?)?;
    Some(Sample {
        pid: pid.parse().ok()?,
        time_ns,
        stack: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_blocks_of_lines() {
        let text = "    0  1202.087070827: \n\tffffffff821f2c2b\n\tffffffff821f4735\n\n10058  1202.1: \n\t d4ad7\n\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].pid, samples[0].time_ns), (0, 1_202_087_070_827));
        assert_eq!(
            samples[0].stack,
            [0xffff_ffff_821f_2c2b, 0xffff_ffff_821f_4735]
        );
        assert_eq!(
            (samples[1].pid, samples[1].stack.as_slice()),
            (10_058, [0xd4ad7].as_slice())
        );
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        assert!(parse("# a comment: 3\nffff\n: \n 99999999999999999999 1.2:\n").is_empty());
    }
}
