//! What was mapped at an address at a time: the events of `map.xml`, replayed.
//!
//! An address space changes while it is recorded: a library is unloaded, code is generated again
//! at the same address. So a mapping is valid for an interval, and a lookup takes an address and a
//! time. Three rules of gprofng's are kept, so that both find the same function:
//!
//! * The first segment of an object is used only if its modes are exactly read and execute.
//! * Of overlapping mappings, the one that begins nearest below the address is used; if several
//!   begin there, the oldest.
//! * An address where nothing is mapped yet belongs to what is mapped there next, since maps are
//!   often recorded after the samples that need them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::map::{MapEvent, READ_EXECUTE};
use crate::units::Nanos;

/// The kind of object that an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A file; functions are found by the offset in it.
    File,
    /// A single function without a file, or a group of such functions.
    Function,
}

/// The object that an address is in, and the offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location<'a> {
    /// The name of the file or of the function.
    pub object: &'a str,
    /// Whether it is a file or a function.
    pub kind: ObjectKind,
    /// Bytes from the beginning of the file, or of the function.
    pub offset: u64,
    /// The size of the first part of it that was mapped.
    pub mapped: u64,
    /// Its position in [`RecordedAddressSpace::objects`].
    pub number: usize,
}

/// A mapped object, and the interval in which it is mapped.
#[derive(Debug)]
struct MappedObject {
    vaddr: u64,
    size: u64,
    /// The mapping is valid from this time on, nanoseconds since the start of the experiment.
    from_ns: Nanos,
    /// From this time on the mapping is no longer valid.
    until_ns: Nanos,
    object: usize,
    kind: ObjectKind,
    offset: u64,
    /// The largest address that this mapping or one before it in the list contains.
    reach: u64,
}

/// An address space over time.
#[derive(Debug, Default)]
pub struct RecordedAddressSpace {
    names: Vec<String>,
    /// The size of the first mapping of each object, at the position of its name.
    mapped: Vec<u64>,
    /// Sorted by first address, then by age.
    mappings: Vec<MappedObject>,
}

impl RecordedAddressSpace {
    /// Returns the address space of these events, given in any order.
    pub fn new(events: impl IntoIterator<Item = MapEvent>) -> Self {
        let mut events: Vec<_> = events.into_iter().collect();
        // The sort is stable: events of one time stay in the order in which they were written.
        events.sort_by_key(MapEvent::at_ns);
        let mut replay = Replay::default();
        for event in events {
            replay.apply(event);
        }
        let mut mappings = replay.mappings;
        mappings.sort_by_key(|mapping| (mapping.vaddr, mapping.from_ns));
        let mut reach = 0;
        for mapping in &mut mappings {
            reach = reach.max(mapping.vaddr.saturating_add(mapping.size - 1));
            mapping.reach = reach;
        }
        RecordedAddressSpace {
            names: replay.names,
            mapped: replay.mapped,
            mappings,
        }
    }

    /// Returns what was mapped at `address` at a time, in nanoseconds since the start.
    pub fn find(&self, address: u64, at_ns: Nanos) -> Option<Location<'_>> {
        self.find_lasting(address, at_ns).0
    }

    /// Returns what was mapped at `address`, and an interval around `at_ns` in which the result is
    /// the same, so that a caller can keep it. The true interval may be longer.
    pub fn find_lasting(&self, address: u64, at_ns: Nanos) -> (Option<Location<'_>>, Range<Nanos>) {
        let mut same = Nanos::ZERO..Nanos::MAX;
        let above = self
            .mappings
            .partition_point(|mapping| mapping.vaddr <= address);
        let below = self.mappings[..above].iter().rev();
        let mut best: Option<&MappedObject> = None;
        let mut later: Option<&MappedObject> = None;
        for mapping in below.take_while(|mapping| mapping.reach >= address) {
            if best.is_some_and(|best| best.vaddr != mapping.vaddr) {
                break;
            }
            if address - mapping.vaddr >= mapping.size {
                continue;
            }
            for change in [mapping.from_ns, mapping.until_ns] {
                if change <= at_ns {
                    same.start = same.start.max(change);
                } else {
                    same.end = same.end.min(change);
                }
            }
            if mapping.from_ns > at_ns {
                if later.is_none_or(|later| mapping.from_ns < later.from_ns) {
                    later = Some(mapping);
                }
            } else if at_ns < mapping.until_ns {
                // Mappings of one address come youngest first, so the oldest remains.
                best = Some(mapping);
            }
        }
        let location = best.or(later).map(|mapping| Location {
            object: &self.names[mapping.object],
            kind: mapping.kind,
            offset: mapping.offset.wrapping_add(address - mapping.vaddr),
            mapped: self.mapped[mapping.object],
            number: mapping.object,
        });
        (location, same)
    }

    /// Returns the names of all files and functions.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// The state of a replay.
#[derive(Default)]
struct Replay {
    names: Vec<String>,
    mapped: Vec<u64>,
    numbers: HashMap<String, usize>,
    /// The objects of which an executable segment was mapped.
    executable: HashSet<usize>,
    mappings: Vec<MappedObject>,
    /// The mappings that are valid now, by first address: several, if one was made over another.
    live: HashMap<u64, Vec<usize>>,
}

impl Replay {
    /// Applies an event.
    fn apply(&mut self, event: MapEvent) {
        match event {
            MapEvent::Segment {
                at_ns,
                vaddr,
                size,
                file_offset,
                modes,
                name,
            } => {
                // gprofng writes such a name where there is no file.
                if name
                    .get(1..)
                    .is_some_and(|rest| rest.starts_with("Unresolvable"))
                {
                    return;
                }
                let object = self.number(name);
                if modes == READ_EXECUTE {
                    self.executable.insert(object);
                }
                if self.executable.contains(&object) {
                    self.add(at_ns, vaddr, size, object, ObjectKind::File, file_offset);
                }
            }
            MapEvent::Function {
                at_ns,
                vaddr,
                size,
                name,
            }
            | MapEvent::DynamicFunction {
                at_ns,
                vaddr,
                size,
                name,
                ..
            } => {
                let object = self.number(name);
                self.add(at_ns, vaddr, size, object, ObjectKind::Function, 0);
            }
            // Names of Java methods are in the class table, which is not read.
            MapEvent::JavaMethod { .. } => {}
            MapEvent::Unmap { at_ns, vaddr } => {
                for mapping in self.live.remove(&vaddr).unwrap_or_default() {
                    self.mappings[mapping].until_ns = at_ns;
                }
            }
        }
    }

    /// Returns the number of an object.
    fn number(&mut self, name: String) -> usize {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        self.names.push(name.clone());
        self.mapped.push(0);
        self.numbers.insert(name, self.names.len() - 1);
        self.names.len() - 1
    }

    /// Adds a mapping, unless the same one is valid already.
    fn add(
        &mut self,
        at_ns: Nanos,
        vaddr: u64,
        size: u64,
        object: usize,
        kind: ObjectKind,
        offset: u64,
    ) {
        if size == 0 {
            return;
        }
        if self.mapped[object] == 0 {
            self.mapped[object] = size;
        }
        let live = self.live.entry(vaddr).or_default();
        let again = |other: &usize| {
            let other = &self.mappings[*other];
            (other.object, other.size, other.kind) == (object, size, kind)
        };
        if live.iter().any(again) {
            return;
        }
        live.push(self.mappings.len());
        let (from_ns, until_ns, reach) = (at_ns, Nanos::MAX, 0);
        self.mappings.push(MappedObject {
            vaddr,
            size,
            from_ns,
            until_ns,
            object,
            kind,
            offset,
            reach,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(at_ns: Nanos, vaddr: u64, size: u64, modes: u32, name: &str) -> MapEvent {
        let (file_offset, name) = (0x100, name.to_owned());
        MapEvent::Segment {
            at_ns,
            vaddr,
            size,
            file_offset,
            modes,
            name,
        }
    }

    fn find(space: &RecordedAddressSpace, address: u64, at_ns: Nanos) -> Option<(&str, u64)> {
        space
            .find(address, at_ns)
            .map(|location| (location.object, location.offset))
    }

    #[test]
    fn a_mapping_is_valid_for_an_interval() {
        let space = RecordedAddressSpace::new([
            segment(Nanos(10), 0x1000, 0x100, 5, "a"),
            MapEvent::Unmap {
                at_ns: Nanos(20),
                vaddr: 0x1000,
            },
            segment(Nanos(30), 0x1000, 0x80, 5, "b"),
        ]);
        // Before it is mapped, and in a gap, the next one is used.
        assert_eq!(find(&space, 0x1010, Nanos(5)), Some(("a", 0x110)));
        assert_eq!(find(&space, 0x1010, Nanos(10)), Some(("a", 0x110)));
        assert_eq!(find(&space, 0x1010, Nanos(19)), Some(("a", 0x110)));
        assert_eq!(find(&space, 0x1010, Nanos(20)), Some(("b", 0x110)));
        assert_eq!(find(&space, 0x1010, Nanos(99)), Some(("b", 0x110)));
        assert_eq!(find(&space, 0x1090, Nanos(99)), None);
        assert_eq!(find(&space, 0xfff, Nanos(15)), None);
        assert_eq!(find(&space, 0x1100, Nanos(15)), None);
    }

    #[test]
    fn modes_of_the_first_segment_decide() {
        let space = RecordedAddressSpace::new([
            segment(Nanos::ZERO, 0x1000, 0x100, 1, "a"),
            segment(Nanos::ZERO, 0x2000, 0x100, 5, "a"),
            segment(Nanos::ZERO, 0x3000, 0x100, 3, "a"),
            segment(Nanos::ZERO, 0x4000, 0x100, 7, "b"),
        ]);
        let found = |address| find(&space, address, Nanos::ZERO).map(|(object, _)| object);
        assert_eq!(found(0x1000), None);
        assert_eq!(found(0x2000), Some("a"));
        assert_eq!(found(0x3000), Some("a"));
        assert_eq!(found(0x4000), None);
    }

    #[test]
    fn nearest_then_older_of_overlapping_mappings_is_used() {
        let group = MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: 0x1000,
            size: 0x100,
            name: "[vdso]".into(),
        };
        let inner = MapEvent::DynamicFunction {
            at_ns: Nanos::ZERO,
            vaddr: 0x1040,
            size: 0x10,
            group: "[vdso]".into(),
            name: "time".into(),
        };
        let space = RecordedAddressSpace::new([
            inner,
            group,
            segment(Nanos(5), 0x5000, 0x10, 5, "old"),
            segment(Nanos(6), 0x5000, 0x20, 5, "new"),
        ]);
        assert_eq!(find(&space, 0x1041, Nanos::ZERO), Some(("time", 1)));
        assert_eq!(find(&space, 0x1051, Nanos::ZERO), Some(("[vdso]", 0x51)));
        assert_eq!(find(&space, 0x5001, Nanos(9)), Some(("old", 0x101)));
        assert_eq!(find(&space, 0x5011, Nanos(9)), Some(("new", 0x111)));
    }

    #[test]
    fn kernel_addresses_and_the_end_of_memory() {
        let space = RecordedAddressSpace::new([segment(Nanos::ZERO, u64::MAX - 15, 16, 5, "k")]);
        assert_eq!(find(&space, u64::MAX, Nanos::ZERO), Some(("k", 0x10f)));
    }

    proptest! {
        #[test]
        fn what_is_found_contains_the_address(
            events in prop::collection::vec((0u64..20, 0u64..64, 0u64..16, 0usize..4), 0..40),
            address in 0u64..80,
            at_ns in 0u64..25,
        ) {
            let name = |number: usize| ["a", "b", "c", "d"][number];
            let events: Vec<_> = events
                .into_iter()
                .map(|(at_ns, vaddr, size, object)| match size {
                    0 => MapEvent::Unmap { at_ns: Nanos(at_ns), vaddr },
                    _ => segment(Nanos(at_ns), vaddr, size, 5, name(object)),
                })
                .collect();
            let contains = events.iter().any(|event| {
                matches!(event, MapEvent::Segment { vaddr, size, .. }
                    if *vaddr <= address && address - vaddr < *size)
            });
            let space = RecordedAddressSpace::new(events);
            if let Some((_, offset)) = find(&space, address, Nanos(at_ns)) {
                prop_assert!(contains);
                prop_assert!((0x100..0x110).contains(&offset));
            }
            let (found, same) = space.find_lasting(address, Nanos(at_ns));
            prop_assert!(same.contains(&Nanos(at_ns)));
            for other in (0..30).map(Nanos).filter(|other| same.contains(other)) {
                prop_assert_eq!(space.find(address, other), found);
            }
        }
    }
}
