//! Events that are made without the parser of names.

use std::fs;

use counters::names::event::{Encoding, PerfEvent};
use counters::names::parse_events;
use host::Root;
use perf_event_open_sys::bindings as sys;

/// Returns a software event by its name; one that the kernel refuses, if there is no such name.
pub(crate) fn software(name: &str) -> PerfEvent {
    let events = parse_events(name, &Root::machine()).unwrap_or_default();
    let nothing = || event(name, Encoding::default());
    events.into_iter().next().unwrap_or_else(nothing)
}

fn event(name: &str, encoding: Encoding) -> PerfEvent {
    PerfEvent {
        name: name.to_owned(),
        title: name.to_owned(),
        encoding,
        cpus: None,
        scale: 1.0,
        unit: String::new(),
        is_time: false,
    }
}

/// Returns the event of writes to a variable of eight bytes.
pub(crate) fn writes_to(address: *const u64) -> PerfEvent {
    event(
        "mem:w",
        Encoding {
            kind: sys::PERF_TYPE_BREAKPOINT,
            config1: address as u64,
            config2: sys::HW_BREAKPOINT_LEN_8.into(),
            breakpoint: sys::HW_BREAKPOINT_W,
            user: true,
            ..Encoding::default()
        },
    )
}

/// Returns a tracepoint's event by its number.
pub(crate) fn tracepoint(name: &str, id: u64) -> PerfEvent {
    let encoding = Encoding::software(0);
    event(
        name,
        Encoding {
            kind: sys::PERF_TYPE_TRACEPOINT,
            config: id,
            ..encoding
        },
    )
}

/// Returns the event of CPU cycles.
pub(crate) fn cycles() -> PerfEvent {
    let encoding = Encoding::software(sys::PERF_COUNT_HW_CPU_CYCLES);
    event(
        "cycles",
        Encoding {
            kind: sys::PERF_TYPE_HARDWARE,
            ..encoding
        },
    )
}

/// Returns the event of the time stamp counter, by the PMU `msr`, which has no interrupt. None
/// where there is no such PMU.
pub(crate) fn time_stamps() -> Option<PerfEvent> {
    let kind = fs::read_to_string("/sys/bus/event_source/devices/msr/type").ok()?;
    let encoding = Encoding::software(0);
    Some(event(
        "msr/tsc/",
        Encoding {
            kind: kind.trim().parse().ok()?,
            ..encoding
        },
    ))
}
