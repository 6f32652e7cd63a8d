//! Processes as functions of time: who lived when, under which name, with what mapped where. Whom
//! to follow, and the join of what was recorded of a thread in the kernel with its user side. The
//! files that are executed, with their unwind tables; the functions that JIT compilers make. And
//! the collectors, which write the subexperiments of followed processes.
//!
//! Fed with the perf side-band and a snapshot of `/proc`, in time order; asked about instants in
//! the same order. What only keeps books reads nothing by itself, so its tests are drawings of
//! time. What looks at processes and opens their files is [`objects`], [`jit`], [`process`] and
//! [`archive`].

pub mod archive;
pub mod collector;
pub mod elf;
pub mod files;
pub mod follow;
pub mod jit;
pub mod join;
pub mod objects;
pub mod process;
pub mod space;
pub mod unwind;
