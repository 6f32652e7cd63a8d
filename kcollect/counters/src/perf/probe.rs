//! Which events the kernel opens, found by trying. Everything opened here is disabled, and closed
//! at once.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use types::ids::Tid;

use crate::names::event::Encoding;
use crate::perf::counter::open_event;
use crate::perf::scope::CounterScope;

/// More counters than any CPU has.
const MAX_GROUP_COUNTERS: usize = 64;

/// Whether the kernel has the event on this machine. An event that it only forbids exists too.
#[must_use]
pub fn exists(encoding: &Encoding) -> bool {
    match open(encoding, None) {
        Ok(_) => true,
        Err(error) => matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)),
    }
}

/// Returns the number of counters of `encoding` that the kernel takes into one group, whose
/// counters count at the same time. None: not even one can be opened.
///
/// A counter that is permanently in use, such as the NMI watchdog's, is included: the kernel does
/// not check for it here.
#[must_use]
pub fn at_once(encoding: &Encoding) -> Option<usize> {
    let mut group = vec![open(encoding, None).ok()?];
    while group.len() < MAX_GROUP_COUNTERS {
        match open(encoding, group.first().map(OwnedFd::as_fd)) {
            Ok(counter) => group.push(counter),
            Err(_) => break,
        }
    }
    Some(group.len())
}

/// Opens the event for the calling thread, on any CPU.
fn open(encoding: &Encoding, leader: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let mut attr = encoding.attribute();
    // The kernel's part needs a privilege, and uses the same counters.
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    open_event(&mut attr, CounterScope::Thread(Tid(0)), leader)
}
