//! Times, ticks, names and counts are right: by the clock, by the workloads' own account, by perf.

mod agrees_with_perf;
mod conservation;
mod exec_thread;
mod following;
mod hotplug;
mod kernel_bound;
mod kernel_symbols;
mod late_clock;
mod many_processes;
mod names;
mod samples;
mod short_lived_processes;
mod states;
mod subexperiments;
