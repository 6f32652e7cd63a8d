//! Opening the files of other processes, and of users.

mod held;
mod invoking_user;
mod timed_opener;

pub use held::{FREE_DESCRIPTORS, Share, may_hold};
pub use invoking_user::InvokingUser;
pub(crate) use kcollect_elf::open::{openat2, reopen};
pub use timed_opener::{MAX_BLOCKED_THREADS, OPEN_TIMEOUT, TimedOpenError, TimedOpener};
