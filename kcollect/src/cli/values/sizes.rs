//! Sizes and shares: `-L`, `--keep`, `--budget`.

use super::times::seconds;
use super::{decimal, error};
use crate::cli::CliError;
use crate::plan::{CpuShare, Keep};

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
    const CURE: &str = "type a percentage of one CPU from 0.01% on, such as 1% or 0.5%";
    let bad = || error("--budget", typed, "not a share of a CPU", CURE);
    let number = typed.strip_suffix('%').unwrap_or(typed);
    // A percent is 10⁹ in a decimal, and 10⁴ millionths.
    let ppm = decimal(number).ok_or_else(bad)? / 100_000;
    match u32::try_from(ppm) {
        Ok(ppm @ 100..) => Ok(CpuShare { ppm }),
        _ => Err(bad()),
    }
}
