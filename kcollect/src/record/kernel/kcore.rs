//! The kernel's memory, read from `/proc/kcore`, to disassemble the code that the kernel executes
//! after it has patched itself.
//!
//! Many machines have no such file (no `CONFIG_PROC_KCORE`) or refuse to open it (lockdown). Then
//! the images have names and no instructions; a message says so, and it is no error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use kcollect_elf::{ElfError, ElfFile, ElfLimits, LoadSegment, load_segments};

/// An open `/proc/kcore`.
#[derive(Debug)]
pub struct Kcore {
    file: File,
    segments: Vec<LoadSegment>,
}

impl Kcore {
    /// Opens the file and reads its table of segments.
    ///
    /// # Errors
    /// The error of the system; [`io::ErrorKind::InvalidData`] if the file is not an ELF core.
    pub fn open() -> io::Result<Kcore> {
        Kcore::new(File::open("/proc/kcore")?)
    }

    fn new(file: File) -> io::Result<Kcore> {
        let segments = segments(&file)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(Kcore { file, segments })
    }

    /// Returns the bytes at an address; `None` if no segment has all of them.
    #[must_use]
    pub fn read(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let holds = |segment: &&LoadSegment| {
            address
                .checked_sub(segment.address)
                .and_then(|skip| skip.checked_add(size))
                .is_some_and(|end| end <= segment.size)
        };
        let segment = self.segments.iter().find(holds)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        let offset = segment.offset.checked_add(address - segment.address)?;
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

fn segments(file: &File) -> Result<Vec<LoadSegment>, ElfError> {
    let limits = ElfLimits {
        // As many as the header can count.
        max_segments: u32::from(u16::MAX),
        ..ElfLimits::PROGRAM
    };
    // The length that the kernel reports of the file is no bound.
    load_segments(&ElfFile::read_up_to(file, u64::MAX, limits)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use object::elf::PT_LOAD;
    use proptest::prelude::*;

    use super::*;

    /// Returns a core file of one segment at `vaddr`: ELF header, program header, bytes.
    fn core(vaddr: u64, bytes: &[u8]) -> Vec<u8> {
        const TABLE: u64 = 64;
        const DATA: u64 = 64 + 56;
        let mut core = b"\x7fELF\x02\x01\x01".to_vec();
        core.resize(16, 0);
        core.extend([4_u16, 62].iter().flat_map(|half| half.to_le_bytes()));
        core.extend(1_u32.to_le_bytes());
        core.extend([0, TABLE, 0].iter().flat_map(|word| word.to_le_bytes()));
        core.extend(0_u32.to_le_bytes());
        let sizes = [64_u16, 56, 1, 64, 0, 0];
        core.extend(sizes.iter().flat_map(|half| half.to_le_bytes()));
        core.extend([PT_LOAD.0, 7].iter().flat_map(|half| half.to_le_bytes()));
        let size = bytes.len() as u64;
        let words = [DATA, vaddr, 0, size, size, 4096];
        core.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        core.extend(bytes);
        core
    }

    fn open(bytes: &[u8]) -> io::Result<Kcore> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Kcore::new(file)
    }

    #[test]
    fn bytes_of_a_segment_are_read_and_none_beyond() {
        let text = 0xffff_ffff_8100_0000;
        let kcore = open(&core(text, b"instructions")).unwrap();
        assert_eq!(kcore.read(text, 12).unwrap(), b"instructions");
        assert_eq!(kcore.read(text + 2, 6).unwrap(), b"struct");
        assert!(kcore.read(text + 2, 11).is_none());
        assert!(kcore.read(text - 1, 2).is_none());
        assert!(kcore.read(u64::MAX, 2).is_none());
    }

    #[test]
    fn a_file_that_is_no_core_is_an_error() {
        assert!(open(b"").is_err());
        assert!(open(b"#!/bin/sh").is_err());
    }

    proptest! {
        #[test]
        fn damaged_cores_are_refused_or_read(
            at in 0_usize..120, byte: u8, address: u64, size in 0_u64..64
        ) {
            let mut bytes = core(0xffff_ffff_8100_0000, b"instructions");
            bytes[at] = byte;
            if let Ok(kcore) = open(&bytes) {
                let _ = kcore.read(address, size);
            }
        }
    }
}
