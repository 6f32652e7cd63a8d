//! The user side of a recording, without the BPF programs: processes, their address spaces and
//! files as functions of time, and what is written of those that are followed.
//!
//! | module | holds |
//! |---|---|
//! | [`process`] | the instances of processes, their names and descent, facts from `/proc` |
//! | [`space`] | the mappings of each process, as a function of time |
//! | [`follow`] | the rule by which processes are followed |
//! | [`join`] | kernel records and the user stacks that belong to them |
//! | [`loaded_code`] | the mapped code of all processes, and its load objects |
//! | [`objects`] | load objects: the mapped files, opened, named, with unwind tables and copies |
//! | [`unwind`] | unwind tables from `.eh_frame`, `.debug_frame` and Go's function table |
//! | [`jit`] | JIT functions, from perf maps and jitdumps |
//! | [`archive`] | copies of load objects and sources in the experiment |
//! | [`files`] | opening files of other processes, within a time limit |
//! | [`io_calls`] | system calls that do I/O, and the names of their descriptors |
//! | [`allocators`] | the functions of allocators, and the blocks that they allocate |
//! | [`memory`] | the growth of a process's memory, from its system calls |
//! | [`written_code`] | what a process's experiment has of its mappings and JIT functions |
//!
//! Input is the perf side-band and a snapshot of `/proc`, in the order of time; queries are in the
//! same order. Only [`objects`], [`jit`], [`archive`], [`allocators`], the facts of [`process`] and
//! the look-ups of [`io_calls`] read processes and files. The other modules keep state, and are
//! tested with sequences of events.

pub mod allocators;
pub mod archive;
pub mod files;
pub mod follow;
pub mod io_calls;
pub mod jit;
pub mod join;
pub mod loaded_code;
pub mod memory;
pub mod objects;
pub mod process;
pub mod space;
pub mod unwind;
pub mod written_code;
