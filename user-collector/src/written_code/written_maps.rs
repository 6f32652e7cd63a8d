//! Which load objects a subexperiment maps: those in which its stacks have a frame, and those that
//! had the same addresses at other times.
//!
//! A program maps tens of libraries and runs in a few of them, a machine may have hundreds of BPF
//! programs and modules, and a recording thousands of processes: written into each subexperiment,
//! they would be most of the data. Programs that are loaded and unloaded all the time come to
//! thousands in a minute, at addresses that overlap.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter;
use std::ops::Range;

use experiment_format::map::MapEvent;

/// Where load objects are, of the kernel or of a process, in the order of the events. There may be
/// more of them later.
#[derive(Debug, Default)]
pub struct ObjectMaps {
    events: Vec<MapEvent>,
    /// Addresses at which something begins.
    begins: HashSet<u64>,
    /// What overlaps at some time, by the first address. Pieces do not overlap each other.
    pieces: BTreeMap<u64, Piece>,
}

/// Load objects each of which overlaps another one of them.
#[derive(Debug)]
struct Piece {
    end: u64,
    /// The events of those load objects, as positions among all.
    events: Vec<usize>,
}

impl ObjectMaps {
    /// Adds events.
    pub fn extend(&mut self, events: impl IntoIterator<Item = MapEvent>) {
        for event in events {
            let position = self.events.len();
            match range(&event) {
                Some(range) if range.is_empty() => {}
                Some(range) => {
                    self.begins.insert(range.start);
                    self.add(range, position);
                }
                None => self.end(&event, position),
            }
            self.events.push(event);
        }
    }

    /// Returns the number of events.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    fn add(&mut self, mut range: Range<u64>, position: usize) {
        let mut events = Vec::new();
        while let Some((start, piece)) = self.piece_in(&range) {
            range = range.start.min(start)..range.end.max(piece.end);
            let mut others = self
                .pieces
                .remove(&start)
                .map_or(Vec::new(), |it| it.events);
            // Into the longer one, so that many in one place do not take the square of their time.
            if events.len() < others.len() {
                std::mem::swap(&mut events, &mut others);
            }
            events.append(&mut others);
        }
        events.push(position);
        let end = range.end;
        self.pieces.insert(range.start, Piece { end, events });
    }

    /// Adds the end of a load object.
    fn end(&mut self, event: &MapEvent, position: usize) {
        if let MapEvent::Unmap { vaddr, .. } = event
            && self.begins.contains(vaddr)
            && let Some((_, piece)) = self.pieces.range_mut(..=*vaddr).next_back()
        {
            piece.events.push(position);
        }
    }

    /// Returns a piece that has some of the addresses, and its first address.
    fn piece_in(&self, range: &Range<u64>) -> Option<(u64, &Piece)> {
        let (start, piece) = self.pieces.range(..range.end).next_back()?;
        (piece.end > range.start).then_some((*start, piece))
    }

    /// Returns the piece of an address.
    fn piece_at(&self, address: u64) -> Option<(u64, &Piece)> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        (piece.end > address).then_some((*start, piece))
    }
}

/// Which events of an [`ObjectMaps`] a subexperiment has.
#[derive(Debug, Default)]
pub(super) struct WrittenMaps {
    /// Which events were written, by their position among all.
    written: Vec<bool>,
    /// Addresses in what was written, each with how many events that were.
    anchors: BTreeMap<u64, usize>,
    /// The piece that was written first: of the kernel's its own, nearly always.
    first: Range<u64>,
    /// Frames at addresses of no known load object.
    missing: BTreeSet<u64>,
}

impl WrittenMaps {
    /// Adds frames of stacks. Returns the events that have to be written now, in the order
    /// of `all`, which may be longer in each call.
    pub(super) fn add_frames<'a>(
        &mut self,
        frames: &[u64],
        all: &'a ObjectMaps,
    ) -> Vec<&'a MapEvent> {
        let mut new = self.new_events(all);
        let first = self.first.clone();
        for frame in frames.iter().filter(|frame| !first.contains(*frame)) {
            match all.piece_at(*frame) {
                None => {
                    self.missing.insert(*frame);
                }
                Some((start, piece)) if !self.has(start, piece) => {
                    new.extend(self.write(*frame, (start, piece), Vec::new()));
                    if self.first.is_empty() {
                        self.first = start..piece.end;
                    }
                }
                Some(_) => {}
            }
        }
        new.sort_unstable();
        let events = new.into_iter().map(|position| all.events.get(position));
        events.flatten().collect()
    }

    /// Returns the number of addresses that frames had where no load object was known.
    pub(super) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Returns the events that were not written, in their order.
    pub(super) fn rest<'a>(&self, all: &'a ObjectMaps) -> impl Iterator<Item = &'a MapEvent> {
        let written = self.written.iter().chain(iter::repeat(&false));
        let events = all.events.iter().zip(written);
        events.filter_map(|(event, written)| (!written).then_some(event))
    }

    /// Returns the positions of the events that have to be written because of those that came since
    /// the last call.
    fn new_events(&mut self, all: &ObjectMaps) -> Vec<usize> {
        let mut came: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for position in self.written.len()..all.events.len() {
            let address = all.events.get(position).and_then(first_address);
            let piece = address.and_then(|address| all.piece_at(address));
            if let Some((start, _)) = piece {
                came.entry(start).or_default().push(position);
            }
        }
        self.written.resize(all.events.len(), false);
        let mut new = Vec::new();
        for (start, came) in came {
            let Some(piece) = all.pieces.get(&start) else {
                continue;
            };
            let found: Vec<u64> = self.missing.range(start..piece.end).copied().collect();
            for frame in &found {
                self.missing.remove(frame);
            }
            let anchor = self.anchors.range(start..piece.end).next();
            if let Some(address) = anchor.map(|it| *it.0).or(found.first().copied()) {
                new.extend(self.write(address, (start, piece), came));
            }
        }
        new
    }

    /// Notes that the piece around an address is written. Returns the positions of its events that
    /// were not written before. `came`: the positions of its events that came since it was written.
    fn write(
        &mut self,
        address: u64,
        (start, piece): (u64, &Piece),
        came: Vec<usize>,
    ) -> Vec<usize> {
        let range = start..piece.end;
        let before: Vec<u64> = self.anchors.range(range).map(|it| *it.0).collect();
        let counts = before.iter().filter_map(|at| self.anchors.remove(at));
        let known: usize = counts.sum();
        self.anchors.insert(address, piece.events.len());
        // Else it has others that overlap what came.
        let candidates = if known + came.len() == piece.events.len() {
            &came
        } else {
            &piece.events
        };
        let mut new = Vec::new();
        for position in candidates {
            if let Some(written) = self.written.get_mut(*position)
                && !std::mem::replace(written, true)
            {
                new.push(*position);
            }
        }
        new
    }

    /// Returns whether a piece was written, as it was then.
    fn has(&self, start: u64, piece: &Piece) -> bool {
        self.anchors.range(start..piece.end).next().is_some()
    }
}

/// Returns the first address of what an event maps or unmaps.
fn first_address(event: &MapEvent) -> Option<u64> {
    match event {
        MapEvent::Unmap { vaddr, .. } => Some(*vaddr),
        _ => range(event).map(|range| range.start),
    }
}

/// Returns the addresses at which an event maps something.
fn range(event: &MapEvent) -> Option<Range<u64>> {
    match event {
        MapEvent::Segment { vaddr, size, .. } | MapEvent::Function { vaddr, size, .. } => {
            Some(*vaddr..vaddr.saturating_add(*size))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use experiment_format::map::READ_EXECUTE;
    use proptest::prelude::*;

    use experiment_format::units::Nanos;

    use super::*;

    fn segment(at_ns: Nanos, vaddr: u64, size: u64) -> MapEvent {
        MapEvent::Segment {
            at_ns,
            vaddr,
            size,
            file_offset: 0,
            modes: READ_EXECUTE,
            name: "[bpf]".to_owned(),
        }
    }

    fn unmap(at_ns: Nanos, vaddr: u64) -> MapEvent {
        MapEvent::Unmap { at_ns, vaddr }
    }

    fn maps(events: &[MapEvent]) -> ObjectMaps {
        let mut maps = ObjectMaps::default();
        maps.extend(events.to_vec());
        maps
    }

    #[test]
    fn mappings_with_frames_are_written_once() {
        let events = [segment(Nanos::ZERO, 100, 50), segment(Nanos::ZERO, 200, 50)];
        let all = maps(&events);
        let mut code = WrittenMaps::default();
        assert!(code.add_frames(&[], &all).is_empty());
        assert_eq!(code.add_frames(&[249, 201], &all), [&events[1]]);
        assert!(code.add_frames(&[249], &all).is_empty());
        assert_eq!(code.add_frames(&[100, 210], &all), [&events[0]]);
    }

    #[test]
    fn the_rest_is_what_was_not_written() {
        let events = [
            segment(Nanos::ZERO, 100, 50),
            segment(Nanos::ZERO, 200, 50),
            unmap(Nanos(3), 200),
            unmap(Nanos(4), 100),
        ];
        let all = maps(&events);
        let mut code = WrittenMaps::default();
        assert_eq!(code.add_frames(&[110], &all), [&events[0], &events[3]]);
        assert_eq!(Vec::from_iter(code.rest(&all)), [&events[1], &events[2]]);
    }

    #[test]
    fn a_program_that_is_reported_late_is_written_then() {
        let mut all = maps(&[segment(Nanos::ZERO, 100, 50)]);
        let mut code = WrittenMaps::default();
        assert!(code.add_frames(&[300], &all).is_empty());
        let late = [segment(Nanos(5), 290, 20), segment(Nanos(5), 400, 20)];
        all.extend(late.to_vec());
        assert_eq!(code.add_frames(&[], &all), [&late[0]]);
        assert!(code.add_frames(&[], &all).is_empty());
    }

    /// ```text
    /// A  |----------|x
    /// B             |-----|x
    /// C        other place
    /// ```
    #[test]
    fn earlier_mappings_of_an_address_are_written() {
        let events = [
            segment(Nanos::ZERO, 100, 50),
            unmap(Nanos(5), 100),
            segment(Nanos(5), 120, 80),
            segment(Nanos(6), 900, 10),
            unmap(Nanos(9), 120),
            unmap(Nanos(9), 900),
        ];
        let mut code = WrittenMaps::default();
        let all = maps(&events);
        let written = code.add_frames(&[190], &all);
        assert_eq!(written, [&events[0], &events[1], &events[2], &events[4]]);
    }

    /// A machine whose programs are loaded and unloaded all the time, each at addresses of two
    /// others.
    #[test]
    fn thousands_of_programs_at_the_same_addresses_are_written_once() {
        const PROGRAMS: u64 = 20_000;
        let mut all = ObjectMaps::default();
        let mut code = WrittenMaps::default();
        let mut written = 0;
        for number in 0..PROGRAMS {
            // From the last to the first, so that all become one at each step.
            let vaddr = (PROGRAMS - number) * 10;
            let events = [
                segment(Nanos(number), vaddr, 15),
                unmap(Nanos(number), vaddr),
            ];
            all.extend(events.to_vec());
            written += code.add_frames(&[PROGRAMS * 10 + 1], &all).len() as u64;
        }
        assert_eq!(written, 2 * PROGRAMS);
    }

    proptest! {
        /// However the frames come, what is written in the end has a place for each that has one,
        /// nothing twice, and the end of each that ends.
        #[test]
        fn every_frame_has_its_object(
            objects in proptest::collection::vec((0_u64..60, 1_u64..10, any::<bool>()), 1..12),
            frames in proptest::collection::vec(proptest::collection::vec(0_u64..70, 0..4), 1..12),
        ) {
            let mut all = Vec::new();
            for (at, (vaddr, size, ends)) in objects.iter().enumerate() {
                let at = at as u64;
                all.push(segment(Nanos(at), *vaddr, *size));
                all.extend(ends.then(|| unmap(Nanos(at + 1), *vaddr)));
            }
            let mut code = WrittenMaps::default();
            let mut written: Vec<MapEvent> = Vec::new();
            let mut known = ObjectMaps::default();
            for (round, frames) in frames.iter().enumerate() {
                let new = round * all.len() / 12..(round + 1) * all.len() / 12;
                known.extend(all[new].to_vec());
                written.extend(code.add_frames(frames, &known).into_iter().cloned());
            }
            known.extend(all[frames.len() * all.len() / 12..].to_vec());
            written.extend(code.add_frames(&[], &known).into_iter().cloned());
            for frame in frames.iter().flatten() {
                for event in &all {
                    if range(event).is_some_and(|range| range.contains(frame)) {
                        prop_assert_eq!(written.iter().filter(|written| *written == event).count(), 1);
                    }
                }
            }
            for event in &all {
                if let MapEvent::Unmap { vaddr, .. } = event {
                    let begun = written.iter().any(|written| range(written).is_some_and(|range| range.start == *vaddr));
                    prop_assert_eq!(written.contains(event), begun);
                }
            }
        }
    }
}
