//! The segments that make up a program's address space.

use std::ops::Range;

use object::elf::{PF_X, PT_LOAD};

use super::{ElfBytes, ElfError, ElfFile};

/// A mapping begins with a page of this size, bytes.
const PAGE_BYTES: u64 = 4096;

/// A part of a file that is mapped when it is loaded (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSegment {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    /// The address that the file is linked for.
    pub address: u64,
    /// Whether it may be executed.
    pub executable: bool,
}

impl LoadSegment {
    /// Returns the offsets in the file that are mapped with this segment: from the page on in which
    /// it begins, for no mapping begins elsewhere.
    #[must_use]
    pub fn file_offsets(&self) -> Range<u64> {
        self.offset & !(PAGE_BYTES - 1)..self.offset.saturating_add(self.size)
    }

    /// Returns the address that an offset in the file is linked for, if that offset is mapped with
    /// this segment.
    #[must_use]
    pub fn address_of(&self, file_offset: u64) -> Option<u64> {
        self.file_offsets().contains(&file_offset).then(|| {
            self.address
                .wrapping_add(file_offset.wrapping_sub(self.offset))
        })
    }
}

/// Returns the loaded segments of a file, in the order of the file.
///
/// # Errors
/// The program headers are damaged.
pub fn load_segments<B: ElfBytes>(elf: &ElfFile<B>) -> Result<Vec<LoadSegment>, ElfError> {
    let loaded = elf.segments()?.into_iter();
    Ok(loaded
        .filter(|segment| segment.kind == PT_LOAD)
        .map(|segment| LoadSegment {
            offset: segment.offset,
            size: segment.file_size,
            address: segment.address,
            executable: segment.flags.contains(PF_X),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElfLimits;

    #[test]
    fn offsets_in_the_file_and_addresses() {
        let segment = LoadSegment {
            offset: 0x1234,
            size: 0x10,
            address: 0x40_1234,
            executable: true,
        };
        assert_eq!(segment.address_of(0xfff), None);
        assert_eq!(segment.address_of(0x1000), Some(0x40_1000));
        assert_eq!(segment.address_of(0x1234), Some(0x40_1234));
        assert_eq!(segment.address_of(0x1243), Some(0x40_1243));
        assert_eq!(segment.address_of(0x1244), None);
        let this = std::fs::read("/proc/self/exe").unwrap();
        let elf = ElfFile::read(this.as_slice(), ElfLimits::PROGRAM).unwrap();
        let segments = load_segments(&elf).unwrap();
        assert!(segments.iter().filter(|segment| segment.executable).count() >= 1);
        assert!(segments.len() >= 2);
    }
}
