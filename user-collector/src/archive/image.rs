//! The archived file: a copy with another symbol table at its end, or the names alone.
//!
//! gprofng finds a function by its section's offset in the file, so all of the copy stays where it
//! was: instructions, frame information, line tables. Only the header points to a new section table
//! at the end, with the new symbol table instead of the old one.
//!
//! If the content must not be copied, or is too large, the sections of code keep their offsets but
//! have no content (NOBITS): there are names, and no disassembly.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use object::LittleEndian;
use object::elf::{
    SHT_NOBITS, SHT_NULL, SHT_STRTAB, SHT_SYMTAB, SHT_SYMTAB_SHNDX, STB_GLOBAL, STT_FUNC,
    SectionFlags, SectionHeader64, Sym64, SymbolOther, SymbolSection,
};
use object::endian::{U16, U32, U64};
use object::pod::{bytes_of, bytes_of_slice};

use super::ArchiveWriter;
use super::object_file::{ObjectFile, RawHeader};
use super::symbol_table::FunctionTable;
use kcollect_elf::ElfSection;

/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;
/// The size of the buffer for tables, bytes.
const TABLE_BUFFER_BYTES: usize = 256 << 10;
/// Alignment of tables, bytes.
const TABLE_ALIGNMENT: u64 = 8;

/// Copies `length` bytes of a file.
pub(super) fn copy(mut file: &File, length: u64, out: &mut ArchiveWriter<'_>) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let mut left = length;
    while left > 0 {
        match out.append(file, left.min(COPY_BYTES))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            copied => left -= copied,
        }
    }
    Ok(())
}

/// What is appended to the copy.
struct AppendedTables {
    header: RawHeader,
    sections: Vec<ElfSection>,
    names: Vec<u8>,
}

/// Writes a file of `length` bytes with these functions instead of its own symbol table: all of it
/// if `text`, or else only its headers.
pub(super) fn write(
    elf: &ObjectFile<'_>,
    file: &File,
    length: u64,
    functions: &FunctionTable,
    text: bool,
    writer: &mut ArchiveWriter<'_>,
) -> io::Result<()> {
    let content = if text {
        length
    } else {
        size_of::<RawHeader>() as u64
    };
    let tables = AppendedTables::new(elf, functions, content, text);
    if text {
        copy(file, length, writer)?;
        writer.replace_beginning(bytes_of(&tables.header))?;
    } else {
        writer.write_all(bytes_of(&tables.header))?
    }
    let mut out = BufWriter::with_capacity(TABLE_BUFFER_BYTES, writer);
    out.write_all(&[0; TABLE_ALIGNMENT as usize][..padding(content) as usize])?;
    out.write_all(bytes_of(&symbol(0, 0, 0, None)))?;
    for function in &functions.list {
        let section = Some(function.section);
        let symbol = symbol(function.name, function.address, function.size, section);
        out.write_all(bytes_of(&symbol))?;
    }
    let sections: Vec<_> = tables.sections.iter().map(raw_section).collect();
    out.write_all(&functions.names)?;
    out.write_all(&tables.names)?;
    let after = functions.names.len() + tables.names.len();
    out.write_all(&[0; TABLE_ALIGNMENT as usize][..padding(after as u64) as usize])?;
    out.write_all(bytes_of_slice(&sections))?;
    out.flush()
}

fn padding(length: u64) -> u64 {
    length.next_multiple_of(TABLE_ALIGNMENT) - length
}

impl AppendedTables {
    fn new(
        elf: &ObjectFile<'_>,
        functions: &FunctionTable,
        content: u64,
        text: bool,
    ) -> AppendedTables {
        let mut sections = elf.sections.headers.clone();
        if !text {
            only_code(elf, &mut sections);
        }
        let mut names = elf.sections.names.clone();
        let mut named = |name: &[u8]| {
            // The last name of the file may have no NUL.
            names.push(0);
            let position = names.len() as u32;
            names.extend_from_slice(name);
            names.push(0);
            position
        };
        let [symtab, strtab, shstrtab] =
            [&b".symtab"[..], b".strtab", b".shstrtab"].map(&mut named);

        let symbols = 1 + functions.list.len();
        let mut offset = content + padding(content);
        let mut table = |name, kind, size: usize| {
            let section = ElfSection {
                name,
                kind,
                offset,
                size: size as u64,
                alignment: 1,
                ..NULL_SECTION
            };
            offset += size as u64;
            section
        };
        let mut symtab = table(symtab, SHT_SYMTAB, symbols * size_of_symbol());
        let strtab = table(strtab, SHT_STRTAB, functions.names.len());
        let shstrtab = table(shstrtab, SHT_STRTAB, names.len());
        offset += padding((functions.names.len() + names.len()) as u64);

        // The new table has the old one's index, to which other sections may point.
        let old = sections
            .iter()
            .position(|section| section.kind == SHT_SYMTAB);
        for section in &mut sections {
            if section.kind == SHT_SYMTAB || section.kind == SHT_SYMTAB_SHNDX {
                *section = NULL_SECTION;
            }
        }
        let added = sections.len();
        symtab.link = added as u32;
        // The first symbol that is not local: all but the empty one.
        symtab.info = 1;
        symtab.entry_size = size_of_symbol() as u64;
        symtab.alignment = TABLE_ALIGNMENT;
        sections.extend([strtab, shstrtab]);
        match old {
            Some(old) => sections[old] = symtab,
            None => sections.push(symtab),
        }

        let mut header = elf.header;
        header.e_shoff = U64::new(LittleEndian, offset);
        header.e_shnum = U16::new(LittleEndian, sections.len() as u16);
        header.e_shstrndx = U16::new(LittleEndian, SymbolSection(added as u16 + 1));
        if !text {
            header.e_phoff = U64::new(LittleEndian, 0);
            header.e_phnum = U16::new(LittleEndian, 0);
        }
        AppendedTables {
            header,
            sections,
            names,
        }
    }
}

/// Keeps only the sections of code, without content.
fn only_code(elf: &ObjectFile<'_>, sections: &mut [ElfSection]) {
    let code: HashSet<u16> = elf.code().iter().map(|code| code.index).collect();
    for (index, section) in (0..).zip(sections) {
        if code.contains(&index) {
            section.kind = SHT_NOBITS;
            section.link = 0;
            section.info = 0;
        } else {
            *section = NULL_SECTION;
        }
    }
}

const fn size_of_symbol() -> usize {
    size_of::<Sym64<LittleEndian>>()
}

/// The empty section header.
const NULL_SECTION: ElfSection = ElfSection {
    name: 0,
    kind: SHT_NULL,
    flags: SectionFlags(0),
    address: 0,
    offset: 0,
    size: 0,
    link: 0,
    info: 0,
    alignment: 0,
    entry_size: 0,
};

fn raw_section(section: &ElfSection) -> SectionHeader64<LittleEndian> {
    SectionHeader64 {
        sh_name: U32::new(LittleEndian, section.name),
        sh_type: U32::new(LittleEndian, section.kind),
        sh_flags: U64::new(LittleEndian, section.flags),
        sh_addr: U64::new(LittleEndian, section.address),
        sh_offset: U64::new(LittleEndian, section.offset),
        sh_size: U64::new(LittleEndian, section.size),
        sh_link: U32::new(LittleEndian, section.link),
        sh_info: U32::new(LittleEndian, section.info),
        sh_addralign: U64::new(LittleEndian, section.alignment),
        sh_entsize: U64::new(LittleEndian, section.entry_size),
    }
}

fn symbol(name: u32, address: u64, size: u64, section: Option<u16>) -> Sym64<LittleEndian> {
    Sym64 {
        st_name: U32::new(LittleEndian, name),
        st_info: match section {
            Some(_) => STB_GLOBAL | STT_FUNC,
            None => Default::default(),
        },
        st_other: SymbolOther(0),
        st_shndx: U16::new(LittleEndian, SymbolSection(section.unwrap_or(0))),
        st_value: U64::new(LittleEndian, address),
        st_size: U64::new(LittleEndian, size),
    }
}
