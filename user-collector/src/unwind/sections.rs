//! The parts of an ELF file that unwinding needs: frame information, and the addresses of code.
//!
//! They are found by program headers and section headers, so that a file with a broken symbol table
//! can be unwound. If no section header names `.eh_frame` (`llvm-objcopy --strip-sections`), it is
//! found by `PT_GNU_EH_FRAME`, as by the program itself.
//!
//! The file is read by [`ElfFile`]: only these pieces, each within its limit.

use std::borrow::Cow;
use std::ops::Range;

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use kcollect_elf::{ElfBytes, ElfError, ElfFile, ElfLimits, ElfSegment, SectionTable};
use object::elf::{PF_X, PT_GNU_EH_FRAME, PT_LOAD};

use super::go_sections::{self, GoFunctions};
use super::x86_64_registers::{ADDRESS_SIZE, MACHINE};
use super::{MAX_PAGES, MAX_ROWS, MAX_SECTION_BYTES, cfi_entries, thread_starts};

/// Bytes of `.eh_frame_hdr` before its search table: four bytes and two numbers of eight.
const FRAME_HEADER_BYTES: u64 = 20;

/// Why a file has no unwind table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnwindError {
    /// Another file than a 64-bit little-endian ELF file, or a damaged one.
    #[error(transparent)]
    Elf(#[from] ElfError),

    /// A file for another processor.
    #[error("ELF machine {machine}, only x86-64 (62) is unwound")]
    Machine {
        /// `e_machine`.
        machine: u16,
    },

    /// Code at an address that no process can have.
    #[error("code at {address:#x}, beyond 48 bits")]
    Address {
        /// The address in the file.
        address: u64,
    },

    /// A table with more rows than [`MAX_ROWS`].
    #[error("more than {MAX_ROWS} rows")]
    TooManyRows,

    /// A table with more pages than [`MAX_PAGES`].
    #[error("more than {MAX_PAGES} pages of 64 KiB")]
    TooManyPages,
}

/// The call frame information of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameInfo<'data> {
    /// `.eh_frame`.
    Eh {
        /// The section.
        data: &'data [u8],
        /// Its address in the file's address space.
        address: u64,
    },
    /// `.debug_frame`.
    Debug {
        /// The section, decompressed where it was compressed.
        data: Cow<'data, [u8]>,
    },
    /// None, or only compressed in another way than by zlib.
    None,
}

/// The parts of an ELF file that unwinding needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindSections<'data> {
    /// The frame information.
    pub frames: FrameInfo<'data>,
    /// `.debug_frame` of a file that has `.eh_frame` too; else empty. It has functions that were
    /// compiled without tables for exceptions.
    pub debug_frames: Cow<'data, [u8]>,
    /// Address of `.text`, for pointers relative to it; 0 where it is not known.
    pub text: u64,
    /// Address of `.got`, for pointers relative to it; 0 where it is not known.
    pub got: u64,
    /// Addresses of the executable segments, as far as the file fills them.
    pub executable: Vec<Range<u64>>,
    /// Code in which threads begin.
    pub thread_starts: Vec<Range<u64>>,
    /// Go's functions, where it has some.
    pub go: Option<GoFunctions<'data>>,
}

impl<'data> UnwindSections<'data> {
    /// Finds the sections in a file.
    ///
    /// # Errors
    /// The file is no ELF file of this machine, its headers point outside of it, or what they
    /// describe is larger than the limits of this module.
    pub fn of_elf<B>(file: B) -> Result<UnwindSections<'data>, UnwindError>
    where
        B: ElfBytes<Piece = &'data [u8]>,
    {
        let elf = ElfFile::read(file, LIMITS)?.only_64_bit_little_endian()?;
        if elf.machine() != MACHINE {
            return Err(UnwindError::Machine {
                machine: elf.machine().0,
            });
        }
        let segments = elf.segments()?;
        let executable = executable(&segments, elf.length())?;
        let headers = elf.sections()?;
        let names = elf.section_names(&headers)?;
        let sections = SectionTable { headers, names };
        let address = |name| sections.named(name).map_or(0, |section| section.address);
        let (frames, debug_frames) = frames(&elf, &sections, &segments)?;
        let go = go_sections::functions(&elf, &sections, &segments)?;
        // Go's table has them.
        let thread_starts = match go {
            Some(_) => Vec::new(),
            None => thread_starts::find(&elf, &segments),
        };
        Ok(UnwindSections {
            frames,
            debug_frames,
            text: address(b".text"),
            got: address(b".got"),
            executable,
            thread_starts,
            go,
        })
    }
}

/// Limits for what is read of a file.
const LIMITS: ElfLimits = ElfLimits {
    max_piece_bytes: MAX_SECTION_BYTES as u64,
    ..ElfLimits::PROGRAM
};

fn executable(segments: &[ElfSegment], length: u64) -> Result<Vec<Range<u64>>, UnwindError> {
    let mut executable = Vec::new();
    for segment in segments {
        if segment.kind != PT_LOAD || !segment.flags.contains(PF_X) {
            continue;
        }
        let (offset, size) = (segment.offset, segment.file_size);
        if offset.checked_add(size).is_none_or(|end| end > length) {
            let name = "an executable segment";
            return Err(ElfError::Outside { name, offset, size }.into());
        }
        let start = segment.address;
        match start.checked_add(size) {
            Some(end) if end <= 1 << 48 => executable.push(start..end),
            _ => return Err(UnwindError::Address { address: start }),
        }
    }
    Ok(executable)
}

/// Returns the frame information: `.eh_frame` and `.debug_frame`, or the one that there is.
fn frames<'data, B>(
    elf: &ElfFile<B>,
    sections: &SectionTable<&'data [u8]>,
    segments: &[ElfSegment],
) -> Result<(FrameInfo<'data>, Cow<'data, [u8]>), ElfError>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let eh_frame = match sections.named(b".eh_frame") {
        Some(section) => Some((elf.content(section, ".eh_frame")?, section.address)),
        None => loaded_frames(elf, segments)?,
    };
    // Files of Go may have a section with only the terminator.
    let eh_frame = eh_frame.filter(|(data, _)| data.len() > 4);
    let debug_frame = debug_frame(elf, sections);
    Ok(match (eh_frame, debug_frame) {
        // Without it the functions of `.eh_frame` are known all the same.
        (Some((data, address)), debug) => (
            FrameInfo::Eh { data, address },
            debug.ok().flatten().unwrap_or_default(),
        ),
        (None, debug) => {
            let frames = debug?.map_or(FrameInfo::None, |data| FrameInfo::Debug { data });
            (frames, Cow::default())
        }
    })
}

/// Returns `.debug_frame`, decompressed; `None` if it is compressed in another way than by zlib.
fn debug_frame<'data, B>(
    elf: &ElfFile<B>,
    sections: &SectionTable<&'data [u8]>,
) -> Result<Option<Cow<'data, [u8]>>, ElfError>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let name = ".debug_frame";
    let Some(section) = sections.named(name.as_bytes()) else {
        return Ok(None);
    };
    let content = elf.content(section, name)?;
    Ok(match elf.compressed(section, content)? {
        Some(compressed) => elf.inflated(compressed, name)?.map(Cow::Owned),
        None => Some(Cow::Borrowed(content)),
    })
}

/// Returns `.eh_frame` and its address as the program itself finds it: the header in
/// `PT_GNU_EH_FRAME` has the address; it ends with its terminator, before its segment ends.
fn loaded_frames<'data, B>(
    elf: &ElfFile<B>,
    segments: &[ElfSegment],
) -> Result<Option<(&'data [u8], u64)>, ElfError>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let is_header = |segment: &&ElfSegment| segment.kind == PT_GNU_EH_FRAME;
    let Some(segment) = segments.iter().find(is_header) else {
        return Ok(None);
    };
    let problem = |problem: &str| ElfError::headers("frame", problem);
    let header_size = segment.file_size.min(FRAME_HEADER_BYTES);
    let header = elf.piece(".eh_frame_hdr", segment.offset, header_size)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(segment.address);
    let header = EhFrameHdr::new(header, LittleEndian)
        .parse(&bases, ADDRESS_SIZE)
        .map_err(|error| ElfError::headers("frame", error))?;
    let Pointer::Direct(address) = header.eh_frame_ptr() else {
        return Err(problem("the address of .eh_frame is in memory"));
    };
    let (offset, size) = segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .find_map(|segment| {
            let before = address.checked_sub(segment.address)?;
            let offset = segment.offset.checked_add(before)?;
            Some((offset, segment.file_size.checked_sub(before)?))
        })
        .ok_or_else(|| problem("the address of .eh_frame is in no segment"))?;
    let data = elf.piece(".eh_frame", offset, size.min(MAX_SECTION_BYTES as u64))?;
    Ok(Some((cfi_entries::up_to_terminator(data), address)))
}
