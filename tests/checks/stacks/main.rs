//! Stacks are right: user stacks against framehop and stepped programs, call trees, code made at run time.

mod call_trees;
mod entries;
mod jit;
mod unwinder;
