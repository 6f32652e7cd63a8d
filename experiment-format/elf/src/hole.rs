//! Sparse files: what a file claims against what is on its disk.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// Max compression ratio of file systems: a piece that is this many times as large as its file on
/// the disk is nearly all hole.
const MAX_SPARSENESS: u64 = 64;
/// No piece of this size or less is taken for a hole, in bytes.
const MIN_HOLE_BYTES: u64 = 16 << 20;
/// The unit of the number of blocks, bytes.
const BLOCK_BYTES: u64 = 512;

/// The bytes that a file takes on its disk. None: the file system has no such number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBytes(Option<u64>);

impl AllocatedBytes {
    /// The number is not known: nothing in the file is taken for a hole.
    pub const UNKNOWN: AllocatedBytes = AllocatedBytes(None);

    /// The bytes that a file with this metadata takes on its disk.
    #[must_use]
    pub fn of(metadata: &Metadata) -> AllocatedBytes {
        let bytes = metadata.blocks().saturating_mul(BLOCK_BYTES);
        AllocatedBytes(Some(bytes).filter(|bytes| *bytes > 0))
    }

    /// Returns whether a piece of the file is larger than what is on the disk, even if the file
    /// system compresses. A small file can claim gigabytes, which are read as fast as data.
    #[must_use]
    pub fn is_hole(self, piece_bytes: u64) -> bool {
        let allocated = self.0.unwrap_or(u64::MAX);
        piece_bytes > MIN_HOLE_BYTES && piece_bytes / MAX_SPARSENESS > allocated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_far_larger_than_the_file_is_a_hole() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 0).unwrap();
        let allocated = AllocatedBytes::of(&file.metadata().unwrap());
        assert!(allocated.is_hole(1 << 30));
        assert!(!allocated.is_hole(MIN_HOLE_BYTES));
        let of = |bytes| AllocatedBytes(Some(bytes));
        assert!(!of(1 << 24).is_hole(1 << 30));
        assert!(of((1 << 24) - 1).is_hole(1 << 30));
        assert!(!AllocatedBytes::UNKNOWN.is_hole(u64::MAX));
    }
}
