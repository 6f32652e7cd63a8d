//! Opening the files of other processes.

mod openat2;
mod reopen;
mod timed_opener;

pub(crate) use openat2::openat2;
pub(crate) use reopen::reopen;
pub use timed_opener::{MAX_BLOCKED_THREADS, OPEN_TIMEOUT, TimedOpenError, TimedOpener};
