//! Tokens of `-h` and `-c`: parts between commas, and numbers.

use crate::names::error::CounterError;

/// Returns the error of a part that cannot be parsed.
pub(crate) fn form_error(typed: &str, what: &'static str, hint: &'static str) -> CounterError {
    CounterError::Form {
        typed: typed.to_owned(),
        what,
        hint,
    }
}

/// Splits text at the commas outside of slashes, and removes white space around the parts.
pub(crate) fn split_list(text: &str) -> Result<Vec<&str>, CounterError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        let end = token_end(rest)?;
        tokens.push(rest[..end].trim());
        match rest.get(end + 1..) {
            Some(more) => rest = more,
            None => return Ok(tokens),
        }
    }
}

/// Returns where the first part ends.
fn token_end(text: &str) -> Result<usize, CounterError> {
    // A breakpoint has a single slash, before its length.
    let breakpoint = strip_register(text.trim_start()).starts_with("mem:");
    let mut inside = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'/' if inside => inside = false,
            b'/' if breakpoint || is_register(&text[at + 1..]) => {}
            b'/' => inside = true,
            b',' if !inside => return Ok(at),
            _ => {}
        }
    }
    if inside {
        Err(form_error(
            text,
            "the second slash is missing",
            "type the terms of an event between two slashes, as in cpu/event=0x3c,umask=0/",
        ))
    } else {
        Ok(text.len())
    }
}

/// Whether the text after a slash is the number of a counter register: `cycles/0,insts/1`.
pub(crate) fn is_register(after: &str) -> bool {
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && matches!(after.as_bytes().get(digits), None | Some(b',' | b'~'))
}

/// Parses a decimal number, or a hexadecimal one with `0x`. None: not a number of 64 bits.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` would also accept a sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u64::from_str_radix(digits, radix).ok())?
}

/// Removes the `pic0=` of cputrack's `pic0=event`.
pub(crate) fn strip_register(token: &str) -> &str {
    let event = token.strip_prefix("pic").and_then(|rest| {
        let (number, event) = rest.split_once('=')?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(event)
    });
    event.unwrap_or(token)
}
