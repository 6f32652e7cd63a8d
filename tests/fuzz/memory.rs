//! Counts the memory of this process, so that an input that takes too much is a failure.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The bytes that are allocated.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// The maximum since [`begin`].
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Begins to note the highest number of bytes. Returns how many are allocated.
pub(crate) fn begin() -> usize {
    let held = HELD.load(Ordering::Relaxed);
    HIGHEST.store(held, Ordering::Relaxed);
    held
}

/// Returns the highest number of bytes since [`begin`] was last called, by any thread.
pub(crate) fn highest() -> usize {
    HIGHEST.load(Ordering::Relaxed)
}

fn count(allocated: *mut u8, bytes: usize) -> *mut u8 {
    if !allocated.is_null() {
        let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
        HIGHEST.fetch_max(held, Ordering::Relaxed);
    }
    allocated
}

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        count(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        count(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        let new = unsafe { System.realloc(old, layout, size) };
        if !new.is_null() {
            HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        count(new, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(old, layout) }
    }
}
