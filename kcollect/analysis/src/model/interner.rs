//! A hash table of positions in a vector, by which equal values get the same number.
//!
//! The table does not hold the values a second time, as a map's keys would be. So it stays small
//! enough for a processor's cache where a map would not.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Positions in a vector, by the value there.
#[derive(Debug, Default)]
pub(crate) struct Numbers(HashTable<u32>);

impl Numbers {
    /// Returns the position of `value`. A new value gets the position `next`, and the caller has to
    /// put it there. `at` returns the value at an earlier position.
    pub(crate) fn number<T: Hash + Eq>(
        &mut self,
        value: &T,
        next: usize,
        at: impl Fn(usize) -> T,
    ) -> u32 {
        let entry = self.0.entry(
            FxBuildHasher.hash_one(value),
            |number| at(*number as usize) == *value,
            |number| FxBuildHasher.hash_one(at(*number as usize)),
        );
        *entry.or_insert(next as u32).get()
    }
}
