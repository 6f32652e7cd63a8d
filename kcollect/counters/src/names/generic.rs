//! Generic events of `linux/perf_event.h`, by perf's names for them. They have the same numbers on
//! every machine.
//!
//! The kernel maps each to an event of the CPU, or refuses it if the CPU has no such event.

use perf_event_open_sys::bindings as sys;

/// One of the kernel's generic events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericEvent {
    /// `PERF_TYPE_HARDWARE`, `PERF_TYPE_HW_CACHE` or `PERF_TYPE_SOFTWARE`.
    pub kind: u32,
    /// `config`: its number within the type.
    pub config: u64,
    /// A column's title.
    pub title: String,
}

impl GenericEvent {
    /// Whether the CPU counts it, and not the kernel.
    #[must_use]
    pub fn is_hardware(&self) -> bool {
        self.kind != sys::PERF_TYPE_SOFTWARE
    }

    /// Whether its count is a time in nanoseconds.
    #[must_use]
    pub fn is_time(&self) -> bool {
        !self.is_hardware()
            && [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK]
                .map(u64::from)
                .contains(&self.config)
    }
}

/// Synonyms, title and number of one event or part of an event.
pub(crate) type NamedId = (&'static [&'static str], &'static str, u32);

/// Events that the CPU counts.
pub(crate) const HARDWARE: [NamedId; 10] = [
    (
        &["cycles", "cpu-cycles"],
        "CPU Cycles",
        sys::PERF_COUNT_HW_CPU_CYCLES,
    ),
    (
        &["instructions"],
        "Instructions Executed",
        sys::PERF_COUNT_HW_INSTRUCTIONS,
    ),
    (
        &["cache-references"],
        "Cache References",
        sys::PERF_COUNT_HW_CACHE_REFERENCES,
    ),
    (
        &["cache-misses"],
        "Cache Misses",
        sys::PERF_COUNT_HW_CACHE_MISSES,
    ),
    (
        &["branches", "branch-instructions"],
        "Branch Instructions",
        sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
    ),
    (
        &["branch-misses"],
        "Branch Mispredicts",
        sys::PERF_COUNT_HW_BRANCH_MISSES,
    ),
    (&["bus-cycles"], "Bus Cycles", sys::PERF_COUNT_HW_BUS_CYCLES),
    (
        &["stalled-cycles-frontend", "idle-cycles-frontend"],
        "Cycles without Issue",
        sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND,
    ),
    (
        &["stalled-cycles-backend", "idle-cycles-backend"],
        "Cycles without Retirement",
        sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND,
    ),
    (
        &["ref-cycles"],
        "Reference Cycles",
        sys::PERF_COUNT_HW_REF_CPU_CYCLES,
    ),
];

/// Events that the kernel counts.
pub(crate) const SOFTWARE: [NamedId; 12] = [
    (&["cpu-clock"], "CPU Clock", sys::PERF_COUNT_SW_CPU_CLOCK),
    (&["task-clock"], "Task Clock", sys::PERF_COUNT_SW_TASK_CLOCK),
    (
        &["page-faults", "faults"],
        "Page Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS,
    ),
    (
        &["minor-faults"],
        "Minor Page Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MIN,
    ),
    (
        &["major-faults"],
        "Major Page Faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ,
    ),
    (
        &["context-switches", "cs"],
        "Context Switches",
        sys::PERF_COUNT_SW_CONTEXT_SWITCHES,
    ),
    (
        &["cpu-migrations", "migrations"],
        "CPU Migrations",
        sys::PERF_COUNT_SW_CPU_MIGRATIONS,
    ),
    (
        &["cgroup-switches"],
        "Control Group Switches",
        sys::PERF_COUNT_SW_CGROUP_SWITCHES,
    ),
    (
        &["alignment-faults"],
        "Alignment Faults",
        sys::PERF_COUNT_SW_ALIGNMENT_FAULTS,
    ),
    (
        &["emulation-faults"],
        "Emulation Faults",
        sys::PERF_COUNT_SW_EMULATION_FAULTS,
    ),
    (&["bpf-output"], "BPF Output", sys::PERF_COUNT_SW_BPF_OUTPUT),
    (&["dummy"], "Nothing", sys::PERF_COUNT_SW_DUMMY),
];

/// Returns the event of the CPU that has this name; events of its caches are in
/// [`cache`](crate::names::cache).
#[must_use]
pub fn hardware(name: &str) -> Option<GenericEvent> {
    find(&HARDWARE, sys::PERF_TYPE_HARDWARE, name)
}

/// Returns the event of the kernel that has this name.
#[must_use]
pub fn software(name: &str) -> Option<GenericEvent> {
    find(&SOFTWARE, sys::PERF_TYPE_SOFTWARE, name)
}

fn find(rows: &[NamedId], kind: u32, name: &str) -> Option<GenericEvent> {
    let (_, title, config) = rows.iter().find(|(names, ..)| names.contains(&name))?;
    Some(GenericEvent {
        kind,
        config: (*config).into(),
        title: (*title).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clocks_of_the_kernel_are_times() {
        assert!(software("task-clock").unwrap().is_time());
        assert!(!software("cs").unwrap().is_time());
        assert!(!hardware("cycles").unwrap().is_time());
    }
}
