//! From the name of a counter to the event that it means on this machine.

pub mod alias;
mod attributes;
pub mod breakpoint;
pub mod cache;
pub mod error;
pub mod event;
mod found;
pub mod generic;
pub mod grammar;
pub mod interval;
pub mod list;
pub mod modifiers;
mod nearest;
mod resolve;
pub mod sysfs;
mod terms;

pub use error::CounterError;

use event::{Event, Request};
use grammar::{Counter, Interval, Wish};
use host::Root;

/// What is counted where no counter was named: `-h on`.
const USUAL: [&str; 2] = ["cycles", "insts"];

/// What `-h` takes: counters with their intervals, joined by commas, or `on`, `hi`, `lo` for the
/// usual ones.
///
/// On machines with several kinds of cores one counter gives a request for each kind.
///
/// # Errors
/// The first counter that is not understood, that this machine does not have, or that can never
/// overflow.
pub fn parse(text: &str, root: &Root) -> Result<Vec<Request>, CounterError> {
    requests(&grammar::wishes(text)?, root)
}

/// What `-c` takes: counters joined by commas, without intervals.
///
/// # Errors
/// The first counter that is not understood, or that this machine does not have.
pub fn parse_events(text: &str, root: &Root) -> Result<Vec<Event>, CounterError> {
    let mut events = Vec::new();
    for counter in grammar::counters(text)? {
        let found = resolve::events(&counter, root)?;
        events.extend(found.into_iter().map(|found| found.event));
    }
    Ok(events)
}

/// What wishes mean on this machine.
///
/// # Errors
/// As [`parse`].
pub fn requests(wishes: &[Wish], root: &Root) -> Result<Vec<Request>, CounterError> {
    let mhz = interval::mhz(root);
    let mut requests = Vec::new();
    for wish in wishes {
        match wish {
            Wish::Counter(counter, interval) => {
                requests.extend(overflowing(counter, *interval, root, mhz)?);
            }
            Wish::Usual(interval) => {
                for name in USUAL {
                    let counter = Counter {
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
    counter: &Counter,
    interval: Interval,
    root: &Root,
    mhz: u64,
) -> Result<Vec<Request>, CounterError> {
    let request = |found: found::Found<'_>| {
        let event = found.event;
        match found.pmu.filter(sysfs::pmu::Pmu::is_of_package) {
            Some(pmu) => Err(CounterError::NeverOverflows {
                name: event.name,
                pmu: pmu.name,
            }),
            None => Ok(Request {
                interval: interval::events(interval, &event.encoding, mhz),
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
pub(crate) fn page_faults() -> Event {
    parse_events("page-faults", &Root::machine())
        .unwrap()
        .remove(0)
}
