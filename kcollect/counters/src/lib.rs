//! Counters of the hardware and of the kernel: which there are, what they are called, and what they
//! count.
//!
//! From text to events: [`grammar`] takes apart what was typed, `resolve` looks the names up, with
//! [`alias`] and [`generic`] for those that are the same everywhere, [`pmu`],
//! [`format`](mod@format) and `terms` for those in sysfs, [`tracepoint`] and [`breakpoint`];
//! [`interval`] chooses how often one overflows. [`list`] says what there is. [`event`] is what all
//! sides speak of.
//!
//! There are no tables of CPUs' events here: a CPU's own events are those that its kernel names in
//! sysfs, and raw codes.
//!
//! As a library: a [`set`] of requests is bound to a thread, a process or a CPU ([`binding`] is the
//! system call), gives [`sample`]s, tells [`overflow`]s, and is refused for reasons that
//! [`refusal`] names, one of which [`retry`] waits for. [`track`] and [`stat`] are the commands
//! made of it: [`follow`] and [`records`] are how no thread is missed, [`lives`] what that means,
//! [`rows`] what is said of it, [`style`] how. Overflows with stacks, of the whole machine, are the
//! session's.

pub mod alias;
mod attributes;
pub mod binding;
pub mod bound;
pub mod breakpoint;
pub mod cache;
pub mod error;
pub mod event;
pub mod follow;
pub mod format;
mod found;
pub mod gate;
pub mod generic;
pub mod grammar;
pub mod interval;
pub mod last_words;
pub mod list;
pub mod lives;
pub mod modifiers;
mod nearest;
pub mod overflow;
pub mod perf;
pub mod pmu;
pub mod probe;
pub mod records;
pub mod refusal;
mod resolve;
pub mod retry;
pub mod rows;
pub mod sample;
pub mod set;
pub mod sink;
pub mod stat;
pub mod style;
mod terms;
mod tokens;
pub mod tracepoint;
pub mod track;

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
        match found.pmu.filter(pmu::Pmu::is_of_package) {
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

/// What this machine can count, as `kcollect -h` prints it.
#[must_use]
pub fn listing(root: &Root) -> list::Listing {
    list::look(root, probe::exists, probe::at_once)
}

#[cfg(test)]
fn page_faults() -> Event {
    parse_events("page-faults", &Root::machine())
        .unwrap()
        .remove(0)
}
