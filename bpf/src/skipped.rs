//! How often the kernel did not run a program.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use libbpf_sys::{bpf_prog_get_info_by_fd, bpf_prog_info};

use crate::Programs;

impl Programs {
    /// How often the kernel skipped a program that traces `io_uring`, since another thread was
    /// inside it on the same CPU. That other thread was preempted there, as can be on a real-time
    /// kernel. What was skipped may have been of any process.
    #[must_use]
    pub fn skipped_operations(&self) -> u64 {
        let programs = &self.skel.progs;
        let operations = [
            &programs.kc_io_submit,
            &programs.kc_io_complete,
            &programs.kc_io_overflow,
            &programs.kc_io_fail_link,
        ];
        let loaded = operations.into_iter().filter(|program| program.autoload());
        loaded.map(|program| skipped(program.as_fd())).sum()
    }
}

/// How often the kernel skipped a program; 0 where it does not say.
fn skipped(program: BorrowedFd<'_>) -> u64 {
    // SAFETY: a structure of numbers, of which zeros ask for no arrays.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    let mut length = size_of::<bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes, the size of the structure.
    let error =
        unsafe { bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    match error {
        0 => info.recursion_misses,
        _ => 0,
    }
}
