//! The functions of a file by its symbol table: which one covers an address, and which begins
//! before it.
//!
//! The table may be hostile: names are copied only for the addresses that are asked for, and of
//! symbols that overlap only some are looked at.

use std::ops::RangeInclusive;

use kcollect_elf::name_at;
use object::elf::{SHF_EXECINSTR, SHT_DYNSYM, SHT_SYMTAB, STT_NOTYPE};

use super::demangle;
use super::elf::{Damaged, Elf, SectionBudget};

/// The beginning of the name that the recorder and gprofng form for a function without a name.
pub const NAMELESS: &str = "<static>@";
/// The longest name. The rest is cut.
const MAX_NAME_BYTES: usize = 64 << 10;
/// Maximum number of symbols before an address that are compared with it.
const MAX_STEPS: usize = 64;

/// A symbol of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CodeSymbol {
    address: u64,
    /// The first address after it, which is `address` if the size is not known.
    end: u64,
    /// Whether it is not marked as a function. Assemblers make such symbols.
    label: bool,
    /// The position of its name in `names`.
    name: u32,
}

/// The symbols of code of one file.
#[derive(Debug, Default)]
pub(super) struct CodeSymbols {
    /// The symbols, by address.
    list: Vec<CodeSymbol>,
    /// For each symbol, the largest end of it and those before it.
    reach: Vec<u64>,
    names: Vec<u8>,
}

impl CodeSymbols {
    /// Reads `.symtab`, or else `.dynsym`, of a 64-bit file. Empty if the file has neither.
    pub(super) fn read(elf: &Elf, budget: &mut SectionBudget) -> Result<CodeSymbols, Damaged> {
        let tables = [SHT_SYMTAB, SHT_DYNSYM];
        let found = tables.into_iter().find_map(|kind| elf.symbol_table(kind));
        let Some(table) = found.filter(|_| elf.bits() == 64) else {
            return Ok(CodeSymbols::default());
        };
        let names = elf.raw(table.names, budget)?;
        let mut list = Vec::new();
        elf.each_symbol(table, budget, |symbol| {
            let label = symbol.kind == STT_NOTYPE;
            let section = symbol.section_index();
            let section = section.and_then(|index| elf.headers().get(index));
            let in_code = section.is_some_and(|section| section.flags.contains(SHF_EXECINSTR));
            if in_code && (label || symbol.is_function()) {
                list.push(CodeSymbol {
                    address: symbol.address,
                    end: symbol.address.saturating_add(symbol.size),
                    label,
                    name: symbol.name,
                });
            }
        })?;
        list.sort_unstable();
        let mut end = 0;
        let reach = list.iter().map(|symbol| {
            end = end.max(symbol.end);
            end
        });
        Ok(CodeSymbols {
            reach: reach.collect(),
            list,
            names,
        })
    }

    /// Returns the name of the function that covers an address, and where it begins. A symbol
    /// without a size covers nothing, but may begin where the function does: at `begin`.
    pub(super) fn covering(&self, address: u64, begin: Option<u64>) -> Option<(String, u64)> {
        let after = self
            .list
            .partition_point(|symbol| symbol.address <= address);
        let before = self.list[..after].iter().zip(&self.reach[..after]).rev();
        let mut before = before
            .take(MAX_STEPS)
            .take_while(|(_, reach)| **reach > address);
        let covers = |symbol: &CodeSymbol| address < symbol.end && !symbol.label;
        let place = before.find_map(|(symbol, _)| covers(symbol).then_some(symbol.address));
        let named = |place: u64, fits: &dyn Fn(&CodeSymbol) -> bool| {
            let first = self.list.partition_point(|symbol| symbol.address < place);
            let aliases = self.list[first..].iter();
            let aliases = aliases.take_while(|symbol| symbol.address == place);
            let name = self.shortest(aliases.filter(|symbol| fits(symbol)))?;
            Some((name, place))
        };
        place
            .and_then(|place| named(place, &covers))
            .or_else(|| named(begin?, &|symbol| Some(symbol.end) == begin))
    }

    /// Returns the name of the last function that begins in a range, and where.
    pub(super) fn last_in(&self, range: RangeInclusive<u64>) -> Option<(String, u64)> {
        let begin = |place: u64| self.list.partition_point(|symbol| symbol.address < place);
        let end = self
            .list
            .partition_point(|symbol| symbol.address <= *range.end());
        let in_range = self.list.get(begin(*range.start())..end)?.iter().rev();
        let mut functions = in_range.filter(|symbol| !symbol.label);
        let last = functions.find(|symbol| self.name(symbol.name).is_some())?;
        let aliases = self.list[begin(last.address)..end].iter();
        let aliases = aliases.take_while(|symbol| symbol.address == last.address);
        Some((self.shortest(aliases)?, last.address))
    }

    /// Returns the end of the symbols that begin at or before an address, which is that address if
    /// one covers it.
    pub(super) fn end_before(&self, address: u64) -> u64 {
        let after = self
            .list
            .partition_point(|symbol| symbol.address <= address);
        let reach = after.checked_sub(1).and_then(|last| self.reach.get(last));
        reach.map_or(0, |reach| address.min(*reach))
    }

    /// Returns the name of several that is the shortest when it is demangled.
    fn shortest<'a>(&self, symbols: impl Iterator<Item = &'a CodeSymbol>) -> Option<String> {
        let names = symbols.take(MAX_STEPS);
        let names = names.filter_map(|symbol| self.name(symbol.name));
        names.min_by_key(|name| {
            let plain = demangle(name).into_owned();
            (plain.len(), plain)
        })
    }

    /// Returns a name, if it is one: not empty, not one that stands for none, and not a mark of the
    /// assembler.
    fn name(&self, at: u32) -> Option<String> {
        let name = String::from_utf8_lossy(name_at(&self.names, at, MAX_NAME_BYTES)?);
        let none = name.is_empty() || [NAMELESS, "$", ".L"].iter().any(|no| name.starts_with(no));
        (!none).then(|| name.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use object::write::{Object, StandardSection, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope};
    use proptest::prelude::*;

    use super::*;

    /// A file with code of 4096 bytes at address 0 and these symbols: begin, size, kind, name.
    fn image(symbols: &[(u64, u64, SymbolKind, &str)]) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = object.section_id(StandardSection::Text);
        object.append_section_data(text, &[0x90; 4096], 1);
        for (value, size, kind, name) in symbols {
            object.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value: *value,
                size: *size,
                kind: *kind,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(text),
                flags: SymbolFlags::None,
            });
        }
        object.write().unwrap()
    }

    fn read(bytes: &[u8]) -> Option<CodeSymbols> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let elf = Elf::read(file).ok()?;
        CodeSymbols::read(&elf, &mut SectionBudget::new()).ok()
    }

    fn found(name: &str, place: u64) -> Option<(String, u64)> {
        Some((name.to_owned(), place))
    }

    #[test]
    fn the_inner_function_with_the_shortest_name_covers_a_place() {
        const TEXT: SymbolKind = SymbolKind::Text;
        let symbols = read(&image(&[
            (0x10, 0x100, TEXT, "outer"),
            (0x20, 0x10, TEXT, "_ZN1a1b1cEv"),
            (0x20, 0x10, TEXT, "__interposed"),
            (0x200, 0, TEXT, "sizeless"),
            (0x300, 0x10, TEXT, "<static>@0x300 (<x>)"),
            (0x310, 0, SymbolKind::Label, "label"),
        ]))
        .unwrap();
        assert_eq!(symbols.covering(0x10, Some(0)), found("outer", 0x10));
        // Demangled: a::b::c().
        assert_eq!(symbols.covering(0x2f, Some(0)), found("_ZN1a1b1cEv", 0x20));
        assert_eq!(symbols.covering(0x30, Some(0)), found("outer", 0x10));
        assert_eq!(symbols.covering(0x110, Some(0x108)), None);
        // Only where the range begins there.
        assert_eq!(
            symbols.covering(0x220, Some(0x200)),
            found("sizeless", 0x200)
        );
        assert_eq!(symbols.covering(0x220, Some(0x210)), None);
        assert_eq!(symbols.covering(0x308, Some(0x300)), None);
        assert_eq!(symbols.covering(0x318, Some(0x310)), found("label", 0x310));
        assert_eq!(symbols.covering(0x220, None), None);
        let ends = [0xf, 0x2f, 0x1ff, 0x3ff].map(|place| symbols.end_before(place));
        assert_eq!(ends, [0, 0x2f, 0x110, 0x310]);
        assert_eq!(symbols.last_in(0..=0xfff), found("sizeless", 0x200));
        assert_eq!(symbols.last_in(0..=0x1ff), found("_ZN1a1b1cEv", 0x20));
        assert_eq!(symbols.last_in(0x21..=0x1ff), None);
    }

    proptest! {
        #[test]
        fn damaged_tables_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            cut: prop::sample::Index,
            places in prop::collection::vec(any::<u64>(), 1..8),
        ) {
            let mut bytes = image(&[
                (0x10, 0x10, SymbolKind::Text, "a"),
                (0x20, 0, SymbolKind::Text, "b"),
            ]);
            // Not the code, which is most of it.
            let damaged = bytes.len() - 4096;
            for (place, value) in damage {
                let at = place.index(damaged);
                let at = if at < 64 { at } else { at + 4096 };
                bytes[at] = value;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Some(symbols) = read(bytes) {
                    for place in &places {
                        let _ = symbols.covering(*place, Some(place / 2));
                        let _ = symbols.end_before(*place);
                        let _ = symbols.last_in(place / 2..=*place);
                    }
                }
            }
        }
    }
}
