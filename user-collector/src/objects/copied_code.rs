//! Code that a program has copied from its file to anonymous memory, at the same addresses: node,
//! HHVM, ClickHouse and others do that so that their code is in huge pages.
//!
//! Such a mapping has no file. The segments of the file that are still mapped around it show whose
//! code it is, and so do its bytes, which are compared with the file's.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use experiment_format::ids::Pid;
use kcollect_elf::{ElfFile, ElfLimits, LoadSegment, load_segments};

use super::open;
use crate::process::process_directory;
use crate::space::{MappedFile, Mapping};

/// The size of a page, bytes.
const PAGE_BYTES: u64 = 4096;
/// Max pages of a mapping that are compared, at equal distances.
const MAX_COMPARED_PAGES: u64 = 64;
/// The part of the compared pages that has to be equal, as a fraction: programs patch some of their
/// code.
const EQUAL_PART: (u64, u64) = (7, 8);

/// A range of a process's addresses, as `/proc/PID/maps` lists it.
#[derive(Clone, Debug)]
pub struct MappedRange {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Whether code in it can run.
    pub executable: bool,
    /// The file and the offset of `start` in it; None for private anonymous memory.
    pub file: Option<(Arc<MappedFile>, u64)>,
}

/// Anonymous memory with code that is copied from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedCode {
    /// Where the kernel's mapping begins.
    pub range_start: u64,
    /// The part of it that has the file's code.
    pub mapping: Mapping,
}

/// Returns the code of files that a process has copied to anonymous memory. `ranges` are all that
/// it has mapped, by address.
#[must_use]
pub fn copied_code(proc: &Path, pid: Pid, ranges: &[MappedRange]) -> Vec<CopiedCode> {
    let memory = process_directory(proc, pid).join("mem");
    let Ok(memory) = File::open(memory) else {
        return Vec::new();
    };
    let found = surrounded(ranges).filter_map(|(range, neighbour)| {
        let opened = open(proc, pid, &neighbour).ok()?;
        let elf = ElfFile::read(&opened.file, ElfLimits::PROGRAM).ok()?;
        let segments = load_segments(&elf).ok()?;
        let (mapping, code_end) = file_mapping(range, &neighbour, &segments)?;
        is_copy(&memory, &opened.file, &mapping, code_end).then_some(CopiedCode {
            range_start: range.start,
            mapping,
        })
    });
    found.collect()
}

/// The anonymous executable ranges between two mappings of the same file, each with a mapping of
/// that file.
fn surrounded(ranges: &[MappedRange]) -> impl Iterator<Item = (&MappedRange, Mapping)> {
    let anonymous = ranges.iter().enumerate();
    let anonymous = anonymous.filter(|(_, range)| range.executable && range.file.is_none());
    anonymous.filter_map(|(index, range)| {
        let with_file = |range: &&MappedRange| range.file.is_some();
        let below = ranges[..index].iter().rev().find(with_file)?;
        let above = ranges[index + 1..].iter().find(with_file)?;
        let (file, offset) = below.file.as_ref()?;
        let (other, _) = above.file.as_ref()?;
        (file == other).then(|| {
            let neighbour = Mapping {
                start: below.start,
                end: below.end,
                offset: *offset,
                file: Arc::clone(file),
            };
            (range, neighbour)
        })
    })
}

/// The part of a range, in whole pages, that belongs to a code segment of the file which is mapped
/// next to the range, and where the code in it ends.
fn file_mapping(
    range: &MappedRange,
    neighbour: &Mapping,
    segments: &[LoadSegment],
) -> Option<(Mapping, u64)> {
    let address = |segment: &LoadSegment| segment.address_of(neighbour.offset);
    let bias = neighbour
        .start
        .wrapping_sub(segments.iter().find_map(address)?);
    let mut code = segments.iter().filter(|segment| segment.executable);
    code.find_map(|segment| {
        let offsets = segment.file_offsets();
        let first = segment.address_of(offsets.start)?.wrapping_add(bias);
        let code_end = first.checked_add(offsets.end - offsets.start)?;
        let start = range.start.max(first);
        let mapping = Mapping {
            start,
            end: range.end.min(code_end.next_multiple_of(PAGE_BYTES)),
            offset: offsets.start + (start - first),
            file: Arc::clone(&neighbour.file),
        };
        (start < mapping.end).then_some((mapping, code_end))
    })
}

/// Returns whether memory has the bytes of a file, by some of its pages.
fn is_copy(memory: &File, file: &File, mapping: &Mapping, code_end: u64) -> bool {
    let pages = (mapping.end - mapping.start).div_ceil(PAGE_BYTES);
    let step = pages.div_ceil(MAX_COMPARED_PAGES).max(1);
    let (mut equal, mut compared) = (0, 0);
    for page in (0..pages).step_by(step as usize) {
        let address = mapping.start + page * PAGE_BYTES;
        let bytes = PAGE_BYTES.min(code_end.saturating_sub(address)) as usize;
        let (mut ours, mut theirs) = (vec![0; bytes], vec![0; bytes]);
        let read = memory.read_exact_at(&mut ours, address).and_then(|()| {
            let offset = mapping.file_offset(address);
            file.read_exact_at(&mut theirs, offset)
        });
        compared += 1;
        equal += u64::from(read.is_ok() && ours == theirs);
    }
    let (part, whole) = EQUAL_PART;
    compared > 0 && equal * whole >= compared * part
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn range(start: u64, end: u64, of: Option<(&str, u64)>) -> MappedRange {
        MappedRange {
            start,
            end,
            executable: of.is_none(),
            file: of.map(|(name, offset)| (MappedFile::named(name.as_bytes()), offset)),
        }
    }

    fn segment(offset: u64, size: u64, address: u64, executable: bool) -> LoadSegment {
        LoadSegment {
            offset,
            size,
            address,
            executable,
        }
    }

    #[test]
    fn code_between_segments_of_one_file_is_that_files() {
        let ranges = [
            range(0x1_0000, 0x1_1000, Some(("a", 0))),
            range(0x1_1000, 0x1_4000, None),
            range(0x1_4000, 0x1_5000, Some(("a", 0x3000))),
            range(0x2_0000, 0x2_1000, None),
            range(0x3_0000, 0x3_1000, Some(("b", 0))),
        ];
        let found: Vec<_> = surrounded(&ranges).collect();
        assert_eq!(found.len(), 1);
        let (between, neighbour) = &found[0];
        // The segment is linked for another page than its offset, and ends within the range.
        let segments = [
            segment(0, 0x800, 0x40_0000, false),
            segment(0x1000, 0x1800, 0x40_1000, true),
        ];
        let (mapping, code_end) = file_mapping(between, neighbour, &segments).unwrap();
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset, code_end),
            (0x1_1000, 0x1_3000, 0x1000, 0x1_2800)
        );
        assert!(file_mapping(between, neighbour, &segments[..1]).is_none());
    }

    #[test]
    fn copied_code_is_found_by_its_bytes() {
        let bytes: Vec<u8> = (0..10 * PAGE_BYTES)
            .map(|at| (at * 7 % 251) as u8)
            .collect();
        let (mut memory, mut code) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        code.write_all(&bytes).unwrap();
        memory.write_all(&bytes).unwrap();
        let mapping = Mapping {
            start: PAGE_BYTES,
            end: 10 * PAGE_BYTES,
            offset: PAGE_BYTES,
            file: MappedFile::named(b"a"),
        };
        assert!(is_copy(&memory, &code, &mapping, mapping.end));
        // One page of nine is patched, then two.
        memory.write_all_at(b"patched", 3 * PAGE_BYTES).unwrap();
        assert!(is_copy(&memory, &code, &mapping, mapping.end));
        memory.write_all_at(b"patched", 5 * PAGE_BYTES).unwrap();
        assert!(!is_copy(&memory, &code, &mapping, mapping.end));
        let beyond = Mapping {
            end: 30 * PAGE_BYTES,
            ..mapping
        };
        assert!(!is_copy(&memory, &code, &beyond, beyond.end));
    }
}
