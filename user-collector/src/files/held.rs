//! How many descriptors may stay open.
//!
//! Some are held for long: the files of followed processes, and load objects until their tables
//! are made and they are archived. There may be thousands, and the limit may be a thousand. All
//! else needs few, and those at any time. So what is held has to leave room.
//!
//! Nothing is counted for that. A new descriptor has the smallest number that is free, so its own
//! number says how many are open at least.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors that are never held: for what is opened, used and closed.
pub const FREE_DESCRIPTORS: u64 = 64;

/// Which part of the descriptors may be held for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All but the free ones: for what is closed soon.
    Most,
    /// Half of them: for what is held as long as others run.
    Half,
}

/// Returns whether a descriptor, which was opened just now, may be held.
pub fn may_hold(fd: impl AsFd, share: Share) -> bool {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let number = u64::try_from(fd.as_fd().as_raw_fd()).unwrap_or(u64::MAX);
    number < holdable(limit, share)
}

fn holdable(limit: u64, share: Share) -> u64 {
    let most = limit.saturating_sub(FREE_DESCRIPTORS);
    match share {
        Share::Most => most,
        Share::Half => most.min(limit / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_never_held() {
        assert_eq!(holdable(1024, Share::Most), 960);
        assert_eq!(holdable(1024, Share::Half), 512);
        assert_eq!(holdable(100, Share::Half), 36);
        assert_eq!(holdable(64, Share::Most), 0);
        assert!(may_hold(std::fs::File::open("/").unwrap(), Share::Half));
    }
}
