//! The functions of the running kernel, from `/proc/kallsyms`.
//!
//! Only text symbols are read (types t, T, w, W). kallsyms has no sizes: a function extends to the
//! next address that has a name, the last one of a load object to the end of its page. Every alias
//! is kept. Where one name must be chosen it is the shortest, as in gprofng, but a linker's mark
//! (`_stext`, `__entry_text_start` …) is chosen only if no function is at its address.
//!
//! Hidden addresses, all of them zero, are an error: a table made from them would name nothing.

use std::path::PathBuf;
use std::{fs, io};

use experiment_format::kernel::{BPF, KERNEL};

/// Size of the longest function, bytes: an address further behind a symbol is not part of it.
const MAX_FUNCTION_BYTES: u64 = 64 * 1024;
const PAGE_BYTES: u64 = 4096;
/// The digits of an address in kallsyms.
const ADDRESS_DIGITS: usize = 16;

/// A name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// First address.
    pub address: u64,
    /// Bytes to the next address that has a name; below 4 GiB.
    pub size: u64,
    /// The name, as kallsyms has it.
    pub name: &'a str,
    /// Visible outside its file (T, W).
    pub global: bool,
}

/// The symbols of one load object: the kernel, a module, or all BPF programs.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    symbols: &'a [StoredSymbol],
    names: &'a str,
}

impl<'a> Object<'a> {
    /// Returns its symbols by address, aliases in the order of kallsyms; those that were added
    /// during the run come last.
    pub fn symbols(self) -> impl Iterator<Item = Symbol<'a>> {
        self.symbols.iter().map(move |kept| kept.symbol(self.names))
    }
}

/// All functions of the running kernel. They are stored compactly, since there are a hundred
/// thousand of them, in memory for the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// The load objects by name.
    objects: Vec<(String, Vec<StoredSymbol>)>,
    /// All names, without separators.
    names: String,
    /// The chosen symbol of each address, by address.
    index: Vec<IndexEntry>,
}

/// A [`Symbol`] whose name is a range of the text of all names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredSymbol {
    address: u64,
    size: u32,
    name: u32,
    name_length: u16,
    global: bool,
}

impl StoredSymbol {
    fn symbol(self, names: &str) -> Symbol<'_> {
        let name = self.name as usize;
        Symbol {
            address: self.address,
            size: self.size.into(),
            name: names
                .get(name..name + usize::from(self.name_length))
                .unwrap_or_default(),
            global: self.global,
        }
    }
}

/// The chosen symbol of an address: the indices of its object and of the symbol in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexEntry {
    address: u64,
    object: u32,
    symbol: u32,
}

/// An error of reading the kernel's symbols.
#[derive(Debug, thiserror::Error)]
pub enum SymbolsError {
    /// The file can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// All addresses are zero.
    #[error("/proc/kallsyms hides the kernel's addresses")]
    Hidden,
    /// A line is not "address type name".
    #[error("/proc/kallsyms, line {line}: not a symbol: {text:?}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The beginning of the line.
        text: String,
    },
}

/// The function at a program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolLocation<'a> {
    /// The load object: `vmlinux`, `[ext4]`, `[bpf]`.
    pub object: &'a str,
    /// The function.
    pub symbol: Symbol<'a>,
}

impl Symbols {
    /// Reads `/proc/kallsyms`.
    ///
    /// # Errors
    /// See [`SymbolsError`].
    pub fn read() -> Result<Symbols, SymbolsError> {
        let path = PathBuf::from("/proc/kallsyms");
        match fs::read(&path) {
            // Names of modules' functions may be any bytes.
            Ok(bytes) => Symbols::parse(&String::from_utf8_lossy(&bytes)),
            Err(source) => Err(SymbolsError::Read { path, source }),
        }
    }

    /// Parses the text of `/proc/kallsyms`.
    ///
    /// # Errors
    /// [`SymbolsError::Hidden`] and [`SymbolsError::Line`].
    pub fn parse(text: &str) -> Result<Symbols, SymbolsError> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let parsed = parse_line(line).ok_or_else(|| SymbolsError::Line {
                line: number + 1,
                text: line.chars().take(80).collect(),
            })?;
            lines.extend(parsed);
        }
        // A stable sort: aliases stay in the order of the file.
        lines.sort_by_key(|line| line.address);
        if lines.last().is_none_or(|line| line.address == 0) {
            return Err(SymbolsError::Hidden);
        }

        let mut symbols = Symbols::default();
        let mut rest = lines.as_slice();
        while let Some(first) = rest.first() {
            let aliases = rest
                .iter()
                .take_while(|line| line.address == first.address)
                .count();
            let (here, later) = rest.split_at(aliases);
            let size = size(first, later.first());
            let entries = here.iter().map(|line| {
                let symbol = Symbol {
                    address: line.address,
                    size,
                    name: line.name,
                    global: line.global,
                };
                (rank(line.name), symbols.push(line.object, &symbol))
            });
            let chosen = entries.min_by_key(|(rank, _)| *rank);
            symbols.index.extend(chosen.map(|(_, entry)| entry));
            rest = later;
        }
        symbols.names.shrink_to_fit();
        symbols.index.shrink_to_fit();
        for (_, object) in &mut symbols.objects {
            object.shrink_to_fit();
        }
        Ok(symbols)
    }

    /// Stores a symbol. Returns its entry for the index.
    fn push(&mut self, object: &str, symbol: &Symbol<'_>) -> IndexEntry {
        // From the end, since kallsyms is sorted by object: nearly always the last one matches.
        let found = self.objects.iter().rposition(|(name, _)| name == object);
        let object = found.unwrap_or_else(|| {
            self.objects.push((object.to_owned(), Vec::new()));
            self.objects.len() - 1
        });
        let symbols = &mut self.objects[object].1;
        let entry = IndexEntry {
            address: symbol.address,
            object: number(object),
            symbol: number(symbols.len()),
        };
        let name = symbol.name;
        symbols.push(StoredSymbol {
            address: symbol.address,
            size: number(symbol.size),
            name: number(self.names.len()),
            // The kernel's names have at most 511 bytes.
            name_length: u16::try_from(name.len()).unwrap_or(0),
            global: symbol.global,
        });
        self.names.push_str(name);
        entry
    }

    /// Returns the load objects with their symbols, in the order of their addresses.
    pub fn objects(&self) -> impl Iterator<Item = (&str, Object<'_>)> {
        let names = self.names.as_str();
        self.objects
            .iter()
            .map(move |(name, symbols)| (name.as_str(), Object { symbols, names }))
    }

    /// Returns the function that a program counter is in.
    #[must_use]
    pub fn find(&self, pc: u64) -> Option<SymbolLocation<'_>> {
        let next = self.index.partition_point(|entry| entry.address <= pc);
        let entry = self.index.get(next.checked_sub(1)?)?;
        let (object, symbols) = self.objects.get(entry.object as usize)?;
        let symbol = symbols.get(entry.symbol as usize)?.symbol(&self.names);
        (pc - symbol.address < symbol.size).then_some(SymbolLocation { object, symbol })
    }

    /// Returns the first address and the end of a function of the kernel itself; (0, 0) if there is
    /// none.
    #[must_use]
    pub fn extent(&self, function: &str) -> (u64, u64) {
        self.objects()
            .filter(|(name, _)| *name == KERNEL)
            .flat_map(|(_, object)| object.symbols())
            .find(|symbol| symbol.name == function)
            .map_or((0, 0), |symbol| {
                (symbol.address, symbol.address.saturating_add(symbol.size))
            })
    }

    /// Adds a function that was loaded during the run, such as a BPF program. It replaces a
    /// function with the same first address.
    pub fn add(&mut self, object: &str, symbol: &Symbol<'_>) {
        let entry = self.push(object, symbol);
        let next = self
            .index
            .partition_point(|other| other.address < entry.address);
        match self.index.get_mut(next) {
            Some(existing) if existing.address == entry.address => *existing = entry,
            _ => self.index.insert(next, entry),
        }
    }
}

/// Returns the bytes of the function at `line`; `next` has the next higher address.
fn size(line: &KallsymsLine<'_>, next: Option<&KallsymsLine<'_>>) -> u64 {
    let to_next = next.map_or(u64::MAX, |next| next.address - line.address);
    let most = match next {
        Some(next) if next.object == line.object => MAX_FUNCTION_BYTES,
        // At least half a page, so that a function that begins near the end of its page is whole.
        _ => {
            (line.address.saturating_add(PAGE_BYTES / 2) | (PAGE_BYTES - 1)).saturating_add(1)
                - line.address
        }
    };
    to_next.min(most)
}

/// Returns a size or a position as 32 bits. The lists and the text of all names are far smaller;
/// no symbol is at a position that is saturated.
fn number(position: impl TryInto<u32>) -> u32 {
    position.try_into().unwrap_or(u32::MAX)
}

/// A text symbol of kallsyms.
struct KallsymsLine<'a> {
    address: u64,
    global: bool,
    name: &'a str,
    object: &'a str,
}

/// Returns the symbol of a line such as `ffffffff81000000 T _stext` or
/// `ffffffffc0201000 t ext4_sync_fs [ext4]`. The outer `None` means that the line is malformed, the
/// inner one that the symbol is not a function.
fn parse_line(line: &str) -> Option<Option<KallsymsLine<'_>>> {
    if is_data(line.as_bytes()) {
        return Some(None);
    }
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next().filter(|kind| kind.len() == 1)?;
    let name = words.next()?;
    let object = match words.next() {
        None => KERNEL,
        Some(object) if object.starts_with("[__builtin__") => BPF,
        Some(object) => object,
    };
    Some(
        matches!(kind, "t" | "T" | "w" | "W").then_some(KallsymsLine {
            address,
            global: matches!(kind, "T" | "W"),
            name,
            object,
        }),
    )
}

/// Returns whether a line is of a symbol that is no function, as most are: they are not parsed.
fn is_data(line: &[u8]) -> bool {
    let Some((address, [b' ', kind, b' ', _, ..])) = line.split_at_checked(ADDRESS_DIGITS) else {
        return false;
    };
    kind.is_ascii_alphabetic()
        && !matches!(kind, b't' | b'T' | b'w' | b'W')
        && address.iter().all(u8::is_ascii_hexdigit)
}

/// Returns the key by which aliases are chosen; the lowest is preferred.
fn rank(name: &str) -> (bool, usize) {
    let mark = matches!(
        name,
        "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext"
    ) || name.starts_with("__") && (name.ends_with("_start") || name.ends_with("_end"))
        || name.ends_with("_text_start")
        || name.ends_with("_text_end");
    (mark, name.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 t do_one_initcall.isra.0
ffffffff81000180 t _RNvCs4_3foo3bar
ffffffff81000200 W weak_alias
ffffffff81000200 T strong_one
ffffffff81000240 t ext4_x.cold
ffffffff82000000 D some_data
ffffffffc0201000 t ext4_sync_fs\t[ext4]
ffffffffc0201080 T ext4_late\t[ext4]
ffffffffc0300000 t bpf_prog_abc_tick\t[bpf]
ffffffffc0300040 t ftrace_trampoline\t[__builtin__ftrace]
";

    fn name(symbols: &Symbols, pc: u64) -> String {
        symbols.find(pc).map_or_else(String::new, |place| {
            format!("{}`{}", place.object, place.symbol.name)
        })
    }

    #[test]
    fn addresses_find_their_functions() {
        let symbols = Symbols::parse(SAMPLE).unwrap();
        assert_eq!(name(&symbols, 0xffff_ffff_8100_00ff), "vmlinux`startup_64");
        assert_eq!(
            name(&symbols, 0xffff_ffff_8100_0100),
            "vmlinux`do_one_initcall.isra.0"
        );
        assert_eq!(
            name(&symbols, 0xffff_ffff_8100_0181),
            "vmlinux`_RNvCs4_3foo3bar"
        );
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0200), "vmlinux`weak_alias");
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0250), "vmlinux`ext4_x.cold");
        assert_eq!(name(&symbols, 0xffff_ffff_c020_1080), "[ext4]`ext4_late");
        assert_eq!(
            name(&symbols, 0xffff_ffff_c030_0010),
            "[bpf]`bpf_prog_abc_tick"
        );
        assert_eq!(
            name(&symbols, 0xffff_ffff_8200_0000),
            "",
            "beyond the longest function"
        );
        assert_eq!(name(&symbols, 0x1000), "");
    }

    #[test]
    fn every_alias_is_kept() {
        let symbols = Symbols::parse(SAMPLE).unwrap();
        let kernel = symbols
            .objects()
            .find(|(name, _)| *name == KERNEL)
            .unwrap()
            .1;
        let aliases = kernel
            .symbols()
            .filter(|s| s.address == 0xffff_ffff_8100_0000)
            .map(|s| s.name);
        assert_eq!(
            aliases.collect::<Vec<_>>(),
            ["_stext", "_text", "startup_64"]
        );
    }

    #[test]
    fn a_program_that_is_loaded_later_is_found() {
        let mut symbols = Symbols::parse(SAMPLE).unwrap();
        let late = |address, name: &'static str| Symbol {
            address,
            size: 64,
            name,
            global: false,
        };
        symbols.add(BPF, &late(0xffff_ffff_c040_0000, "bpf_prog_1_late"));
        symbols.add(BPF, &late(0xffff_ffff_c030_0000, "bpf_prog_2_again"));
        assert_eq!(
            name(&symbols, 0xffff_ffff_c040_003f),
            "[bpf]`bpf_prog_1_late"
        );
        assert_eq!(name(&symbols, 0xffff_ffff_c040_0040), "");
        assert_eq!(
            name(&symbols, 0xffff_ffff_c030_0000),
            "[bpf]`bpf_prog_2_again"
        );
    }

    #[test]
    fn hidden_addresses_and_broken_lines_are_errors() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t do_one\n";
        assert!(matches!(Symbols::parse(hidden), Err(SymbolsError::Hidden)));
        assert!(matches!(Symbols::parse(""), Err(SymbolsError::Hidden)));
        let broken = format!("{SAMPLE}ffffffff81zz T x\n");
        assert!(matches!(
            Symbols::parse(&broken),
            Err(SymbolsError::Line { line: 15, .. })
        ));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "\\PC{0,200}") {
            let _ = Symbols::parse(&text);
        }

        /// A function that is found contains the address, for any table.
        #[test]
        fn what_is_found_holds_the_address(
            lines in proptest::collection::vec((0_u64..5000, "[tTwWdA]", "[a-z_.]{1,8}"), 1..50), pc in 0_u64..6000
        ) {
            let text = lines.iter().map(|(a, k, n)| format!("{a:x} {k} {n}\n")).collect::<String>();
            if let Ok(symbols) = Symbols::parse(&text)
                && let Some(place) = symbols.find(pc)
            {
                prop_assert!(place.symbol.address <= pc);
                prop_assert!(pc - place.symbol.address < place.symbol.size);
            }
        }
    }
}
