//! The address spaces of all processes, as they are at the instant of the last event applied.
//!
//! Events must come in time order.

use std::collections::BTreeMap;
use std::sync::Arc;

use experiment_format::ids::Pid;
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

    fn map(&mut self, at_ns: Nanos, new: Mapping) {
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
    fn on_rotation(&mut self, at_ns: Nanos) {
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

/// The address spaces of all processes.
#[derive(Debug, Default)]
pub struct AddressSpaces {
    by_pid: FxHashMap<Pid, AddressSpace>,
}

impl AddressSpaces {
    /// Notes that `parent` forked `pid`, which has a copy of its address space.
    pub fn forked(&mut self, pid: Pid, parent: Pid, at_ns: Nanos) {
        let parent = self.by_pid.get(&parent);
        let mut space = parent.map_or_else(AddressSpace::default, |parent| AddressSpace {
            mappings: parent.mappings.clone(),
            code: parent.code.clone(),
            last: (at_ns, false),
            since_ns: at_ns,
            execution: parent.execution,
            ..AddressSpace::default()
        });
        space.keep_present(at_ns);
        self.by_pid.insert(pid, space);
    }

    /// Begins another experiment: the changes of all spaces begin with what is mapped now.
    pub fn on_rotation(&mut self, at_ns: Nanos) {
        let spaces = self.by_pid.values_mut();
        spaces.for_each(|space| space.on_rotation(at_ns));
    }

    /// Notes that `pid` executes another program: all its mappings end.
    pub fn executed(&mut self, pid: Pid, at_ns: Nanos) {
        let space = self.by_pid.entry(pid).or_default();
        space.execution = None;
        space.since_ns = at_ns;
        let ended = space.mappings.exec();
        space.unmapped(at_ns, &ended);
        space.clear_cache();
    }

    /// Notes that `pid` maps something for execution.
    pub fn mapped(&mut self, pid: Pid, mapping: Mapping, at_ns: Nanos) {
        self.by_pid.entry(pid).or_default().map(at_ns, mapping);
    }

    /// Notes that anonymous memory of `pid` has the code of a file: it counts as a mapping of that
    /// file from the last change on, which usually is the change that created it.
    pub fn copied(&mut self, pid: Pid, mapping: Mapping) {
        let Some(space) = self.by_pid.get_mut(&pid) else {
            return;
        };
        let known = mappings_between(&space.code(), mapping.start, mapping.end)
            .try_fold(mapping.start, |at, known| {
                let same = known.start <= at
                    && known.file_offset(at) == mapping.file_offset(at)
                    && known.file.path == mapping.file.path;
                same.then_some(known.end)
            })
            .is_some_and(|end| end >= mapping.end);
        if !known {
            space.map(space.last.0, mapping);
            space.note_use();
        }
    }

    /// Adds the mappings that a snapshot found in `pid`. Those that events have reported stay.
    pub fn found(&mut self, pid: Pid, found: impl IntoIterator<Item = Mapping>, at_ns: Nanos) {
        let space = self.by_pid.entry(pid).or_default();
        for mapping in found {
            let known = space.mappings.find(mapping.start).is_some()
                || space.mappings.find(mapping.end - 1).is_some();
            if !known {
                space.map(at_ns, mapping);
            }
        }
    }

    /// Adds mappings of `pid` that were read after `checked_ns`, because code ran at `ran_ns` where
    /// no mapping was known. Mappings that events have reported stay; new ones begin at `ran_ns`.
    /// Returns whether any is new.
    pub fn discovered(
        &mut self,
        pid: Pid,
        found: impl IntoIterator<Item = Mapping>,
        checked_ns: Nanos,
        ran_ns: Nanos,
    ) -> bool {
        let Some(space) = self.by_pid.get_mut(&pid) else {
            return false;
        };
        // They may be mappings of the program before.
        if checked_ns <= space.since_ns {
            return false;
        }
        let mut new_found = false;
        for found in found {
            for new in space.mappings.gaps_in(&found) {
                // No mapping ended there, so that this may come before the last change.
                let at_ns = ran_ns.max(space.since_ns + Nanos(1));
                space.add_change(at_ns, MappingEvent::Map(new.clone()));
                space.mappings.map(new);
                new_found = true;
            }
        }
        if new_found {
            space.note_use();
            space.clear_cache();
        }
        new_found
    }

    /// Returns the address space of a process.
    pub fn get_mut(&mut self, pid: Pid) -> Option<&mut AddressSpace> {
        self.by_pid.get_mut(&pid)
    }

    /// Returns all address spaces.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Pid, &mut AddressSpace)> {
        self.by_pid.iter_mut().map(|(pid, space)| (*pid, space))
    }

    /// Drops the address space of a process that is gone.
    pub fn evict(&mut self, pid: Pid) {
        self.by_pid.remove(&pid);
    }
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

    #[test]
    fn a_child_has_its_parents_space_until_it_executes() {
        let mut spaces = AddressSpaces::default();
        spaces.mapped(Pid(7), mapping("sh", 10, 20), Nanos(1));
        spaces.get_mut(Pid(7)).unwrap().set_execution(3);
        spaces.forked(Pid(9), Pid(7), Nanos(2));
        assert_eq!(spaces.get_mut(Pid(9)).unwrap().execution, Some(3));
        spaces.get_mut(Pid(9)).unwrap().note_use();
        spaces.executed(Pid(9), Nanos(3));
        spaces.mapped(Pid(9), mapping("true", 15, 25), Nanos(4));
        let child = spaces.get_mut(Pid(9)).unwrap();
        assert_eq!((child.execution, child.code().len()), (None, 1));
        let changes: Vec<_> = child
            .take_changes(usize::MAX)
            .into_iter()
            .map(|change| (change.at_ns.0, change.event))
            .collect();
        let expected = [
            (2, MappingEvent::Map(mapping("sh", 10, 20))),
            (3, MappingEvent::Unmap(10)),
            (4, MappingEvent::Map(mapping("true", 15, 25))),
        ];
        assert_eq!(changes, expected);
        assert!(child.take_changes(usize::MAX).is_empty());
        assert_eq!(spaces.get_mut(Pid(7)).unwrap().code().len(), 1);
    }

    #[test]
    fn what_takes_a_place_begins_after_what_was_there_has_ended() {
        let mut spaces = AddressSpaces::default();
        let (one, two) = (mapping("one", 10, 30), mapping("two", 15, 25));
        let mut used = |change: &mut dyn FnMut(&mut AddressSpaces)| {
            change(&mut spaces);
            spaces.get_mut(Pid(7)).unwrap().note_use();
        };
        used(&mut |spaces| spaces.mapped(Pid(7), one.clone(), Nanos(5)));
        used(&mut |spaces| spaces.mapped(Pid(7), two.clone(), Nanos(5)));
        used(&mut |spaces| spaces.executed(Pid(7), Nanos(6)));
        used(&mut |spaces| spaces.mapped(Pid(7), one.clone(), Nanos(9)));
        let changes: Vec<_> = spaces
            .get_mut(Pid(7))
            .unwrap()
            .take_changes(usize::MAX)
            .into_iter()
            .map(|change| (change.at_ns.0, change.event))
            .collect();
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
        assert_eq!(changes, expected);
    }

    #[test]
    fn changes_that_will_be_taken_are_all_kept() {
        let turns = |keep: bool, used: bool| {
            let mut spaces = AddressSpaces::default();
            for turn in 0..1000 {
                let name = ["one.so", "two.so"][turn % 2];
                spaces.mapped(Pid(7), mapping(name, 30, 40), Nanos(turn as u64));
                let space = spaces.get_mut(Pid(7)).unwrap();
                if keep {
                    space.keep_all_changes();
                }
                if used {
                    space.note_use();
                }
            }
            spaces
                .get_mut(Pid(7))
                .unwrap()
                .take_changes(usize::MAX)
                .len()
        };
        assert!(turns(false, true) < 200);
        assert_eq!(turns(true, true), 2 * 1000 - 1);
        // Without a record of them they are no changes, except the last one.
        assert_eq!((turns(false, false), turns(true, false)), (1, 1));
    }

    #[test]
    fn changes_that_are_left_may_turn_out_to_be_none() {
        let mut spaces = AddressSpaces::default();
        for (start, at_ns) in [(10, 1), (20, 2), (30, 3)] {
            spaces.mapped(Pid(7), mapping("one.so", start, start + 5), Nanos(at_ns));
        }
        let taken = |spaces: &mut AddressSpaces, most| -> Vec<u64> {
            let changes = spaces.get_mut(Pid(7)).unwrap().take_changes(most);
            changes.iter().map(|change| change.at_ns.0).collect()
        };
        assert_eq!(taken(&mut spaces, 1), [1]);
        // The second was not taken and was not used; the end of the first is a change.
        spaces.mapped(Pid(7), mapping("two.so", 10, 25), Nanos(4));
        assert_eq!(taken(&mut spaces, 1), [3]);
        assert_eq!(taken(&mut spaces, 9), [4, 5]);
    }

    #[test]
    fn what_moved_is_mapped_from_when_it_ran() {
        let mut spaces = AddressSpaces::default();
        spaces.executed(Pid(7), Nanos(5));
        spaces.mapped(Pid(7), mapping("main", 10, 20), Nanos(6));
        spaces.mapped(Pid(7), mapping("one.so", 40, 50), Nanos(9));
        spaces.get_mut(Pid(7)).unwrap().take_changes(usize::MAX);
        let found = || [mapping("main", 10, 20), mapping("main", 30, 45)];
        // Looked at before it executed this program.
        assert!(!spaces.discovered(Pid(7), found(), Nanos(5), Nanos(8)));
        assert!(!spaces.discovered(Pid(8), found(), Nanos(12), Nanos(8)));
        assert!(spaces.discovered(Pid(7), found(), Nanos(12), Nanos(8)));
        assert!(!spaces.discovered(Pid(7), found(), Nanos(13), Nanos(8)));
        let space = spaces.get_mut(Pid(7)).unwrap();
        let moved = MappingChange {
            at_ns: Nanos(8),
            event: MappingEvent::Map(mapping("main", 30, 40)),
        };
        assert_eq!(space.take_changes(usize::MAX), [moved]);
        assert_eq!(space.code().len(), 3);
    }

    #[test]
    fn events_outrank_the_snapshot() {
        let mut spaces = AddressSpaces::default();
        spaces.mapped(Pid(7), mapping("new", 10, 20), Nanos(1));
        spaces.found(
            Pid(7),
            [mapping("old", 15, 25), mapping("else", 30, 40)],
            Nanos(2),
        );
        let code = spaces.get_mut(Pid(7)).unwrap().code();
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
