//! The entries of a symbol table.

use object::Endianness;
use object::elf::{STB_LOCAL, Sym32, Sym64, SymbolSection, SymbolType};
use object::read::elf::Sym;

use super::{ElfBytes, ElfFile, pods};

/// A symbol of either class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfSymbol {
    /// Offset of its name in the table of strings.
    pub name: u32,
    /// `STT_FUNC`, `STT_OBJECT`, ….
    pub kind: SymbolType,
    /// Whether other files see it: it is not local.
    pub global: bool,
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
            global: symbol.st_bind() != STB_LOCAL,
            section: symbol.st_shndx(endian),
            address: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
        }
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

    /// Returns the symbols in the content of a symbol table: as many as are whole.
    pub fn symbols<'a>(&self, content: &'a [u8]) -> impl Iterator<Item = ElfSymbol> + use<'a, B> {
        let endian = self.endian;
        let (wide, narrow): (&[Sym64<Endianness>], &[Sym32<Endianness>]) = if self.wide {
            (pods(content), &[])
        } else {
            (&[], pods(content))
        };
        let wide = wide.iter().map(move |symbol| ElfSymbol::of(symbol, endian));
        wide.chain(
            narrow
                .iter()
                .map(move |symbol| ElfSymbol::of(symbol, endian)),
        )
    }
}
