//! Reads pieces of ELF files: sections by name, decompressed, and code by its position.
//!
//! [`ElfFile`] reads it, of either class and byte order, and refuses what the headers only claim.
//! Nothing is mapped. A file's owner can shorten it while it is read, and a mapping would turn that
//! into SIGBUS, which Rust code cannot handle as an error. The cost is a copy in memory, of the
//! requested sections only: about 30 ms for 100 MB that are in the page cache.
//!
//! What is refused here beyond that: a decompressed section is compared with what any compressor
//! makes of debug information, and all sections of an object with one [`SectionBudget`].

use std::fs::File;

use kcollect_elf::{
    AllocatedBytes, ElfError, ElfFile, ElfLimits, ElfSection, ElfSymbol, SectionTable, SymbolTable,
    is_name_at,
};
use object::elf::{
    ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, Machine, SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_SYMTAB,
    SectionType,
};
use object::{CompressedData, CompressionFormat, Endian};

/// Maximum bytes of one object's sections that are in memory at a time. Debian's vmlinux needs 0.5
/// GiB.
const MAX_SECTION_BYTES: u64 = 1 << 30;
/// The maximum factor by which a section of debug information grows: zlib and zstd make it 3 to 8
/// times smaller.
const MAX_COMPRESSION_RATIO: u64 = 64;

/// Why a file, or a section of it, can't be used: the end of a sentence that begins with the
/// object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Damaged(pub(super) &'static str);

const TOO_LARGE: Damaged = Damaged("has more than 1 GiB of debug information");
const BAD_COMPRESSION: Damaged = Damaged("has a damaged compressed section");
pub(super) const HOLE: Damaged = Damaged("has a section that is nearly all hole");

/// The bytes of sections that may still be read.
#[derive(Debug)]
pub(super) struct SectionBudget(u64);

impl SectionBudget {
    /// Returns the budget for the sections of one object.
    pub(super) fn new() -> SectionBudget {
        SectionBudget(MAX_SECTION_BYTES)
    }

    /// Returns a smaller budget, of `most` bytes.
    pub(super) fn of(most: Option<u64>) -> SectionBudget {
        SectionBudget(most.map_or(MAX_SECTION_BYTES, |most| most.min(MAX_SECTION_BYTES)))
    }

    fn take(&mut self, bytes: u64) -> Result<(), Damaged> {
        self.0 = self.0.checked_sub(bytes).ok_or(TOO_LARGE)?;
        Ok(())
    }
}

/// The headers of an ELF file of either class and byte order.
#[derive(Debug)]
pub(super) struct Elf {
    file: ElfFile<File>,
    sections: SectionTable<Vec<u8>>,
}

impl Elf {
    pub(super) fn read(file: File) -> Result<Elf, Damaged> {
        let metadata = file.metadata().map_err(|_| Damaged("cannot be read"))?;
        if !metadata.is_file() {
            return Err(Damaged("is no regular file"));
        }
        let limits = ElfLimits {
            // A piece may be as large as all sections together: `SectionBudget` has the sum.
            max_piece_bytes: MAX_SECTION_BYTES,
            allocated: AllocatedBytes::of(&metadata),
            ..ElfLimits::PROGRAM
        };
        let file = ElfFile::read(file, limits).map_err(|_| Damaged("is no ELF file"))?;
        let sections = file
            .section_table()
            .map_err(|_| Damaged("has section headers that are not understood"))?;
        Ok(Elf { file, sections })
    }

    /// Returns the file.
    pub(super) fn file(&self) -> &File {
        self.file.bytes()
    }

    /// Returns the processor that the file is for.
    pub(super) fn machine(&self) -> Machine {
        self.file.machine()
    }

    /// Returns 64 or 32.
    pub(super) fn bits(&self) -> u32 {
        if self.file.is_64_bit() { 64 } else { 32 }
    }

    /// Returns whether the file was written from a list of symbols, as the kernel's are. Such a
    /// file is not loaded, and has no segments.
    pub(super) fn is_synthetic(&self) -> bool {
        (self.file.segments()).is_ok_and(|segments| segments.is_empty())
    }

    /// Returns whether it has line tables, of any format.
    pub(super) fn has_lines(&self) -> bool {
        let has = |name: &[u8]| {
            let found = self.sections.named(name);
            found.is_some_and(|found| found.size > 0 && found.kind != SHT_NOBITS)
        };
        has(b".debug_line") || has(b".zdebug_line")
    }

    /// Returns the address of a position in the code, from the section's address as in gprofng.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let section = self.code_at(offset)?;
        section.address.checked_add(offset - section.offset)
    }

    /// Returns the address at which the section of code with this position begins.
    pub(super) fn section_begin(&self, offset: u64) -> Option<u64> {
        self.code_at(offset).map(|section| section.address)
    }

    /// Returns the position in the file of an address of code.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        let section = self.code_section(|section| (section.address, address))?;
        section.offset.checked_add(address - section.address)
    }

    /// Returns up to `size` bytes of code at a position, fewer where its section ends. None: the
    /// file has no instructions there.
    pub(super) fn code(&self, offset: u64, size: u64) -> Result<Option<Vec<u8>>, Damaged> {
        let Some(section) = self.code_at(offset).filter(|code| code.kind != SHT_NOBITS) else {
            return Ok(None);
        };
        let size = size.min(section.size - (offset - section.offset));
        let code = self.file.piece("code", offset, size);
        code.map(Some).map_err(|error| self.damaged(&error))
    }

    fn code_at(&self, offset: u64) -> Option<&ElfSection> {
        self.code_section(|section| (section.offset, offset))
    }

    /// Returns the first section of code that has a place, by the section's begin and that place.
    fn code_section(&self, places: impl Fn(&ElfSection) -> (u64, u64)) -> Option<&ElfSection> {
        self.sections.headers.iter().find(|section| {
            let code = |flag| section.flags.contains(flag);
            let (begin, place) = places(section);
            let into = place.checked_sub(begin);
            code(SHF_ALLOC) && code(SHF_EXECINSTR) && into.is_some_and(|into| into < section.size)
        })
    }

    /// Returns the content of a section, decompressed; empty if the section is missing. `.debug_x`
    /// is also found as `.zdebug_x`, the name of compressed sections before they had a flag.
    pub(super) fn section(
        &self,
        name: &str,
        budget: &mut SectionBudget,
    ) -> Result<Vec<u8>, Damaged> {
        if let Some(found) = self.sections.named(name.as_bytes()) {
            let bytes = self.raw(found, budget)?;
            let compressed = self.file.compressed(found, &bytes);
            let Some(compressed) = compressed.map_err(|_| BAD_COMPRESSION)? else {
                return Ok(bytes);
            };
            let format = match compressed.format {
                ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                _ => return Err(Damaged("has sections compressed in an unknown way")),
            };
            return decompress(
                format,
                compressed.uncompressed_bytes,
                compressed.data,
                budget,
            );
        }
        let old = name.replacen(".debug", ".zdebug", 1);
        let Some(found) = self.sections.named(old.as_bytes()) else {
            return Ok(Vec::new());
        };
        // "ZLIB", and the size in eight bytes, the most significant first.
        let bytes = self.raw(found, budget)?;
        let (head, content) = bytes.split_at_checked(12).ok_or(BAD_COMPRESSION)?;
        match head.split_first_chunk::<4>() {
            Some((b"ZLIB", size)) => {
                let size = size
                    .iter()
                    .fold(0, |size, byte| size << 8 | u64::from(*byte));
                decompress(CompressionFormat::Zlib, size, content, budget)
            }
            _ => Ok(bytes),
        }
    }

    pub(super) fn raw(
        &self,
        section: &ElfSection,
        budget: &mut SectionBudget,
    ) -> Result<Vec<u8>, Damaged> {
        self.take_budget(section, budget)?;
        let content = self.file.content(section, "a section");
        content.map_err(|error| self.damaged(&error))
    }

    /// Takes the size of a section from the budget. It is compared with the file first, so that
    /// what is only claimed takes nothing.
    fn take_budget(&self, section: &ElfSection, budget: &mut SectionBudget) -> Result<(), Damaged> {
        let Some((offset, size)) = section.file_range() else {
            return Ok(());
        };
        let inside = self.file.inside("a section", offset, size);
        inside.map_err(|error| self.damaged(&error))?;
        budget.take(size)
    }

    /// Returns the symbol table of a kind.
    pub(super) fn symbol_table(&self, kind: SectionType) -> Option<SymbolTable<'_>> {
        self.sections.symbol_table(kind)
    }

    /// Calls `take` with each symbol of a table. Their size is taken from the budget, since about
    /// as much is kept of them.
    pub(super) fn each_symbol(
        &self,
        table: SymbolTable<'_>,
        budget: &mut SectionBudget,
        take: impl FnMut(ElfSymbol),
    ) -> Result<(), Damaged> {
        self.take_budget(table.symbols, budget)?;
        let read = self.file.each_symbol(table.symbols, take);
        read.map_err(|error| self.damaged(&error))
    }

    /// Returns the headers of the sections.
    pub(super) fn headers(&self) -> &[ElfSection] {
        &self.sections.headers
    }

    /// Returns the address of the symbol of this name, in a 64-bit file.
    pub(super) fn symbol(&self, name: &[u8], budget: &mut SectionBudget) -> Option<u64> {
        let table = self.symbol_table(SHT_SYMTAB)?;
        if !self.file.is_64_bit() {
            return None;
        }
        let names = self.raw(table.names, budget).ok()?;
        let mut found = None;
        let read = self.each_symbol(table, budget, |symbol| {
            if found.is_none() && is_name_at(&names, symbol.name, name) {
                found = Some(symbol.address);
            }
        });
        read.ok().and(found)
    }

    /// Returns the path and the build id in `.gnu_debugaltlink`.
    pub(super) fn alternative(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut budget = SectionBudget(4096 + 64);
        let bytes = self.section(".gnu_debugaltlink", &mut budget).ok()?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let (path, id) = (bytes.get(..end)?, bytes.get(end + 1..)?);
        (!path.is_empty() && !id.is_empty()).then(|| (path.to_vec(), id.to_vec()))
    }

    /// Returns the byte order as gimli names it.
    pub(super) fn gimli_endian(&self) -> gimli::RunTimeEndian {
        if self.file.endian().is_little_endian() {
            gimli::RunTimeEndian::Little
        } else {
            gimli::RunTimeEndian::Big
        }
    }

    /// Returns why a piece could not be read.
    fn damaged(&self, error: &ElfError) -> Damaged {
        let length = self.file.length();
        match error {
            ElfError::TooLarge { .. } => TOO_LARGE,
            ElfError::Hole { .. } => HOLE,
            ElfError::Outside { offset, size, .. }
                if offset.checked_add(*size).is_some_and(|end| end <= length) =>
            {
                Damaged("was shortened, or cannot be read")
            }
            _ => Damaged("has sections beyond its end"),
        }
    }
}

fn decompress(
    format: CompressionFormat,
    size: u64,
    data: &[u8],
    budget: &mut SectionBudget,
) -> Result<Vec<u8>, Damaged> {
    if size / MAX_COMPRESSION_RATIO > data.len() as u64 {
        return Err(BAD_COMPRESSION);
    }
    budget.take(size)?;
    let data = CompressedData {
        format,
        data,
        uncompressed_size: size,
    };
    data.decompress()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| BAD_COMPRESSION)
}
