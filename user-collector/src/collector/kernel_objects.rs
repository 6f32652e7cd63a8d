//! The kernel's load objects of a subexperiment: those in which its stacks have a frame, and those
//! that had the same addresses at other times.
//!
//! A machine may have hundreds of BPF programs and modules, and a recording thousands of processes:
//! written into each subexperiment, they would be most of the data.

use std::collections::BTreeSet;
use std::ops::Range;

use experiment_format::map::MapEvent;

/// The kernel's load objects that a subexperiment has.
#[derive(Debug, Default)]
pub(super) struct KernelObjects {
    /// The events that were written, as positions among all events.
    written: BTreeSet<usize>,
    /// Addresses of what was written.
    ranges: Vec<Range<u64>>,
    /// Frames at addresses of no known load object.
    missing: BTreeSet<u64>,
    /// Number of events in the last call.
    looked_at: usize,
}

impl KernelObjects {
    /// Adds kernel frames of stacks. Returns the events that have to be written now, in the order
    /// of `all`, which may be longer in each call.
    pub(super) fn add_frames<'a>(
        &mut self,
        frames: &[u64],
        all: &'a [MapEvent],
    ) -> Vec<&'a MapEvent> {
        let before = self.missing.len();
        for frame in frames {
            if !self.ranges.iter().any(|range| range.contains(frame)) {
                self.missing.insert(*frame);
            }
        }
        if self.missing.len() == before && self.looked_at == all.len() {
            return Vec::new();
        }
        self.looked_at = all.len();
        let mut new = BTreeSet::new();
        // Each one that is written may overlap others, which are written then too.
        while let Some(position) = (0..all.len()).find(|position| {
            !self.written.contains(position)
                && all.get(*position).is_some_and(|event| self.concerns(event))
        }) {
            self.written.insert(position);
            new.insert(position);
            if let Some(range) = all.get(position).and_then(range) {
                self.ranges.push(range);
            }
        }
        let ranges = &self.ranges;
        let known = |frame: &u64| ranges.iter().any(|range| range.contains(frame));
        self.missing.retain(|frame| !known(frame));
        new.into_iter()
            .filter_map(|position| all.get(position))
            .collect()
    }

    fn concerns(&self, event: &MapEvent) -> bool {
        if let MapEvent::Unmap { vaddr, .. } = event {
            return self.ranges.iter().any(|range| range.start == *vaddr);
        }
        range(event).is_some_and(|new| {
            let overlaps = |old: &Range<u64>| old.start < new.end && new.start < old.end;
            self.missing.range(new.clone()).next().is_some() || self.ranges.iter().any(overlaps)
        })
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

    #[test]
    fn only_what_has_a_frame_is_written_and_once() {
        let all = [segment(Nanos::ZERO, 100, 50), segment(Nanos::ZERO, 200, 50)];
        let mut code = KernelObjects::default();
        assert!(code.add_frames(&[], &all).is_empty());
        assert_eq!(code.add_frames(&[249, 201], &all), [&all[1]]);
        assert!(code.add_frames(&[249], &all).is_empty());
        assert_eq!(code.add_frames(&[100, 210], &all), [&all[0]]);
    }

    #[test]
    fn a_program_that_is_reported_late_is_written_then() {
        let mut all = vec![segment(Nanos::ZERO, 100, 50)];
        let mut code = KernelObjects::default();
        assert!(code.add_frames(&[300], &all).is_empty());
        all.push(segment(Nanos(5), 290, 20));
        all.push(segment(Nanos(5), 400, 20));
        assert_eq!(code.add_frames(&[], &all), [&all[1]]);
        assert!(code.add_frames(&[], &all).is_empty());
    }

    /// ```text
    /// A  |----------|x
    /// B             |-----|x
    /// C        other place
    /// ```
    #[test]
    fn what_lay_there_at_other_times_is_written_too() {
        let all = [
            segment(Nanos::ZERO, 100, 50),
            unmap(Nanos(5), 100),
            segment(Nanos(5), 120, 80),
            segment(Nanos(6), 900, 10),
            unmap(Nanos(9), 120),
            unmap(Nanos(9), 900),
        ];
        let mut code = KernelObjects::default();
        let written = code.add_frames(&[190], &all);
        assert_eq!(written, [&all[0], &all[1], &all[2], &all[4]]);
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
            let mut code = KernelObjects::default();
            let mut written = Vec::new();
            for (round, frames) in frames.iter().enumerate() {
                let known = (round + 1) * all.len() / 12;
                written.extend(code.add_frames(frames, &all[..known]));
            }
            written.extend(code.add_frames(&[], &all));
            for frame in frames.iter().flatten() {
                for event in &all {
                    if range(event).is_some_and(|range| range.contains(frame)) {
                        prop_assert_eq!(written.iter().filter(|written| **written == event).count(), 1);
                    }
                }
            }
            for event in &all {
                if let MapEvent::Unmap { vaddr, .. } = event {
                    let begun = written.iter().any(|written| range(written).is_some_and(|range| range.start == *vaddr));
                    prop_assert_eq!(written.contains(&event), begun);
                }
            }
        }
    }
}
