//! `openat2(2)`, repeated while it reports EAGAIN.
//!
//! If a path is resolved inside a root, or in the kernel's cache alone, EAGAIN may also mean that
//! something on the machine was renamed or mounted meanwhile, whether it concerns the path or not.

use std::os::fd::{AsFd, OwnedFd};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::OpenHow;

/// Max attempts. A rename takes microseconds; a path that is not in the cache is not there at the
/// last attempt either.
const MAX_ATTEMPTS: u32 = 16;

/// Resolves a path below a directory.
pub(crate) fn openat2<P: ?Sized + NixPath>(
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
