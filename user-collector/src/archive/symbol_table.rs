//! The functions of a file, from all sources.
//!
//! gprofng reads one symbol table, and only its function symbols. The code between two of them, or
//! all code of a stripped program, is one function without a name. Code in `.plt` and its time are
//! left out of its list. So one table is made of all sources, the better one first:
//!
//! 1. symbols of functions, of the file and of its debug file, with indirect functions among them;
//! 2. entries of the procedure linkage table, as `NAME@plt`;
//! 3. symbols without a type that are not inside a function, such as assembly code's;
//! 4. the functions in the frame information, which stripped programs have too. They get the name
//!    that gprofng itself uses, `<static>@0xOFFSET (<FILE>)`, each its own.
//!
//! The tables may be hostile. Time is linear except for a sort, names are neither compared nor
//! copied one by one, and counts are bounded.

use std::collections::HashMap;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB, STT_NOTYPE, SectionType};

use super::object_file::{CodeSection, MAX_FUNCTIONS, ObjectFile};
use super::plt::PltEntry;
use super::{function_ranges, plt};

/// Max bytes of names.
const MAX_NAMES_BYTES: usize = 512 << 20;

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArchivedFunction {
    pub(super) address: u64,
    pub(super) size: u64,
    /// Offset in [`FunctionTable::names`].
    pub(super) name: u32,
    /// The section's index, from 1.
    pub(super) section: u16,
}

/// All functions that were found.
#[derive(Debug)]
pub(super) struct FunctionTable {
    /// The functions, by address.
    pub(super) list: Vec<ArchivedFunction>,
    /// The names, each up to a NUL; the first is empty.
    pub(super) names: Vec<u8>,
    /// Number of symbols of the debug file.
    pub(super) of_debug: usize,
}

/// A symbol that stands for code.
#[derive(Clone, Copy)]
struct CodeSymbol {
    address: u64,
    size: u64,
    name: u32,
    function: bool,
}

impl FunctionTable {
    /// Returns the functions of a file. `base` is the last part of the load object's name.
    pub(super) fn of(
        elf: &ObjectFile<'_>,
        debug: Option<&ObjectFile<'_>>,
        base: &str,
    ) -> FunctionTable {
        let code = elf.code();
        // Before the names are read: both need much memory, but not at the same time.
        let frames = function_ranges::functions(elf);
        let mut functions = FunctionTable {
            list: Vec::new(),
            names: vec![0],
            of_debug: 0,
        };
        let mut symbols = Vec::new();
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            functions.read_symbols(elf, kind, &mut symbols);
        }
        let own = symbols.len();
        if let Some(debug) = debug {
            functions.read_symbols(debug, SHT_SYMTAB, &mut symbols);
        }
        functions.of_debug = symbols.len() - own;

        let (mut strong, mut weak): (Vec<_>, Vec<_>) =
            symbols.into_iter().partition(|symbol| symbol.function);
        let entries = functions.plt_entries(elf, &code, base, &strong);
        strong.extend(entries.into_iter().map_while(|entry| {
            Some(CodeSymbol {
                address: entry.address,
                size: entry.size,
                name: functions.name(&entry.name)?,
                function: true,
            })
        }));
        functions.add(&code, strong);
        // A symbol inside of a function of the frame information is a label in that function.
        weak.retain(|symbol| {
            let around = function_ranges::around(&frames, symbol.address);
            around.is_none_or(|frame| frame.start == symbol.address)
        });
        weak.sort_unstable_by_key(|symbol| (symbol.address, symbol.name));
        functions.add_between(&code, weak, |_, symbol| Some(symbol));
        functions.add_unnamed(&code, &frames, base);
        functions.set_missing_sizes(&code, &frames);
        functions
    }

    /// Adds a name and returns its offset; `None` if there are too many.
    pub(super) fn name(&mut self, name: &[u8]) -> Option<u32> {
        if self.names.len() + name.len() >= MAX_NAMES_BYTES {
            return None;
        }
        let position = self.names.len() as u32;
        self.names.extend_from_slice(name);
        self.names.push(0);
        Some(position)
    }

    fn read_symbols(
        &mut self,
        elf: &ObjectFile<'_>,
        kind: SectionType,
        symbols: &mut Vec<CodeSymbol>,
    ) {
        // All names at once: they may share their ends. The last one may have no NUL, so one is
        // added.
        let base = self.names.len();
        let table = elf
            .sections
            .symbol_table(kind)
            .filter(|table| table.names.size.saturating_add(base as u64) < MAX_NAMES_BYTES as u64);
        let Some(table) = table else {
            return;
        };
        let file = &elf.elf;
        if file
            .content_onto(table.names, "names of symbols", &mut self.names)
            .is_err()
        {
            return;
        }
        let end = self.names.len();
        self.names.push(0);
        let names = &self.names[..end];
        // If the table can't be read to its end, the symbols before are used.
        let _ = file.each_symbol(table.symbols, |symbol| {
            let function = symbol.is_function();
            let name = base + symbol.name as usize;
            // `$x` and `$d` mark code and data on some processors.
            let named = names
                .get(name)
                .is_some_and(|first| *first != 0 && (function || *first != b'$'));
            if (function || symbol.kind == STT_NOTYPE)
                && symbol.section_index().is_some()
                && named
                && symbols.len() < MAX_FUNCTIONS
            {
                symbols.push(CodeSymbol {
                    address: symbol.address,
                    size: symbol.size,
                    name: name as u32,
                    function,
                });
            }
        });
    }

    fn plt_entries(
        &self,
        elf: &ObjectFile<'_>,
        code: &[CodeSection],
        base: &str,
        symbols: &[CodeSymbol],
    ) -> Vec<PltEntry> {
        // The first name of each address, for calls of indirect functions.
        let first: HashMap<u64, u32> = symbols
            .iter()
            .rev()
            .map(|symbol| (symbol.address, symbol.name))
            .collect();
        plt::entries(elf, code, base, |address| {
            plt::name_in(&self.names, *first.get(&address)?)
        })
    }

    /// Adds symbols that are in a section of code, each cut at the end of its section.
    fn add(&mut self, code: &[CodeSection], symbols: Vec<CodeSymbol>) {
        let functions = symbols
            .into_iter()
            .filter_map(|symbol| function(code, symbol));
        self.list.extend(functions);
        self.sort();
    }

    /// Adds the symbols that begin outside of all functions, each cut at the next function. They
    /// come by address. `named` returns each with its name, or `None` to stop if there are too
    /// many.
    fn add_between(
        &mut self,
        code: &[CodeSection],
        symbols: impl IntoIterator<Item = CodeSymbol>,
        mut named: impl FnMut(&mut Self, CodeSymbol) -> Option<CodeSymbol>,
    ) {
        let known = self.list.len();
        let (mut next, mut covered) = (0, 0);
        for mut symbol in symbols {
            while let Some(function) = self.list[..known].get(next)
                && function.address <= symbol.address
            {
                // One without a size still has its first byte.
                let end = function.address.saturating_add(function.size.max(1));
                covered = covered.max(end);
                next += 1;
            }
            if symbol.address < covered {
                continue;
            }
            if let Some(function) = self.list[..known].get(next) {
                symbol.size = symbol.size.min(function.address - symbol.address);
            }
            let Some(symbol) = named(self, symbol) else {
                break;
            };
            self.list.extend(function(code, symbol));
        }
        self.sort();
    }

    /// Adds the functions of the frame information, with the names that gprofng uses. A compiler's
    /// library has a hundred thousand, so there is no other list of them.
    fn add_unnamed(
        &mut self,
        code: &[CodeSection],
        frames: &[function_ranges::FunctionRange],
        base: &str,
    ) {
        let symbols = frames.iter().map(|frame| CodeSymbol {
            address: frame.start,
            size: frame.end - frame.start,
            name: 0,
            function: true,
        });
        self.add_between(code, symbols, |functions, symbol| {
            // A function outside of all code is not added, and needs no name.
            let Some(code) = section_of(code, symbol.address) else {
                return Some(symbol);
            };
            let position = code.offset + (symbol.address - code.address);
            let name = format!("<static>@{position:#x} (<{base}>)");
            let name = functions.name(name.as_bytes())?;
            Some(CodeSymbol { name, ..symbol })
        });
    }

    fn sort(&mut self) {
        self.list
            .sort_unstable_by_key(|function| (function.address, function.size, function.name));
        self.list.dedup();
    }

    /// Sets the sizes of functions without one: to the end of the frame information's function, or
    /// to the next function. gprofng would only use the next function.
    fn set_missing_sizes(
        &mut self,
        code: &[CodeSection],
        frames: &[function_ranges::FunctionRange],
    ) {
        let mut next = u64::MAX;
        let mut index = self.list.len();
        while index > 0 {
            // All functions of the same address have the same next one.
            let address = self.list[index - 1].address;
            let limit = section_of(code, address).map_or(next, |code| code.end.min(next));
            while index > 0 && self.list[index - 1].address == address {
                let function = &mut self.list[index - 1];
                if function.size == 0 {
                    let frame = function_ranges::around(frames, address);
                    let end = frame.map_or(limit, |frame| frame.end.min(limit));
                    function.size = end - address;
                }
                index -= 1;
            }
            next = address;
        }
    }
}

/// Returns the function of a symbol, cut at the end of its section; `None` outside of all code.
fn function(code: &[CodeSection], symbol: CodeSymbol) -> Option<ArchivedFunction> {
    let code = section_of(code, symbol.address)?;
    Some(ArchivedFunction {
        address: symbol.address,
        size: symbol.size.min(code.end - symbol.address),
        name: symbol.name,
        section: code.index,
    })
}

/// Returns the section of code at an address.
fn section_of(code: &[CodeSection], address: u64) -> Option<&CodeSection> {
    let after = code.partition_point(|code| code.address <= address);
    code[..after].last().filter(|code| address < code.end)
}
