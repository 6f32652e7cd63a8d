//! Names of counters: from the text of `-h` and `-c` to the events that they mean on this machine.
//!
//! [`grammar`] splits the text into [specifications](grammar::CounterSpec) without looking at the
//! machine. `resolve` looks each name up: among the short names of gprofng ([`alias`]) and the
//! events that the kernel defines for every machine ([`generic`], [`cache`]), in [`sysfs`], and as
//! a [`breakpoint`]. [`interval`] chooses how often an event overflows, [`list`] lists all that can
//! be typed, and [`error`] is what goes wrong, with hints. The result is an [`event`].
//!
//! There are no tables of the events of single CPU models here: a CPU's own events are those that
//! its kernel names in sysfs, and raw codes.

pub mod alias;
mod attributes;
pub mod breakpoint;
pub mod cache;
pub mod error;
pub mod event;
pub mod generic;
pub mod grammar;
pub mod interval;
pub mod list;
pub mod modifiers;
mod nearest;
mod resolve;
mod resolved;
pub mod sysfs;
mod terms;

pub use error::CounterError;

use event::{CounterRequest, PerfEvent};
use grammar::{CounterSpec, OverflowInterval, OverflowSpec};
use host::Root;
use resolved::ResolvedEvent;
use sysfs::pmu::Pmu;

/// The counters of `-h on`, `-h hi` and `-h lo`.
const DEFAULT_COUNTERS: [&str; 2] = ["cycles", "insts"];

/// Returns the counters of one `-h`: names with intervals, joined by commas, or `on`, `hi`, `lo`
/// for the default ones.
///
/// On machines with several kinds of cores one name is a request for each kind.
///
/// # Errors
/// The first counter that cannot be parsed, that this machine does not have, or that cannot
/// overflow.
pub fn parse_requests(text: &str, root: &Root) -> Result<Vec<CounterRequest>, CounterError> {
    resolve_requests(&grammar::parse_overflow_specs(text)?, root)
}

/// Returns the counters of one `-c`: names joined by commas, without intervals.
///
/// # Errors
/// The first counter that cannot be parsed, or that this machine does not have.
pub fn parse_events(text: &str, root: &Root) -> Result<Vec<PerfEvent>, CounterError> {
    let mut events = Vec::new();
    for spec in grammar::parse_counter_specs(text)? {
        let resolved = resolve::events(&spec, root)?;
        events.extend(resolved.into_iter().map(|resolved| resolved.event));
    }
    Ok(events)
}

/// Returns what parsed counters mean on this machine.
///
/// # Errors
/// As [`parse_requests`].
pub fn resolve_requests(
    specs: &[OverflowSpec],
    root: &Root,
) -> Result<Vec<CounterRequest>, CounterError> {
    let mhz = interval::cpu_mhz(root);
    let mut requests = Vec::new();
    for spec in specs {
        match spec {
            OverflowSpec::Counter(counter, interval) => {
                requests.extend(overflowing(counter, *interval, root, mhz)?);
            }
            OverflowSpec::Default(interval) => {
                for name in DEFAULT_COUNTERS {
                    let counter = CounterSpec {
                        name: name.to_owned(),
                        attributes: Vec::new(),
                    };
                    requests.extend(overflowing(&counter, *interval, root, mhz)?);
                }
            }
        }
    }
    Ok(requests)
}

fn overflowing(
    counter: &CounterSpec,
    interval: OverflowInterval,
    root: &Root,
    mhz: u64,
) -> Result<Vec<CounterRequest>, CounterError> {
    let request = |resolved: ResolvedEvent<'_>| {
        let event = resolved.event;
        match resolved.pmu.filter(Pmu::is_uncore) {
            Some(pmu) => Err(CounterError::NeverOverflows {
                name: event.name,
                pmu: pmu.name,
            }),
            None => Ok(CounterRequest {
                interval: interval::in_events(interval, &event.encoding, mhz),
                event,
            }),
        }
    };
    resolve::events(counter, root)?
        .into_iter()
        .map(request)
        .collect()
}

#[cfg(test)]
pub(crate) fn page_faults() -> PerfEvent {
    parse_events("page-faults", &Root::machine())
        .unwrap()
        .remove(0)
}
