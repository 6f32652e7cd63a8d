//! What is needed of an ELF file: its frame information, and which addresses are code.
//!
//! Only program headers and section headers are read, so that a file with a broken symbol table still has its
//! stacks. A file without section headers (`sstrip`) has no frame information here, though `PT_GNU_EH_FRAME` would
//! lead to it: such files are rare, and their stacks are guessed from frame pointers.

use std::ops::Range;

use object::Endianness;
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, FileHeader64, PF_X, PT_LOAD, SHF_COMPRESSED, SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::{MAX_PAGES, MAX_ROWS, MAX_SECTION, x86_64};

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
        /// `file`, `program` or `section`.
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
        size: usize,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        /// The section.
        data: &'data [u8],
    },
    /// Nowhere; or only compressed, which is not read.
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
}

type Section = SectionHeader64<Endianness>;
const LITTLE: Endianness = Endianness::Little;

impl<'data> Sections<'data> {
    /// Finds them.
    ///
    /// # Errors
    /// The file is no ELF file of this machine, or its headers point outside of it.
    pub fn of_elf(file: &'data [u8]) -> Result<Sections<'data>, Error> {
        let header = header(file)?;
        let segments = header
            .program_headers(LITTLE, file)
            .map_err(|error| damaged("program", error))?;
        let mut executable = Vec::new();
        for segment in segments {
            if segment.p_type(LITTLE) != PT_LOAD || !segment.p_flags(LITTLE).contains(PF_X) {
                continue;
            }
            let (offset, size) = segment.file_range(LITTLE);
            if offset
                .checked_add(size)
                .is_none_or(|end| end > file.len() as u64)
            {
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
        let named = Named::of(header, file)?;
        let address = |name| named.get(name).map_or(0, |section| section.sh_addr(LITTLE));
        Ok(Sections {
            frames: frames(&named, file)?,
            text: address(".text"),
            got: address(".got"),
            executable,
        })
    }
}

/// The sections and their names. Names are compared in place: to cut them out first would cost the square of
/// the file's size where many sections share one endless name.
struct Named<'data> {
    headers: &'data [Section],
    names: &'data [u8],
}

impl<'data> Named<'data> {
    fn of(header: &FileHeader64<Endianness>, file: &'data [u8]) -> Result<Named<'data>, Error> {
        let headers = header
            .section_headers(LITTLE, file)
            .map_err(|error| damaged("section", error))?;
        let strings = header
            .section_strings_index(LITTLE, file)
            .ok()
            .and_then(|index| headers.get(index.0));
        let names = strings.map_or(Ok(&[][..]), |section| data(section, ".shstrtab", file))?;
        Ok(Named { headers, names })
    }

    fn get(&self, name: &str) -> Option<&'data Section> {
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

fn header(file: &[u8]) -> Result<&FileHeader64<Endianness>, Error> {
    if file.get(..4) != Some(&ELFMAG) {
        return Err(Error::NotElf);
    }
    match (file.get(4), file.get(5)) {
        (Some(&class), _) if class != ELFCLASS64.0 => return Err(Error::Class { class }),
        (_, Some(&order)) if order != ELFDATA2LSB.0 => return Err(Error::ByteOrder { order }),
        _ => {}
    }
    let header = FileHeader64::<Endianness>::parse(file).map_err(|error| damaged("file", error))?;
    match header.e_machine(LITTLE) {
        x86_64::MACHINE => Ok(header),
        machine => Err(Error::Machine { machine: machine.0 }),
    }
}

fn frames<'data>(sections: &Named<'data>, file: &'data [u8]) -> Result<Frames<'data>, Error> {
    if let Some(eh_frame) = sections.get(".eh_frame") {
        let data = data(eh_frame, ".eh_frame", file)?;
        // Only its terminator, in objects whose functions are all described elsewhere (Go).
        if data.len() > 4 {
            return Ok(Frames::Eh {
                data,
                address: eh_frame.sh_addr(LITTLE),
            });
        }
    }
    match sections.get(".debug_frame") {
        Some(debug_frame) if !debug_frame.sh_flags(LITTLE).contains(SHF_COMPRESSED) => {
            Ok(Frames::Debug {
                data: data(debug_frame, ".debug_frame", file)?,
            })
        }
        _ => Ok(Frames::None),
    }
}

fn data<'data>(
    section: &Section,
    name: &'static str,
    file: &'data [u8],
) -> Result<&'data [u8], Error> {
    let data = section.data(LITTLE, file).map_err(|_| Error::Outside {
        name,
        offset: section.sh_offset(LITTLE),
        size: section.sh_size(LITTLE),
    })?;
    if data.len() > MAX_SECTION {
        return Err(Error::SectionTooLarge {
            name,
            size: data.len(),
        });
    }
    Ok(data)
}

fn damaged(headers: &'static str, error: object::read::Error) -> Error {
    Error::Headers {
        headers,
        problem: error.to_string(),
    }
}
