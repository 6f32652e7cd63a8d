//! The files of an experiment: the two kinds that a writer fills, what keeps them whole when a disk
//! fails, and how a reader opens one.
//!
//! [`append::AppendFile`] writes whole records by system calls. [`block::BlockFile`] stores packets
//! into mapped memory, and is used for the ticks of the whole machine. [`bus_error`] turns the
//! signal that a failing disk raises there into an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::Result;
use crate::error::Error;

pub(crate) mod append;
pub(crate) mod block;
mod bus_error;

/// Opens a regular file; None if there is no file. Refuses a device or a pipe, which could make a
/// reader wait.
pub(crate) fn open_regular(path: &Path) -> Result<Option<File>> {
    let failed = |error| Error::io("open", path, error);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
    }
    Ok(Some(file))
}
