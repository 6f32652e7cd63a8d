//! Events that every kernel counts, with or without a PMU, by perf's names.
//!
//! They are what is counted where nothing is asked for and the machine has no PMU.

use perf_event_open_sys::bindings as sys;

use super::event::{Encoding, Event};
use crate::cli::CliError;

/// Name, title, number, and whether it is a time.
const EVENTS: [(&str, &str, sys::perf_sw_ids, bool); 11] = [
    (
        "task-clock",
        "Task Clock",
        sys::PERF_COUNT_SW_TASK_CLOCK,
        true,
    ),
    ("cpu-clock", "CPU Clock", sys::PERF_COUNT_SW_CPU_CLOCK, true),
    (
        "context-switches",
        "Context Switches",
        sys::PERF_COUNT_SW_CONTEXT_SWITCHES,
        false,
    ),
    (
        "cpu-migrations",
        "CPU Migrations",
        sys::PERF_COUNT_SW_CPU_MIGRATIONS,
        false,
    ),
    (
        "page-faults",
        "Page Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS,
        false,
    ),
    (
        "minor-faults",
        "Minor Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MIN,
        false,
    ),
    (
        "major-faults",
        "Major Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ,
        false,
    ),
    (
        "alignment-faults",
        "Alignment Faults",
        sys::PERF_COUNT_SW_ALIGNMENT_FAULTS,
        false,
    ),
    (
        "emulation-faults",
        "Emulation Faults",
        sys::PERF_COUNT_SW_EMULATION_FAULTS,
        false,
    ),
    (
        "bpf-output",
        "BPF Output",
        sys::PERF_COUNT_SW_BPF_OUTPUT,
        false,
    ),
    (
        "cgroup-switches",
        "Cgroup Switches",
        sys::PERF_COUNT_SW_CGROUP_SWITCHES,
        false,
    ),
];

/// What is counted where nothing is asked for.
pub const DEFAULT: &str = "task-clock,context-switches,cpu-migrations,page-faults";

/// The events of a list, `NAME,...`, in its order.
///
/// # Errors
/// When a name is none of them.
pub fn events(text: &str) -> Result<Vec<Event>, CliError> {
    text.split(',').map(|name| event(name.trim())).collect()
}

fn event(name: &str) -> Result<Event, CliError> {
    let known = EVENTS.iter().find(|(known, ..)| *known == name);
    let Some((name, title, number, is_time)) = known else {
        let names: Vec<_> = EVENTS.iter().map(|(name, ..)| *name).collect();
        return Err(CliError::new(
            format!("-c {name}: no such event"),
            format!("the events are {}", names.join(", ")),
        ));
    };
    Ok(Event {
        name: (*name).to_owned(),
        title: (*title).to_owned(),
        encoding: Encoding::software(*number),
        cpus: None,
        scale: 1.0,
        unit: String::new(),
        is_time: *is_time,
    })
}

#[cfg(test)]
pub(super) fn page_faults() -> Event {
    event("page-faults").unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order() {
        let names = |text| -> Vec<_> {
            let events = events(text).unwrap();
            events.into_iter().map(|event| event.name).collect()
        };
        assert_eq!(
            names("page-faults, task-clock"),
            ["page-faults", "task-clock"]
        );
        assert_eq!(names(DEFAULT).join(","), DEFAULT);
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_that_are() {
        let error = events("page-faults,page-fault").unwrap_err();
        assert_eq!(error.message, "-c page-fault: no such event");
        assert!(error.cure.contains("page-faults"));
    }
}

/// Stand-in until the parser is there.
pub fn requests(text: &str) -> Result<Vec<super::event::Request>, CliError> {
    let mut all: Vec<super::event::Request> = Vec::new();
    for word in text.split(',') {
        if let (Ok(interval), Some(last)) = (word.parse(), all.last_mut()) {
            last.interval = interval;
        } else if let Some(id) = word.strip_prefix("tp:") {
            let mut event = event("page-faults")?;
            event.name = word.to_owned();
            event.title = word.to_owned();
            event.encoding.kind = sys::PERF_TYPE_TRACEPOINT;
            event.encoding.config = id.parse().unwrap_or(0);
            event.encoding.hypervisor = true;
            all.push(super::event::Request { event, interval: 1 });
        } else {
            all.push(super::event::Request { event: event(word)?, interval: 1 });
        }
    }
    Ok(all)
}
