//! Stores to a mapped file whose disk may fail.
//!
//! A block is reserved on disk before it is mapped, so that a full disk is an error of the
//! reservation. But a page that the kernel has written back is requested again at the next store.
//! If the disk is gone by then, or has become read-only after an error, or the file was truncated,
//! that store raises SIGBUS, which would kill the collector. Here it becomes an error of that store
//! alone: the handler maps ordinary memory in the place of the block, so that the store completes
//! without effect, and sets a flag.
//!
//! Every other SIGBUS goes to the handler that was installed before.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Once, OnceLock};

use memmap2::MmapMut;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

thread_local! {
    /// Where this thread is storing: address and length. The type needs no initialization and no
    /// destructor, so that a signal handler may read it.
    static STORING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// Set by the handler if the disk failed under a store of this thread.
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

static INSTALLED: Once = Once::new();
/// The action for SIGBUS that was installed before.
static BEFORE: OnceLock<SigAction> = OnceLock::new();

/// The error of a store whose disk failed; what is in the map now is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskFailed;

/// Runs `store`, which stores to a map, and turns a SIGBUS that it raises into an error.
///
/// # Errors
///
/// [`DiskFailed`]; the map then no longer maps the file, and must not be used again.
pub(super) fn store_guarded(
    map: &mut MmapMut,
    store: impl FnOnce(&mut MmapMut),
) -> Result<(), DiskFailed> {
    INSTALLED.call_once(install);
    STORING.set((map.as_ptr().addr(), map.len()));
    compiler_fence(Ordering::SeqCst);
    store(map);
    compiler_fence(Ordering::SeqCst);
    STORING.set((0, 0));
    if FAILED.take() {
        Err(DiskFailed)
    } else {
        Ok(())
    }
}

/// Installs the handler. If that fails, SIGBUS acts as before.
fn install() {
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::SigAction(bus_error), flags, SigSet::empty());
    // SAFETY: the handler is async-signal-safe: it reads variables of its own thread and makes two
    // system calls.
    if let Ok(before) = unsafe { sigaction(Signal::SIGBUS, &action) } {
        let _ = BEFORE.set(before);
    }
}

/// Handles SIGBUS.
extern "C" fn bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO, the kernel passes a valid pointer.
    let info = unsafe { &*info };
    // SAFETY: the information of SIGBUS has an address.
    let address = unsafe { info.si_addr() }.addr();
    let (start, length) = STORING.get();
    if address.wrapping_sub(start) < length {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let address = ptr::without_provenance_mut(start);
        // SAFETY: it replaces a map that this thread has borrowed exclusively, by one of the same
        // length; its owner unmaps that one.
        let mapped = unsafe { libc::mmap(address, length, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            FAILED.set(true);
            return;
        }
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // The signal is raised again as soon as this returns, and then goes to the earlier action.
    // SAFETY: the action was valid before, or is the default.
    let _ = unsafe { sigaction(Signal::SIGBUS, BEFORE.get().unwrap_or(&default)) };
}
