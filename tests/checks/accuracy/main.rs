//! Times, ticks, names and counts are right: by the clock, by the workloads' own account, by perf.

mod agrees_with_perf;
mod conservation;
mod crowds;
mod following;
mod hotplug;
mod kernel_bound;
mod kernel_symbols;
mod late_clock;
mod names;
mod samples;
mod short_lives;
mod states;
