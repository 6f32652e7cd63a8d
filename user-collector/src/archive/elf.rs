//! An ELF file read by pieces: its headers, and sections by their positions.
//!
//! Nothing is mapped, because whoever owns the file can shorten it at any moment, and nothing is
//! read whose size was not compared with a limit and with the file first.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, FileHeader64, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR,
    SHN_LORESERVE, SHT_NOBITS, SectionHeader64, SectionType,
};
use object::pod::{from_bytes, slice_from_bytes};
use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, pod};

/// One section of the file.
pub(super) type Section = SectionHeader64<LittleEndian>;
/// The file's own header.
pub(super) type Header = FileHeader64<LittleEndian>;

pub(super) const LITTLE: LittleEndian = LittleEndian;
/// Largest table or section that is read into memory, bytes. A file without content, and so without
/// cost to its owner, may tell of tables up to its own size.
const LARGEST_PIECE: u64 = 256 << 20;

/// So many entries of a table are read at once.
const ENTRIES: usize = 4096;

/// So many sections are added to those of a file.
const ADDED: u16 = 3;

/// Why a file is not understood; the sentence goes into the notes of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged(pub(super) &'static str);

/// The headers of a 64-bit little-endian ELF file.
pub(super) struct Elf<'file> {
    file: &'file File,
    length: u64,
    pub(super) header: Header,
    pub(super) sections: Vec<Section>,
    /// Their names, each up to a NUL.
    pub(super) names: Vec<u8>,
}

/// A section of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// Which section, from 1: a file whose header can't count them is refused.
    pub(super) index: u16,
    /// First address.
    pub(super) address: u64,
    /// First address behind.
    pub(super) end: u64,
    /// Where in the file.
    pub(super) offset: u64,
}

impl<'file> Elf<'file> {
    pub(super) fn read(file: &'file File, length: u64) -> Result<Elf<'file>, Damaged> {
        let bytes = piece(file, length, 0, size_of::<Header>() as u64)?;
        let (header, _) = from_bytes::<Header>(&bytes).map_err(|()| Damaged("no ELF header"))?;
        let ident = header.e_ident();
        if ident.magic != ELFMAG {
            return Err(Damaged("not an ELF file"));
        }
        if (ident.class, ident.data) != (ELFCLASS64, ELFDATA2LSB) {
            return Err(Damaged("not 64-bit and little endian"));
        }
        let mut elf = Elf {
            file,
            length,
            header: *header,
            sections: Vec::new(),
            names: Vec::new(),
        };
        let (count, size) = (header.e_shnum(LITTLE), header.e_shentsize(LITTLE));
        // No linker makes files with more sections than the header can count.
        if count == 0 || count >= SHN_LORESERVE - ADDED || usize::from(size) != size_of::<Section>()
        {
            return Err(Damaged("no section headers"));
        }
        let table = elf.piece(header.e_shoff(LITTLE), u64::from(count) * u64::from(size))?;
        let (sections, _) = slice_from_bytes::<Section>(&table, usize::from(count))
            .map_err(|()| Damaged("no section headers"))?;
        elf.sections = sections.to_vec();
        if let Some(names) = elf.sections.get(usize::from(header.e_shstrndx(LITTLE).0)) {
            elf.names = elf.data(names).unwrap_or_default();
        }
        Ok(elf)
    }

    /// Bytes of the file.
    fn piece(&self, offset: u64, size: u64) -> Result<Vec<u8>, Damaged> {
        piece(self.file, self.length, offset, size)
    }

    /// Content of a section; none of one without bits and of a compressed one.
    pub(super) fn data(&self, section: &Section) -> Result<Vec<u8>, Damaged> {
        if !has_content(section) {
            return Ok(Vec::new());
        }
        self.piece(section.sh_offset(LITTLE), section.sh_size(LITTLE))
    }

    /// Appends the content of a section. Of the largest programs, the names alone are tens of
    /// megabytes: they are read to where they are wanted.
    pub(super) fn data_onto(&self, section: &Section, bytes: &mut Vec<u8>) -> Result<(), Damaged> {
        if !has_content(section) {
            return Ok(());
        }
        let (offset, size) = (section.sh_offset(LITTLE), section.sh_size(LITTLE));
        inside(self.length, offset, size)?;
        let before = bytes.len();
        bytes.reserve_exact(size as usize);
        bytes.resize(before + size as usize, 0);
        read_at(self.file, &mut bytes[before..], offset).inspect_err(|_| bytes.truncate(before))
    }

    /// Content of a section as a table.
    pub(super) fn table<T: pod::Pod>(&self, section: &Section) -> Result<Vec<T>, Damaged> {
        let mut table = Vec::new();
        self.each(section, |entry: &T| table.push(*entry))?;
        table.shrink_to_fit();
        Ok(table)
    }

    /// The entries of a section, one by one: of relocations there are megabytes, and hardly any is
    /// wanted.
    pub(super) fn each<T: pod::Pod>(
        &self,
        section: &Section,
        mut take: impl FnMut(&T),
    ) -> Result<(), Damaged> {
        if !has_content(section) {
            return Ok(());
        }
        let (offset, size) = (section.sh_offset(LITTLE), section.sh_size(LITTLE));
        inside(self.length, offset, size)?;
        let whole = size - size % size_of::<T>() as u64;
        let step = (ENTRIES * size_of::<T>()) as u64;
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < whole {
            bytes.resize(step.min(whole - at) as usize, 0);
            read_at(self.file, &mut bytes, offset + at)?;
            let (entries, _) = slice_from_bytes::<T>(&bytes, bytes.len() / size_of::<T>())
                .map_err(|()| Damaged("a table of odd size"))?;
            entries.iter().for_each(&mut take);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// The first section of a type.
    pub(super) fn of_type(&self, kind: SectionType) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| section.sh_type(LITTLE) == kind)
    }

    /// Does the section's name begin with this?
    pub(super) fn name_begins(&self, section: &Section, with: &[u8]) -> bool {
        let name = self.names.get(section.sh_name(LITTLE) as usize..);
        name.is_some_and(|name| name.starts_with(with))
    }

    /// The section of this name.
    pub(super) fn named(&self, name: &[u8]) -> Option<&Section> {
        self.sections.iter().find(|section| {
            let own = self.names.get(section.sh_name(LITTLE) as usize..);
            own.and_then(|own| own.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// The sections of code that are inside the file, by address. Of two that overlap the first is
    /// taken.
    pub(super) fn code(&self) -> Vec<Code> {
        let mut code: Vec<Code> = (0..)
            .zip(&self.sections)
            .filter(|(_, section)| {
                let flags = section.sh_flags(LITTLE);
                flags.contains(SHF_ALLOC)
                    && flags.contains(SHF_EXECINSTR)
                    && section.sh_type(LITTLE) != SHT_NOBITS
            })
            .filter_map(|(index, section)| {
                let (address, offset) = (section.sh_addr(LITTLE), section.sh_offset(LITTLE));
                let size = section.sh_size(LITTLE);
                let inside = offset.checked_add(size)? <= self.length;
                let end = address.checked_add(size)?;
                (inside && size > 0).then_some(Code {
                    index,
                    address,
                    end,
                    offset,
                })
            })
            .collect();
        code.sort_by_key(|code| (code.address, code.index));
        let mut behind = 0;
        code.retain(|code| {
            let apart = code.address >= behind;
            behind = behind.max(code.end);
            apart
        });
        code
    }
}

fn has_content(section: &Section) -> bool {
    section.sh_type(LITTLE) != SHT_NOBITS && !section.sh_flags(LITTLE).contains(SHF_COMPRESSED)
}

/// Bytes of a file, if it has them and they are not too many.
fn piece(file: &File, length: u64, offset: u64, size: u64) -> Result<Vec<u8>, Damaged> {
    inside(length, offset, size)?;
    let mut bytes = vec![0; size as usize];
    read_at(file, &mut bytes, offset)?;
    Ok(bytes)
}

/// Are these bytes in a file of that length, and not too many?
fn inside(length: u64, offset: u64, size: u64) -> Result<(), Damaged> {
    if offset.checked_add(size).is_none_or(|end| end > length) {
        return Err(Damaged("a table lies outside of the file"));
    }
    if size > LARGEST_PIECE {
        return Err(Damaged("a table is too large"));
    }
    Ok(())
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<(), Damaged> {
    file.read_exact_at(bytes, offset)
        .map_err(|_| Damaged("a table cannot be read"))
}
