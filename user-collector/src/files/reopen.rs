//! Opening a file that is held without being open (`O_PATH`).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Opens the file of a descriptor for reading. No path is resolved again.
///
/// Without `O_NONBLOCK`, a lease on the file would make the open wait for its holder.
pub(crate) fn reopen(held: impl AsFd) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    open(path.as_str(), flags, Mode::empty()).map(File::from)
}
