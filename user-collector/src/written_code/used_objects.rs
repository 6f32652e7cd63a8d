//! The load objects of a process that its stacks are in, and the offsets: for `-A usedldobjects`
//! and `-A usedsrc`.
//!
//! Only the addresses of stacks that are new to the experiment are kept. They are compared with the
//! mappings when the used objects are taken: with all that was ever mapped there, because a stack
//! may be written before or after its mappings. An object too many does no harm.
//!
//! A process may have any number of addresses, so [`MAX_ADDRESSES`] are kept. Beyond that, all that
//! it maps counts as used, and sources of addresses that are not kept may be left out.

use std::collections::{BTreeSet, HashSet};

use crate::objects::ObjectId;
use crate::space::Mapping;

/// Max addresses that are kept of one process: about 1 MiB.
const MAX_ADDRESSES: usize = 65_536;

/// The seen addresses of one process.
#[derive(Debug, Default)]
pub struct UsedObjects {
    addresses: BTreeSet<u64>,
    mapped: BTreeSet<MappedObject>,
    taken: HashSet<ObjectId>,
    /// Whether there are addresses that are not kept.
    too_many: bool,
    changed: bool,
}

/// A mapping of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MappedObject {
    start: u64,
    end: u64,
    /// Offset of `start` in the file, bytes.
    offset: u64,
    object: ObjectId,
}

impl UsedObjects {
    /// Adds the frames of a stack that is new to the experiment.
    pub fn stack(&mut self, frames: &[u64]) {
        // The upper half is the kernel's.
        for frame in frames.iter().filter(|frame| **frame >> 63 == 0) {
            if self.addresses.len() < MAX_ADDRESSES {
                self.changed |= self.addresses.insert(*frame);
            } else if !self.addresses.contains(frame) {
                self.changed |= !self.too_many;
                self.too_many = true;
            }
        }
    }

    /// Returns whether there were more addresses than are kept.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.too_many
    }

    /// Adds a mapping of an object.
    pub fn mapped(&mut self, mapping: &Mapping, object: ObjectId) {
        self.changed |= self.mapped.insert(MappedObject {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            object,
        });
    }

    /// Returns the objects that were seen and not returned before.
    pub fn take(&mut self) -> Vec<ObjectId> {
        if !std::mem::take(&mut self.changed) {
            return Vec::new();
        }
        let mut new = Vec::new();
        for mapped in &self.mapped {
            let mut seen = self.addresses.range(mapped.start..mapped.end);
            if (self.too_many || seen.next().is_some()) && self.taken.insert(mapped.object) {
                new.push(mapped.object);
            }
        }
        new
    }

    /// Returns where objects were seen: offsets in their files, bytes.
    pub fn offsets(&self) -> impl Iterator<Item = (ObjectId, u64)> {
        self.mapped.iter().flat_map(|mapped| {
            let seen = self.addresses.range(mapped.start..mapped.end);
            seen.map(|address| (mapped.object, mapped.offset + (address - mapped.start)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::MappedFile;

    fn mapping(start: u64, end: u64, offset: u64) -> Mapping {
        Mapping {
            start,
            end,
            offset,
            file: MappedFile::named(b"/x"),
        }
    }

    #[test]
    fn an_object_is_used_once_a_stack_and_its_mapping_are_known() {
        let mut used = UsedObjects::default();
        used.mapped(&mapping(10, 20, 100), ObjectId(0));
        used.mapped(&mapping(20, 30, 0), ObjectId(1));
        assert_eq!(used.take(), []);
        used.stack(&[u64::MAX << 40, 12, 35]);
        assert_eq!(used.take(), [ObjectId(0)]);
        assert_eq!(used.take(), []);
        used.mapped(&mapping(30, 40, 7), ObjectId(2));
        assert_eq!(used.take(), [ObjectId(2)]);
        let offsets: Vec<_> = used.offsets().collect();
        assert_eq!(offsets, [(ObjectId(0), 102), (ObjectId(2), 12)]);
    }

    #[test]
    fn beyond_the_bound_all_that_is_mapped_is_used() {
        let (first, last) = (1000, 1000 + MAX_ADDRESSES as u64);
        let mut used = UsedObjects::default();
        let many: Vec<_> = (first..last).collect();
        used.stack(&many);
        used.mapped(&mapping(10, 20, 100), ObjectId(0));
        used.mapped(&mapping(last, last + 1, 0), ObjectId(1));
        assert_eq!(used.take(), []);
        used.stack(&[first, 12]);
        assert_eq!(used.addresses.len(), MAX_ADDRESSES);
        assert_eq!(used.take(), [ObjectId(0), ObjectId(1)]);
        assert_eq!(used.take(), []);
        used.mapped(&mapping(30, 40, 7), ObjectId(2));
        assert_eq!(used.take(), [ObjectId(2)]);
        assert_eq!(used.offsets().count(), 0);
    }
}
