//! Memory that the system refuses: an error with a hint, and no abort.

use std::alloc::{GlobalAlloc, Layout, System};

use nix::sys::resource::{Resource, getrlimit};
use procfs::process::Process;

use crate::exit::ExitKind;

/// What is larger is wanted for what a file claims to hold, and its refusal is an error of that
/// file alone.
const LARGE_BYTES: usize = 1 << 30;

const MESSAGE: &[u8] =
    b"kcollect: out of memory: raise the limit of address space (ulimit -v) or of the control group\n";

/// The system's allocator, which ends the process with an exit status where it has no memory for
/// what every command needs. By default Rust aborts there, and a core is dumped.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: all is the system's own; only a refusal does not return.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        granted(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

fn granted(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() && size < LARGE_BYTES {
        // SAFETY: writes a constant, whose length is its own.
        unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
        // SAFETY: ends the process, without running anything that needs memory.
        unsafe { libc::_exit(ExitKind::Unavailable.code().into()) }
    }
    memory
}

/// Returns the limit of this process's address space and how much of it is used, bytes; none where
/// there is no limit.
#[must_use]
pub fn address_space() -> Option<(u64, u64)> {
    let (limit, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    if limit == nix::libc::RLIM_INFINITY {
        return None;
    }
    let used = Process::myself().and_then(|process| process.statm());
    let pages = used.map_or(0, |used| used.size);
    Some((limit, pages.saturating_mul(procfs::page_size())))
}
