//! The address space of a process, as it is at the instant of the last event applied.
//!
//! Events must come in time order.

use std::collections::BTreeMap;
use std::sync::Arc;

use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use crate::space::{Mapping, Mappings};

/// The mappings of one process at an instant, by rising address.
pub type MappedCode = Arc<Vec<Mapping>>;

/// A change of an address space, as the experiment records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingChange {
    /// When, in nanoseconds of the events' clock.
    pub at_ns: Nanos,
    /// The change.
    pub event: MappingEvent,
}

/// The kind of a change of an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingEvent {
    /// A mapping begins.
    Map(Mapping),
    /// The mapping at this address ends.
    Unmap(u64),
}

/// Max changes that are kept of a process that is not followed yet, per mapping.
const MAX_CHANGES_PER_MAPPING: usize = 8;

/// The address space of a process: its executable mappings.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Mappings,
    /// Changes that were not taken yet, numbered in their order.
    changes: BTreeMap<u64, MappingChange>,
    next_change: u64,
    /// Mappings that began after the last record of this space: the number of the change, by the
    /// first address.
    unused: FxHashMap<u64, u64>,
    /// Whether all changes are kept.
    complete: bool,
    code: Option<MappedCode>,
    /// When the last change was, nanoseconds, and whether it was the end of a mapping.
    last: (Nanos, bool),
    /// When the space began, nanoseconds.
    since_ns: Nanos,
    /// The number by which the BPF programs distinguish this execution of a program from others,
    /// once a record has had it.
    pub execution: Option<u32>,
}

impl AddressSpace {
    /// Returns when the process began to execute its program, nanoseconds; 0 if that was before the
    /// recording.
    #[must_use]
    pub fn since_ns(&self) -> Nanos {
        self.since_ns
    }

    /// The space of a child that the process forks: a copy.
    #[must_use]
    pub fn fork(&self, at_ns: Nanos) -> AddressSpace {
        let mut space = AddressSpace {
            mappings: self.mappings.clone(),
            code: self.code.clone(),
            last: (at_ns, false),
            since_ns: at_ns,
            execution: self.execution,
            ..AddressSpace::default()
        };
        space.keep_present(at_ns);
        space
    }

    /// Records that the process executes another program: all its mappings end.
    pub fn executed(&mut self, at_ns: Nanos) {
        self.execution = None;
        self.since_ns = at_ns;
        let ended = self.mappings.exec();
        self.unmapped(at_ns, &ended);
        self.clear_cache();
    }

    /// Records that anonymous memory has the code of a file: it counts as a mapping of that file
    /// from the last change on, which usually is the change that created it.
    pub fn copied(&mut self, mapping: Mapping) {
        let known = mappings_between(&self.code(), mapping.start, mapping.end)
            .try_fold(mapping.start, |at, known| {
                let same = known.start <= at
                    && known.file_offset(at) == mapping.file_offset(at)
                    && known.file.path == mapping.file.path;
                same.then_some(known.end)
            })
            .is_some_and(|end| end >= mapping.end);
        if !known {
            self.mapped(mapping, self.last.0);
            self.note_use();
        }
    }

    /// Adds the mappings that a snapshot found. Those that events have reported stay.
    pub fn found(&mut self, found: impl IntoIterator<Item = Mapping>, at_ns: Nanos) {
        for mapping in found {
            let known = self.mappings.find(mapping.start).is_some()
                || self.mappings.find(mapping.end - 1).is_some();
            if !known {
                self.mapped(mapping, at_ns);
            }
        }
    }

    /// Adds mappings that were read after `checked_ns`, because code ran at `ran_ns` where no
    /// mapping was known. Mappings that events have reported stay; new ones begin at `ran_ns`.
    /// Returns whether any is new.
    pub fn discovered(
        &mut self,
        found: impl IntoIterator<Item = Mapping>,
        checked_ns: Nanos,
        ran_ns: Nanos,
    ) -> bool {
        // They may be mappings of the program before.
        if checked_ns <= self.since_ns {
            return false;
        }
        let mut new_found = false;
        for found in found {
            for new in self.mappings.gaps_in(&found) {
                // No mapping ended there, so that this may come before the last change.
                let at_ns = ran_ns.max(self.since_ns + Nanos(1));
                self.add_change(at_ns, MappingEvent::Map(new.clone()));
                self.mappings.map(new);
                new_found = true;
            }
        }
        if new_found {
            self.note_use();
            self.clear_cache();
        }
        new_found
    }

    /// Returns the current mappings, by rising address.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// Returns the current mappings.
    pub fn code(&mut self) -> MappedCode {
        let mappings = &self.mappings;
        let code = self
            .code
            .get_or_insert_with(|| Arc::new(mappings.iter().cloned().collect()));
        Arc::clone(code)
    }

    /// Sets the number of this execution, from a record of one of its threads. Returns whether it
    /// is new.
    pub fn set_execution(&mut self, execution: u32) -> bool {
        let new_found = self.execution != Some(execution);
        self.execution = Some(execution);
        new_found
    }

    /// Keeps all changes from now on, since they are going to be taken.
    pub fn keep_all_changes(&mut self) {
        self.complete = true;
    }

    /// Notes that there is a record of this space as it is now: its stack may be in any current
    /// mapping.
    ///
    /// A mapping that ends before any record is left out of the changes. Otherwise a process that
    /// only maps and unmaps would fill the disk.
    pub fn note_use(&mut self) {
        if !self.unused.is_empty() {
            self.unused = FxHashMap::default();
        }
    }

    /// Returns the first changes since the last call, at most `most`, by time. Before
    /// [`AddressSpace::keep_all_changes`] they may be only those that still hold.
    pub fn take_changes(&mut self, most: usize) -> Vec<MappingChange> {
        let first_left = self.changes.keys().nth(most).copied();
        let left = first_left.map_or_else(BTreeMap::new, |first| self.changes.split_off(&first));
        self.unused.retain(|_, change| left.contains_key(change));
        std::mem::replace(&mut self.changes, left)
            .into_values()
            .collect()
    }

    /// Records that the process maps something for execution.
    pub fn mapped(&mut self, new: Mapping, at_ns: Nanos) {
        // The kernel reports a mapping again when its protection changes.
        if new.start >= new.end || self.mappings.find(new.start) == Some(&new) {
            return;
        }
        let ended = self.mappings.map(new.clone());
        self.unmapped(at_ns, &ended);
        for old in &ended {
            let rests = [old.part(0, new.start), old.part(new.end, u64::MAX)];
            for rest in rests.into_iter().flatten() {
                self.push_change(at_ns, MappingEvent::Map(rest));
            }
        }
        self.push_change(at_ns, MappingEvent::Map(new));
        self.clear_cache();
        if !self.complete
            && self.changes.len()
                > MAX_CHANGES_PER_MAPPING * (self.mappings.len() + MAX_CHANGES_PER_MAPPING)
        {
            self.keep_present(self.last.0);
        }
    }

    /// Begins the changes of another experiment: with what is mapped at that time.
    pub fn on_rotation(&mut self, at_ns: Nanos) {
        self.complete = false;
        self.keep_present(at_ns);
    }

    /// Replaces the changes by the current mappings, as if they began now.
    fn keep_present(&mut self, at_ns: Nanos) {
        self.changes.clear();
        self.unused.clear();
        let present: Vec<_> = self.mappings.iter().cloned().collect();
        for mapping in present {
            self.add_change(at_ns, MappingEvent::Map(mapping));
        }
    }

    fn add_change(&mut self, at_ns: Nanos, event: MappingEvent) {
        if let MappingEvent::Map(mapping) = &event {
            self.unused.insert(mapping.start, self.next_change);
        }
        let change = MappingChange { at_ns, event };
        self.changes.insert(self.next_change, change);
        self.next_change += 1;
    }

    fn unmapped(&mut self, at_ns: Nanos, ended: &[Mapping]) {
        for old in ended {
            self.push_change(at_ns, MappingEvent::Unmap(old.start));
        }
    }

    /// Adds a change. Readers sort changes by time, and may reverse changes with the same time. So
    /// a mapping that begins where another one ended begins a nanosecond later, and vice versa.
    fn push_change(&mut self, at_ns: Nanos, event: MappingEvent) {
        if let MappingEvent::Unmap(start) = event
            && let Some(begin) = self.unused.remove(&start)
        {
            self.changes.remove(&begin);
            return;
        }
        let ends = matches!(event, MappingEvent::Unmap(_));
        let (last, ended) = self.last;
        let at_ns = if at_ns <= last && ends != ended {
            last + Nanos(1)
        } else {
            at_ns.max(last)
        };
        self.last = (at_ns, ends);
        self.add_change(at_ns, event);
    }

    fn clear_cache(&mut self) {
        self.code = None;
    }
}

/// Returns the mapping at an address. `code` is by address.
#[must_use]
pub fn mapping_at(code: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = code.partition_point(|mapping| mapping.start <= address);
    let mapping = code.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}

/// Returns the mappings that overlap the addresses between two. `code` is by address.
pub fn mappings_between(code: &[Mapping], start: u64, end: u64) -> impl Iterator<Item = &Mapping> {
    let first = code.partition_point(|mapping| mapping.end <= start);
    code[first..]
        .iter()
        .take_while(move |mapping| mapping.start < end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::MappedFile;

    fn mapping(name: &str, start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
            offset: 0,
            file: MappedFile::named(name.as_bytes()),
        }
    }

    /// Returns the changes since the last call, with their times.
    fn changes(space: &mut AddressSpace) -> Vec<(u64, MappingEvent)> {
        let changes = space.take_changes(usize::MAX).into_iter();
        changes
            .map(|change| (change.at_ns.0, change.event))
            .collect()
    }

    #[test]
    fn a_child_has_its_parents_space_until_it_executes() {
        let mut parent = AddressSpace::default();
        parent.mapped(mapping("sh", 10, 20), Nanos(1));
        parent.set_execution(3);
        let mut child = parent.fork(Nanos(2));
        assert_eq!(child.execution, Some(3));
        child.note_use();
        child.executed(Nanos(3));
        child.mapped(mapping("true", 15, 25), Nanos(4));
        assert_eq!((child.execution, child.code().len()), (None, 1));
        let expected = [
            (2, MappingEvent::Map(mapping("sh", 10, 20))),
            (3, MappingEvent::Unmap(10)),
            (4, MappingEvent::Map(mapping("true", 15, 25))),
        ];
        assert_eq!(changes(&mut child), expected);
        assert!(changes(&mut child).is_empty());
        assert_eq!(parent.code().len(), 1);
    }

    #[test]
    fn what_takes_a_place_begins_after_what_was_there_has_ended() {
        let mut space = AddressSpace::default();
        let (one, two) = (mapping("one", 10, 30), mapping("two", 15, 25));
        space.mapped(one.clone(), Nanos(5));
        space.note_use();
        space.mapped(two.clone(), Nanos(5));
        space.note_use();
        space.executed(Nanos(6));
        space.mapped(one.clone(), Nanos(9));
        let rest = |from, to| MappingEvent::Map(one.part(from, to).unwrap());
        let expected = [
            (5, MappingEvent::Map(one.clone())),
            (6, MappingEvent::Unmap(10)),
            (7, rest(0, 15)),
            (7, rest(25, 99)),
            (7, MappingEvent::Map(two)),
            (8, MappingEvent::Unmap(10)),
            (8, MappingEvent::Unmap(15)),
            (8, MappingEvent::Unmap(25)),
            (9, MappingEvent::Map(one.clone())),
        ];
        assert_eq!(changes(&mut space), expected);
    }

    #[test]
    fn changes_that_will_be_taken_are_all_kept() {
        let turns = |keep: bool, used: bool| {
            let mut space = AddressSpace::default();
            for turn in 0..1000 {
                let name = ["one.so", "two.so"][turn % 2];
                space.mapped(mapping(name, 30, 40), Nanos(turn as u64));
                if keep {
                    space.keep_all_changes();
                }
                if used {
                    space.note_use();
                }
            }
            space.take_changes(usize::MAX).len()
        };
        assert!(turns(false, true) < 200);
        assert_eq!(turns(true, true), 2 * 1000 - 1);
        // Without a record of them they are no changes, except the last one.
        assert_eq!((turns(false, false), turns(true, false)), (1, 1));
    }

    #[test]
    fn changes_that_are_left_may_turn_out_to_be_none() {
        let mut space = AddressSpace::default();
        for (start, at_ns) in [(10, 1), (20, 2), (30, 3)] {
            space.mapped(mapping("one.so", start, start + 5), Nanos(at_ns));
        }
        let taken = |space: &mut AddressSpace, most| -> Vec<u64> {
            let changes = space.take_changes(most);
            changes.iter().map(|change| change.at_ns.0).collect()
        };
        assert_eq!(taken(&mut space, 1), [1]);
        // The second was not taken and was not used; the end of the first is a change.
        space.mapped(mapping("two.so", 10, 25), Nanos(4));
        assert_eq!(taken(&mut space, 1), [3]);
        assert_eq!(taken(&mut space, 9), [4, 5]);
    }

    #[test]
    fn what_moved_is_mapped_from_when_it_ran() {
        let mut space = AddressSpace::default();
        space.executed(Nanos(5));
        space.mapped(mapping("main", 10, 20), Nanos(6));
        space.mapped(mapping("one.so", 40, 50), Nanos(9));
        space.take_changes(usize::MAX);
        let found = || [mapping("main", 10, 20), mapping("main", 30, 45)];
        // Looked at before it executed this program.
        assert!(!space.discovered(found(), Nanos(5), Nanos(8)));
        assert!(space.discovered(found(), Nanos(12), Nanos(8)));
        assert!(!space.discovered(found(), Nanos(13), Nanos(8)));
        let moved = MappingChange {
            at_ns: Nanos(8),
            event: MappingEvent::Map(mapping("main", 30, 40)),
        };
        assert_eq!(space.take_changes(usize::MAX), [moved]);
        assert_eq!(space.code().len(), 3);
        assert_eq!(space.mappings().count(), 3);
    }

    #[test]
    fn events_outrank_the_snapshot() {
        let mut space = AddressSpace::default();
        space.mapped(mapping("new", 10, 20), Nanos(1));
        let found = [mapping("old", 15, 25), mapping("else", 30, 40)];
        space.found(found, Nanos(2));
        let code = space.code();
        assert_eq!(&*code[0].file.path, b"new");
        assert_eq!(&*mapping_at(&code, 35).unwrap().file.path, b"else");
        assert!(mapping_at(&code, 22).is_none());
        let touched = |start, end| mappings_between(&code, start, end).count();
        assert_eq!(touched(0, u64::MAX), code.len());
        assert_eq!(touched(22, 23), 0);
        assert_eq!(touched(22, 36), touched(30, 36));
        assert_eq!(touched(35, 36), 1);
    }
}
