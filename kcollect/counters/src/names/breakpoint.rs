//! Hardware breakpoints as events: `mem:0xADDRESS[/length][:rwx]`, or `mem:SYMBOL` for data and
//! code of the kernel.
//!
//! The possible lengths and kinds of access depend on the CPU; the kernel refuses all others. x86
//! has 1, 2, 4 and 8 bytes, and writes, reads with writes, and execution alone.

use host::Root;
use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::Encoding;
use crate::names::grammar::tokens::parse_number;

/// The prefix of a breakpoint's name.
pub const PREFIX: &str = "mem:";

/// Returns the encoding of a breakpoint, and the modifiers after it. `text` is what follows `mem:`.
///
/// # Errors
/// Text that is not a breakpoint, or a symbol without an address.
pub fn encoding<'a>(text: &'a str, root: &Root) -> Result<(Encoding, &'a str), CounterError> {
    let bad = |what| CounterError::Form {
        typed: format!("{PREFIX}{text}"),
        what,
        hint: "type an address, a length and the kinds of access, as in mem:0xffffffff81000000/8:w",
    };
    let mut parts = text.split(':');
    let place = parts.next().unwrap_or_default();
    let (place, length) = match place.split_once('/') {
        Some((place, length)) => {
            let length = parse_number(length).filter(|length| *length > 0);
            (place, Some(length.ok_or_else(|| bad("not a length"))?))
        }
        None => (place, None),
    };
    let mut rest = parts.next();
    let mut access = sys::HW_BREAKPOINT_RW;
    if let Some(letters) = rest
        && let Some(typed) = parse_access(letters)
    {
        access = typed;
        rest = parts.next();
    }
    if parts.next().is_some() {
        return Err(bad("too many colons"));
    }
    let address = if place.is_empty() {
        return Err(bad("the address is missing"));
    } else if place.starts_with(|first: char| first.is_ascii_digit()) {
        parse_number(place).ok_or_else(|| bad("not an address"))?
    } else {
        symbol_address(place, root)?
    };
    // perf's defaults: for execution the length that the kernel requires, for data four bytes.
    let default_length = match access {
        sys::HW_BREAKPOINT_X => size_of::<libc::c_long>() as u64,
        _ => sys::HW_BREAKPOINT_LEN_4.into(),
    };
    let encoding = Encoding {
        kind: sys::PERF_TYPE_BREAKPOINT,
        config1: address,
        config2: length.unwrap_or(default_length),
        breakpoint: access,
        user: true,
        kernel: true,
        hypervisor: true,
        ..Encoding::default()
    };
    Ok((encoding, rest.unwrap_or_default()))
}

/// Returns the access that letters of `rwx` mean, in any order, each once. None: other letters.
fn parse_access(letters: &str) -> Option<u32> {
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

/// Returns the address of a symbol of the kernel.
fn symbol_address(name: &str, root: &Root) -> Result<u64, CounterError> {
    let symbols = root.text("/proc/kallsyms").unwrap_or_default();
    let address = symbols.lines().find_map(|line| {
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
