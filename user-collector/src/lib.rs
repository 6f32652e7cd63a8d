//! The user side of a recording, without the BPF programs: processes, their address spaces and
//! files as functions of time, and the subexperiments of those that are followed.
//!
//! | module | holds |
//! |---|---|
//! | [`process`] | which processes there are, their names and descent, facts from `/proc` |
//! | [`space`] | what is mapped in each process at an instant |
//! | [`follow`] | the rule by which processes are followed |
//! | [`join`] | what happened in the kernel meets the user stack that belongs to it |
//! | [`objects`] | load objects: the mapped files, opened, named, with unwind tables and copies |
//! | [`unwind`] | unwind tables from `.eh_frame`, `.debug_frame` and Go's function table |
//! | [`jit`] | functions that are made at run time, from perf maps and jitdumps |
//! | [`archive`] | copies of load objects and sources in the experiment |
//! | [`files`] | opening files of other processes, within a time limit |
//! | [`io_calls`] | system calls that do I/O, and what their descriptors are called |
//! | [`memory`] | the growth of a process's memory, from its system calls |
//! | [`collector`] | the writer of a subexperiment |
//!
//! Events of the perf side-band and a snapshot of `/proc` come in, in time order; queries are for
//! instants in the same order. What only keeps state reads nothing by itself, so that its tests are
//! drawings of time. What looks at processes and opens their files is [`objects`], [`jit`],
//! [`archive`] and the facts of [`process`].

pub mod archive;
pub mod collector;
pub mod files;
pub mod follow;
pub mod io_calls;
pub mod jit;
pub mod join;
pub mod memory;
pub mod objects;
pub mod process;
pub mod space;
pub mod unwind;
