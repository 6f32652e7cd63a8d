//! Stacks are right: user stacks against framehop and stepped programs, call trees, code made at
//! run time, mappings that change.

mod call_trees;
mod copied_code;
mod first_functions;
mod gdb;
mod jit;
mod leaderless;
mod mappings;
mod return_probes;
mod second_ways;
mod unwinder;
mod user_returns;
mod user_workers;
