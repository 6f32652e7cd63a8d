//! The ELF reader: headers, symbols, and pieces of the file by their position, each within a limit.
//!
//! An ELF file belongs to any user, and its owner can change or shorten it while it is read. So no
//! file is mapped into memory, every size is compared with its limit and with the file before the
//! piece is read, and what the headers claim is never allocated on trust. Both classes and both
//! byte orders are read into the same structures.
//!
//! A file is read from memory, from a [`ReadCache`](object::ReadCache) (each piece stays in memory
//! until the cache is cleared), or from a [`File`](std::fs::File) (each piece is a copy): see
//! [`ElfBytes`].
//!
//! [`debug_file`] finds the separate debug file of a program, and [`open`] opens files whose owner
//! may be hostile.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use kcollect_elf::{ElfFile, ElfLimits};
//!
//! let file = std::fs::File::open(std::env::current_exe()?)?;
//! let elf = ElfFile::read(&file, ElfLimits::PROGRAM)?;
//! let sections = elf.section_table()?;
//! if let Some(text) = sections.named(b".text") {
//!     println!("{} bytes of code", elf.content(text, ".text")?.len());
//! }
//! # Ok(())
//! # }
//! ```

mod build_id;
mod bytes;
mod compression;
pub mod debug_file;
mod hole;
mod load_segment;
pub mod open;
mod sections;
mod symbols;

use object::Endianness;
use object::elf::{
    ELFCLASS32, ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, FileHeader32, FileHeader64, FileType,
    Machine, PN_XNUM, ProgramFlags, ProgramHeader64, ProgramType, SHF_COMPRESSED, SHN_XINDEX,
    SectionFlags, SectionType,
};
use object::pod::{Pod, from_bytes, slice_from_bytes};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

pub use build_id::{MAX_BUILD_ID_BYTES, build_id, section_build_id};
pub use bytes::{ElfBytes, ElfSource};
pub use compression::CompressedSection;
pub use hole::AllocatedBytes;
pub use load_segment::{LoadSegment, load_segments};
pub use sections::SectionTable;
pub use symbols::{ElfSymbol, SymbolTable, is_name_at, name_at};

/// Size of the largest file header, bytes.
const MAX_HEADER_BYTES: u64 = size_of::<FileHeader64<Endianness>>() as u64;
/// Largest table of section names, bytes.
const MAX_SECTION_NAMES_BYTES: u64 = 4 << 20;

/// The reason why an ELF file, or a part of it, is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// The file does not begin as an ELF file.
    #[error("not an ELF file")]
    NotElf,

    /// The class is neither 32-bit nor 64-bit, or not the one that is needed.
    #[error("ELF class {class}, only 64-bit files (2) are read")]
    Class {
        /// `e_ident[EI_CLASS]`.
        class: u8,
    },

    /// The byte order is neither of the two, or not the one that is needed.
    #[error("ELF byte order {order}, only little endian (1) is read")]
    ByteOrder {
        /// `e_ident[EI_DATA]`.
        order: u8,
    },

    /// A table of headers is damaged.
    #[error("the {headers} headers are damaged: {problem}")]
    Headers {
        /// `file`, `program`, `section`, `frame` or `compression`.
        headers: &'static str,
        /// The damage.
        problem: String,
    },

    /// There are no sections, which are needed.
    #[error("no section headers")]
    NoSections,

    /// A piece lies outside the file, or the file was shortened.
    #[error("{name} at offset {offset:#x} of {size} bytes lies outside the file")]
    Outside {
        /// The name of the section or of the piece.
        name: &'static str,
        /// Offset in the file.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    },

    /// A piece is far larger than what the file takes on its disk.
    #[error("{name} of {size} bytes is nearly all hole")]
    Hole {
        /// The name of the section or of the piece.
        name: &'static str,
        /// Its size in bytes.
        size: u64,
    },

    /// A piece is larger than the limit.
    #[error("{name} has {size} bytes, more than {limit}")]
    TooLarge {
        /// The name of the section or of the piece.
        name: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The most bytes that are read.
        limit: u64,
    },
}

impl ElfError {
    /// Returns the error of a damaged table of headers.
    #[must_use]
    pub fn headers(headers: &'static str, problem: impl ToString) -> ElfError {
        ElfError::Headers {
            headers,
            problem: problem.to_string(),
        }
    }
}

/// Limits of what is read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfLimits {
    /// Most program headers.
    pub max_segments: u32,
    /// Most section headers.
    pub max_sections: u32,
    /// Largest piece, bytes: a section, a segment, a table.
    pub max_piece_bytes: u64,
    /// The bytes that the file takes on its disk, by which holes are refused.
    pub allocated: AllocatedBytes,
}

impl ElfLimits {
    /// The limits that every linked program is within: 64 KiB of program headers, as many as the
    /// kernel reads; 65,536 sections, more than any but objects that are not linked yet have;
    /// pieces of 64 MiB.
    pub const PROGRAM: ElfLimits = ElfLimits {
        max_segments: 65_536 / size_of::<ProgramHeader64<Endianness>>() as u32,
        max_sections: 1 << 16,
        max_piece_bytes: 64 << 20,
        allocated: AllocatedBytes::UNKNOWN,
    };
}

/// A program header of either class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSegment {
    /// `PT_LOAD`, `PT_NOTE`, ….
    pub kind: ProgramType,
    /// Readable, writable, executable.
    pub flags: ProgramFlags,
    /// Offset in the file.
    pub offset: u64,
    /// Address for which the file is linked.
    pub address: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Bytes in memory.
    pub memory_size: u64,
    /// Alignment, bytes.
    pub alignment: u64,
}

/// A section header of either class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSection {
    /// Offset of its name in the table of names.
    pub name: u32,
    /// `SHT_PROGBITS`, `SHT_SYMTAB`, ….
    pub kind: SectionType,
    /// Allocated, executable, compressed, ….
    pub flags: SectionFlags,
    /// Address for which the file is linked.
    pub address: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The number of a section that belongs to it.
    pub link: u32,
    /// More information, by kind.
    pub info: u32,
    /// Alignment, bytes.
    pub alignment: u64,
    /// Bytes of an entry, of sections that are tables.
    pub entry_size: u64,
}

/// The position of a table of headers.
#[derive(Clone, Copy, Debug)]
struct HeaderTable {
    offset: u64,
    count: u16,
    entry_size: u16,
}

/// An ELF file whose header is read.
#[derive(Clone, Copy, Debug)]
pub struct ElfFile<B> {
    bytes: B,
    length: u64,
    limits: ElfLimits,
    wide: bool,
    endian: Endianness,
    machine: Machine,
    kind: FileType,
    entry: u64,
    segments: HeaderTable,
    sections: HeaderTable,
    names_index: u16,
}

impl<B: ElfBytes> ElfFile<B> {
    /// Reads the header of a file of either class and byte order.
    ///
    /// # Errors
    /// It is no ELF file.
    pub fn read(bytes: B, limits: ElfLimits) -> Result<ElfFile<B>, ElfError> {
        let length = bytes.length();
        ElfFile::read_up_to(bytes, length, limits)
    }

    /// Reads the header of a file, of which only the first `length` bytes count.
    ///
    /// # Errors
    /// As [`ElfFile::read`].
    pub fn read_up_to(bytes: B, length: u64, limits: ElfLimits) -> Result<ElfFile<B>, ElfError> {
        let size = length.min(MAX_HEADER_BYTES) as usize;
        let header = bytes.read(0, size).ok_or(ElfError::NotElf)?;
        let Some(&[m0, m1, m2, m3, class, order]) = header.first_chunk() else {
            return Err(ElfError::NotElf);
        };
        if [m0, m1, m2, m3] != ELFMAG {
            return Err(ElfError::NotElf);
        }
        let endian = match order {
            order if order == ELFDATA2LSB.0 => Endianness::Little,
            order if order == ELFDATA2MSB.0 => Endianness::Big,
            order => return Err(ElfError::ByteOrder { order }),
        };
        let file = (bytes, length, limits);
        match class {
            class if class == ELFCLASS64.0 => {
                ElfFile::of_class::<FileHeader64<Endianness>>(file, endian, &header)
            }
            class if class == ELFCLASS32.0 => {
                ElfFile::of_class::<FileHeader32<Endianness>>(file, endian, &header)
            }
            class => Err(ElfError::Class { class }),
        }
    }

    /// Returns the file if it is 64-bit and little endian.
    ///
    /// # Errors
    /// It is of another class or byte order.
    pub fn only_64_bit_little_endian(self) -> Result<ElfFile<B>, ElfError> {
        match (self.wide, self.endian) {
            (false, _) => Err(ElfError::Class {
                class: ELFCLASS32.0,
            }),
            (true, Endianness::Big) => Err(ElfError::ByteOrder {
                order: ELFDATA2MSB.0,
            }),
            (true, Endianness::Little) => Ok(self),
        }
    }

    fn of_class<H>(
        (bytes, length, limits): (B, u64, ElfLimits),
        endian: Endianness,
        header: &[u8],
    ) -> Result<ElfFile<B>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let (header, _) = from_bytes::<H>(header)
            .map_err(|()| ElfError::headers("file", "it ends in its header"))?;
        Ok(ElfFile {
            bytes,
            length,
            limits,
            wide: header.is_type_64(),
            endian,
            machine: header.e_machine(endian),
            kind: header.e_type(endian),
            entry: header.e_entry(endian).into(),
            segments: HeaderTable {
                offset: header.e_phoff(endian).into(),
                count: header.e_phnum(endian),
                entry_size: header.e_phentsize(endian),
            },
            sections: HeaderTable {
                offset: header.e_shoff(endian).into(),
                count: header.e_shnum(endian),
                entry_size: header.e_shentsize(endian),
            },
            names_index: header.e_shstrndx(endian).0,
        })
    }

    /// Returns where the file is read from.
    #[must_use]
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Returns whether it is a 64-bit file.
    #[must_use]
    pub fn is_64_bit(&self) -> bool {
        self.wide
    }

    /// Returns the byte order.
    #[must_use]
    pub fn endian(&self) -> Endianness {
        self.endian
    }

    /// Returns the processor that the file is for.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns the kind of file: a program, a library, ….
    #[must_use]
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Returns the address at which the program begins; 0 in most libraries.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Returns the length of the file, bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads the program headers, in the order of the file.
    ///
    /// # Errors
    /// They are damaged, too many or outside the file.
    pub fn segments(&self) -> Result<Vec<ElfSegment>, ElfError> {
        if self.wide {
            self.segments_of_class::<FileHeader64<Endianness>>()
        } else {
            self.segments_of_class::<FileHeader32<Endianness>>()
        }
    }

    /// Reads the section headers, in the order of the file.
    ///
    /// # Errors
    /// They are damaged, too many or outside the file.
    pub fn sections(&self) -> Result<Vec<ElfSection>, ElfError> {
        if self.wide {
            self.sections_of_class::<FileHeader64<Endianness>>()
        } else {
            self.sections_of_class::<FileHeader32<Endianness>>()
        }
    }

    /// Reads the names of the sections; nothing if the file has no sections.
    ///
    /// # Errors
    /// They are too large, or outside the file.
    pub fn section_names(&self, headers: &[ElfSection]) -> Result<B::Piece, ElfError> {
        let index = match self.names_index {
            // With that many sections, the first of them has the number.
            SHN_XINDEX_U16 => headers.first().map_or(0, |first| first.link as usize),
            index => usize::from(index),
        };
        match headers.get(index).filter(|_| index != 0) {
            Some(section) if section.size > MAX_SECTION_NAMES_BYTES => Err(ElfError::TooLarge {
                name: ".shstrtab",
                size: section.size,
                limit: MAX_SECTION_NAMES_BYTES,
            }),
            Some(section) => self.content(section, ".shstrtab"),
            None => Ok(B::Piece::default()),
        }
    }

    /// Reads the content of a section as it is in the file; empty for a section without bits.
    ///
    /// # Errors
    /// It is too large, or outside the file.
    pub fn content(&self, section: &ElfSection, name: &'static str) -> Result<B::Piece, ElfError> {
        match section.file_range() {
            Some((offset, size)) => self.piece(name, offset, size),
            None => Ok(B::Piece::default()),
        }
    }

    /// Reads the content of a section; empty if it is compressed or has no bits.
    ///
    /// # Errors
    /// It is too large, or outside the file.
    pub fn plain_content(
        &self,
        section: &ElfSection,
        name: &'static str,
    ) -> Result<B::Piece, ElfError> {
        match section.plain_range() {
            Some((offset, size)) => self.piece(name, offset, size),
            None => Ok(B::Piece::default()),
        }
    }

    /// Reads a piece of the file.
    ///
    /// # Errors
    /// It is too large, or outside the file.
    pub fn piece(&self, name: &'static str, offset: u64, size: u64) -> Result<B::Piece, ElfError> {
        let size_bytes = self.inside(name, offset, size)?;
        self.bytes
            .read(offset, size_bytes)
            .ok_or(ElfError::Outside { name, offset, size })
    }

    /// Returns the size of a piece that is inside the file, within the limit, and no hole.
    ///
    /// # Errors
    /// It is outside the file, too large, or nearly all hole.
    pub fn inside(&self, name: &'static str, offset: u64, size: u64) -> Result<usize, ElfError> {
        if offset.checked_add(size).is_none_or(|end| end > self.length) {
            return Err(ElfError::Outside { name, offset, size });
        }
        let size_bytes = self.within_limit(name, size)?;
        if self.limits.allocated.is_hole(size) {
            return Err(ElfError::Hole { name, size });
        }
        Ok(size_bytes)
    }

    fn within_limit(&self, name: &'static str, size: u64) -> Result<usize, ElfError> {
        let limit = self.limits.max_piece_bytes;
        usize::try_from(size)
            .ok()
            .filter(|_| size <= limit)
            .ok_or(ElfError::TooLarge { name, size, limit })
    }

    fn segments_of_class<H>(&self) -> Result<Vec<ElfSegment>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let count = match self.segments.count {
            PN_XNUM => {
                let first = self.first_section::<H>("program")?;
                let missing = "their number is in no section header";
                first
                    .ok_or_else(|| ElfError::headers("program", missing))?
                    .info
            }
            count => count.into(),
        };
        let limit = self.limits.max_segments;
        let headers = self.headers::<H::ProgramHeader>("program", self.segments, count, limit)?;
        let headers = pods::<H::ProgramHeader>(&headers);
        let segment = |header: &H::ProgramHeader| ElfSegment {
            kind: header.p_type(self.endian),
            flags: header.p_flags(self.endian),
            offset: header.p_offset(self.endian).into(),
            address: header.p_vaddr(self.endian).into(),
            file_size: header.p_filesz(self.endian).into(),
            memory_size: header.p_memsz(self.endian).into(),
            alignment: header.p_align(self.endian).into(),
        };
        Ok(headers.iter().map(segment).collect())
    }

    fn sections_of_class<H>(&self) -> Result<Vec<ElfSection>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let count = match self.sections.count {
            0 => self
                .first_section::<H>("section")?
                .map_or(0, |first| first.size),
            count => count.into(),
        };
        let count = u32::try_from(count)
            .map_err(|_| ElfError::headers("section", format!("{count} of them")))?;
        let limit = self.limits.max_sections;
        let headers = self.headers::<H::SectionHeader>("section", self.sections, count, limit)?;
        let headers = pods::<H::SectionHeader>(&headers);
        Ok(headers
            .iter()
            .map(|header| ElfSection::of::<H>(header, self.endian))
            .collect())
    }

    /// The first section header, which has the numbers that do not fit into the file header.
    fn first_section<H>(&self, name: &'static str) -> Result<Option<ElfSection>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let headers = self.headers::<H::SectionHeader>(name, self.sections, 1, 1)?;
        let first = pods::<H::SectionHeader>(&headers).first();
        Ok(first.map(|header| ElfSection::of::<H>(header, self.endian)))
    }

    /// The bytes of a table of headers; empty if there is no table.
    fn headers<T: Pod>(
        &self,
        name: &'static str,
        table: HeaderTable,
        count: u32,
        limit: u32,
    ) -> Result<B::Piece, ElfError> {
        if table.offset == 0 || count == 0 {
            return Ok(B::Piece::default());
        }
        if count > limit {
            let problem = format!("{count}, more than {limit}");
            return Err(ElfError::headers(name, problem));
        }
        if usize::from(table.entry_size) != size_of::<T>() {
            let problem = format!("each has {} bytes", table.entry_size);
            return Err(ElfError::headers(name, problem));
        }
        let size = u64::from(count) * size_of::<T>() as u64;
        self.piece("the table", table.offset, size)
            .map_err(|error| ElfError::headers(name, error))
    }
}

/// `SHN_XINDEX` as the header has it.
const SHN_XINDEX_U16: u16 = SHN_XINDEX.0;

impl ElfSection {
    fn of<H>(header: &H::SectionHeader, endian: Endianness) -> ElfSection
    where
        H: FileHeader<Endian = Endianness>,
    {
        ElfSection {
            name: header.sh_name(endian),
            kind: header.sh_type(endian),
            flags: header.sh_flags(endian),
            address: header.sh_addr(endian).into(),
            offset: header.sh_offset(endian).into(),
            size: header.sh_size(endian).into(),
            link: header.sh_link(endian),
            info: header.sh_info(endian),
            alignment: header.sh_addralign(endian).into(),
            entry_size: header.sh_entsize(endian).into(),
        }
    }

    /// Offset and size of its content; None if it has no bits.
    #[must_use]
    pub fn file_range(&self) -> Option<(u64, u64)> {
        (self.kind != object::elf::SHT_NOBITS).then_some((self.offset, self.size))
    }

    /// Offset and size of its content; None if it has no bits or is compressed.
    fn plain_range(&self) -> Option<(u64, u64)> {
        let compressed = self.flags.contains(SHF_COMPRESSED);
        self.file_range().filter(|_| !compressed)
    }
}

/// Returns as many structures as the bytes hold.
fn pods<T: Pod>(bytes: &[u8]) -> &[T] {
    slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[], |(structures, _)| structures)
}
