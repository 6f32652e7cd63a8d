//! Traced events of chosen processes: a program that counts its own waits, calls or memory is
//! recorded with exactly these.

mod allocations;
mod go_heap;
mod io;
mod locks;
mod memory;
mod shared_files;
mod strace;
