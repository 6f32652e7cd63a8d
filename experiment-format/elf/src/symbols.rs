//! Symbol tables: the one reader of their entries.
//!
//! A file has two: all symbols (`SHT_SYMTAB`), which a stripped program does not have, and those
//! for the dynamic linker (`SHT_DYNSYM`). Which of them count, which kinds of symbols, and how
//! much memory they may take differs from caller to caller. So entries are handed out one by one
//! and not kept, and a name is an offset in the table of names until it is needed: many names may
//! share one end, and a hostile file's may all be endless.

use std::ffi::CStr;

use object::Endianness;
use object::elf::{
    SHN_LORESERVE, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC, Sym32, Sym64, SymbolBind, SymbolSection,
    SymbolType,
};
use object::read::elf::Sym;

use super::{ElfBytes, ElfError, ElfFile, ElfSection};

/// The sections of a symbol table.
#[derive(Clone, Copy, Debug)]
pub struct SymbolTable<'a> {
    /// The section with the symbols.
    pub symbols: &'a ElfSection,
    /// The section with their names.
    pub names: &'a ElfSection,
}

/// A symbol of either class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSymbol {
    /// Offset of its name in the table of names: see [`name_at`].
    pub name: u32,
    /// `STT_FUNC`, `STT_OBJECT`, ….
    pub kind: SymbolType,
    /// Local, global or weak.
    pub binding: SymbolBind,
    /// The number of its section, or one of the reserved numbers.
    pub section: SymbolSection,
    /// Address for which the file is linked.
    pub address: u64,
    /// Bytes; 0 if the size is not known.
    pub size: u64,
}

impl ElfSymbol {
    fn of<S: Sym<Endian = Endianness>>(symbol: &S, endian: Endianness) -> ElfSymbol {
        ElfSymbol {
            name: symbol.st_name(endian),
            kind: symbol.st_type(),
            binding: symbol.st_bind(),
            section: symbol.st_shndx(endian),
            address: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
        }
    }

    /// Whether it is marked as a function, perhaps one whose code is chosen when it is first
    /// called.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.kind == STT_FUNC || self.kind == STT_GNU_IFUNC
    }

    /// The number of the section that it is in; None if it is in another file, or in no section.
    #[must_use]
    pub fn section_index(&self) -> Option<usize> {
        let is_defined = self.section != SHN_UNDEF && self.section.0 < SHN_LORESERVE;
        is_defined.then_some(usize::from(self.section.0))
    }
}

impl<B: ElfBytes> ElfFile<B> {
    /// Returns the size of a symbol, bytes.
    #[must_use]
    pub fn symbol_bytes(&self) -> usize {
        if self.wide {
            size_of::<Sym64<Endianness>>()
        } else {
            size_of::<Sym32<Endianness>>()
        }
    }

    /// Calls `take` with each symbol of a [`SymbolTable`]'s section, in the order of the file.
    /// Nothing of a compressed section.
    ///
    /// # Errors
    /// As [`ElfFile::each_entry`].
    pub fn each_symbol(
        &self,
        symbols: &ElfSection,
        mut take: impl FnMut(ElfSymbol),
    ) -> Result<(), ElfError> {
        let (name, endian) = ("symbols", self.endian);
        if self.wide {
            self.each_entry(symbols, name, |symbol: &Sym64<Endianness>| {
                take(ElfSymbol::of(symbol, endian));
            })
        } else {
            self.each_entry(symbols, name, |symbol: &Sym32<Endianness>| {
                take(ElfSymbol::of(symbol, endian));
            })
        }
    }
}

/// Returns the name at an offset in a table of names, cut at `max_bytes`. A name that the table's
/// end cuts off is returned too.
#[must_use]
pub fn name_at(names: &[u8], offset: u32, max_bytes: usize) -> Option<&[u8]> {
    let rest = names.get(offset as usize..)?;
    let rest = &rest[..rest.len().min(max_bytes)];
    let name = CStr::from_bytes_until_nul(rest);
    Some(name.map_or(rest, CStr::to_bytes))
}

/// Whether the name at an offset in a table of names is this one.
///
/// It is compared in place: to cut it out first would cost the square of the file's size where
/// many symbols or sections share one endless name.
#[must_use]
pub fn is_name_at(names: &[u8], offset: u32, name: &[u8]) -> bool {
    let own = names.get(offset as usize..);
    own.and_then(|own| own.strip_prefix(name))
        .is_some_and(|rest| rest.first() == Some(&0))
}

#[cfg(test)]
mod tests {
    use object::elf::{SHT_DYNSYM, SHT_SYMTAB, SectionType};
    use object::read::elf::{ElfFile64, FileHeader};
    use object::write::{Object, StandardSection, Symbol, SymbolSection as Section};
    use object::{Architecture, BinaryFormat, SymbolFlags, SymbolKind, SymbolScope};
    use proptest::prelude::*;

    use super::*;
    use crate::ElfLimits;

    /// The symbols of a table, with their names.
    fn read(bytes: &[u8], kind: SectionType) -> Result<Vec<(ElfSymbol, Vec<u8>)>, ElfError> {
        let elf = ElfFile::read(bytes, ElfLimits::PROGRAM)?;
        let sections = elf.section_table()?;
        let Some(table) = sections.symbol_table(kind) else {
            return Ok(Vec::new());
        };
        let names = elf.plain_content(table.names, "names")?;
        let mut found = Vec::new();
        elf.each_symbol(table.symbols, |symbol| {
            let name = name_at(names, symbol.name, usize::MAX).unwrap_or_default();
            found.push((symbol, name.to_vec()));
        })?;
        Ok(found)
    }

    #[test]
    fn symbols_are_those_that_another_reader_finds() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let other = ElfFile64::<Endianness>::parse(bytes.as_slice()).unwrap();
        let sections = other
            .elf_header()
            .sections(other.endian(), &*bytes)
            .unwrap();
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            let table = sections.symbols(other.endian(), &*bytes, kind).unwrap();
            let own = read(&bytes, kind).unwrap();
            assert_eq!(own.len(), table.len());
            for ((symbol, name), expected) in own.iter().zip(table.iter()) {
                assert_eq!(*symbol, ElfSymbol::of(expected, other.endian()));
                assert_eq!(*name, table.symbol_name(other.endian(), expected).unwrap());
            }
        }
        let all = read(&bytes, SHT_SYMTAB).unwrap();
        let functions = all.iter().filter(|(symbol, _)| symbol.is_function());
        assert!(functions.count() > 100);
    }

    /// A file with more symbols than are read at once.
    fn image(architecture: Architecture, endian: Endianness, count: u64) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, architecture, endian);
        let text = object.section_id(StandardSection::Text);
        for number in 0..count {
            object.add_symbol(Symbol {
                name: format!("f{number}").into_bytes(),
                value: number,
                size: 1,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: Section::Section(text),
                flags: SymbolFlags::None,
            });
        }
        object.write().unwrap()
    }

    #[test]
    fn both_classes_and_byte_orders_are_read_whole() {
        for (architecture, endian) in [
            (Architecture::X86_64, Endianness::Little),
            (Architecture::I386, Endianness::Little),
            (Architecture::S390x, Endianness::Big),
            (Architecture::PowerPc, Endianness::Big),
        ] {
            let symbols = read(&image(architecture, endian, 10_000), SHT_SYMTAB).unwrap();
            let functions = symbols.iter().filter(|(symbol, _)| symbol.is_function());
            let mut count = 0;
            for (symbol, name) in functions {
                assert_eq!((symbol.address, symbol.size), (count, 1));
                assert_eq!(*name, format!("f{count}").into_bytes());
                assert!(symbol.section_index().is_some());
                count += 1;
            }
            assert_eq!(count, 10_000);
        }
    }

    #[test]
    fn names_end_at_a_nul_or_where_they_are_cut() {
        let names = b"\0main\0open";
        assert_eq!(name_at(names, 1, 64), Some(&b"main"[..]));
        assert_eq!(name_at(names, 3, 64), Some(&b"in"[..]));
        assert_eq!(name_at(names, 1, 2), Some(&b"ma"[..]));
        assert_eq!(name_at(names, 6, 64), Some(&b"open"[..]));
        assert_eq!(name_at(names, 0, 64), Some(&b""[..]));
        assert_eq!(name_at(names, 11, 64), None);
        assert!(is_name_at(names, 1, b"main") && is_name_at(names, 3, b"in"));
        assert!(!is_name_at(names, 1, b"mai") && !is_name_at(names, 6, b"open"));
        assert!(!is_name_at(names, u32::MAX, b""));
    }

    proptest! {
        #[test]
        fn damaged_tables_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            cut: prop::sample::Index,
            wide: bool,
        ) {
            let architecture = if wide { Architecture::X86_64 } else { Architecture::I386 };
            let mut bytes = image(architecture, Endianness::Little, 20);
            for (offset, value) in damage {
                let offset = offset.index(bytes.len());
                bytes[offset] = value;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                for kind in [SHT_SYMTAB, SHT_DYNSYM] {
                    let _ = read(bytes, kind);
                }
            }
        }
    }
}
