//! Times: `-t`, `-q`, `-S`, `--rotate`, `--last`.

use std::time::Duration;

use super::{NANOS_PER_SECOND, decimal, error};
use crate::cli::CliError;

/// The longest time of `-t` and `-q`: a century.
const MAX_SECONDS: u128 = 3_155_760_000;

/// Returns a time: a decimal in seconds (`s` or no suffix), minutes (`m`), hours (`h`) or days
/// (`d`).
pub(super) fn seconds(text: &str) -> Option<Duration> {
    const UNITS: [(char, u128); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let with_unit = |(suffix, unit)| Some((text.strip_suffix(suffix)?, unit));
    let (number, unit) = UNITS.into_iter().find_map(with_unit).unwrap_or((text, 1));
    let nanos = decimal(number)?.checked_mul(unit)?;
    // More than a century is a typing error, and sums with it would overflow.
    if nanos > MAX_SECONDS * NANOS_PER_SECOND {
        return None;
    }
    Some(Duration::new(
        u64::try_from(nanos / NANOS_PER_SECOND).ok()?,
        u32::try_from(nanos % NANOS_PER_SECOND).ok()?,
    ))
}

/// `-t`: when recording starts and when it ends.
pub(in crate::cli) fn time(typed: &str) -> Result<(Duration, Option<Duration>), CliError> {
    const HINT: &str = "type a duration (10, 90s, 5m), or start-end (2-10, 1m-5m, 2-0 for no end)";
    let bad = || error("-t", typed, "not a time", HINT);
    let (start, end) = match typed.split_once('-') {
        Some((start, end)) => (
            seconds(start).ok_or_else(bad)?,
            seconds(end).ok_or_else(bad)?,
        ),
        None => (Duration::ZERO, seconds(typed).ok_or_else(bad)?),
    };
    if end.is_zero() {
        return Ok((start, None));
    }
    if start >= end {
        return Err(error(
            "-t",
            typed,
            "the start has to be earlier than the end",
            HINT,
        ));
    }
    Ok((start, Some(end)))
}

/// `-q`: the time before and after the load.
pub(in crate::cli) fn quiet(typed: &str) -> Result<Duration, CliError> {
    seconds(typed).ok_or_else(|| {
        error(
            "-q",
            typed,
            "not a time",
            "type a number of seconds, such as 2 or 0.5",
        )
    })
}

/// `-S`: the time between two samples, None for off.
pub(in crate::cli) fn sample_period(typed: &str) -> Result<Option<Duration>, CliError> {
    match typed {
        "on" => Ok(Some(Duration::from_secs(1))),
        "off" => Ok(None),
        _ => match typed.parse::<u32>() {
            Ok(count) if count > 0 && !typed.starts_with('+') => {
                Ok(Some(Duration::from_secs(count.into())))
            }
            _ => Err(error(
                "-S",
                typed,
                "not a time between samples",
                "type on, off, or a whole number of seconds above 0",
            )),
        },
    }
}

/// `--rotate`: the time after which another experiment begins.
pub(in crate::cli) fn rotate(typed: &str) -> Result<Duration, CliError> {
    seconds(typed)
        .filter(|period| *period >= Duration::from_secs(1))
        .ok_or_else(|| {
            error(
                "--rotate",
                typed,
                "not a time of at least a second",
                "type a time such as 10m or 1h",
            )
        })
}

/// `--last`: how much of the end of a recording.
pub(in crate::cli) fn last(typed: &str) -> Result<Duration, CliError> {
    seconds(typed)
        .filter(|length| !length.is_zero())
        .ok_or_else(|| {
            error(
                "--last",
                typed,
                "not a time",
                "type a time such as 10m or 2h",
            )
        })
}
