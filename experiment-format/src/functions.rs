//! Functions of the load objects in `archives/`.
//!
//! gprofng finds a function by its position in the file: offset of its section, plus distance of
//! the symbol from the section's address, cut to 32 bits. This module does the same, so that it
//! finds the same function, in real ELF files and in synthetic ones.
//!
//! Only `archives/` is searched, not the file system: the names come from the experiment, and the
//! reading machine may have other files than the recorded one. A caller that is on the recorded
//! machine can add the files that have not changed since: see [`Archives::or_files`].

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use object::elf::{ELFMAG, PF_R, PF_X, PT_LOAD, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};

use crate::Result;
use crate::address_space::{ObjectKind, RecordedAddressSpace};
use crate::archive::archive_name;
use crate::copies::open_copy;
use crate::error::Error;
use crate::file::open_regular;
use crate::units::Nanos;
use kcollect_elf::{
    AllocatedBytes, ElfBytes, ElfFile, ElfLimits, ElfSegment, SectionTable, name_at,
};

/// A symbol or string table larger than this is not read.
const MAX_TABLE_BYTES: u64 = 1 << 30;
/// Max bytes of the names of all functions, in sizes of the table of names: symbols may share a
/// name. Of 1,328 programs and libraries the most is 1.3, and 0.9 of large ones.
const MAX_NAMES_RATIO: usize = 4;
/// A small table of names may be shared more: these bytes are allowed in addition.
const SMALL_NAMES_BYTES: usize = 16 << 20;

/// The result of parsing; the error is only printed.
type Parsed<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The name of the function that gprofng makes of the section `.plt`. If it is the leaf of a stack,
/// its frame is left out.
pub const PLT: &str = "@plt";

/// The functions of a file, by their position in it.
#[derive(Debug, Default)]
pub struct FileFunctions {
    /// Sorted by position; aliases at the same position by length of the name. All aliases have the
    /// size of the largest one.
    functions: Vec<FileFunction>,
    /// Their positions again: a search touches an eighth of the memory here.
    positions: Vec<u32>,
    text_size: Option<u64>,
}

/// A function in a file.
#[derive(Debug)]
struct FileFunction {
    position: u32,
    /// Bytes; with 0 the function extends to the next one.
    size: u64,
    name: Box<str>,
}

impl FileFunctions {
    /// The functions of an ELF file: from `.symtab`, or else from `.dynsym`.
    fn parse<B: ElfBytes>(bytes: B, allocated: AllocatedBytes) -> Parsed<Self> {
        let limits = ElfLimits {
            max_piece_bytes: MAX_TABLE_BYTES,
            allocated,
            ..ElfLimits::PROGRAM
        };
        let elf = ElfFile::read(bytes, limits)?;
        let text_size = text_size(&elf.segments()?);
        let sections = elf.section_table()?;
        let mut functions: Vec<_> = plt(&sections).into_iter().collect();
        read_symbols(&elf, &sections, &mut functions)?;
        Ok(Self::new(functions, text_size))
    }

    /// Returns the table of these functions, given in any order.
    fn new(mut functions: Vec<FileFunction>, text_size: Option<u64>) -> Self {
        // Of the names of one position, the shortest is shown.
        functions.sort_by(|a, b| {
            (a.position, a.name.len(), &a.name).cmp(&(b.position, b.name.len(), &b.name))
        });
        for aliases in functions.chunk_by_mut(|a, b| a.position == b.position) {
            let size = aliases.iter().map(|alias| alias.size).max();
            for alias in aliases {
                alias.size = size.unwrap_or(0);
            }
        }
        let positions = functions.iter().map(|function| function.position);
        FileFunctions {
            positions: positions.collect(),
            functions,
            text_size,
        }
    }

    /// Returns the number of functions, aliases included.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether the file has no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the name of the function at a position in the file, and the distance from its
    /// beginning.
    pub fn find(&self, position: u64) -> Option<(&str, u64)> {
        let (mut names, distance) = self.find_all(position)?;
        Some((names.next()?, distance))
    }

    /// Returns all names of the function at a position in the file, the shortest first, and the
    /// distance from its beginning.
    pub fn find_all(&self, position: u64) -> Option<(impl Iterator<Item = &str>, u64)> {
        let aliases = self.before(position)?;
        let function = aliases.first()?;
        let distance = position - u64::from(function.position);
        let names = aliases.iter().map(|alias| &*alias.name);
        (function.size == 0 || distance < function.size).then_some((names, distance))
    }

    /// Returns the range of the function at a position in the file. It extends to the next function
    /// if the size is not known. None in a hole between functions.
    pub fn range(&self, position: u64) -> Option<Range<u64>> {
        let function = self.before(position)?.first()?;
        let begin = u64::from(function.position);
        let end = match function.size {
            0 => {
                let next = self
                    .positions
                    .partition_point(|next| *next <= function.position);
                u64::from(self.functions.get(next)?.position)
            }
            // The size comes from the file and may be anything.
            size => begin.saturating_add(size),
        };
        (begin..end).contains(&position).then_some(begin..end)
    }

    /// Returns where a hole between functions begins: after the last function below `position`, or
    /// at the beginning of the file.
    pub fn hole(&self, position: u64) -> u64 {
        let function = self.before(position).and_then(<[_]>::first);
        function.map_or(0, |function| {
            u64::from(function.position).saturating_add(function.size)
        })
    }

    /// What gprofng uses as the length of the file: the size of the code in memory if it is one
    /// segment, else None. Beyond this length, gprofng makes no names for holes between functions.
    pub fn text_size(&self) -> Option<u64> {
        self.text_size
    }

    /// Returns the last function that begins at or below a position, with all its aliases.
    fn before(&self, position: u64) -> Option<&[FileFunction]> {
        let position = u32::try_from(position).ok()?;
        let end = self.positions.partition_point(|begins| *begins <= position);
        let begins = self.positions[..end].last()?;
        let aliases = self.positions[..end].iter().rev();
        let count = aliases.take_while(|alias| *alias == begins).count();
        Some(&self.functions[end - count..end])
    }
}

/// Returns [`FileFunctions::text_size`] of a file with these segments.
fn text_size(segments: &[ElfSegment]) -> Option<u64> {
    let mut code = segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD && segment.flags == PF_R | PF_X);
    match (code.next(), code.next()) {
        (Some(only), None) => Some(only.memory_size).filter(|size| *size != 0),
        _ => None,
    }
}

/// Appends the functions of a file's symbol table.
fn read_symbols<B: ElfBytes>(
    elf: &ElfFile<B>,
    sections: &SectionTable<B::Piece>,
    functions: &mut Vec<FileFunction>,
) -> Parsed<()> {
    let mut kinds = [SHT_SYMTAB, SHT_DYNSYM].into_iter();
    let Some(kind) = kinds.find(|kind| sections.of_kind(*kind).is_some()) else {
        return Ok(());
    };
    let table = sections.symbol_table(kind);
    let table = table.ok_or("a symbol table without strings")?;
    let names = elf.content(table.names, "the names of symbols")?;
    let symbol_bytes = elf.symbol_bytes() as u64;
    if table.symbols.size % symbol_bytes != 0 {
        return Err("the size of the symbol table is no multiple of a symbol's".into());
    }
    // Its size is compared with the file first.
    elf.inside("the symbol table", table.symbols.offset, table.symbols.size)?;
    functions.reserve((table.symbols.size / symbol_bytes) as usize);
    // A file of a megabyte could have names of gigabytes.
    let mut left = Some(SMALL_NAMES_BYTES + MAX_NAMES_RATIO * names.len());
    elf.each_symbol(table.symbols, |symbol| {
        let section = symbol.section_index().filter(|_| symbol.kind == STT_FUNC);
        let Some(section) = section.and_then(|index| sections.headers.get(index)) else {
            return;
        };
        let distance = symbol.address.wrapping_sub(section.address);
        let position = section.offset.wrapping_add(distance) as u32;
        // gprofng ignores a function at the beginning of a file.
        if position != 0 && left.is_some() {
            let name = name_at(&names, symbol.name, usize::MAX).unwrap_or_default();
            left = left.and_then(|left| left.checked_sub(name.len()));
            functions.push(FileFunction {
                position,
                size: symbol.size,
                name: String::from_utf8_lossy(name).into(),
            });
        }
    })?;
    left.ok_or("the functions share names that are too long")?;
    Ok(())
}

/// Returns the function that gprofng makes of the section `.plt`; None if there is no such section.
fn plt<P: Deref<Target = [u8]>>(sections: &SectionTable<P>) -> Option<FileFunction> {
    let section = sections.named(b".plt")?;
    let position = u32::try_from(section.offset).ok();
    Some(FileFunction {
        position: position.filter(|position| *position != 0)?,
        size: section.size,
        name: PLT.into(),
    })
}

/// The function that an address is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAt<'a> {
    /// The name; None if the load object has no function there.
    pub name: Option<&'a str>,
    /// The load object; None for a dynamic function.
    pub object: Option<&'a str>,
    /// Bytes from the beginning of the function, or of the file if there is no function.
    pub offset: u64,
}

/// The load objects of an experiment and of all its subexperiments, each read when it is first
/// needed.
#[derive(Debug)]
pub struct Archives {
    path: PathBuf,
    /// If set, files of this machine that were last changed before this are used too.
    files: Option<SystemTime>,
    tables: HashMap<String, Option<FileFunctions>>,
}

impl Archives {
    /// The load objects in a directory `archives/`. Those of an experiment are
    /// [`Experiment::archives`](crate::reader::Experiment::archives).
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Archives {
            path,
            files: None,
            tables: HashMap::new(),
        }
    }

    /// Uses files of this machine too, for load objects that were not archived, if they were last
    /// changed before `recorded`. Use it only on the recorded machine; gprofng does so on every
    /// machine.
    #[must_use]
    pub fn or_files(self, recorded: SystemTime) -> Self {
        Archives {
            files: Some(recorded),
            ..self
        }
    }

    /// Reads the functions of a load object.
    fn read(&self, load_object: &str) -> Result<Option<FileFunctions>> {
        // What collectors archive under other names than paths are ELF files that they create.
        let any_format = load_object.starts_with('/');
        let path = self.path.join(archive_name(load_object));
        let copy = open_copy(&self.path, load_object)?;
        let archived = copy.map(|file| read_table(&path, file, any_format));
        let archived = archived.transpose()?.flatten();
        match self.files {
            Some(recorded) if archived.is_none() && any_format => {
                let path = Path::new(load_object);
                let file = open_unchanged(path, recorded)?;
                file.map_or(Ok(None), |file| read_table(path, file, true))
            }
            _ => Ok(archived),
        }
    }

    /// The functions of a load object. None if it was not archived, or if the copy of a path is no
    /// ELF file: programs map code from files of their own formats.
    ///
    /// # Errors
    ///
    /// A damaged ELF file. It is returned once; then the file counts as missing.
    pub fn functions(&mut self, load_object: &str) -> Result<Option<&FileFunctions>> {
        if !self.tables.contains_key(load_object) {
            let (table, outcome) = match self.read(load_object) {
                Ok(table) => (table, Ok(())),
                Err(error) => (None, Err(error)),
            };
            self.tables.insert(load_object.to_owned(), table);
            outcome?;
        }
        Ok(self.tables.get(load_object).and_then(Option::as_ref))
    }

    /// Returns the function at an address in `space` at a time, in nanoseconds since the start of
    /// the experiment that has this address space. None if nothing was mapped there.
    ///
    /// # Errors
    ///
    /// As [`Archives::functions`].
    pub fn function_at<'a>(
        &'a mut self,
        space: &'a RecordedAddressSpace,
        address: u64,
        at_ns: Nanos,
    ) -> Result<Option<FunctionAt<'a>>> {
        let Some(location) = space.find(address, at_ns) else {
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

/// Whether a file does not begin as an ELF file. If it cannot be read, its next reader gets the
/// same error, and reports it.
fn is_other_format(file: &File) -> bool {
    let mut magic = [0; ELFMAG.len()];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => magic != ELFMAG,
        Err(error) => error.kind() == io::ErrorKind::UnexpectedEof,
    }
}

/// Opens a file of this machine, unless it was changed after `recorded`.
fn open_unchanged(path: &Path, recorded: SystemTime) -> Result<Option<File>> {
    let file = open_regular(path)?;
    Ok(file.filter(|file| {
        let changed = file.metadata().and_then(|metadata| metadata.modified());
        changed.map_or(true, |changed| changed <= recorded)
    }))
}

/// Returns the functions of a file; None if it is no ELF file, where it may be of `any_format`.
fn read_table(path: &Path, file: File, any_format: bool) -> Result<Option<FileFunctions>> {
    if any_format && is_other_format(&file) {
        return Ok(None);
    }
    let metadata = file.metadata();
    let allocated = metadata.map_or(AllocatedBytes::UNKNOWN, |metadata| {
        AllocatedBytes::of(&metadata)
    });
    let table = FileFunctions::parse(&file, allocated);
    table.map(Some).map_err(|error| Error::Malformed {
        path: path.to_owned(),
        offset: 0,
        what: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf_image::{ElfImage, ImageSymbol, TextSection};
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn image(symbols: &[(u64, u64, &'static str)], bits: Option<&[u8]>) -> Vec<u8> {
        let symbols = symbols.iter().map(|(offset, size, name)| ImageSymbol {
            address: BASE + offset,
            size: *size,
            name: name.as_bytes(),
            global: false,
        });
        let texts = vec![TextSection {
            address: BASE,
            size: 0x1000,
            bits,
        }];
        ElfImage {
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
            let table = FileFunctions::parse(bytes.as_slice(), AllocatedBytes::UNKNOWN).unwrap();
            assert_eq!(table.find(0x1010), Some(("a", 0)));
            assert_eq!(table.find(0x101f), Some(("a", 15)));
            assert_eq!(table.find(0x103f), Some(("to_the_next", 31)));
            assert_eq!(table.find(0x1048), None);
            assert_eq!(table.find(0x100f), None);
            assert_eq!(table.find(1 << 32), None);
            assert_eq!(table.range(0x101f), Some(0x1010..0x1020));
            assert_eq!(table.range(0x1020), Some(0x1020..0x1040));
            assert_eq!(table.range(0x1048), None);
            assert_eq!(table.range(0x100f), None);
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
        let table = FileFunctions::parse(bytes.as_slice(), AllocatedBytes::UNKNOWN).unwrap();
        assert_eq!(table.len(), 3);
        assert_eq!(table.find(0x1017), Some(("read", 7)));
        let (names, distance) = table.find_all(0x1017).unwrap();
        let names: Vec<_> = names.collect();
        assert_eq!(
            (names, distance),
            (vec!["read", "zzzz", "__x64_sys_read"], 7)
        );
        assert_eq!(table.hole(0x2000), 0x1018);
        assert_eq!(table.hole(0x1000), 0);
    }

    #[test]
    fn a_copy_that_is_no_elf_file_has_no_functions_and_is_no_damage() {
        let directory = tempfile::tempdir().unwrap();
        let mut archives = Archives::new(directory.path().to_owned());
        let archive = |name: &str, bytes: &[u8]| {
            std::fs::write(directory.path().join(archive_name(name)), bytes).unwrap();
        };
        archive("/of/a/language", &[0xc3; 4096]);
        archive("/empty", b"");
        archive("/damaged", b"\x7fELF\x02\x01\x01");
        archive("vmlinux", b"none");
        assert!(archives.functions("vmlinux").is_err());
        for name in ["/of/a/language", "/empty", "/missing"] {
            assert!(archives.functions(name).unwrap().is_none(), "{name}");
        }
        assert!(archives.functions("/damaged").is_err());
        assert!(archives.functions("/damaged").unwrap().is_none());
    }

    #[test]
    fn functions_that_share_a_long_name_take_no_more_than_they_may() {
        let name: &str = "n".repeat(1 << 20).leak();
        let of = |count| {
            let symbols: Vec<_> = (1..=count).map(|number| (number, 1, name)).collect();
            let bytes = image(&symbols, None);
            FileFunctions::parse(bytes.as_slice(), AllocatedBytes::UNKNOWN).map(|table| table.len())
        };
        assert_eq!(of(20).unwrap(), 20);
        assert!(of(21).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn a_real_program_has_functions() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let table = FileFunctions::parse(bytes.as_slice(), AllocatedBytes::UNKNOWN).unwrap();
        assert!(table.len() > 100);
    }

    proptest! {
        #[test]
        fn damaged_files_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            cut: prop::sample::Index,
        ) {
            let mut bytes = image(&[(0x10, 0x10, "a"), (0x20, 0, "b")], None);
            for (offset, value) in damage {
                let offset = offset.index(bytes.len());
                bytes[offset] = value;
            }
            let _ = FileFunctions::parse(bytes.as_slice(), AllocatedBytes::UNKNOWN);
            let _ = FileFunctions::parse(&bytes[..cut.index(bytes.len())], AllocatedBytes::UNKNOWN);
        }
    }
}
