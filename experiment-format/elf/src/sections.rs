//! Sections by name and kind, and the entries of those that are tables.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::SectionType;
use object::pod::Pod;

use super::{ElfError, ElfFile, ElfSection, pods};

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
    ///
    /// Names are compared in place: to cut them out first would cost the square of the file's size
    /// where many sections share one endless name.
    #[must_use]
    pub fn named(&self, name: &[u8]) -> Option<&ElfSection> {
        self.headers.iter().find(|section| {
            let own = self.names.get(section.name as usize..);
            own.and_then(|own| own.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })
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

    /// Returns the entries of a table; nothing of a compressed section.
    ///
    /// # Errors
    /// As [`ElfFile::each_entry`].
    pub fn entries<T: Pod>(
        &self,
        section: &ElfSection,
        name: &'static str,
    ) -> Result<Vec<T>, ElfError> {
        let mut entries = Vec::new();
        self.each_entry(section, name, |entry: &T| entries.push(*entry))?;
        entries.shrink_to_fit();
        Ok(entries)
    }

    /// Calls `take` with each entry of a table. Of relocations there are megabytes, and hardly any
    /// is needed, so that they are not held together. Nothing of a compressed section.
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
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < whole {
            bytes.resize(step.min(whole - at) as usize, 0);
            self.bytes
                .read_exact_at(&mut bytes, offset + at)
                .map_err(|_| ElfError::Outside { name, offset, size })?;
            pods(&bytes).iter().for_each(&mut take);
            at += bytes.len() as u64;
        }
        Ok(())
    }
}
