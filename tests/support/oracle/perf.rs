//! `perf record -a -g -e cpu-clock` as a second witness of the same load.
//!
//! Its file is read here, not by `perf script`: perf 6.1 fails at the record that newer kernels
//! write when a BPF program is freed, as kcollect's are. Only samples are read, and of them only
//! addresses, which [`crate::oracle::kallsyms`] names: perf's own choice among the aliases of a
//! function is not kcollect's. `perf_event_open(2)` and `perf.data-file-format.txt` in the kernel's
//! `tools/perf/Documentation` describe the layout.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use experiment_format::ids::Pid;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::command::Running;

/// A running recording of perf.
#[derive(Debug)]
pub struct PerfRecording {
    directory: TempDir,
    running: Running,
}

/// A sample of perf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfSample {
    /// The process. 0 is idle.
    pub pid: Pid,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Addresses, leaf first: kernel's, then user's.
    pub stack: Vec<u64>,
}

impl PerfRecording {
    /// Starts recording all CPUs, each with `frequency` samples a second.
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
    pub fn end(self) -> Result<Vec<PerfSample>> {
        self.running.signal(Signal::SIGINT)?;
        let recorded = self.running.finish()?;
        let bytes = fs::read(data(&self.directory))?;
        parse(&bytes).with_context(|| format!("perf.data is not understood; {recorded}"))
    }
}

fn data(directory: &TempDir) -> PathBuf {
    directory.path().join("perf.data")
}

/// Bits of `perf_event_attr.sample_type`, in the order in which a sample has their fields. READ is
/// not requested.
const IDENTIFIER: u64 = 1 << 16;
const IP: u64 = 1;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const ID: u64 = 1 << 6;
const STREAM_ID: u64 = 1 << 9;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// The first of the marks between the kernel's and the user's part of a stack (`PERF_CONTEXT_MAX`).
const MARKS: u64 = 4095u64.wrapping_neg();

/// Reads the samples of a file: the offset of the attributes is at byte 24, the offset of the data
/// at byte 40, each followed by the size.
fn parse(bytes: &[u8]) -> Option<Vec<PerfSample>> {
    const SAMPLE_TYPE: usize = 24;
    let attributes = word(bytes, 24)? as usize;
    let sample_type = word(bytes, attributes.checked_add(SAMPLE_TYPE)?)?;
    if sample_type & READ != 0 || sample_type & (TID | TIME | CALLCHAIN) != TID | TIME | CALLCHAIN {
        return None;
    }
    let (start, size) = (word(bytes, 40)? as usize, word(bytes, 48)? as usize);
    let mut rest = bytes.get(start..start.checked_add(size)?)?;
    let mut samples = Vec::new();
    while let Some(head) = rest.first_chunk::<8>() {
        let size = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let body = rest.get(8..size)?;
        if u32::from_le_bytes([head[0], head[1], head[2], head[3]]) == SAMPLE {
            samples.push(sample(body, sample_type)?);
        }
        rest = &rest[size..];
    }
    Some(samples)
}

fn sample(body: &[u8], sample_type: u64) -> Option<PerfSample> {
    let mut at = 0;
    let mut next = |bit: u64| {
        let value = if sample_type & bit == 0 {
            Some(0)
        } else {
            word(body, at)
        };
        at += if sample_type & bit == 0 { 0 } else { 8 };
        value
    };
    next(IDENTIFIER)?;
    next(IP)?;
    let pid = next(TID)? as u32;
    let time_ns = next(TIME)?;
    for bit in [ADDR, ID, STREAM_ID, CPU, PERIOD] {
        next(bit)?;
    }
    let length = next(CALLCHAIN)? as usize;
    let words = body.get(at..at.checked_add(length.checked_mul(8)?)?)?;
    let stack = words
        .chunks_exact(8)
        .filter_map(|chunk| word(chunk, 0))
        .filter(|address| *address < MARKS)
        .collect();
    Some(PerfSample {
        pid: Pid(pid),
        time_ns,
        stack,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file with these records as its data, of samples that have IP, TID, TIME, ID, CPU, PERIOD
    /// and CALLCHAIN.
    fn file(records: &[(u32, Vec<u64>)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (kind, words) in records {
            data.extend(kind.to_le_bytes());
            data.extend([0, 0]);
            data.extend((8 + 8 * words.len() as u16).to_le_bytes());
            words
                .iter()
                .for_each(|word| data.extend(word.to_le_bytes()));
        }
        let mut bytes = vec![0; 104];
        for (at, value) in [
            (24, 56),
            (40, 104),
            (48, data.len() as u64),
            (56 + 24, 0x1e7 & !ADDR),
        ] {
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        bytes.extend(data);
        bytes
    }

    fn stack_of_three() -> (u32, Vec<u64>) {
        let kernel = 128u64.wrapping_neg();
        (
            SAMPLE,
            vec![
                0xa,
                7 | 8 << 32,
                99,
                0,
                1,
                0,
                3,
                kernel,
                0xffff_ffff_8100_0010,
                0x40_0000,
            ],
        )
    }

    #[test]
    fn samples_are_taken_and_other_records_are_passed_over() {
        let samples = parse(&file(&[(17, vec![1, 2]), stack_of_three()])).unwrap();
        assert_eq!(
            samples,
            [PerfSample {
                pid: Pid(7),
                time_ns: 99,
                stack: vec![0xffff_ffff_8100_0010, 0x40_0000]
            }]
        );
    }

    #[test]
    fn truncated_records_are_refused() {
        let whole = file(&[stack_of_three()]);
        assert!((0..whole.len()).all(|cut| parse(&whole[..cut]).is_none()));
        assert_eq!(
            parse(&file(&[(SAMPLE, vec![0xa, 7, 99, 0, 1, 0, 3])])),
            None
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_samples_or_refused(noise in proptest::collection::vec((0usize..170, any::<u8>()), 0..20)) {
            let mut bytes = file(&[stack_of_three()]);
            for (at, byte) in noise {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            let _ = parse(&bytes);
        }
    }
}
