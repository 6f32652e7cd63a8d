//! Breakpoints of the CPU as events: `mem:0xADDRESS[/length][:rwx]`, `mem:SYMBOL` for data and code
//! of the kernel.
//!
//! Which lengths and accesses there are is the CPU's to say, and the kernel refuses the rest: x86
//! has 1, 2, 4 and 8 bytes, writes, reads with writes, and execution alone.

use host::Root;
use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::Encoding;
use crate::names::grammar::tokens::number;

/// What stands before an address.
pub const PREFIX: &str = "mem:";

/// What follows `mem:`, and the modifiers at its end.
///
/// # Errors
/// A form that breakpoints do not have, or a symbol without an address.
pub fn encoding<'a>(text: &'a str, root: &Root) -> Result<(Encoding, &'a str), CounterError> {
    let bad = |what| CounterError::Form {
        typed: format!("{PREFIX}{text}"),
        what,
        cure: "type an address, a length and what is waited for, as in mem:0xffffffff81000000/8:w",
    };
    let mut parts = text.split(':');
    let place = parts.next().unwrap_or_default();
    let (place, length) = match place.split_once('/') {
        Some((place, length)) => {
            let length = number(length).filter(|length| *length > 0);
            (place, Some(length.ok_or_else(|| bad("not a length"))?))
        }
        None => (place, None),
    };
    let mut rest = parts.next();
    let mut waited = sys::HW_BREAKPOINT_RW;
    if let Some(letters) = rest
        && let Some(access) = access(letters)
    {
        waited = access;
        rest = parts.next();
    }
    if parts.next().is_some() {
        return Err(bad("too many colons"));
    }
    let address = match place.starts_with(|first: char| first.is_ascii_digit()) {
        true => number(place).ok_or_else(|| bad("not an address"))?,
        false if place.is_empty() => return Err(bad("the address is missing")),
        false => symbol(place, root)?,
    };
    // perf's defaults: an instruction is as long as the kernel wants it to be, data are four bytes.
    let usual = match waited {
        sys::HW_BREAKPOINT_X => size_of::<libc::c_long>() as u64,
        _ => sys::HW_BREAKPOINT_LEN_4.into(),
    };
    let encoding = Encoding {
        kind: sys::PERF_TYPE_BREAKPOINT,
        config1: address,
        config2: length.unwrap_or(usual),
        breakpoint: waited,
        user: true,
        kernel: true,
        hypervisor: true,
        ..Encoding::default()
    };
    Ok((encoding, rest.unwrap_or_default()))
}

/// `rwx` in any order, each once. None: other letters.
fn access(letters: &str) -> Option<u32> {
    letters
        .chars()
        .try_fold(0, |sum, letter| {
            let one = match letter {
                'r' => sys::HW_BREAKPOINT_R,
                'w' => sys::HW_BREAKPOINT_W,
                'x' => sys::HW_BREAKPOINT_X,
                _ => return None,
            };
            (sum & one == 0).then_some(sum | one)
        })
        .filter(|sum| *sum != 0)
}

/// The address of a symbol of the kernel.
fn symbol(name: &str, root: &Root) -> Result<u64, CounterError> {
    let all = root.text("/proc/kallsyms").unwrap_or_default();
    let address = all.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next()?;
        (words.nth(1) == Some(name)).then(|| u64::from_str_radix(address, 16).ok())?
    });
    match address {
        Some(address) if address != 0 => Ok(address),
        hidden => Err(CounterError::NoSymbol {
            symbol: name.to_owned(),
            hidden: hidden.is_some(),
        }),
    }
}
