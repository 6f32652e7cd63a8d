//! Sections by name and kind, and the entries of those that are tables.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::SectionType;
use object::pod::Pod;

use super::{ElfBytes, ElfError, ElfFile, ElfSection, SymbolTable, is_name_at, pods};

/// The number of entries of a table that are read at once.
const ENTRIES_PER_READ: usize = 4096;

/// The section headers of a file with their names.
#[derive(Clone, Debug, Default)]
pub struct SectionTable<P> {
    /// The headers, in the order of the file.
    pub headers: Vec<ElfSection>,
    /// Their names, each up to a NUL.
    pub names: P,
}

impl<P: std::ops::Deref<Target = [u8]>> SectionTable<P> {
    /// Returns the first section of this name.
    #[must_use]
    pub fn named(&self, name: &[u8]) -> Option<&ElfSection> {
        let mut headers = self.headers.iter();
        headers.find(|section| is_name_at(&self.names, section.name, name))
    }

    /// Returns the first section of a kind.
    #[must_use]
    pub fn of_kind(&self, kind: SectionType) -> Option<&ElfSection> {
        self.headers.iter().find(|section| section.kind == kind)
    }

    /// Returns whether the section's name begins with `with`.
    #[must_use]
    pub fn name_begins(&self, section: &ElfSection, with: &[u8]) -> bool {
        let name = self.names.get(section.name as usize..);
        name.is_some_and(|name| name.starts_with(with))
    }

    /// Returns the section to which another one's link points.
    #[must_use]
    pub fn linked(&self, section: &ElfSection) -> Option<&ElfSection> {
        self.headers.get(section.link as usize)
    }

    /// Returns the symbol table of a kind: `SHT_SYMTAB` or `SHT_DYNSYM`.
    #[must_use]
    pub fn symbol_table(&self, kind: SectionType) -> Option<SymbolTable<'_>> {
        let symbols = self.of_kind(kind)?;
        let names = self.linked(symbols)?;
        Some(SymbolTable { symbols, names })
    }
}

impl<B: ElfBytes> ElfFile<B> {
    /// Reads the section headers and their names; names that can't be read are empty.
    ///
    /// # Errors
    /// The headers are damaged, too many or outside the file.
    pub fn section_table(&self) -> Result<SectionTable<B::Piece>, ElfError> {
        let headers = self.sections()?;
        let names = self.section_names(&headers).unwrap_or_default();
        Ok(SectionTable { headers, names })
    }

    /// Calls `take` with each entry of a table. Of symbols and relocations there are megabytes, and
    /// few are needed, so that they are not held together. Nothing of a compressed section.
    ///
    /// # Errors
    /// It is too large, outside the file, or can't be read to its end.
    pub fn each_entry<T: Pod>(
        &self,
        section: &ElfSection,
        name: &'static str,
        mut take: impl FnMut(&T),
    ) -> Result<(), ElfError> {
        let Some((offset, size)) = section.plain_range() else {
            return Ok(());
        };
        self.inside(name, offset, size)?;
        let whole = size - size % size_of::<T>() as u64;
        let step = (ENTRIES_PER_READ * size_of::<T>()) as u64;
        let mut at = 0;
        while at < whole {
            let piece = self.piece(name, offset + at, step.min(whole - at))?;
            pods(&piece).iter().for_each(&mut take);
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl ElfFile<&File> {
    /// Appends the content of a section. Of the largest programs, the names alone are tens of
    /// megabytes: they are read to where they are needed. Nothing of a compressed section.
    ///
    /// # Errors
    /// It is too large, outside the file, or can't be read; then nothing is appended.
    pub fn content_onto(
        &self,
        section: &ElfSection,
        name: &'static str,
        bytes: &mut Vec<u8>,
    ) -> Result<(), ElfError> {
        let Some((offset, size)) = section.plain_range() else {
            return Ok(());
        };
        let size_bytes = self.inside(name, offset, size)?;
        let before = bytes.len();
        bytes.reserve_exact(size_bytes);
        bytes.resize(before + size_bytes, 0);
        self.bytes
            .read_exact_at(&mut bytes[before..], offset)
            .map_err(|_| {
                bytes.truncate(before);
                ElfError::Outside { name, offset, size }
            })
    }
}
