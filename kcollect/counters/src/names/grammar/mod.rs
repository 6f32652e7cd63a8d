//! The syntax of `-h` and `-c`: from text to specifications of counters, which are not looked up on
//! the machine yet.
//!
//! ```text
//! -h  list     := level | counter { "," counter }
//!     counter  := event { "~" name [ "=" number ] } [ "," [ level | number ] ]
//!     level    := "on" | "hi" | "high" | "lo" | "low"
//! -c  list     := [ "pic" N "=" ] event { "~" ... }
//!                 { "," ( "nouser" | "sys" | name "=" number ) } { "," ... }
//!     event    := as perf writes it: name[:MODIFIERS], pmu/term[=value],.../[MODIFIERS], rHEX,
//!                 type:config, group:tracepoint, mem:ADDRESS[/length][:rwx]
//! ```
//!
//! The first syntax is gprofng's and er_kernel's, the second cputrack's. Numbers are decimal, or
//! hexadecimal with `0x`. Commas between the slashes of a PMU's event belong to it.
//!
//! These are refused: counter registers (`/0`), since the kernel chooses them; the `+` of
//! data-space profiling; groups in braces; an interval where nothing overflows.

pub(crate) mod tokens;

use std::fmt;

use crate::names::error::CounterError;
use tokens::{form_error, is_register, parse_number, split_list, strip_register};

/// How often a counter overflows, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowInterval {
    /// About 100 times a second on a busy CPU.
    #[default]
    On,
    /// Ten times as often.
    Hi,
    /// A tenth as often.
    Lo,
    /// After this number of events, 1 to 2⁶³ − 1.
    Every(u64),
}

/// One counter as typed, not yet looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSpec {
    /// The name of the event, with perf's modifiers.
    pub name: String,
    /// Each `~attribute=value`, in the order typed. The default value is 1.
    pub attributes: Vec<(String, u64)>,
}

/// One counter of `-h` as typed, with its interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverflowSpec {
    /// The default counters: `-h on`, `-h hi`, `-h lo`.
    Default(OverflowInterval),
    /// A counter by its name.
    Counter(CounterSpec, OverflowInterval),
}

impl fmt::Display for OverflowInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverflowInterval::On => f.write_str("on"),
            OverflowInterval::Hi => f.write_str("hi"),
            OverflowInterval::Lo => f.write_str("lo"),
            OverflowInterval::Every(count) => write!(f, "{count}"),
        }
    }
}

impl fmt::Display for CounterSpec {
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

impl fmt::Display for OverflowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverflowSpec::Default(interval) => interval.fmt(f),
            OverflowSpec::Counter(counter, interval) => write!(f, "{counter},{interval}"),
        }
    }
}

/// Parses the text after one `-h`.
///
/// # Errors
/// [`CounterError::Form`] names the part that cannot be parsed.
pub fn parse_overflow_specs(text: &str) -> Result<Vec<OverflowSpec>, CounterError> {
    let mut specs = Vec::new();
    // The last counter, which an interval may follow.
    let mut last = None;
    let tokens = split_list(text)?;
    for token in &tokens {
        match (last.take(), parse_interval(token)?) {
            (Some(counter), Some(interval)) => specs.push(OverflowSpec::Counter(counter, interval)),
            // With gprofng's two commas, the interval between them is left out.
            (Some(counter), None) if token.is_empty() => {
                specs.push(OverflowSpec::Counter(counter, OverflowInterval::On));
            }
            (Some(counter), None) => {
                specs.push(OverflowSpec::Counter(counter, OverflowInterval::On));
                last = Some(parse_counter(token)?);
            }
            (
                None,
                Some(
                    interval @ (OverflowInterval::On | OverflowInterval::Hi | OverflowInterval::Lo),
                ),
            ) if tokens.len() == 1 => {
                specs.push(OverflowSpec::Default(interval));
            }
            (None, Some(_)) => {
                return Err(form_error(
                    token,
                    "an interval without a counter before it",
                    "type the counter first, as in cycles,hi or cycles,1000003",
                ));
            }
            (None, None) => last = Some(parse_counter(token)?),
        }
    }
    specs.extend(last.map(|counter| OverflowSpec::Counter(counter, OverflowInterval::On)));
    Ok(specs)
}

/// Parses the text after one `-c`: counters without intervals.
///
/// # Errors
/// [`CounterError::Form`] names the part that cannot be parsed.
pub fn parse_counter_specs(text: &str) -> Result<Vec<CounterSpec>, CounterError> {
    let mut counters: Vec<CounterSpec> = Vec::new();
    for token in split_list(text)? {
        let token = strip_register(token);
        if parse_interval(token)?.is_some() {
            return Err(form_error(
                token,
                "an interval, but -c only counts, and nothing overflows",
                "leave it out",
            ));
        }
        let attribute = match token {
            "nouser" => Some(("user".to_owned(), 0)),
            "sys" => Some(("system".to_owned(), 1)),
            _ if token.contains('=') && !token.contains(['/', '~']) => {
                Some(parse_attribute(token)?)
            }
            _ => None,
        };
        match (attribute, counters.last_mut()) {
            (None, _) => counters.push(parse_counter(token)?),
            (Some(attribute), Some(counter)) => counter.attributes.push(attribute),
            (Some(_), None) => {
                return Err(form_error(
                    token,
                    "an attribute without an event before it",
                    "type the event first, as in instructions,nouser",
                ));
            }
        }
    }
    Ok(counters)
}

/// Parses a level or a number. None: something else.
fn parse_interval(token: &str) -> Result<Option<OverflowInterval>, CounterError> {
    Ok(Some(match token {
        "on" => OverflowInterval::On,
        "hi" | "high" => OverflowInterval::Hi,
        "lo" | "low" => OverflowInterval::Lo,
        // A number with a colon is perf's `type:config`.
        _ if token.starts_with(|first: char| first.is_ascii_digit()) && !token.contains(':') => {
            match parse_number(token) {
                // The kernel refuses the highest bit.
                Some(count @ 1..=0x7fff_ffff_ffff_ffff) => OverflowInterval::Every(count),
                _ => {
                    return Err(form_error(
                        token,
                        "not an interval",
                        "type on, hi, lo, or the number of events between two overflows, as in cycles,1000003",
                    ));
                }
            }
        }
        _ => return Ok(None),
    }))
}

fn parse_counter(token: &str) -> Result<CounterSpec, CounterError> {
    let mut parts = token.split('~');
    let name = parts.next().unwrap_or_default();
    let bad = |what, hint| Err(form_error(token, what, hint));
    if name.is_empty() {
        return bad(
            "the name of a counter is missing",
            "kcollect -h lists what this machine can count",
        );
    }
    if name.starts_with(['+', '-']) {
        return bad(
            "data addresses are not profiled",
            "leave out the sign; the counter works without it",
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
            "groups in braces are not supported",
            "join the counters by commas",
        );
    }
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return bad(
            "a blank in the name of a counter",
            "join counters by commas",
        );
    }
    let (before, after) = name.split_once('/').unwrap_or((name, ""));
    if before.contains('=') {
        return bad(
            "not the name of a counter",
            "type an attribute as in cycles~user=0, and the terms of a PMU's event between slashes, as in cpu/event=0x3c/",
        );
    }
    if !name.starts_with("mem:") && is_register(after) {
        return bad(
            "the register cannot be chosen; the kernel chooses it",
            "leave out the slash and the number",
        );
    }
    Ok(CounterSpec {
        name: name.to_owned(),
        attributes: parts.map(parse_attribute).collect::<Result<_, _>>()?,
    })
}

/// Parses `name` or `name=number`.
fn parse_attribute(text: &str) -> Result<(String, u64), CounterError> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match parse_number(value) {
        Some(value) if !name.is_empty() && name.chars().all(word) => Ok((name.to_owned(), value)),
        _ => Err(form_error(
            text,
            "not an attribute",
            "type a name and a number, as in cycles~user=0 or cycles~system=0",
        )),
    }
}

#[cfg(test)]
mod tests;
