//! Memory for the functions of all processes together: each of a thousand processes may say that it
//! has made a million.
//!
//! What is beyond the whole is refused, except a little for each process: who fills the room takes
//! no names from others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all functions of all processes.
pub const MOST_OF_ALL: usize = 256 << 20;
/// Bytes that a process has in any case.
pub const IN_ANY_CASE: usize = 1 << 20;

/// The room that processes share. Clones are of the same room.
#[derive(Clone, Debug, Default)]
pub struct Room(Arc<AtomicUsize>);

impl Room {
    /// Bytes that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one process has taken of it. That is given back when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Share {
    room: Room,
    taken: usize,
}

impl Share {
    pub(super) fn of(room: &Room) -> Share {
        Share {
            room: room.clone(),
            taken: 0,
        }
    }

    /// Takes so many bytes, if they are there.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let there = self.room.taken().saturating_add(bytes) <= MOST_OF_ALL
            || self.taken.saturating_add(bytes) <= IN_ANY_CASE;
        if there {
            self.taken += bytes;
            self.room.0.fetch_add(bytes, Ordering::Relaxed);
        }
        there
    }

    /// Gives back what was taken before.
    pub(super) fn give(&mut self, bytes: usize) {
        self.taken -= bytes;
        self.room.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_is_bounded_and_nobody_is_left_without() {
        let room = Room::default();
        let mut greedy = Share::of(&room);
        assert!(greedy.take(MOST_OF_ALL));
        assert!(!greedy.take(1));
        let mut modest = Share::of(&room);
        assert!(modest.take(IN_ANY_CASE));
        assert!(!modest.take(1));
        assert_eq!(room.taken(), MOST_OF_ALL + IN_ANY_CASE);
        modest.give(8);
        assert!(modest.take(8));
        drop(greedy);
        assert!(modest.take(1));
        drop(modest);
        assert_eq!(room.taken(), 0);
    }
}
