//! Counters in the experiment: their names, and their numbers in packets.
//!
//! Like a tick, each overflow is written twice: for the CPU it happened on, in the founder, with
//! the kernel stack and the metric `K_cycles`; and for the thread, with its whole stack and the
//! metric `cycles`, in the process's subexperiment or, if the process is not followed, in the
//! founder too. So each of the two metrics covers the machine once.

use std::collections::HashSet;

use counters::names::event::{CounterRequest, PerfEvent};
use experiment_format::log::{CounterDecl, CounterUnit, ProfileDecl};
use experiment_format::packet::CounterEvent;

/// What a packet counts an overflow for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The CPU it happened on.
    Cpu = 0,
    /// The thread that ran.
    Thread = 1,
}

/// Returns the tag of a counter in packets.
#[must_use]
pub fn tag(counter: u32, side: Side) -> u32 {
    2 * counter + side as u32
}

/// The declaration of the founder's counters; `None` if no counters were requested.
pub(super) fn declare(requests: &[CounterRequest]) -> Option<ProfileDecl> {
    if requests.is_empty() {
        return None;
    }
    let names = keywords(requests.iter().map(|request| &*request.event.name));
    let counters = (0..).zip(requests.iter().zip(names));
    let counters = counters.flat_map(|(number, (request, name))| {
        let CounterRequest { event, interval } = request;
        [Side::Cpu, Side::Thread].map(|side| CounterDecl {
            tag: tag(number, side),
            name: match side {
                Side::Cpu => format!("K_{name}"),
                Side::Thread => name.clone(),
            },
            title: match side {
                Side::Cpu => format!("Kernel {}", event.title),
                Side::Thread => event.title.clone(),
            },
            interval: *interval,
            unit: unit(event),
        })
    });
    Some(ProfileDecl::Counters {
        counters: counters.collect(),
        packets: vec![CounterEvent::declaration()],
    })
}

/// Removes the counters of CPUs from a declaration: a subexperiment has only counters of threads.
pub fn of_process(profile: &mut ProfileDecl) {
    if let ProfileDecl::Counters { counters, .. } = profile {
        counters.retain(|counter| counter.tag % 2 == Side::Thread as u32);
    }
}

/// Returns a comment on each counter: the attributes it was opened with.
pub(super) fn described(requests: &[CounterRequest]) -> impl Iterator<Item = String> {
    requests.iter().map(|CounterRequest { event, interval }| {
        let encoding = &event.encoding;
        let modes = [
            (encoding.user, "user"),
            (encoding.kernel, "kernel"),
            (encoding.hypervisor, "hypervisor"),
        ];
        let modes: Vec<_> = modes.iter().filter(|mode| mode.0).map(|mode| mode.1).collect();
        format!(
            "counter: {}, every {interval}, in {}; type {}, config {:#x} {:#x} {:#x} {:#x}, precise_ip {}",
            event.name,
            modes.join(" and "),
            encoding.kind,
            encoding.config,
            encoding.config1,
            encoding.config2,
            encoding.config3,
            encoding.precise,
        )
    })
}

fn unit(event: &PerfEvent) -> CounterUnit {
    match &*event.name {
        _ if event.is_time => CounterUnit::Nanoseconds,
        "cycles" => CounterUnit::Cycles,
        _ => CounterUnit::Count,
    }
}

/// Returns the names as keywords of metrics, each different: letters, digits and `_`.
pub fn keywords<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken = HashSet::new();
    let keyword = |name: &str| {
        let legal = |letter: char| match letter {
            letter if letter.is_ascii_alphanumeric() => letter,
            _ => '_',
        };
        let keyword: String = name.chars().map(legal).collect();
        match keyword.trim_matches('_') {
            "" => "counter".to_owned(),
            keyword => keyword.to_owned(),
        }
    };
    names
        .map(|name| {
            let keyword = keyword(name);
            let others = (2..).map(|number| format!("{keyword}_{number}"));
            let mut candidates = std::iter::once(keyword.clone()).chain(others);
            let free = candidates.find(|name| taken.insert(name.clone()));
            free.unwrap_or(keyword)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_legal_and_different() {
        let names = [
            "page-faults",
            "cpu/event=0x3c/",
            "page_faults",
            "//",
            "sched:sched_switch",
        ];
        assert_eq!(
            keywords(names.into_iter()),
            [
                "page_faults",
                "cpu_event_0x3c",
                "page_faults_2",
                "counter",
                "sched_sched_switch"
            ]
        );
    }
}
