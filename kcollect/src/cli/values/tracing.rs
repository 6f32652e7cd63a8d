//! What is recorded in addition to ticks: `-s`, `-i`, `-H`, `-h`.

use std::time::Duration;

use bpf_abi::layout::MAX_MEAN_BYTES;
use counters::names::grammar::{self, OverflowSpec};
use experiment_format::packet::SyncThreshold;

use super::error;
use crate::cli::{CliError, HostFacts};
use crate::plan::HeapTracing;

/// `-i`: whether calls that do I/O are traced.
pub(in crate::cli) fn trace_io(typed: &str) -> Result<bool, CliError> {
    match typed {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(error("-i", typed, "neither on nor off", "type on or off")),
    }
}

/// Mean number of bytes per sampled byte, unless one is given (`-H on`).
const DEFAULT_MEAN_BYTES: u64 = 512 << 10;

/// The least mean.
const MIN_MEAN_BYTES: u64 = 1024;

/// `-H`: what is recorded of memory.
pub(in crate::cli) fn heap_tracing(typed: &str) -> Result<HeapTracing, CliError> {
    match typed {
        "off" => Ok(HeapTracing::Off),
        "on" => Ok(HeapTracing::Blocks(DEFAULT_MEAN_BYTES)),
        "all" => Ok(HeapTracing::Blocks(0)),
        "growth" => Ok(HeapTracing::Growth),
        bytes => match bytes.parse::<u64>() {
            Ok(bytes @ MIN_MEAN_BYTES..=MAX_MEAN_BYTES) => Ok(HeapTracing::Blocks(bytes)),
            _ => Err(error(
                "-H",
                typed,
                "not a number of bytes from 1024 to 1073741824",
                "type on (one of 524288 bytes is sampled), BYTES, all (each block), growth (what the \
                 process gets from the kernel, and gives back) or off",
            )),
        },
    }
}

/// `-s`: the shortest wait that is recorded.
pub(in crate::cli) fn lock_threshold(
    typed: &str,
    facts: &HostFacts,
) -> Result<Option<SyncThreshold>, CliError> {
    match typed {
        "off" => Ok(None),
        "on" | "calibrate" => Ok(Some(SyncThreshold::Calibrated(facts.free_lock_time))),
        "all" => Ok(Some(SyncThreshold::Given(Duration::ZERO))),
        micros => match micros.parse::<u32>() {
            Ok(micros) if i32::try_from(micros).is_ok() => Ok(Some(SyncThreshold::Given(
                Duration::from_micros(micros.into()),
            ))),
            _ => Err(error(
                "-s",
                typed,
                "not a time",
                "type on, off, all, or a number of microseconds",
            )),
        },
    }
}

/// `-h`: the counters of all occurrences of the option.
pub(in crate::cli) fn counters(typed: &[String]) -> Result<Vec<OverflowSpec>, CliError> {
    let mut specs = Vec::new();
    for text in typed {
        let more = grammar::parse_overflow_specs(text);
        specs.extend(more.map_err(|wrong| CliError::new(format!("-h {wrong}"), wrong.hint()))?);
    }
    Ok(specs)
}
