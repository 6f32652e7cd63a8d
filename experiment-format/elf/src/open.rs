//! Opening files that belong to others, who may exchange them meanwhile.
//!
//! Paths are resolved by `openat2(2)`, which is repeated while it reports EAGAIN. If a path is
//! resolved inside a root, or in the kernel's cache alone, EAGAIN may also mean that something on
//! the machine was renamed or mounted meanwhile, whether it concerns the path or not.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, open};
use nix::sys::stat::Mode;

/// Max attempts. A rename takes microseconds; a path that is not in the cache is not there at the
/// last attempt either.
const MAX_ATTEMPTS: u32 = 16;

/// Resolves a path below a directory.
///
/// # Errors
/// Those of the system; EAGAIN if it was reported each time.
pub fn openat2<P: ?Sized + NixPath>(
    root: impl AsFd,
    path: &P,
    how: OpenHow,
) -> Result<OwnedFd, Errno> {
    let mut opened = nix::fcntl::openat2(root.as_fd(), path, how);
    for _ in 1..MAX_ATTEMPTS {
        if opened.as_ref().err() != Some(&Errno::EAGAIN) {
            break;
        }
        std::thread::yield_now();
        opened = nix::fcntl::openat2(root.as_fd(), path, how);
    }
    opened
}

/// Opens the file of a descriptor for reading. No path is resolved again.
///
/// Without `O_NONBLOCK`, a lease on the file would make the open wait for its holder.
///
/// # Errors
/// Those of the system.
pub fn reopen(held: impl AsFd) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    open(path.as_str(), flags, Mode::empty()).map(File::from)
}
