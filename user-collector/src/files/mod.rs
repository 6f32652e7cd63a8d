//! Opening the files of other processes, and of users.

mod held;
mod invoking_user;
mod openat2;
mod reopen;
mod timed_opener;

pub use held::{FREE_DESCRIPTORS, Share, may_hold};
pub use invoking_user::InvokingUser;
pub(crate) use openat2::openat2;
pub(crate) use reopen::reopen;
pub use timed_opener::{MAX_BLOCKED_THREADS, OPEN_TIMEOUT, TimedOpenError, TimedOpener};
