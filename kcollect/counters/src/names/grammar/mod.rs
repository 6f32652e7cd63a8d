//! What can be typed after `-h` and `-c`: from text to wishes, without knowing what the machine
//! has.
//!
//! ```text
//! -h  list     := level | counter { "," counter }
//!     counter  := event { "~" name [ "=" number ] } [ "," [ level | number ] ]
//!     level    := "on" | "hi" | "high" | "lo" | "low"
//! -c  list     := [ "pic" N "=" ] event { "~" ... } { "," ( "nouser" | "sys" | name "=" number ) } { "," ... }
//!     event    := as perf writes it: name[:MODIFIERS], pmu/term[=value],.../[MODIFIERS], rHEX, type:config,
//!                 group:tracepoint, mem:ADDRESS[/length][:rwx]
//! ```
//!
//! The first is gprofng's and er_kernel's, the second cputrack's. Numbers are decimal, or
//! hexadecimal with `0x`. Commas between the slashes of a PMU's event belong to it.
//!
//! What this refuses: counter registers (`/0`), which are the kernel's to choose; the `+` of
//! data-space profiling; groups in braces; an interval where nothing overflows.

pub(crate) mod tokens;

use std::fmt;

use crate::names::error::CounterError;
use tokens::{form, number, register, tokens, without_register};

/// How often a counter overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interval {
    /// About 100 times a second on a busy CPU.
    #[default]
    On,
    /// Ten times as often.
    Hi,
    /// A tenth as often.
    Lo,
    /// After so many events, 1 to 2⁶³ − 1.
    Every(u64),
}

/// One counter as it was typed; its name means nothing yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The event with perf's modifiers.
    pub name: String,
    /// `~attribute=value`, in the order typed; 1 where no value was.
    pub attributes: Vec<(String, u64)>,
}

/// What one `-h` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// What is usual on this machine: `-h on`, `-h hi`, `-h lo`.
    Usual(Interval),
    /// This counter.
    Counter(Counter, Interval),
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interval::On => f.write_str("on"),
            Interval::Hi => f.write_str("hi"),
            Interval::Lo => f.write_str("lo"),
            Interval::Every(count) => write!(f, "{count}"),
        }
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.attributes
            .iter()
            .try_for_each(|(name, value)| match value {
                0..10 => write!(f, "~{name}={value}"),
                _ => write!(f, "~{name}={value:#x}"),
            })
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Usual(interval) => interval.fmt(f),
            Wish::Counter(counter, interval) => write!(f, "{counter},{interval}"),
        }
    }
}

/// What follows one `-h`.
///
/// # Errors
/// [`CounterError::Form`] names what is not understood.
pub fn wishes(text: &str) -> Result<Vec<Wish>, CounterError> {
    let mut wishes = Vec::new();
    // A counter that can still be given an interval.
    let mut open = None;
    let tokens = tokens(text)?;
    for token in &tokens {
        match (open.take(), interval(token)?) {
            (Some(counter), Some(interval)) => wishes.push(Wish::Counter(counter, interval)),
            // gprofng's two commas: the interval is left out, the next counter follows.
            (Some(counter), None) if token.is_empty() => {
                wishes.push(Wish::Counter(counter, Interval::On));
            }
            (Some(last), None) => {
                wishes.push(Wish::Counter(last, Interval::On));
                open = Some(counter(token)?);
            }
            (None, Some(interval @ (Interval::On | Interval::Hi | Interval::Lo)))
                if tokens.len() == 1 =>
            {
                wishes.push(Wish::Usual(interval));
            }
            (None, Some(_)) => {
                return Err(form(
                    token,
                    "an interval without a counter before it",
                    "type the counter first, as in cycles,hi or cycles,1000003",
                ));
            }
            (None, None) => open = Some(counter(token)?),
        }
    }
    wishes.extend(open.map(|counter| Wish::Counter(counter, Interval::On)));
    Ok(wishes)
}

/// What follows one `-c`: counters without intervals.
///
/// # Errors
/// [`CounterError::Form`] names what is not understood.
pub fn counters(text: &str) -> Result<Vec<Counter>, CounterError> {
    let mut counters: Vec<Counter> = Vec::new();
    for token in tokens(text)? {
        let token = without_register(token);
        if interval(token)?.is_some() {
            return Err(form(
                token,
                "an interval, where nothing overflows",
                "leave it out: events are counted here, each of them",
            ));
        }
        let attribute = match token {
            "nouser" => Some(("user".to_owned(), 0)),
            "sys" => Some(("system".to_owned(), 1)),
            _ if token.contains('=') && !token.contains(['/', '~']) => Some(attribute(token)?),
            _ => None,
        };
        match (attribute, counters.last_mut()) {
            (None, _) => counters.push(counter(token)?),
            (Some(attribute), Some(counter)) => counter.attributes.push(attribute),
            (Some(_), None) => {
                return Err(form(
                    token,
                    "an attribute without an event before it",
                    "type the event first, as in instructions,nouser",
                ));
            }
        }
    }
    Ok(counters)
}

/// A level or a number. None: something else.
fn interval(token: &str) -> Result<Option<Interval>, CounterError> {
    Ok(Some(match token {
        "on" => Interval::On,
        "hi" | "high" => Interval::Hi,
        "lo" | "low" => Interval::Lo,
        // A number and a colon is perf's type:config.
        _ if token.starts_with(|first: char| first.is_ascii_digit()) && !token.contains(':') => {
            match number(token) {
                // The kernel takes the last bit for a sign.
                Some(count @ 1..=0x7fff_ffff_ffff_ffff) => Interval::Every(count),
                _ => {
                    return Err(form(
                        token,
                        "not an interval",
                        "type on, hi, lo, or after how many events the counter overflows, as in cycles,1000003",
                    ));
                }
            }
        }
        _ => return Ok(None),
    }))
}

fn counter(token: &str) -> Result<Counter, CounterError> {
    let mut parts = token.split('~');
    let name = parts.next().unwrap_or_default();
    let bad = |what, cure| Err(form(token, what, cure));
    if name.is_empty() {
        return bad(
            "the name of a counter is missing",
            "kcollect -h lists what this machine can count",
        );
    }
    if name.starts_with(['+', '-']) {
        return bad(
            "data addresses are not profiled",
            "leave the sign out: the counter works without",
        );
    }
    if name.starts_with('/') {
        return bad(
            "the name of a PMU is missing before the slash",
            "type it as in cpu/event=0x3c/",
        );
    }
    if name.contains(['{', '}']) {
        return bad(
            "groups in braces are not understood",
            "join the counters by commas",
        );
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return bad("blanks in the name of a counter", "join counters by commas");
    }
    let (before, after) = name.split_once('/').unwrap_or((name, ""));
    if before.contains('=') {
        return bad(
            "not the name of a counter",
            "type an attribute as in cycles~user=0, and the terms of a PMU's event between slashes, as in cpu/event=0x3c/",
        );
    }
    if !name.starts_with("mem:") && register(after) {
        return bad(
            "the register is the kernel's to choose",
            "leave the slash and the number out",
        );
    }
    Ok(Counter {
        name: name.to_owned(),
        attributes: parts.map(attribute).collect::<Result<_, _>>()?,
    })
}

/// `name` or `name=number`.
fn attribute(text: &str) -> Result<(String, u64), CounterError> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match number(value) {
        Some(value) if !name.is_empty() && name.chars().all(word) => Ok((name.to_owned(), value)),
        _ => Err(form(
            text,
            "not an attribute",
            "type a name and a number, as in cycles~user=0 or cycles~system=0",
        )),
    }
}

#[cfg(test)]
mod tests;
