//! The growth of a process's memory, from its system calls (`-H growth`): which ranges of pages it
//! may use, and from when to when.
//!
//! Memory of files is not counted, and neither is reserved memory: allocators and runtimes map
//! large ranges without access, and use parts of them later, when they change the protection. So a
//! range counts from when it may be accessed until it is unmapped or protected again. The heap of
//! `brk` counts from the first call, which returns its end. Memory that was mapped before the first
//! call is not known, and its end changes nothing.
//!
//! Calls of one process come in the order of time. Nothing is read.

use std::collections::BTreeMap;
use std::ops::Range;

use bpf_abi::IoCallRecord;
use experiment_format::calls::MemoryCall;
use experiment_format::packet::HeapKind;

/// Max ranges that are kept of a process. By default Linux allows no more mappings.
const MAX_PROCESS_RANGES: usize = 65_536;
const PAGE_BYTES: u64 = 4096;

/// A range of pages that the process may use from now on, or may no longer use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// [`HeapKind::Mapped`] or [`HeapKind::Unmapped`].
    pub kind: HeapKind,
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// The memory that a process may use.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Ranges by first address: the end, and whether it may be accessed. They do not overlap.
    ranges: BTreeMap<u64, (u64, bool)>,
    /// The heap of `brk`, from its end at the first call.
    heap: Option<Range<u64>>,
}

impl Memory {
    /// The changes that a call makes; empty if it failed.
    pub fn apply(&mut self, what: MemoryCall, call: &IoCallRecord) -> Vec<Change> {
        let [first, second, third, fourth] = call.arguments;
        // Error numbers are negative, and no address is.
        let Some(result) = u64::try_from(call.result).ok() else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        let accessible = |protection: u64| protection != libc::PROT_NONE as u64;
        match what {
            MemoryCall::Map => {
                let range = pages(result, second);
                self.remove(&range, &mut changes);
                if fourth & libc::MAP_ANONYMOUS as u64 != 0 {
                    self.add(range, accessible(third), &mut changes);
                }
            }
            MemoryCall::Unmap => self.remove(&pages(first, second), &mut changes),
            MemoryCall::Protect => {
                self.protect(&pages(first, second), accessible(third), &mut changes);
            }
            MemoryCall::Remap => self.move_to(
                first,
                pages(first, second),
                pages(result, third),
                &mut changes,
            ),
            MemoryCall::Break => {
                let heap = self.heap.get_or_insert(result..result);
                if result > heap.end {
                    changes.push(change(HeapKind::Mapped, &(heap.end..result)));
                } else if result < heap.end {
                    changes.push(change(HeapKind::Unmapped, &(result..heap.end)));
                }
                *heap = heap.start.min(result)..result;
            }
        }
        changes
    }

    /// Returns the changes by an exec: all memory ends.
    pub fn executed(&mut self) -> Vec<Change> {
        let Memory { ranges, heap } = std::mem::take(self);
        let used = ranges
            .into_iter()
            .filter(|(_, (_, accessible))| *accessible);
        let used = used.map(|(start, (end, _))| start..end);
        used.chain(heap.filter(|heap| !heap.is_empty()))
            .map(|range| change(HeapKind::Unmapped, &range))
            .collect()
    }

    fn move_to(&mut self, first: u64, from: Range<u64>, to: Range<u64>, changes: &mut Vec<Change>) {
        let known = self.at(first);
        let Some(accessible) = known else {
            // Memory of a file, or from before the first call.
            return self.remove(&to, changes);
        };
        if to.start != from.start {
            self.remove(&from, changes);
            self.remove(&to, changes);
            self.add(to, accessible, changes);
        } else if to.end < from.end {
            self.remove(&(to.end..from.end), changes);
        } else {
            self.add(from.end..to.end, accessible, changes);
        }
    }

    /// Returns whether the range at an address may be accessed, if it is known.
    fn at(&self, address: u64) -> Option<bool> {
        let (_, (end, accessible)) = self.ranges.range(..=address).next_back()?;
        (address < *end).then_some(*accessible)
    }

    fn add(&mut self, range: Range<u64>, accessible: bool, changes: &mut Vec<Change>) {
        if range.is_empty() || self.ranges.len() >= MAX_PROCESS_RANGES {
            return;
        }
        if accessible {
            changes.push(change(HeapKind::Mapped, &range));
        }
        self.ranges.insert(range.start, (range.end, accessible));
    }

    /// Removes what is known of a range, and adds the changes for its accessible parts.
    fn remove(&mut self, range: &Range<u64>, changes: &mut Vec<Change>) {
        for (part, accessible) in self.cut(range) {
            self.ranges.remove(&part.start);
            if accessible {
                changes.push(change(HeapKind::Unmapped, &part));
            }
        }
    }

    fn protect(&mut self, range: &Range<u64>, accessible: bool, changes: &mut Vec<Change>) {
        for (part, before) in self.cut(range) {
            self.ranges.insert(part.start, (part.end, accessible));
            match (before, accessible) {
                (false, true) => changes.push(change(HeapKind::Mapped, &part)),
                (true, false) => changes.push(change(HeapKind::Unmapped, &part)),
                _ => {}
            }
        }
    }

    /// Splits the ranges at both ends of `range`, and returns those in it.
    fn cut(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        for edge in [range.start, range.end] {
            if let Some((start, (end, accessible))) = self.ranges.range_mut(..edge).next_back()
                && *end > edge
            {
                let (rest, accessible) = (*end, *accessible);
                debug_assert!(*start < edge);
                *end = edge;
                self.ranges.insert(edge, (rest, accessible));
            }
        }
        if range.is_empty() {
            return Vec::new();
        }
        let inside = self.ranges.range(range.clone());
        inside
            .map(|(start, (end, accessible))| (*start..*end, *accessible))
            .collect()
    }
}

/// Returns a range of whole pages.
fn pages(start: u64, bytes: u64) -> Range<u64> {
    start..start.saturating_add(bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)
}

fn change(kind: HeapKind, range: &Range<u64>) -> Change {
    Change {
        kind,
        address: range.start,
        bytes: range.end - range.start,
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::RecordHeader;
    use bpf_abi::layout::CallTable;
    use proptest::prelude::*;

    use super::*;

    const NONE: u64 = libc::PROT_NONE as u64;
    const WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    const ANONYMOUS: u64 = (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE) as u64;
    const FILE: u64 = libc::MAP_PRIVATE as u64;

    fn call(arguments: [u64; 4], result: i64) -> IoCallRecord {
        IoCallRecord {
            header: RecordHeader::default(),
            begin_ns: 1,
            result,
            arguments,
            files: 0,
            call: 0,
            table: CallTable::Native,
            call_site: 0,
            extra: Box::default(),
        }
    }

    /// What calls change, in pages: `+10..12` came, `-10..12` went.
    #[derive(Default)]
    struct Process(Memory);

    impl Process {
        fn call(&mut self, what: MemoryCall, arguments: [u64; 4], result: u64) -> String {
            shown(self.0.apply(what, &call(arguments, result as i64)))
        }

        fn map(&mut self, at: u64, pages: u64, protection: u64, flags: u64) -> String {
            let arguments = [0, pages * PAGE_BYTES, protection, flags];
            self.call(MemoryCall::Map, arguments, at * PAGE_BYTES)
        }

        fn unmap(&mut self, at: u64, pages: u64) -> String {
            self.call(
                MemoryCall::Unmap,
                [at * PAGE_BYTES, pages * PAGE_BYTES, 0, 0],
                0,
            )
        }

        fn protect(&mut self, at: u64, pages: u64, protection: u64) -> String {
            let arguments = [at * PAGE_BYTES, pages * PAGE_BYTES, protection, 0];
            self.call(MemoryCall::Protect, arguments, 0)
        }
    }

    fn shown(changes: Vec<Change>) -> String {
        let each = changes.iter().map(|change| {
            let sign = if change.kind == HeapKind::Mapped {
                '+'
            } else {
                '-'
            };
            let (start, end) = (change.address, change.address + change.bytes);
            format!("{sign}{}..{}", start / PAGE_BYTES, end / PAGE_BYTES)
        });
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_may_be_accessed_counts() {
        let mut process = Process::default();
        assert_eq!(process.map(10, 4, WRITE, ANONYMOUS), "+10..14");
        assert_eq!(process.unmap(11, 1), "-11..12");
        assert_eq!(process.unmap(8, 4), "-10..11");
        // An arena is reserved, and used from its beginning.
        assert_eq!(process.map(100, 64, NONE, ANONYMOUS), "");
        assert_eq!(process.protect(100, 2, WRITE), "+100..102");
        assert_eq!(process.protect(100, 5, WRITE), "+102..105");
        assert_eq!(process.protect(101, 1, NONE), "-101..102");
        assert_eq!(process.unmap(90, 100), "-100..101 -102..105");
    }

    #[test]
    fn files_and_what_was_there_before_do_not_count() {
        let mut process = Process::default();
        assert_eq!(process.map(10, 4, WRITE, FILE), "");
        assert_eq!(process.unmap(10, 4), "");
        assert_eq!(process.protect(10, 4, WRITE), "");
        assert_eq!(process.map(20, 4, WRITE, ANONYMOUS), "+20..24");
        // A file in its place.
        assert_eq!(process.map(21, 1, WRITE, FILE), "-21..22");
        assert_eq!(
            process.call(MemoryCall::Map, [0, PAGE_BYTES, WRITE, ANONYMOUS], u64::MAX),
            ""
        );
    }

    #[test]
    fn the_heap_counts_from_where_it_is_known() {
        let mut process = Process::default();
        let mut to = |page: u64| process.call(MemoryCall::Break, [0; 4], page * PAGE_BYTES);
        assert_eq!(to(50), "");
        assert_eq!(to(83), "+50..83");
        assert_eq!(to(60), "-60..83");
        assert_eq!(to(60), "");
        assert_eq!(shown(process.0.executed()), "-50..60");
        assert_eq!(shown(process.0.executed()), "");
    }

    #[test]
    fn a_range_moves_grows_and_shrinks() {
        let mut process = Process::default();
        process.map(10, 4, WRITE, ANONYMOUS);
        let mut remap = |from: [u64; 2], to: [u64; 2]| {
            let arguments = [
                from[0] * PAGE_BYTES,
                from[1] * PAGE_BYTES,
                to[1] * PAGE_BYTES,
                0,
            ];
            process.call(MemoryCall::Remap, arguments, to[0] * PAGE_BYTES)
        };
        assert_eq!(remap([10, 4], [10, 6]), "+14..16");
        assert_eq!(remap([10, 6], [30, 8]), "-10..14 -14..16 +30..38");
        assert_eq!(remap([30, 8], [30, 1]), "-31..38");
        assert_eq!(remap([70, 8], [80, 1]), "");
        assert_eq!(shown(process.0.executed()), "-30..31");
    }

    proptest! {
        /// What came and has not gone is what the pages say that may be accessed, one by one.
        #[test]
        fn sums_equal_those_of_single_pages(
            calls in proptest::collection::vec((0_u8..4, 0_u64..40, 0_u64..12, any::<bool>(), 0_u64..40), 0..60),
        ) {
            let mut process = Process::default();
            let mut pages: BTreeMap<u64, bool> = BTreeMap::new();
            let mut used: std::collections::BTreeSet<u64> = Default::default();
            for (kind, at, count, accessible, to) in calls {
                let protection = if accessible { WRITE } else { NONE };
                let (what, arguments, result) = match kind {
                    0 => (MemoryCall::Map, [0, count * PAGE_BYTES, protection, ANONYMOUS], at * PAGE_BYTES),
                    1 => (MemoryCall::Unmap, [at * PAGE_BYTES, count * PAGE_BYTES, 0, 0], 0),
                    2 => (MemoryCall::Protect, [at * PAGE_BYTES, count * PAGE_BYTES, protection, 0], 0),
                    _ => (MemoryCall::Map, [0, count * PAGE_BYTES, protection, FILE], to * PAGE_BYTES),
                };
                for page in (0..count).map(|page| page + if kind == 3 { to } else { at }) {
                    match kind {
                        0 => drop(pages.insert(page, accessible)),
                        2 => drop(pages.get_mut(&page).map(|own| *own = accessible)),
                        _ => drop(pages.remove(&page)),
                    }
                }
                for change in process.0.apply(what, &call(arguments, result as i64)) {
                    let range = change.address / PAGE_BYTES..(change.address + change.bytes) / PAGE_BYTES;
                    for page in range {
                        let new = match change.kind {
                            HeapKind::Mapped => used.insert(page),
                            _ => used.remove(&page),
                        };
                        prop_assert!(new, "page {} came or went twice", page);
                    }
                }
                let expected = pages.iter().filter(|(_, accessible)| **accessible);
                prop_assert!(used.iter().eq(expected.map(|(page, _)| page)));
            }
        }
    }
}
