//! Sizes and shares: `-L`, `--keep`, `--budget`, `--trace-budget`.

use super::times::seconds;
use super::{decimal, error};
use crate::cli::CliError;
use crate::plan::{CpuShare, HeapTracing, Keep};

/// `-L`: the limit in bytes, None for none.
pub(in crate::cli) fn limit(typed: &str) -> Result<Option<u64>, CliError> {
    if matches!(typed, "unlimited" | "none") {
        return Ok(None);
    }
    typed
        .parse::<u64>()
        .ok()
        .filter(|count| *count > 0 && !typed.starts_with('+'))
        .and_then(|count| count.checked_mul(1024 * 1024))
        .map(Some)
        .ok_or_else(|| {
            error(
                "-L",
                typed,
                "not a size limit",
                "type a whole number of MiB above 0, or unlimited",
            )
        })
}

/// `--keep`: how much of a series is kept.
pub(in crate::cli) fn keep(typed: &str) -> Result<Keep, CliError> {
    const UNITS: [(char, u64); 3] = [('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];
    let size = UNITS.into_iter().find_map(|(suffix, unit)| {
        let number = typed.strip_suffix(suffix)?.parse::<u64>().ok()?;
        number.checked_mul(unit)
    });
    let age = || {
        let number = typed.ends_with(['s', 'm', 'h', 'd']).then_some(typed)?;
        seconds(number)
    };
    match size.filter(|bytes| *bytes > 0) {
        Some(bytes) => Ok(Keep::Bytes(bytes)),
        None => age().map(Keep::Age).ok_or_else(|| {
            error(
                "--keep",
                typed,
                "neither a size nor a time",
                "type a size such as 500M or 20G, or a time such as 12h or 7d",
            )
        }),
    }
}

/// `--budget`: a share of one CPU, in percent.
pub(in crate::cli) fn budget(typed: &str) -> Result<CpuShare, CliError> {
    const HINT: &str = "type a percentage of one CPU from 0.01% on, such as 1% or 0.5%";
    share(typed).ok_or_else(|| error("--budget", typed, "not a share of a CPU", HINT))
}

/// What probes may take if nothing else is said: 2 %.
const DEFAULT_TRACE_BUDGET: CpuShare = CpuShare { ppm: 20_000 };

/// `--trace-budget`: a share of a process's CPU time, in percent, or none. By default, there is
/// none where each block is recorded.
pub(in crate::cli) fn trace_budget(
    typed: Option<&str>,
    heap: HeapTracing,
) -> Result<Option<CpuShare>, CliError> {
    const HINT: &str = "type a percentage from 0.01% on, such as 2%, or off";
    match (typed, heap) {
        (Some(_), HeapTracing::Off | HeapTracing::Growth) => Err(CliError::new(
            "--trace-budget is for the probes of allocators",
            "type -H on too",
        )),
        (Some("off"), _) | (None, HeapTracing::Blocks(0)) => Ok(None),
        (None, HeapTracing::Blocks(_)) => Ok(Some(DEFAULT_TRACE_BUDGET)),
        (None, _) => Ok(None),
        (Some(typed), _) => match share(typed) {
            Some(share) => Ok(Some(share)),
            None => Err(error(
                "--trace-budget",
                typed,
                "not a share of CPU time",
                HINT,
            )),
        },
    }
}

/// Returns the share that a percentage is, from 0.01 % on.
fn share(typed: &str) -> Option<CpuShare> {
    let number = typed.strip_suffix('%').unwrap_or(typed);
    // A percent is 10⁹ in a decimal, and 10⁴ millionths.
    let ppm = u32::try_from(decimal(number)? / 100_000).ok()?;
    (ppm >= 100).then_some(CpuShare { ppm })
}
