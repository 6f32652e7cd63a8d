//! The functions of the running kernel, from `/proc/kallsyms`.
//!
//! Only text symbols are read (types t, T, w, W). kallsyms has no sizes: a function extends to the
//! next address that has a name, the last one of a load object to the end of its page. Every alias
//! is kept.
//!
//! Hidden addresses, all of them zero, are an error: a table made from them would name nothing.

use std::path::PathBuf;
use std::{fs, io};

use experiment_format::kernel::{BPF, KERNEL};

/// Size of the longest function, bytes: an address further from a symbol is not part of it.
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
    /// Returns its symbols by address, aliases in the order of kallsyms.
    pub fn symbols(self) -> impl Iterator<Item = Symbol<'a>> {
        self.symbols.iter().map(move |kept| kept.symbol(self.names))
    }
}

/// All functions of the running kernel, stored compactly, since there are a hundred thousand of
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// The load objects by name.
    objects: Vec<(String, Vec<StoredSymbol>)>,
    /// All names, without separators.
    names: String,
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
            for line in here {
                let symbol = Symbol {
                    address: line.address,
                    size,
                    name: line.name,
                    global: line.global,
                };
                symbols.push(line.object, &symbol);
            }
            rest = later;
        }
        symbols.names.shrink_to_fit();
        for (_, object) in &mut symbols.objects {
            object.shrink_to_fit();
        }
        Ok(symbols)
    }

    fn push(&mut self, object: &str, symbol: &Symbol<'_>) {
        // From the end, since kallsyms is sorted by object: nearly always the last one matches.
        let found = self.objects.iter().rposition(|(name, _)| name == object);
        let object = found.unwrap_or_else(|| {
            self.objects.push((object.to_owned(), Vec::new()));
            self.objects.len() - 1
        });
        let name = symbol.name;
        self.objects[object].1.push(StoredSymbol {
            address: symbol.address,
            size: number(symbol.size),
            name: number(self.names.len()),
            // The kernel's names have at most 511 bytes.
            name_length: u16::try_from(name.len()).unwrap_or(0),
            global: symbol.global,
        });
        self.names.push_str(name);
    }

    /// Returns the load objects with their symbols, in the order of their addresses.
    pub fn objects(&self) -> impl Iterator<Item = (&str, Object<'_>)> {
        let names = self.names.as_str();
        self.objects
            .iter()
            .map(move |(name, symbols)| (name.as_str(), Object { symbols, names }))
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

/// Whether a line's symbol is no function. Such lines, which are most of them, are not parsed.
fn is_data(line: &[u8]) -> bool {
    let Some((address, [b' ', kind, b' ', _, ..])) = line.split_at_checked(ADDRESS_DIGITS) else {
        return false;
    };
    kind.is_ascii_alphabetic()
        && !matches!(kind, b't' | b'T' | b'w' | b'W')
        && address.iter().all(u8::is_ascii_hexdigit)
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

    /// Returns the functions of a load object, with their addresses and ends.
    fn functions<'a>(symbols: &'a Symbols, object: &str) -> Vec<(u64, u64, &'a str)> {
        let mut objects = symbols.objects();
        let object = objects.find(|(name, _)| *name == object).unwrap().1;
        let ends = |symbol: Symbol<'a>| (symbol.address, symbol.address + symbol.size, symbol.name);
        object.symbols().map(ends).collect()
    }

    #[test]
    fn a_function_extends_to_the_next_one() {
        let symbols = Symbols::parse(SAMPLE).unwrap();
        let kernel = functions(&symbols, KERNEL);
        assert_eq!(
            kernel[2..5],
            [
                (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0100, "startup_64"),
                (
                    0xffff_ffff_8100_0100,
                    0xffff_ffff_8100_0180,
                    "do_one_initcall.isra.0"
                ),
                (
                    0xffff_ffff_8100_0180,
                    0xffff_ffff_8100_0200,
                    "_RNvCs4_3foo3bar"
                ),
            ]
        );
        // The last one of an object ends with its page.
        assert_eq!(
            kernel.last(),
            Some(&(0xffff_ffff_8100_0240, 0xffff_ffff_8100_1000, "ext4_x.cold"))
        );
        let ext4 = functions(&symbols, "[ext4]");
        assert_eq!(ext4[0].1, 0xffff_ffff_c020_1080);
        let programs = functions(&symbols, BPF);
        assert_eq!(
            programs.iter().map(|found| found.2).collect::<Vec<_>>(),
            ["bpf_prog_abc_tick", "ftrace_trampoline"]
        );
        assert_eq!(
            symbols.extent("weak_alias"),
            (0xffff_ffff_8100_0200, 0xffff_ffff_8100_0240)
        );
        assert_eq!(symbols.extent("ext4_late"), (0, 0), "it is a module's");
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

        /// Functions at different addresses do not overlap, for any table.
        #[test]
        fn functions_do_not_overlap(
            lines in proptest::collection::vec((0_u64..5000, "[tTwWdA]", "[a-z_.]{1,8}"), 1..50)
        ) {
            let text = lines.iter().map(|(a, k, n)| format!("{a:x} {k} {n}\n")).collect::<String>();
            if let Ok(symbols) = Symbols::parse(&text) {
                let functions = functions(&symbols, KERNEL);
                for (one, next) in functions.iter().zip(&functions[1..]) {
                    prop_assert!(one.0 < one.1 && (one.0 == next.0 || one.1 <= next.0));
                }
            }
        }
    }
}
