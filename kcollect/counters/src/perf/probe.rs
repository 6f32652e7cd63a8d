//! What the kernel lets be opened, found by trying. Nothing is counted: what is opened is disabled,
//! and closed at once.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings as sys;

use crate::names::event::Encoding;

/// More than any CPU has.
const MOST: usize = 64;

/// Whether the kernel knows the event on this machine. One that is only forbidden to us is known.
#[must_use]
pub fn exists(encoding: &Encoding) -> bool {
    match open(encoding, None) {
        Ok(_) => true,
        Err(error) => matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)),
    }
}

/// How many counters of `encoding` the kernel takes into one group, which are counted all at once
/// or not at all; beyond, they take turns. None where none can be opened.
///
/// A counter that belongs to somebody else for good, as that of the NMI watchdog does, is counted
/// too: the kernel does not look at it here.
#[must_use]
pub fn at_once(encoding: &Encoding) -> Option<usize> {
    let mut group = vec![open(encoding, None).ok()?];
    while group.len() < MOST {
        match open(encoding, group.first()) {
            Ok(counter) => group.push(counter),
            Err(_) => break,
        }
    }
    Some(group.len())
}

/// For this thread, on any CPU.
fn open(encoding: &Encoding, group: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let mut attr = encoding.attribute();
    // The kernel's own part needs a privilege, and has the same counters.
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let group = group.map_or(-1, OwnedFd::as_raw_fd);
    // SAFETY: `attr` is an initialised perf_event_attr that lives through the call.
    let fd = unsafe {
        perf_event_open_sys::perf_event_open(
            &mut attr,
            0,
            -1,
            group,
            sys::PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
