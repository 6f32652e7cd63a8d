//! Types that all packages share: numbers of processes and threads, times and ticks, and text that
//! is safe to print.

pub mod ids;
pub mod text;
pub mod units;

/// The user and the group that own what is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}
