//! Names of the kernel's functions for an experiment that has no copy of its symbols (`-A off`).
//!
//! The summary has the addresses of some functions. A table of symbols is of the same build if it
//! has all of them at the same distances; after a reboot the kernel may be at another address. The
//! candidates are the running kernel's table, the tables in `/boot`, and the symbols of debug
//! files.
//!
//! Modules have no names: they may be at other addresses by now.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kcollect_elf::{AllocatedBytes, ElfError, ElfFile, ElfLimits, name_at};
use object::elf::{SHT_SYMTAB, STT_NOTYPE};
use serde_json::Value;

/// Maximum bytes of a table that is text.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Maximum bytes of a table of symbols, and of their names.
const MAX_TABLE_BYTES: u64 = 1 << 30;
/// The longest name of a kernel's function, bytes (`KSYM_NAME_LEN`).
const MAX_NAME_BYTES: usize = 512;
/// Directories with the files of kernels.
const DIRECTORIES: [&str; 2] = ["/boot", "/usr/lib/debug/boot"];
/// Where debug files are found by build id.
const BY_BUILD_ID: &str = "/usr/lib/debug/.build-id";
/// Maximum size of a function, bytes: what is farther from a symbol is not its code.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;

/// The kernel's functions at the addresses of a recording.
#[derive(Debug)]
pub(super) struct KernelNames {
    /// First addresses and names, by address.
    functions: Vec<(u64, Box<str>)>,
    /// The first address of all.
    start: u64,
}

impl KernelNames {
    /// Returns the functions of the kernel that a summary describes. None: it describes none, or
    /// this machine has no table of that build.
    pub(super) fn of(summary: &Value) -> Option<KernelNames> {
        let places = summary["kernel_functions"].as_object()?;
        let place = |(name, address): (&String, &Value)| {
            let address = u64::from_str_radix(address.as_str()?, 16).ok()?;
            Some((name.clone(), address))
        };
        let places: HashMap<String, u64> = places.iter().filter_map(place).collect();
        let build_id = summary["kernel_build_id"].as_str();
        tables(build_id).find_map(|table| KernelNames::at(table.functions()?, &places))
    }

    /// Returns functions as they were in the recording, if they are of the same build.
    fn at(functions: Vec<(u64, Box<str>)>, places: &HashMap<String, u64>) -> Option<KernelNames> {
        let mut found = HashMap::new();
        for (address, name) in &functions {
            if let Some((name, _)) = places.get_key_value(&**name) {
                found.insert(name.as_str(), *address);
            }
        }
        let mut slides = places.iter().map(|(name, recorded)| {
            let address = found.get(name.as_str())?;
            Some(recorded.wrapping_sub(*address))
        });
        let slide = slides.next()??;
        if !slides.all(|other| other == Some(slide)) {
            return None;
        }
        let moved = |(address, name): (u64, Box<str>)| (address.wrapping_add(slide), name);
        let mut functions: Vec<_> = functions.into_iter().map(moved).collect();
        functions.sort_by_key(|(address, _)| *address);
        let start = functions.first()?.0;
        Some(KernelNames { functions, start })
    }

    /// Returns the name of the function at an address, and how far after the kernel's first
    /// function it begins.
    pub(super) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self
            .functions
            .partition_point(|(begin, _)| *begin <= address);
        let (begin, _) = self.functions.get(after.checked_sub(1)?)?;
        // The first alias in the table.
        let first = self.functions.partition_point(|(other, _)| other < begin);
        let (begin, name) = self.functions.get(first)?;
        // After the last function there are modules.
        let inside = after < self.functions.len() && address - begin < MAX_FUNCTION_BYTES;
        inside.then(|| (&**name, begin - self.start))
    }

    /// Returns how far after the kernel's first function an address is.
    pub(super) fn offset(&self, address: u64) -> u64 {
        address - self.start
    }
}

/// A file with the symbols of a kernel.
enum SymbolTable {
    /// Lines of an address, a type and a name, and of a module.
    Text(PathBuf),
    /// A program.
    Elf(PathBuf),
}

/// Returns the tables that this machine may have of a build.
fn tables(build_id: Option<&str>) -> impl Iterator<Item = SymbolTable> {
    let debug_file = build_id.and_then(|id| {
        let (directory, file) = id.split_at_checked(2)?;
        let path = Path::new(BY_BUILD_ID).join(directory);
        Some(SymbolTable::Elf(path.join(format!("{file}.debug"))))
    });
    let files = DIRECTORIES.iter().flat_map(|directory| {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            match name {
                _ if name.starts_with("System.map") => Some(SymbolTable::Text(path)),
                _ if name.starts_with("vmlinux") => Some(SymbolTable::Elf(path)),
                _ => None,
            }
        })
    });
    let running = SymbolTable::Text("/proc/kallsyms".into());
    std::iter::once(running).chain(debug_file).chain(files)
}

impl SymbolTable {
    /// Returns its functions; none if it cannot be read.
    fn functions(&self) -> Option<Vec<(u64, Box<str>)>> {
        match self {
            SymbolTable::Text(path) => {
                let mut bytes = Vec::new();
                let file = File::open(path).ok()?;
                file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes).ok()?;
                Some(of_text(&String::from_utf8_lossy(&bytes)))
            }
            SymbolTable::Elf(path) => {
                let file = File::open(path).ok()?;
                of_elf(&file).ok()
            }
        }
    }
}

/// Returns the functions in the symbol table of a file.
fn of_elf(file: &File) -> Result<Vec<(u64, Box<str>)>, ElfError> {
    let metadata = file.metadata();
    let limits = ElfLimits {
        max_piece_bytes: MAX_TABLE_BYTES,
        allocated: metadata.map_or(AllocatedBytes::UNKNOWN, |metadata| {
            AllocatedBytes::of(&metadata)
        }),
        ..ElfLimits::PROGRAM
    };
    let elf = ElfFile::read(file, limits)?;
    let sections = elf.section_table()?;
    let mut functions = Vec::new();
    let Some(table) = sections.symbol_table(SHT_SYMTAB) else {
        return Ok(functions);
    };
    let names = elf.content(table.names, "names of symbols")?;
    elf.each_symbol(table.symbols, |symbol| {
        // Assembly has functions without a type, which kallsyms lists too.
        let is_code = symbol.is_function() || symbol.kind == STT_NOTYPE;
        if is_code
            && symbol.section_index().is_some()
            && let Some(name) = name_at(&names, symbol.name, MAX_NAME_BYTES)
            && let Ok(name) = str::from_utf8(name)
        {
            functions.push((symbol.address, name.into()));
        }
    })?;
    Ok(functions)
}

/// Returns the kernel's own functions in a text such as `/proc/kallsyms`.
fn of_text(text: &str) -> Vec<(u64, Box<str>)> {
    let function = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        // A fourth word is a module.
        let own = matches!(kind, "t" | "T" | "w" | "W") && words.next().is_none();
        let address = u64::from_str_radix(address, 16).ok()?;
        (own && address != 0).then(|| (address, name.into()))
    };
    text.lines().filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ffffffff81000000 T _stext\nffffffff81000100 t helper\n\
        ffffffff81000100 t helper.alias\nffffffff81000200 D data\nffffffff81000300 W last\n\
        ffffffff81000400 T _etext\nffffffffc0000000 t in_module\t[module]\n";

    fn places(slide: u64) -> HashMap<String, u64> {
        let place = |name: &str, address: u64| (name.to_owned(), address + slide);
        HashMap::from([
            place("_stext", 0xffff_ffff_8100_0000),
            place("last", 0xffff_ffff_8100_0300),
        ])
    }

    #[test]
    fn same_build_is_named_wherever_it_was() {
        for slide in [0, 0x1_0000] {
            let names = KernelNames::at(of_text(TABLE), &places(slide)).unwrap();
            let name = |offset| {
                let found = names.find(0xffff_ffff_8100_0000 + slide + offset);
                found.map(|(name, begin)| (name.to_owned(), begin))
            };
            assert_eq!(name(0x50), Some(("_stext".to_owned(), 0)));
            assert_eq!(name(0x2ff), Some(("helper".to_owned(), 0x100)));
            assert_eq!(name(0x300), Some(("last".to_owned(), 0x300)));
            assert_eq!(name(0x3f00_0000), None);
            assert_eq!(names.find(0xffff_ffff_8000_0000), None);
        }
    }

    #[test]
    fn functions_are_read_from_a_program() {
        let program = File::open("/proc/self/exe").unwrap();
        let functions = of_elf(&program).unwrap();
        assert!(functions.iter().any(|(_, name)| &**name == "main"));
        assert!(functions.iter().all(|(address, _)| *address != 0));
    }

    #[test]
    fn other_builds_are_refused() {
        let mut other = places(0);
        other.insert("last".to_owned(), 0xffff_ffff_8100_0310);
        assert!(KernelNames::at(of_text(TABLE), &other).is_none());
        other.insert("gone".to_owned(), 0xffff_ffff_8100_0400);
        assert!(KernelNames::at(of_text(TABLE), &other).is_none());
        assert!(KernelNames::at(of_text(TABLE), &HashMap::new()).is_none());
        assert!(KernelNames::at(Vec::new(), &places(0)).is_none());
    }
}
