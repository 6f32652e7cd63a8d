//! The kernel's own memory, by `/proc/kcore`, for the disassembly of what it really executes.
//!
//! Many machines have none (no `CONFIG_PROC_KCORE`) or bar it (lockdown). Then the images have names
//! and no instructions, which is said once and is no error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, ReadCache};

/// An open `/proc/kcore`.
#[derive(Debug)]
pub struct Kcore {
    file: File,
    segments: Vec<Segment>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    vaddr: u64,
    offset: u64,
    size: u64,
}

impl Kcore {
    /// Opens it and reads its table of segments.
    ///
    /// # Errors
    /// As the system says; [`io::ErrorKind::InvalidData`] when it is no ELF core.
    pub fn open() -> io::Result<Kcore> {
        let file = File::open("/proc/kcore")?;
        let segments = segments(&file).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/kcore: {error}"))
        })?;
        Ok(Kcore { file, segments })
    }

    /// The bytes at an address; `None` when no segment has all of them.
    #[must_use]
    pub fn read(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let holds = |segment: &&Segment| {
            address
                .checked_sub(segment.vaddr)
                .and_then(|skip| skip.checked_add(size))
                .is_some_and(|end| end <= segment.size)
        };
        let segment = self.segments.iter().find(holds)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        let offset = segment.offset + (address - segment.vaddr);
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

fn segments(file: &File) -> object::Result<Vec<Segment>> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, &cache)?;
    Ok(segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD)
        .map(|segment| Segment {
            vaddr: segment.p_vaddr(endian),
            offset: segment.p_offset(endian),
            size: segment.p_filesz(endian),
        })
        .collect())
}
