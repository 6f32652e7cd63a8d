//! Functions of the load objects in `archives/`.
//!
//! gprofng finds a function by its position in the file: offset of its section, plus distance of
//! the symbol from the section's address, cut to 32 bits. Here it is done the same way, so that the
//! same function comes out, for true ELF files and for synthetic ones.
//!
//! Only `archives/` is looked into, not the file system: the names come from the experiment, and
//! the files of the machine that reads it are not those of the machine that wrote it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind, elf};

use crate::Result;
use crate::archive::archive_name;
use crate::error::Error;
use crate::reader::open_regular;
use crate::space::{AddressSpace, ObjectKind};

/// A larger symbol or string table than this is not read.
const LARGEST_TABLE: u64 = 1 << 30;

/// What parsing gives; why it failed is only to be told.
type Parsed<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The functions of a file, by their position in it.
#[derive(Debug, Default)]
pub struct FunctionTable {
    /// Sorted by position, each once.
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Function {
    position: u32,
    /// Bytes; 0 reaches to the next one.
    size: u64,
    name: Box<str>,
}

impl FunctionTable {
    /// Reads the symbols of an ELF file: `.symtab`, or `.dynsym` if there is none.
    fn parse<'data, R: ReadRef<'data>>(data: R) -> Parsed<Self> {
        let functions = match FileKind::parse(data)? {
            FileKind::Elf64 => symbols::<elf::FileHeader64<Endianness>, R>(data)?,
            FileKind::Elf32 => symbols::<elf::FileHeader32<Endianness>, R>(data)?,
            _ => return Err("no ELF file".into()),
        };
        Ok(Self::new(functions))
    }

    fn new(mut functions: Vec<Function>) -> Self {
        // Of the names of one place, the shortest is the one that is shown.
        functions.sort_by(|a, b| {
            (a.position, a.name.len(), &a.name).cmp(&(b.position, b.name.len(), &b.name))
        });
        functions.dedup_by(|alias, shown| {
            let same = alias.position == shown.position;
            if same {
                shown.size = shown.size.max(alias.size);
            }
            same
        });
        FunctionTable { functions }
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Name of the function at a position in the file, and how far it is into it.
    pub fn find(&self, position: u64) -> Option<(&str, u64)> {
        let function = self.before(position)?;
        let distance = position - u64::from(function.position);
        (function.size == 0 || distance < function.size).then_some((&*function.name, distance))
    }

    /// Where a hole between functions begins: behind the last function below `position`, or with
    /// the file. That is the number in the names that gprofng gives to holes.
    pub fn hole(&self, position: u64) -> u64 {
        self.before(position)
            .map_or(0, |function| u64::from(function.position) + function.size)
    }

    /// The last function that begins at or below a position.
    fn before(&self, position: u64) -> Option<&Function> {
        let position = u32::try_from(position).ok()?;
        let above = self
            .functions
            .partition_point(|function| function.position <= position);
        self.functions[..above].last()
    }
}

fn symbols<'data, Elf, R>(data: R) -> Parsed<Vec<Function>>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Elf::parse(data)?;
    let endian = header.endian()?;
    let sections = header.section_headers(endian, data)?;
    let table = |kind| {
        sections
            .iter()
            .find(|section| section.sh_type(endian) == kind)
    };
    let Some(symtab) = table(elf::SHT_SYMTAB).or_else(|| table(elf::SHT_DYNSYM)) else {
        return Ok(Vec::new());
    };
    let strtab = sections.get(symtab.sh_link(endian) as usize);
    let strtab = strtab.ok_or("a symbol table without strings")?;
    if [symtab, strtab]
        .iter()
        .any(|table| table.sh_size(endian).into() > LARGEST_TABLE)
    {
        return Err("a symbol table above 1 GiB".into());
    }
    let strings = strtab.data(endian, data)?;
    let symbols: &[Elf::Sym] = symtab.data_as_array(endian, data)?;
    let mut functions = Vec::new();
    for symbol in symbols
        .iter()
        .filter(|symbol| symbol.st_type() == elf::STT_FUNC)
    {
        let index = usize::from(symbol.st_shndx(endian).0);
        let Some(section) = sections.get(index).filter(|_| index != 0) else {
            continue;
        };
        let (offset, base) = (
            section.sh_offset(endian).into(),
            section.sh_addr(endian).into(),
        );
        let value: u64 = symbol.st_value(endian).into();
        let position = offset.wrapping_add(value.wrapping_sub(base)) as u32;
        let name = strings
            .get(symbol.st_name(endian) as usize..)
            .unwrap_or_default();
        let end = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len());
        // gprofng knows no function at the beginning of a file.
        if position != 0 {
            let name = String::from_utf8_lossy(&name[..end]).into();
            functions.push(Function {
                position,
                size: symbol.st_size(endian).into(),
                name,
            });
        }
    }
    Ok(functions)
}

/// A function that an address lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAt<'a> {
    /// Its name, none if the load object has no function there.
    pub name: Option<&'a str>,
    /// The load object, none for a dynamic function.
    pub object: Option<&'a str>,
    /// Bytes from the beginning of the function; without one, of the file.
    pub offset: u64,
}

/// The load objects of an experiment and of all its subexperiments, each read when it is first
/// needed.
#[derive(Debug)]
pub struct Archives {
    path: PathBuf,
    tables: HashMap<String, Option<FunctionTable>>,
}

impl Archives {
    pub(crate) fn new(path: PathBuf) -> Self {
        Archives {
            path,
            tables: HashMap::new(),
        }
    }

    /// The functions of a load object, none if it was not archived.
    ///
    /// # Errors
    ///
    /// A file that is no ELF file or a damaged one; it is told once, and then counts as missing.
    pub fn functions(&mut self, load_object: &str) -> Result<Option<&FunctionTable>> {
        if !self.tables.contains_key(load_object) {
            let path = self.path.join(archive_name(load_object));
            let read = read_table(&path);
            let (table, outcome) = match read {
                Ok(table) => (table, Ok(())),
                Err(error) => (None, Err(error)),
            };
            self.tables.insert(load_object.to_owned(), table);
            outcome?;
        }
        Ok(self.tables.get(load_object).and_then(Option::as_ref))
    }

    /// The function that lay at an address in `space` at a time, in nanoseconds since the start of
    /// the experiment that `space` is of. None if nothing was mapped there.
    ///
    /// # Errors
    ///
    /// Those of [`Archives::functions`].
    pub fn function_at<'a>(
        &'a mut self,
        space: &'a AddressSpace,
        address: u64,
        at: u64,
    ) -> Result<Option<FunctionAt<'a>>> {
        let Some(location) = space.find(address, at) else {
            return Ok(None);
        };
        let (object, offset) = (location.object, location.offset);
        if location.kind == ObjectKind::Function {
            return Ok(Some(FunctionAt {
                name: Some(object),
                object: None,
                offset,
            }));
        }
        let found = self.functions(object)?.and_then(|table| table.find(offset));
        let (name, offset) = match found {
            Some((name, offset)) => (Some(name), offset),
            None => (None, offset),
        };
        Ok(Some(FunctionAt {
            name,
            object: Some(object),
            offset,
        }))
    }
}

fn read_table(path: &Path) -> Result<Option<FunctionTable>> {
    let Some(file) = open_regular(path)? else {
        return Ok(None);
    };
    let table = FunctionTable::parse(&ReadCache::new(file));
    table.map(Some).map_err(|error| Error::Malformed {
        path: path.to_owned(),
        offset: 0,
        what: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, Symbol, Text};
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn image(symbols: &[(u64, u64, &'static str)], bits: Option<&[u8]>) -> Vec<u8> {
        let symbols = symbols.iter().map(|(offset, size, name)| Symbol {
            address: BASE + offset,
            size: *size,
            name: name.as_bytes(),
            global: false,
        });
        let texts = vec![Text {
            address: BASE,
            size: 0x1000,
            bits,
        }];
        Image {
            texts,
            symbols: symbols.collect(),
        }
        .to_bytes()
        .unwrap()
    }

    #[test]
    fn a_function_is_found_by_its_position_in_the_file() {
        let code = [0; 0x1000];
        for bits in [None, Some(&code[..])] {
            let symbols = [(0x10, 0x10, "a"), (0x20, 0, "to_the_next"), (0x40, 8, "b")];
            let bytes = image(&symbols, bits);
            let table = FunctionTable::parse(bytes.as_slice()).unwrap();
            assert_eq!(table.find(0x1010), Some(("a", 0)));
            assert_eq!(table.find(0x101f), Some(("a", 15)));
            assert_eq!(table.find(0x103f), Some(("to_the_next", 31)));
            assert_eq!(table.find(0x1048), None);
            assert_eq!(table.find(0x100f), None);
            assert_eq!(table.find(1 << 32), None);
        }
    }

    #[test]
    fn of_aliases_the_shortest_name_is_shown() {
        let bytes = image(
            &[
                (0x10, 4, "__x64_sys_read"),
                (0x10, 0, "read"),
                (0x10, 8, "zzzz"),
            ],
            None,
        );
        let table = FunctionTable::parse(bytes.as_slice()).unwrap();
        assert_eq!(table.len(), 1);
        assert_eq!(table.find(0x1017), Some(("read", 7)));
    }

    #[test]
    fn a_true_program_has_functions() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let table = FunctionTable::parse(bytes.as_slice()).unwrap();
        assert!(table.len() > 100);
    }

    proptest! {
        #[test]
        fn damaged_files_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            cut: prop::sample::Index,
        ) {
            let mut bytes = image(&[(0x10, 0x10, "a"), (0x20, 0, "b")], None);
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            let _ = FunctionTable::parse(bytes.as_slice());
            let _ = FunctionTable::parse(&bytes[..cut.index(bytes.len())]);
        }
    }
}
