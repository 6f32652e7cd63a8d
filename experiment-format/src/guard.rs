//! Stores to a mapped file whose disk fails.
//!
//! A block is on disk before it is mapped, so that a full disk is an error when it is asked for.
//! But a page that the kernel has written back is asked for again at the next store; and where the
//! disk is gone by then, or has become read-only after an error, or the file was truncated, that
//! store is a SIGBUS. It would kill the collector in the middle of everything. Here it is an error
//! of that store alone: the handler puts ordinary memory in the place of the block, so that the
//! store can go on into nowhere, and leaves word.
//!
//! What it refuses: every other SIGBUS. That goes to who was there before.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Once, OnceLock};

use memmap2::MmapMut;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

thread_local! {
    /// Where this thread is storing: address and length. Of a kind that needs nothing to be done at
    /// its first use or at its end, so that a handler may look at it.
    static STORING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

static INSTALLED: Once = Once::new();
static BEFORE: OnceLock<SigAction> = OnceLock::new();

/// The disk under a block failed while it was stored to; what is in the map now is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFailed;

/// Stores to a map.
///
/// # Errors
/// [`DiskFailed`]; the map is then no longer the file's, and must not be used again.
pub(crate) fn guarded(
    map: &mut MmapMut,
    store: impl FnOnce(&mut MmapMut),
) -> Result<(), DiskFailed> {
    INSTALLED.call_once(install);
    STORING.set((map.as_ptr().addr(), map.len()));
    compiler_fence(Ordering::SeqCst);
    store(map);
    compiler_fence(Ordering::SeqCst);
    STORING.set((0, 0));
    match FAILED.take() {
        true => Err(DiskFailed),
        false => Ok(()),
    }
}

/// Where it can't be, all is as it was without.
fn install() {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::SigAction(bus_error), flags, SigSet::empty());
    // SAFETY: the handler does nothing that may not be done at any instant: it reads a thread's own
    // numbers and makes two system calls.
    if let Ok(before) = unsafe { sigaction(Signal::SIGBUS, &action) } {
        let _ = BEFORE.set(before);
    }
}

extern "C" fn bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid one.
    let info = unsafe { &*info };
    // SAFETY: of SIGBUS it has an address.
    let address = unsafe { info.si_addr() }.addr();
    let (start, length) = STORING.get();
    if address.wrapping_sub(start) < length {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let place = ptr::without_provenance_mut(start);
        // SAFETY: in the place of a map that this thread has borrowed for itself, of the same
        // length; its owner unmaps what is there.
        let mapped = unsafe { libc::mmap(place, length, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            FAILED.set(true);
            return;
        }
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // It happens again as soon as this returns, and then goes there.
    // SAFETY: a handler that was there, or none.
    let _ = unsafe { sigaction(Signal::SIGBUS, BEFORE.get().unwrap_or(&default)) };
}
