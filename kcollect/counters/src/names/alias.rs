//! The short names of gprofng and er_kernel, as far as the kernel counts their events on every CPU.
//!
//! gprofng has tables that map each name to an event of each known CPU. Here each name is one of
//! the kernel's generic events, which the kernel maps to an event of the CPU. Names without a
//! generic event (`l2m`, `ecstall`, ...) are not supported: the CPU's event for them has a name in
//! sysfs, or a number in the manufacturer's manual.

/// The aliases: name, generic event as perf calls it, gprofng's title.
pub const ALIASES: [(&str, &str, &str); 11] = [
    ("cycles", "cycles", "CPU Cycles"),
    ("insts", "instructions", "Instructions Executed"),
    ("dcm", "L1-dcache-load-misses", "L1 D-cache Misses"),
    ("dcr", "L1-dcache-loads", "L1 D-cache Reads"),
    ("dcw", "L1-dcache-stores", "L1 D-cache Writes"),
    ("dcwm", "L1-dcache-store-misses", "L1 D-cache Write Misses"),
    ("icm", "L1-icache-load-misses", "L1 I-cache Misses"),
    ("llm", "LLC-load-misses", "Last-Level Cache Misses"),
    ("dtlbm", "dTLB-load-misses", "DTLB Misses"),
    ("itlbm", "iTLB-load-misses", "ITLB Misses"),
    ("brmiss", "branch-misses", "Branch Mispredicts"),
];

/// Returns the generic event and the title of an alias.
#[must_use]
pub fn find(name: &str) -> Option<(&'static str, &'static str)> {
    ALIASES
        .iter()
        .find(|(alias, ..)| *alias == name)
        .map(|(_, event, title)| (*event, *title))
}
