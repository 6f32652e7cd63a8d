//! The address spaces of all processes, as they are at the instant of the last event applied.
//!
//! Events must come in time order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use experiment_format::ids::Pid;

use crate::space::{Mapping, Mappings};

/// The mappings of one process at an instant, by rising address.
pub type MappedCode = Arc<Vec<Mapping>>;

/// A change of an address space, for the experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingChange {
    /// When, in nanoseconds of the events' clock.
    pub at: u64,
    /// What.
    pub event: MappingEvent,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingEvent {
    /// This is mapped from now on.
    Map(Mapping),
    /// The mapping that begins at this address ends.
    Unmap(u64),
}

/// Most changes that are kept of a process that is not followed yet, for each mapping that it has.
const MAX_CHANGES_PER_MAPPING: usize = 8;

/// What is mapped in one process.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Mappings,
    /// In the order in which they came.
    changes: BTreeMap<u64, MappingChange>,
    next_change: u64,
    /// What was mapped since a record was last of this space: the place in `changes` by the first
    /// address.
    unused: HashMap<u64, u64>,
    complete: bool,
    code: Option<MappedCode>,
    /// When the last change was, and whether it was the end of a mapping.
    last: (u64, bool),
    /// When it began, nanoseconds.
    since: u64,
    /// The number by which the BPF programs tell this execution of a program from others, once a
    /// record has had it.
    pub execution: Option<u32>,
}

impl AddressSpace {
    /// Returns when it began: with the process, or with the program that it executes, nanoseconds;
    /// 0 if that was before the recording.
    #[must_use]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Returns the mappings as they are.
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

    /// Keeps all changes from now on, since they will be taken.
    pub fn keep_all_changes(&mut self) {
        self.complete = true;
    }

    /// A record is of this space as it is: what is mapped now may be in its stack.
    ///
    /// What is mapped and unmapped again without that is no change for an experiment. Otherwise a
    /// process that does nothing else would fill the disk.
    pub fn note_use(&mut self) {
        if !self.unused.is_empty() {
            self.unused = HashMap::new();
        }
    }

    /// Returns the first changes since the last call, at most so many, by time. Until
    /// [`AddressSpace::keep_all_changes`] they may be only those that still hold.
    pub fn take_changes(&mut self, most: usize) -> Vec<MappingChange> {
        let first_left = self.changes.keys().nth(most).copied();
        let left = first_left.map_or_else(BTreeMap::new, |first| self.changes.split_off(&first));
        self.unused.retain(|_, change| left.contains_key(change));
        std::mem::replace(&mut self.changes, left)
            .into_values()
            .collect()
    }

    fn map(&mut self, at: u64, new: Mapping) {
        if new.start >= new.end {
            return;
        }
        let ended = self.mappings.map(new.clone());
        self.unmapped(at, &ended);
        for old in &ended {
            let rests = [old.part(0, new.start), old.part(new.end, u64::MAX)];
            for rest in rests.into_iter().flatten() {
                self.push_change(at, MappingEvent::Map(rest));
            }
        }
        self.push_change(at, MappingEvent::Map(new));
        self.clear_cache();
        if !self.complete
            && self.changes.len()
                > MAX_CHANGES_PER_MAPPING * (self.mappings.len() + MAX_CHANGES_PER_MAPPING)
        {
            self.keep_present(self.last.0);
        }
    }

    /// Begins the changes of another experiment, at a time: with what is mapped then.
    fn begin_again(&mut self, at: u64) {
        self.complete = false;
        self.keep_present(at);
    }

    /// Keeps of the changes those that still hold, as if they had been made now.
    fn keep_present(&mut self, at: u64) {
        self.changes.clear();
        self.unused.clear();
        let present: Vec<_> = self.mappings.iter().cloned().collect();
        for mapping in present {
            self.add_change(at, MappingEvent::Map(mapping));
        }
    }

    fn add_change(&mut self, at: u64, event: MappingEvent) {
        if let MappingEvent::Map(mapping) = &event {
            self.unused.insert(mapping.start, self.next_change);
        }
        let change = MappingChange { at, event };
        self.changes.insert(self.next_change, change);
        self.next_change += 1;
    }

    fn unmapped(&mut self, at: u64, ended: &[Mapping]) {
        for old in ended {
            self.push_change(at, MappingEvent::Unmap(old.start));
        }
    }

    /// Readers sort changes by time, and may reverse those of one instant. So what begins where
    /// something ended does so a nanosecond later, and the other way round.
    fn push_change(&mut self, at: u64, event: MappingEvent) {
        if let MappingEvent::Unmap(start) = event
            && let Some(begin) = self.unused.remove(&start)
        {
            self.changes.remove(&begin);
            return;
        }
        let ends = matches!(event, MappingEvent::Unmap(_));
        let (last, ended) = self.last;
        let at = match at <= last && ends != ended {
            true => last + 1,
            false => at.max(last),
        };
        self.last = (at, ends);
        self.add_change(at, event);
    }

    fn clear_cache(&mut self) {
        self.code = None;
    }
}

/// Returns what is mapped at an address.
#[must_use]
pub fn mapping_at(code: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = code.partition_point(|mapping| mapping.start <= address);
    let mapping = code.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}

/// Returns what is mapped anywhere between two addresses.
pub fn mappings_between(code: &[Mapping], start: u64, end: u64) -> impl Iterator<Item = &Mapping> {
    let first = code.partition_point(|mapping| mapping.end <= start);
    code[first..]
        .iter()
        .take_while(move |mapping| mapping.start < end)
}

/// The spaces of all processes.
#[derive(Debug, Default)]
pub struct AddressSpaces {
    by_pid: HashMap<Pid, AddressSpace>,
}

impl AddressSpaces {
    /// `parent` forked `pid`: a copy of its space.
    pub fn forked(&mut self, pid: Pid, parent: Pid, at: u64) {
        let parent = self.by_pid.get(&parent);
        let mut space = parent.map_or_else(AddressSpace::default, |parent| AddressSpace {
            mappings: parent.mappings.clone(),
            code: parent.code.clone(),
            last: (at, false),
            since: at,
            execution: parent.execution,
            ..AddressSpace::default()
        });
        space.keep_present(at);
        self.by_pid.insert(pid, space);
    }

    /// Another experiment begins: the changes of all spaces begin with what is mapped now.
    pub fn begin_again(&mut self, at: u64) {
        let spaces = self.by_pid.values_mut();
        spaces.for_each(|space| space.begin_again(at));
    }

    /// `pid` executes another program: all that it had mapped is gone.
    pub fn executed(&mut self, pid: Pid, at: u64) {
        let space = self.by_pid.entry(pid).or_default();
        space.execution = None;
        space.since = at;
        let ended = space.mappings.exec();
        space.unmapped(at, &ended);
        space.clear_cache();
    }

    /// `pid` maps something for execution.
    pub fn mapped(&mut self, pid: Pid, mapping: Mapping, at: u64) {
        self.by_pid.entry(pid).or_default().map(at, mapping);
    }

    /// Adds what a snapshot found mapped in `pid`. Mappings that events have reported stand.
    pub fn found(&mut self, pid: Pid, found: impl IntoIterator<Item = Mapping>, at: u64) {
        let space = self.by_pid.entry(pid).or_default();
        for mapping in found {
            let known = space.mappings.find(mapping.start).is_some()
                || space.mappings.find(mapping.end - 1).is_some();
            if !known {
                space.map(at, mapping);
            }
        }
    }

    /// Adds what was read of `pid` from the instant `looked` on, because code ran at the instant
    /// `ran` where nothing was known to be mapped. Mappings that events have reported stand; new
    /// ones hold from `ran` on. Returns whether any is new.
    pub fn discovered(
        &mut self,
        pid: Pid,
        found: impl IntoIterator<Item = Mapping>,
        looked: u64,
        ran: u64,
    ) -> bool {
        let Some(space) = self.by_pid.get_mut(&pid) else {
            return false;
        };
        // Of the program that it executed before, or in part.
        if looked <= space.since {
            return false;
        }
        let mut new_found = false;
        for found in found {
            for new in space.mappings.gaps_in(&found) {
                // Where nothing was, nothing has ended: this need not come after the last change.
                let at = ran.max(space.since + 1);
                space.add_change(at, MappingEvent::Map(new.clone()));
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

    /// Returns all of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Pid, &mut AddressSpace)> {
        self.by_pid.iter_mut().map(|(pid, space)| (*pid, space))
    }

    /// Evicts processes. Returns those that were evicted.
    pub fn retain(&mut self, mut still: impl FnMut(Pid) -> bool) -> Vec<Pid> {
        let gone: Vec<Pid> = self
            .by_pid
            .keys()
            .copied()
            .filter(|pid| !still(*pid))
            .collect();
        for pid in &gone {
            self.by_pid.remove(pid);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::MappedFile;

    fn mapping(name: &str, start: u64, end: u64) -> Mapping {
        let file = MappedFile {
            path: name.as_bytes().into(),
            build_id: Box::default(),
            identity: Default::default(),
        };
        Mapping {
            start,
            end,
            offset: 0,
            file: Arc::new(file),
        }
    }

    #[test]
    fn a_child_has_its_parents_space_until_it_executes() {
        let mut spaces = AddressSpaces::default();
        spaces.mapped(Pid(7), mapping("sh", 10, 20), 1);
        spaces.get_mut(Pid(7)).unwrap().set_execution(3);
        spaces.forked(Pid(9), Pid(7), 2);
        assert_eq!(spaces.get_mut(Pid(9)).unwrap().execution, Some(3));
        spaces.get_mut(Pid(9)).unwrap().note_use();
        spaces.executed(Pid(9), 3);
        spaces.mapped(Pid(9), mapping("true", 15, 25), 4);
        let child = spaces.get_mut(Pid(9)).unwrap();
        assert_eq!((child.execution, child.code().len()), (None, 1));
        let changes: Vec<_> = child
            .take_changes(usize::MAX)
            .into_iter()
            .map(|change| (change.at, change.event))
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
        used(&mut |spaces| spaces.mapped(Pid(7), one.clone(), 5));
        used(&mut |spaces| spaces.mapped(Pid(7), two.clone(), 5));
        used(&mut |spaces| spaces.executed(Pid(7), 6));
        used(&mut |spaces| spaces.mapped(Pid(7), one.clone(), 9));
        let changes: Vec<_> = spaces
            .get_mut(Pid(7))
            .unwrap()
            .take_changes(usize::MAX)
            .into_iter()
            .map(|change| (change.at, change.event))
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
                spaces.mapped(Pid(7), mapping(name, 30, 40), turn as u64);
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
        // Without a record of them they are no changes, but for the last.
        assert_eq!((turns(false, false), turns(true, false)), (1, 1));
    }

    #[test]
    fn changes_that_are_left_may_turn_out_to_be_none() {
        let mut spaces = AddressSpaces::default();
        for (start, at) in [(10, 1), (20, 2), (30, 3)] {
            spaces.mapped(Pid(7), mapping("one.so", start, start + 5), at);
        }
        let taken = |spaces: &mut AddressSpaces, most| -> Vec<u64> {
            let changes = spaces.get_mut(Pid(7)).unwrap().take_changes(most);
            changes.iter().map(|change| change.at).collect()
        };
        assert_eq!(taken(&mut spaces, 1), [1]);
        // The second was not taken and was not used; the end of the first is a change.
        spaces.mapped(Pid(7), mapping("two.so", 10, 25), 4);
        assert_eq!(taken(&mut spaces, 1), [3]);
        assert_eq!(taken(&mut spaces, 9), [4, 5]);
    }

    #[test]
    fn what_moved_is_mapped_from_when_it_ran() {
        let mut spaces = AddressSpaces::default();
        spaces.executed(Pid(7), 5);
        spaces.mapped(Pid(7), mapping("main", 10, 20), 6);
        spaces.mapped(Pid(7), mapping("one.so", 40, 50), 9);
        spaces.get_mut(Pid(7)).unwrap().take_changes(usize::MAX);
        let found = || [mapping("main", 10, 20), mapping("main", 30, 45)];
        // Looked at before it executed this program.
        assert!(!spaces.discovered(Pid(7), found(), 5, 8));
        assert!(!spaces.discovered(Pid(8), found(), 12, 8));
        assert!(spaces.discovered(Pid(7), found(), 12, 8));
        assert!(!spaces.discovered(Pid(7), found(), 13, 8));
        let space = spaces.get_mut(Pid(7)).unwrap();
        let moved = MappingChange {
            at: 8,
            event: MappingEvent::Map(mapping("main", 30, 40)),
        };
        assert_eq!(space.take_changes(usize::MAX), [moved]);
        assert_eq!(space.code().len(), 3);
    }

    #[test]
    fn events_outrank_the_snapshot() {
        let mut spaces = AddressSpaces::default();
        spaces.mapped(Pid(7), mapping("new", 10, 20), 1);
        spaces.found(Pid(7), [mapping("old", 15, 25), mapping("else", 30, 40)], 2);
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
