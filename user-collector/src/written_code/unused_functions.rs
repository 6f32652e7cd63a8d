//! JIT functions in which no stack has a frame, of a process that has very many.
//!
//! A long-lived process names millions of functions, and those that run are often the last ones. So
//! when a part of what may be written is used up, a function waits here until a stack has a frame
//! in it. Most never do, and no report needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use experiment_format::units::Nanos;

/// Frames are kept by blocks of 2^`BLOCK_BITS` addresses: a function next to one with a frame
/// counts as used too.
const BLOCK_BITS: u32 = 8;
/// Max blocks that are kept of one process, about 1 MiB. Of one with more, all functions count as
/// used.
const MAX_BLOCKS: usize = 65_536;

/// Where stacks have frames.
#[derive(Debug, Default)]
pub(super) struct SeenFrames {
    blocks: BTreeSet<u64>,
}

impl SeenFrames {
    /// Adds the address of a frame.
    pub(super) fn add(&mut self, frame: u64) {
        if self.blocks.len() < MAX_BLOCKS {
            self.blocks.insert(frame >> BLOCK_BITS);
        }
    }

    /// Returns whether a frame may be in a function.
    pub(super) fn any_in(&self, address: u64, size: u64) -> bool {
        let last = address.saturating_add(size.saturating_sub(1));
        let mut blocks = self
            .blocks
            .range(address >> BLOCK_BITS..=last >> BLOCK_BITS);
        self.blocks.len() >= MAX_BLOCKS || blocks.next().is_some()
    }
}

/// A function that is not written.
#[derive(Debug)]
pub(super) struct UnusedFunction {
    pub(super) at_ns: Nanos,
    pub(super) size: u64,
    pub(super) name: Arc<str>,
}

/// Functions that are not written, by their first address. No two overlap.
#[derive(Debug, Default)]
pub(super) struct UnusedFunctions {
    by_address: BTreeMap<u64, UnusedFunction>,
    /// Those that ended before a stack had a frame in them.
    ended: u64,
}

impl UnusedFunctions {
    pub(super) fn add(&mut self, at_ns: Nanos, address: u64, size: u64, name: &Arc<str>) {
        let name = Arc::clone(name);
        let function = UnusedFunction { at_ns, size, name };
        self.by_address.insert(address, function);
    }

    /// Removes a function that ends.
    pub(super) fn remove(&mut self, address: u64) {
        self.ended += u64::from(self.by_address.remove(&address).is_some());
    }

    /// Takes the function in which an address is, and returns its first address too.
    pub(super) fn take_at(&mut self, address: u64) -> Option<(u64, UnusedFunction)> {
        let (start, function) = self.by_address.range(..=address).next_back()?;
        let start = (address - start < function.size).then_some(*start)?;
        Some((start, self.by_address.remove(&start)?))
    }

    /// Returns how many were never written.
    pub(super) fn left_out(&self) -> u64 {
        self.by_address.len() as u64 + self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_waits_until_a_frame_is_in_it() {
        let mut functions = UnusedFunctions::default();
        for address in [0x1000, 0x1040, 0x1080] {
            functions.add(Nanos(1), address, 0x40, &"f".into());
        }
        assert!(functions.take_at(0xfff).is_none());
        assert_eq!(functions.take_at(0x107f).map(|found| found.0), Some(0x1040));
        assert!(functions.take_at(0x1040).is_none());
        functions.remove(0x1000);
        functions.remove(0x1040);
        assert!(functions.take_at(0x10c0).is_none());
        assert_eq!(functions.left_out(), 2);
    }

    #[test]
    fn frames_are_found_by_the_function_that_they_are_in() {
        let mut frames = SeenFrames::default();
        assert!(!frames.any_in(0, u64::MAX));
        frames.add(0x1234);
        assert!(frames.any_in(0x1200, 0x40) && frames.any_in(0x1000, 0x1000));
        assert!(!frames.any_in(0x1300, 0x40) && !frames.any_in(0x1100, 0x100));
        for block in 0..MAX_BLOCKS as u64 {
            frames.add(block << BLOCK_BITS);
        }
        assert!(frames.any_in(u64::MAX, 1));
    }
}
