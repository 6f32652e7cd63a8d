//! The limit for descriptors that stay open.
//!
//! Some descriptors are held for long: files of followed processes, and load objects until their
//! tables are made and they are archived. There may be thousands, and the system's limit may be a
//! thousand. Other parts need few descriptors, but at any time, so some are left free.
//!
//! Nothing has to be counted for that: a new descriptor has the smallest free number, so that many
//! others are open at least.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors that are never held, for files that are closed at once.
pub const FREE_DESCRIPTORS: u64 = 64;

/// The share of descriptors that may be held for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All but the free ones: for files that are closed soon.
    Most,
    /// Half of them: for files that are held as long as other processes run.
    Half,
}

/// Returns whether a descriptor that was just opened may be held.
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
