//! Values of single options: each function turns text into a quantity with a unit, or into an error
//! with the hint.
//!
//! Numbers are plain decimals without signs and exponents. They are parsed exactly, not as floating
//! point, so that rounding down to whole microseconds does not turn 1.001 ms into 1000 µs.

mod interval;
mod processes;
mod sizes;
#[cfg(test)]
mod tests;
mod times;
mod tracing;

pub(super) use self::interval::interval;
pub(super) use self::processes::{follow, target};
pub(super) use self::sizes::{budget, keep, limit, trace_budget};
pub(super) use self::times::{last, quiet, rotate, sample_period, time};
pub(super) use self::tracing::{counters, heap_tracing, lock_threshold, trace_io};
use super::CliError;
use crate::plan::Archive;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Returns the error of an option's value.
pub(super) fn error(option: &str, typed: &str, what: &str, hint: &str) -> CliError {
    CliError::new(format!("{option} {typed}: {what}"), hint)
}

/// Returns a decimal number times 10⁹, truncated after the ninth place. None: not a number, or more
/// than 10¹⁸.
fn decimal(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    if !whole
        .bytes()
        .chain(fraction.bytes())
        .all(|byte| byte.is_ascii_digit())
        || whole.len() > 18
    {
        return None;
    }
    let digits = |text: &str| {
        text.bytes()
            .fold(0u128, |sum, byte| sum * 10 + u128::from(byte - b'0'))
    };
    let fraction: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Some(digits(whole) * NANOS_PER_SECOND + digits(&fraction))
}

/// `-x`: whether ticks of idle CPUs are recorded, the opposite of the option's value.
pub(super) fn record_idle(typed: &str) -> Result<bool, CliError> {
    match typed {
        "on" => Ok(false),
        "off" => Ok(true),
        _ => Err(error(
            "-x",
            typed,
            "neither on nor off",
            "type on (leave out idle CPUs) or off (record them)",
        )),
    }
}

/// `-W`: whether what wakes threads is watched.
pub(super) fn watch_wakers(typed: &str) -> Result<bool, CliError> {
    match typed {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(error(
            "-W",
            typed,
            "neither on nor off",
            "type on (watch what wakes each thread) or off",
        )),
    }
}

/// `-A`: what is copied into the experiment.
pub(super) fn archive(typed: &str) -> Result<Archive, CliError> {
    match typed {
        "off" => Ok(Archive::Off),
        "on" | "copy" | "ldobjects" => Ok(Archive::LoadObjects),
        "usedldobjects" => Ok(Archive::UsedLoadObjects),
        "src" => Ok(Archive::Sources),
        "usedsrc" => Ok(Archive::UsedSources),
        "all" => Ok(Archive::All),
        _ => Err(error(
            "-A",
            typed,
            "not a choice of files",
            "type on, off, copy, ldobjects, usedldobjects, src, usedsrc or all",
        )),
    }
}
