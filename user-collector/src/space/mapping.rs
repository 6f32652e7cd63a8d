//! The executable mappings of one process, as they are at the instant of the last event applied.
//!
//! The kernel reports the beginning of each mapping, by whatever call, but not its end. Where a new
//! mapping overlaps older ones, it replaces them there, and the rest of them stays. An exec ends
//! all mappings, a fork copies them. So [`Mappings::find`] returns what was mapped at an address
//! last. That is wrong only for an address that is no longer mapped, where no code runs.
//!
//! Events must come in time order. Each change returns the mappings that it ends, since the
//! experiment has the time of both.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A mapped file, as the kernel identifies it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Path as the process saw it; it may not be UTF-8. Of what is not a file, a name such as
    /// `[vdso]`.
    pub path: Box<[u8]>,
    /// The build id that the kernel read from the file; empty when it has none.
    pub build_id: Box<[u8]>,
    /// Device and inode; all 0 where the kernel reported the build id instead.
    pub identity: FileIdentity,
}

impl MappedFile {
    /// Returns one of which only the name is known.
    pub(crate) fn named(name: &[u8]) -> Arc<MappedFile> {
        Arc::new(MappedFile {
            path: name.into(),
            build_id: Box::default(),
            identity: FileIdentity::default(),
        })
    }
}

/// The identity of a file on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device, as `st_dev` has it.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Generation of the inode.
    pub generation: u64,
}

/// A mapping: addresses, and what is mapped there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The offset of `start` in the file, bytes.
    pub offset: u64,
    /// What is mapped.
    pub file: Arc<MappedFile>,
}

/// The executable mappings of one process.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    by_start: BTreeMap<u64, Mapping>,
}

impl Mapping {
    /// Returns the offset in the file of an address of the mapping.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> u64 {
        self.offset.wrapping_add(address.wrapping_sub(self.start))
    }

    /// Returns the part between two addresses, if there is any.
    pub(crate) fn part(&self, from: u64, to: u64) -> Option<Mapping> {
        let (start, end) = (self.start.max(from), self.end.min(to));
        (start < end).then(|| Mapping {
            start,
            end,
            offset: self.file_offset(start),
            file: Arc::clone(&self.file),
        })
    }
}

impl Mappings {
    /// Adds a mapping. Returns the mappings that it overlaps, whole: they end, and what it leaves
    /// of them begins as new mappings. A mapping without length changes nothing.
    pub fn map(&mut self, new: Mapping) -> Vec<Mapping> {
        if new.start >= new.end {
            return Vec::new();
        }
        let before = self.by_start.range(..new.start).next_back();
        let first = match before {
            Some((start, mapping)) if mapping.end > new.start => *start,
            _ => new.start,
        };
        let ended: Vec<u64> = self
            .by_start
            .range(first..new.end)
            .map(|(start, _)| *start)
            .collect();
        let ended: Vec<Mapping> = ended
            .into_iter()
            .filter_map(|start| self.by_start.remove(&start))
            .collect();
        for old in &ended {
            let rests = [old.part(0, new.start), old.part(new.end, u64::MAX)];
            for rest in rests.into_iter().flatten() {
                self.by_start.insert(rest.start, rest);
            }
        }
        self.by_start.insert(new.start, new);
        ended
    }

    /// Ends all mappings, since the process executes another program. Returns them.
    pub fn exec(&mut self) -> Vec<Mapping> {
        std::mem::take(&mut self.by_start).into_values().collect()
    }

    /// Returns the mapping at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let (_, mapping) = self.by_start.range(..=address).next_back()?;
        (address < mapping.end).then_some(mapping)
    }

    /// Returns the parts of a mapping that lie where nothing is mapped.
    #[must_use]
    pub fn gaps_in(&self, new: &Mapping) -> Vec<Mapping> {
        let (mut gaps, mut from) = (Vec::new(), new.start);
        for known in self.by_start.range(..new.end).map(|(_, known)| known) {
            gaps.extend(new.part(from, known.start));
            from = from.max(known.end);
        }
        gaps.extend(new.part(from, new.end));
        gaps
    }

    /// Returns the number of mappings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Returns whether there are no mappings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Returns all mappings, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.by_start.values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(name: &str, start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
            offset: 0,
            file: MappedFile::named(name.as_bytes()),
        }
    }

    /// The first letters of the files that are mapped at the first addresses, a dot for
    /// nothing.
    fn drawing(mappings: &Mappings, length: u64) -> String {
        let letter = |address| {
            let found = mappings.find(address);
            found.map_or('.', |mapping| char::from(mapping.file.path[0]))
        };
        (0..length).map(letter).collect()
    }

    #[test]
    fn a_mapping_on_others_leaves_what_it_does_not_cover() {
        let mut mappings = Mappings::default();
        assert!(mappings.map(mapping("a", 1, 9)).is_empty());
        assert_eq!(drawing(&mappings, 11), ".aaaaaaaa..");
        let ended = mappings.map(mapping("b", 3, 5));
        assert_eq!(ended, [mapping("a", 1, 9)]);
        assert_eq!(drawing(&mappings, 11), ".aabbaaaa..");
        // The part after it is still where it was in its file.
        let after = mappings.find(6).map(|mapping| mapping.file_offset(6));
        assert_eq!(after, Some(5));
        let ended = mappings.map(mapping("c", 4, 11));
        assert_eq!(ended.len(), 2);
        assert_eq!(drawing(&mappings, 11), ".aabccccccc");
    }

    #[test]
    fn gaps_are_what_is_not_covered() {
        let mut mappings = Mappings::default();
        for (start, end) in [(1, 3), (5, 6), (8, 12)] {
            mappings.map(mapping("a", start, end));
        }
        let gaps = |start, end| {
            let gaps = mappings.gaps_in(&mapping("b", start, end));
            assert!(gaps.iter().all(|gap| gap.offset == gap.start - start));
            gaps.iter()
                .map(|gap| (gap.start, gap.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(gaps(0, 10), [(0, 1), (3, 5), (6, 8)]);
        assert_eq!(gaps(2, 5), [(3, 5)]);
        assert_eq!(gaps(9, 20), [(12, 20)]);
        assert_eq!(gaps(9, 11), []);
        assert_eq!(gaps(20, 30), [(20, 30)]);
    }

    #[test]
    fn an_exec_ends_all_and_a_copy_goes_its_own_way() {
        let mut parent = Mappings::default();
        parent.map(mapping("a", 1, 3));
        let mut child = parent.clone();
        assert_eq!(child.exec().len(), 1);
        child.map(mapping("b", 2, 4));
        assert_eq!(drawing(&parent, 5), ".aa..");
        assert_eq!(drawing(&child, 5), "..bb.");
    }

    #[test]
    fn the_last_addresses_are_addresses_too() {
        let mut mappings = Mappings::default();
        mappings.map(mapping("v", u64::MAX - 4096, u64::MAX));
        assert!(mappings.find(u64::MAX - 1).is_some());
        assert!(mappings.map(mapping("x", 7, 7)).is_empty());
        assert!(mappings.find(7).is_none());
    }

    proptest! {
        /// Each address has what was mapped there last.
        #[test]
        fn last_mapping_is_found(
            maps in proptest::collection::vec((0_u64..64, 1_u64..32), 1..40)
        ) {
            let (mut mappings, mut model) = (Mappings::default(), vec![None; 96]);
            for (number, (start, length)) in maps.into_iter().enumerate() {
                let mut new = mapping("m", start, start + length);
                new.offset = number as u64 * 1000;
                mappings.map(new);
                for address in start..start + length {
                    model[address as usize] = Some(number as u64 * 1000 + address - start);
                }
            }
            for (address, expected) in model.into_iter().enumerate() {
                let found = mappings.find(address as u64);
                prop_assert_eq!(found.map(|found| found.file_offset(address as u64)), expected);
            }
            // No two overlap, and they are in order.
            let all: Vec<_> = mappings.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}
