//! What is needed of an ELF file: its frame information, and which addresses are code.
//!
//! Only program headers and section headers are read, so that a file with a broken symbol table
//! still has its stacks. Where no section header names `.eh_frame` (`llvm-objcopy
//! --strip-sections`), `PT_GNU_EH_FRAME` leads to it, as it leads the program itself.
//!
//! The file is whatever gives bytes on demand ([`ReadRef`]): memory, or a file of which only these
//! pieces are read. So each size is compared with its limit before the piece is asked for.

use std::borrow::Cow;
use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status};
use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use object::Endianness;
use object::elf::{
    ELFCLASS64, ELFCOMPRESS_ZLIB, ELFDATA2LSB, ELFMAG, FileHeader64, PF_X, PT_GNU_EH_FRAME,
    PT_LOAD, ProgramHeader64, SectionHeader64,
};
use object::read::ReadRef;
use object::read::elf::{CompressionHeader, FileHeader, ProgramHeader, SectionHeader};

use super::go_sections::{self, GoFunctions};
use super::{MAX_PAGES, MAX_ROWS, MAX_SECTION, frame_info, x86_64};

/// Most program headers: 64 KiB of them, as many as the kernel reads of a program.
const MAX_SEGMENTS: u32 = 65_536 / size_of::<ProgramHeader64<Endianness>>() as u32;

/// Most section headers. Only objects that are not linked yet have more.
const MAX_SECTIONS: u32 = 1 << 16;

/// Of `.eh_frame_hdr`, what is before its search table: four bytes and two numbers of eight.
const FRAME_HEADER: u64 = 20;

/// Why a file has no unwind table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first bytes are not those of an ELF file.
    #[error("not an ELF file")]
    NotElf,

    /// It is not a 64-bit file.
    #[error("ELF class {class}, only 64-bit files (2) are unwound")]
    Class {
        /// `e_ident[EI_CLASS]`.
        class: u8,
    },

    /// It is not little endian.
    #[error("ELF byte order {order}, only little endian (1) is unwound")]
    ByteOrder {
        /// `e_ident[EI_DATA]`.
        order: u8,
    },

    /// It is for another processor.
    #[error("ELF machine {machine}, only x86-64 (62) is unwound")]
    Machine {
        /// `e_machine`.
        machine: u16,
    },

    /// A table of headers is not where the file says.
    #[error("the {headers} headers are damaged: {problem}")]
    Headers {
        /// `file`, `program`, `section`, `frame` or `compression`.
        headers: &'static str,
        /// What the reader of ELF files found.
        problem: String,
    },

    /// A section or segment is not inside the file.
    #[error("{name} at offset {offset:#x} of {size} bytes lies outside the file")]
    Outside {
        /// The section's name, or what the segment is.
        name: &'static str,
        /// Offset in the file.
        offset: u64,
        /// Bytes.
        size: u64,
    },

    /// The frame information is larger than any compiler makes.
    #[error("{name} has {size} bytes, more than {MAX_SECTION}")]
    SectionTooLarge {
        /// The section's name.
        name: &'static str,
        /// Bytes.
        size: u64,
    },

    /// Code at an address that no program can use.
    #[error("code at {address:#x}, beyond 48 bits")]
    Address {
        /// The address in the file.
        address: u64,
    },

    /// The table would be too large.
    #[error("more than {MAX_ROWS} rows")]
    TooManyRows,

    /// The table would be too large.
    #[error("more than {MAX_PAGES} pages of 64 KiB")]
    TooManyPages,
}

/// Where call frame information was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frames<'data> {
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
    /// Nowhere; or only compressed in another way than zlib's.
    None,
}

/// What is needed of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections<'data> {
    /// The frame information.
    pub frames: Frames<'data>,
    /// Address of `.text`, for pointers relative to it; 0 where it is not known.
    pub text: u64,
    /// Address of `.got`, likewise.
    pub got: u64,
    /// Addresses of the executable segments, as far as the file fills them.
    pub executable: Vec<Range<u64>>,
    /// Go's functions, where it has some.
    pub go: Option<GoFunctions<'data>>,
}

type Header = FileHeader64<Endianness>;
pub(super) type Segment = ProgramHeader64<Endianness>;
type Section = SectionHeader64<Endianness>;
pub(crate) const LITTLE: Endianness = Endianness::Little;

impl<'data> Sections<'data> {
    /// Finds them.
    ///
    /// # Errors
    /// The file is no ELF file of this machine, its headers point outside of it, or what they tell
    /// of is larger than the limits of this module.
    pub fn of_elf<R: ReadRef<'data>>(file: R) -> Result<Sections<'data>, Error> {
        let header = header(file)?;
        let segments = segments(header, file)?;
        let executable = executable(segments, file)?;
        let named = Named::of(header, file)?;
        let address = |name| named.get(name).map_or(0, |section| section.sh_addr(LITTLE));
        let frames = frames(&named, segments, file)?;
        let go = go_sections::functions(&named, segments, file)?;
        Ok(Sections {
            frames,
            text: address(".text"),
            got: address(".got"),
            executable,
            go,
        })
    }
}

/// The header of a file of this machine.
fn header<'data, R: ReadRef<'data>>(file: R) -> Result<&'data Header, Error> {
    let ident = file.read_bytes_at(0, 6).map_err(|()| Error::NotElf)?;
    if !ident.starts_with(&ELFMAG) {
        return Err(Error::NotElf);
    }
    match (ident[4], ident[5]) {
        (class, _) if class != ELFCLASS64.0 => return Err(Error::Class { class }),
        (_, order) if order != ELFDATA2LSB.0 => return Err(Error::ByteOrder { order }),
        _ => {}
    }
    let header = Header::parse(file).map_err(|error| damaged("file", error))?;
    match header.e_machine(LITTLE) {
        x86_64::MACHINE => Ok(header),
        machine => Err(Error::Machine { machine: machine.0 }),
    }
}

/// The program headers of a file of this machine.
///
/// # Errors
/// As [`Sections::of_elf`].
pub(crate) fn program_headers<'data, R: ReadRef<'data>>(
    file: R,
) -> Result<&'data [ProgramHeader64<Endianness>], Error> {
    segments(header(file)?, file)
}

fn segments<'data, R: ReadRef<'data>>(header: &Header, file: R) -> Result<&'data [Segment], Error> {
    let count = header.phnum(LITTLE, file);
    few(count, MAX_SEGMENTS)
        .and_then(|()| header.program_headers(LITTLE, file).map_err(text))
        .map_err(|problem| Error::Headers {
            headers: "program",
            problem,
        })
}

fn executable<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    file: R,
) -> Result<Vec<Range<u64>>, Error> {
    let length = file.len().unwrap_or(0);
    let mut executable = Vec::new();
    for segment in segments {
        if segment.p_type(LITTLE) != PT_LOAD || !segment.p_flags(LITTLE).contains(PF_X) {
            continue;
        }
        let (offset, size) = segment.file_range(LITTLE);
        if offset.checked_add(size).is_none_or(|end| end > length) {
            return Err(Error::Outside {
                name: "an executable segment",
                offset,
                size,
            });
        }
        let start = segment.p_vaddr(LITTLE);
        match start.checked_add(size) {
            Some(end) if end <= 1 << 48 => executable.push(start..end),
            _ => return Err(Error::Address { address: start }),
        }
    }
    Ok(executable)
}

/// The sections and their names. Names are compared in place: to cut them out first would cost the
/// square of the file's size where many sections share one endless name.
pub(super) struct Named<'data> {
    pub(super) headers: &'data [Section],
    names: &'data [u8],
}

impl<'data> Named<'data> {
    fn of<R: ReadRef<'data>>(header: &Header, file: R) -> Result<Named<'data>, Error> {
        let count = header.shnum(LITTLE, file);
        let headers = few(count, MAX_SECTIONS)
            .and_then(|()| header.section_headers(LITTLE, file).map_err(text))
            .map_err(|problem| Error::Headers {
                headers: "section",
                problem,
            })?;
        let strings = header
            .section_strings_index(LITTLE, file)
            .ok()
            .and_then(|index| headers.get(index.0));
        let names = strings.map_or(Ok(&[][..]), |section| data(section, ".shstrtab", file))?;
        Ok(Named { headers, names })
    }

    pub(super) fn get(&self, name: &str) -> Option<&'data Section> {
        self.headers.iter().find(|section| {
            let own = self
                .names
                .get(section.sh_name(LITTLE) as usize..)
                .unwrap_or_default();
            own.strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }
}

fn frames<'data, R: ReadRef<'data>>(
    sections: &Named<'data>,
    segments: &[Segment],
    file: R,
) -> Result<Frames<'data>, Error> {
    let eh_frame = match sections.get(".eh_frame") {
        Some(section) => Some((data(section, ".eh_frame", file)?, section.sh_addr(LITTLE))),
        None => loaded_frames(segments, file)?,
    };
    match eh_frame {
        // Only its terminator, in objects whose functions are all described elsewhere (Go).
        Some((data, address)) if data.len() > 4 => return Ok(Frames::Eh { data, address }),
        _ => {}
    }
    let debug_frame = sections.get(".debug_frame");
    let data = debug_frame.map_or(Ok(None), |section| {
        decompressed(section, ".debug_frame", file)
    });
    Ok(data?.map_or(Frames::None, |data| Frames::Debug { data }))
}

/// `.eh_frame` and its address, by the way of the program itself: `PT_GNU_EH_FRAME` is a header
/// that says where it begins; it ends with its terminator, and before its segment does.
fn loaded_frames<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    file: R,
) -> Result<Option<(&'data [u8], u64)>, Error> {
    let is_header = |segment: &&Segment| segment.p_type(LITTLE) == PT_GNU_EH_FRAME;
    let Some(segment) = segments.iter().find(is_header) else {
        return Ok(None);
    };
    let problem = |problem: &str| Error::Headers {
        headers: "frame",
        problem: problem.to_owned(),
    };
    let (offset, size) = segment.file_range(LITTLE);
    let header = piece(file, ".eh_frame_hdr", offset, size.min(FRAME_HEADER))?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(segment.p_vaddr(LITTLE));
    let header = EhFrameHdr::new(header, LittleEndian)
        .parse(&bases, x86_64::ADDRESS_SIZE)
        .map_err(|error| problem(&error.to_string()))?;
    let Pointer::Direct(address) = header.eh_frame_ptr() else {
        return Err(problem("the address of .eh_frame is in memory"));
    };
    let (offset, size) = segments
        .iter()
        .filter(|segment| segment.p_type(LITTLE) == PT_LOAD)
        .find_map(|segment| {
            let (offset, size) = segment.file_range(LITTLE);
            let before = address.checked_sub(segment.p_vaddr(LITTLE))?;
            Some((offset.checked_add(before)?, size.checked_sub(before)?))
        })
        .ok_or_else(|| problem("the address of .eh_frame is in no segment"))?;
    let data = piece(file, ".eh_frame", offset, size.min(MAX_SECTION as u64))?;
    Ok(Some((frame_info::up_to_terminator(data), address)))
}

pub(super) fn data<'data, R: ReadRef<'data>>(
    section: &Section,
    name: &'static str,
    file: R,
) -> Result<&'data [u8], Error> {
    section
        .file_range(LITTLE)
        .map_or(Ok(&[]), |(offset, size)| piece(file, name, offset, size))
}

/// A section that may be compressed; nothing where it is so in a way that is not known.
fn decompressed<'data, R: ReadRef<'data>>(
    section: &Section,
    name: &'static str,
    file: R,
) -> Result<Option<Cow<'data, [u8]>>, Error> {
    let problem = |problem: String| Error::Headers {
        headers: "compression",
        problem,
    };
    let compression = section
        .compression(LITTLE, file)
        .map_err(|error| problem(error.to_string()))?;
    let Some((header, offset, size)) = compression else {
        return data(section, name, file).map(|data| Some(data.into()));
    };
    if header.ch_type(LITTLE) != ELFCOMPRESS_ZLIB {
        return Ok(None);
    }
    let length = header.ch_size(LITTLE);
    let mut data = Vec::with_capacity(bounded(name, length)?);
    let compressed = piece(file, name, offset, size)?;
    // Never makes the vector larger than it is.
    let end = Decompress::new(true)
        .decompress_vec(compressed, &mut data, FlushDecompress::Finish)
        .map_err(|error| problem(error.to_string()))?;
    if end != Status::StreamEnd || data.len() as u64 != length {
        return Err(problem(format!("it does not have {length} bytes")));
    }
    Ok(Some(data.into()))
}

/// A piece of the file that is no larger than a section may be.
pub(super) fn piece<'data, R: ReadRef<'data>>(
    file: R,
    name: &'static str,
    offset: u64,
    size: u64,
) -> Result<&'data [u8], Error> {
    bounded(name, size)?;
    file.read_bytes_at(offset, size)
        .map_err(|()| Error::Outside { name, offset, size })
}

fn bounded(name: &'static str, size: u64) -> Result<usize, Error> {
    usize::try_from(size)
        .ok()
        .filter(|&size| size <= MAX_SECTION)
        .ok_or(Error::SectionTooLarge { name, size })
}

/// So many headers are still few.
fn few(count: object::read::Result<u32>, most: u32) -> Result<(), String> {
    match count {
        Ok(count) if count <= most => Ok(()),
        Ok(count) => Err(format!("{count}, more than {most}")),
        Err(error) => Err(text(error)),
    }
}

fn text(error: object::read::Error) -> String {
    error.to_string()
}

fn damaged(headers: &'static str, error: object::read::Error) -> Error {
    Error::Headers {
        headers,
        problem: error.to_string(),
    }
}
