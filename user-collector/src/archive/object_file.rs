//! The parts of an ELF file that archiving needs: header, sections with their names, code.

use std::fs::File;

use object::LittleEndian;
use object::elf::{FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHN_LORESERVE, SHT_NOBITS};
use object::pod::from_bytes;

use kcollect_elf::{ElfError, ElfFile, ElfLimits, ElfSection, SectionTable};

/// Max functions of a file. The largest programs have a million.
pub(super) const MAX_FUNCTIONS: usize = 4 << 20;

/// The header of the file.
pub(super) type RawHeader = FileHeader64<LittleEndian>;

/// Number of sections that are added to a file's own.
const ADDED_SECTIONS: u16 = 3;

/// Limits for what is read of a file. No linker makes files with more sections than the header can
/// count. A sparse file, which costs its owner nothing, may claim tables up to its own size.
const LIMITS: ElfLimits = ElfLimits {
    max_sections: (SHN_LORESERVE - ADDED_SECTIONS) as u32 - 1,
    max_piece_bytes: 256 << 20,
    ..ElfLimits::PROGRAM
};

/// A 64-bit little-endian file with sections.
pub(super) struct ObjectFile<'file> {
    pub(super) elf: ElfFile<&'file File>,
    pub(super) header: RawHeader,
    pub(super) sections: SectionTable<Vec<u8>>,
}

/// A section of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeSection {
    /// The section's index, from 1. Files with more sections than fit in the header are refused.
    pub(super) index: u16,
    /// First address.
    pub(super) address: u64,
    /// First address after it.
    pub(super) end: u64,
    /// Offset in the file, bytes.
    pub(super) offset: u64,
}

impl<'file> ObjectFile<'file> {
    /// Reads the headers of a file of this length.
    pub(super) fn read(file: &'file File, length: u64) -> Result<ObjectFile<'file>, ElfError> {
        let elf = ElfFile::read_up_to(file, length, LIMITS)?.only_64_bit_little_endian()?;
        let header = elf.piece("the header", 0, size_of::<RawHeader>() as u64)?;
        let (header, _) = from_bytes::<RawHeader>(&header).map_err(|()| ElfError::NotElf)?;
        let sections = elf.section_table()?;
        if sections.headers.is_empty() {
            return Err(ElfError::NoSections);
        }
        Ok(ObjectFile {
            elf,
            header: *header,
            sections,
        })
    }

    /// Returns the content of a section; empty for one without content and for a compressed one.
    pub(super) fn data(&self, section: &ElfSection) -> Result<Vec<u8>, ElfError> {
        self.elf.plain_content(section, "a section")
    }

    /// Returns the sections of code that are inside the file, by address. Of two that overlap only
    /// the first is returned.
    pub(super) fn code(&self) -> Vec<CodeSection> {
        let mut code: Vec<CodeSection> = (0..)
            .zip(&self.sections.headers)
            .filter(|(_, section)| {
                section.flags.contains(SHF_ALLOC)
                    && section.flags.contains(SHF_EXECINSTR)
                    && section.kind != SHT_NOBITS
            })
            .filter_map(|(index, section)| {
                let inside = section.offset.checked_add(section.size)? <= self.elf.length();
                let end = section.address.checked_add(section.size)?;
                (inside && section.size > 0).then_some(CodeSection {
                    index,
                    address: section.address,
                    end,
                    offset: section.offset,
                })
            })
            .collect();
        code.sort_by_key(|code| (code.address, code.index));
        let mut after = 0;
        code.retain(|code| {
            let apart = code.address >= after;
            after = after.max(code.end);
            apart
        });
        code
    }
}
