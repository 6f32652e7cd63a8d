//! The parts of what was typed, and the numbers in it.

use crate::names::error::CounterError;

/// The error of a part that is not understood.
pub(crate) fn form(typed: &str, what: &'static str, cure: &'static str) -> CounterError {
    CounterError::Form {
        typed: typed.to_owned(),
        what,
        cure,
    }
}

/// The parts between commas, without white space around them; those inside slashes stay whole.
pub(crate) fn tokens(text: &str) -> Result<Vec<&str>, CounterError> {
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

/// Where the first part ends.
fn token_end(text: &str) -> Result<usize, CounterError> {
    // The slash of a breakpoint stands before its length, and no second one follows.
    let breakpoint = without_register(text.trim_start()).starts_with("mem:");
    let mut inside = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'/' if inside => inside = false,
            b'/' if breakpoint || register(&text[at + 1..]) => {}
            b'/' => inside = true,
            b',' if !inside => return Ok(at),
            _ => {}
        }
    }
    match inside {
        false => Ok(text.len()),
        true => Err(form(
            text,
            "the second slash is missing",
            "type the terms of an event between two slashes, as in cpu/event=0x3c,umask=0/",
        )),
    }
}

/// What follows a slash is the number of a counter register: `cycles/0,insts/1`.
pub(crate) fn register(after: &str) -> bool {
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && matches!(after.as_bytes().get(digits), None | Some(b',' | b'~'))
}

/// A number as both tools take it. None: none, or more than 64 bits.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // from_str_radix takes a sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u64::from_str_radix(digits, radix).ok())?
}

/// cputrack's `pic0=event` without what stands before the event.
pub(crate) fn without_register(token: &str) -> &str {
    let event = token.strip_prefix("pic").and_then(|rest| {
        let (number, event) = rest.split_once('=')?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(event)
    });
    event.unwrap_or(token)
}
