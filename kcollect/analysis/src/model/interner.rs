//! Numbers of things that lie in a vector: the same thing has the same number.
//!
//! The things themselves are not held a second time, as the keys of a map would be. So the table
//! stays so small that it is in the cache of a processor where a map is not, and the thing that it
//! leads to is often wanted anyway.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// By what they are, positions in a vector.
#[derive(Debug, Default)]
pub(crate) struct Numbers(HashTable<u32>);

impl Numbers {
    /// The position of `thing`, which may be `next`: then it is new, and to be put there. `at`
    /// gives what lies at a position before that.
    pub(crate) fn number<T: Hash + Eq>(
        &mut self,
        thing: &T,
        next: usize,
        at: impl Fn(usize) -> T,
    ) -> u32 {
        let entry = self.0.entry(
            FxBuildHasher.hash_one(thing),
            |number| at(*number as usize) == *thing,
            |number| FxBuildHasher.hash_one(at(*number as usize)),
        );
        *entry.or_insert(next as u32).get()
    }
}
