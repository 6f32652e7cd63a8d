//! Numbers as gprofng reads them, by functions of the C library.

use crate::units::Nanos;

/// Returns a number as C's `atoi` reads it: a sign, decimal digits, and anything after them. None
/// without digits; a number that is too large becomes the largest.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = signed(text);
    let value = leading(digits, 10)?;
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

/// Returns a number as C's `strtoull` reads it with base 0: hexadecimal with `0x`, octal with `0`,
/// or decimal.
pub(crate) fn unsigned(text: &str) -> Option<u64> {
    let (negative, digits) = signed(text);
    let hexadecimal = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let value = match hexadecimal {
        Some(digits) => leading(digits, 16),
        None if digits.starts_with('0') => leading(digits, 8),
        None => leading(digits, 10),
    }?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// Returns a time stamp in nanoseconds. Its fraction is read as an integer, whatever its length.
pub(crate) fn time(text: &str) -> Option<Nanos> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = u64::try_from(integer(seconds)?).ok()?;
    let fraction = Nanos(leading(fraction, 10)?);
    Some(Nanos::from_secs(seconds).saturating_add(fraction))
}

/// Splits a number into whether it is negative, and its digits.
fn signed(text: &str) -> (bool, &str) {
    let text = text.trim_start();
    match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Returns the number that the leading digits form, the largest if it is too large.
fn leading(digits: &str, base: u32) -> Option<u64> {
    let mut value = None;
    for digit in digits
        .chars()
        .map_while(|character| character.to_digit(base))
    {
        let larger = value.unwrap_or(0u64).saturating_mul(base.into());
        value = Some(larger.saturating_add(digit.into()));
    }
    value
}
