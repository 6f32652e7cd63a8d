//! The clock interval (`-p`).

use super::{NANOS_PER_SECOND, decimal, error};
use crate::cli::{CliError, HostFacts};
use crate::plan::Interval;

/// The intervals that have a name, in microseconds. They are primes, so that no periodic work of
/// the machine stays in step with them.
const INTERVAL_ON_US: u32 = 10_007;
const INTERVAL_LOW_US: u32 = 100_003;
const INTERVAL_HIGH_US: u32 = 997;

/// Returns the shortest interval that the machine permits.
fn shortest_interval(facts: &HostFacts) -> Interval {
    let by_rate = match facts.max_sample_rate {
        Some(rate) if rate > 0 => 1_000_000u64.div_ceil(rate),
        _ => 0,
    };
    let micros = by_rate.clamp(Interval::MIN.micros().into(), Interval::MAX.micros().into());
    u32::try_from(micros)
        .ok()
        .and_then(Interval::from_micros)
        .unwrap_or(Interval::MAX)
}

/// `-p`: the interval, None for off. Adds a notice where it is not what was typed.
pub(in crate::cli) fn interval(
    typed: &str,
    facts: &HostFacts,
    notices: &mut Vec<String>,
) -> Result<Option<Interval>, CliError> {
    const HINT: &str =
        "type on, lo, hi, off, or a number of milliseconds such as 10, 2.5m or 500u, up to 1 s";
    let bad = |what| error("-p", typed, what, HINT);
    let typed_ns = match typed {
        "on" => u128::from(INTERVAL_ON_US) * 1000,
        "lo" | "low" => u128::from(INTERVAL_LOW_US) * 1000,
        "hi" | "high" => u128::from(INTERVAL_HIGH_US) * 1000,
        "off" => return Ok(None),
        _ if typed.starts_with('-') => {
            return Err(bad("a clock-profiling interval cannot be negative"));
        }
        _ => {
            let (number, unit) = match typed.strip_suffix('u') {
                Some(number) => (number, 1000),
                None => (typed.strip_suffix('m').unwrap_or(typed), 1_000_000),
            };
            decimal(number).ok_or_else(|| bad("not a clock-profiling interval"))? * unit
                / NANOS_PER_SECOND
        }
    };
    if typed_ns == 0 && is_zero(typed) {
        return Ok(None);
    }
    if typed_ns > Interval::MAX.nanos().0.into() {
        return Err(bad(
            "the clock-profiling interval is above the maximum of 1 s",
        ));
    }
    let shortest = shortest_interval(facts);
    let whole = u32::try_from(typed_ns / 1000)
        .ok()
        .and_then(Interval::from_micros)
        .filter(|interval| *interval >= shortest);
    let Some(interval) = whole else {
        notices.push(format!(
            "clock profiling at {} ms is not supported on this machine; minimum {} ms used",
            millis(typed_ns),
            millis(shortest.nanos().0.into())
        ));
        return Ok(Some(shortest));
    };
    if typed_ns % 1000 != 0 {
        notices.push(format!(
            "clock-profiling interval rounded from {} to {} ms (resolution 1 us)",
            millis(typed_ns),
            millis(interval.nanos().0.into())
        ));
    }
    Ok(Some(interval))
}

/// Returns whether all digits of a decimal are zeros: 0 means off, and 0.0000000001 the shortest
/// interval.
fn is_zero(typed: &str) -> bool {
    !typed.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// Formats nanoseconds as milliseconds, with three decimals or more if needed.
fn millis(nanos: u128) -> String {
    let mut text = format!("{}.{:06}", nanos / 1_000_000, nanos % 1_000_000);
    while text.ends_with('0') && text.len() - text.find('.').unwrap_or(0) > 4 {
        text.pop();
    }
    text
}
