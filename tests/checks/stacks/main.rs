//! Stacks are right: user stacks against framehop and stepped programs, call trees, code made at
//! run time.

mod call_trees;
mod jit;
mod return_probes;
mod unwinder;
mod user_returns;
