//! Allocators: which functions of a file allocate and free blocks, where they can be probed, and
//! which blocks of a process are known to be allocated.
//!
//! An allocator that samples blocks itself says so by USDTs, which are better than any function:
//! they are reached for these blocks alone. Otherwise functions are probed.
//!
//! Functions are found by name: C's functions in a C library or in what stands in for it, the same
//! names with the prefixes of jemalloc, tcmalloc and mimalloc, and C++'s operators where a file has
//! a malloc of its own. In a program without symbols nothing is found.
//!
//! Names and code are under the control of others. A function that only has the name of an
//! allocator's function makes the numbers of its own process meaningless, and no others. How much
//! is read is bounded.

mod blocks;
mod functions;
mod go_profile;
mod probe_place;
mod usdt;

pub use blocks::{BlockChange, Blocks};
pub use go_profile::{GoBlocks, GoBucket, GoProfile, GoProfileError, GoProfileSymbols, GoProgram};
pub use usdt::FoundUsdt;

use std::collections::BTreeMap;

use bpf_abi::layout::AllocatorFunction;
use kcollect_elf::{
    ElfBytes, ElfError, ElfFile, ElfLimits, ElfSymbol, LoadSegment, SectionTable, load_segments,
    name_at,
};
use object::elf::{SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FUNC, SectionType};

use functions::{Named, function_of};
use probe_place::{MAX_PLACE_BYTES, probe_place};

/// Max functions of a file that are probed.
const MAX_FUNCTIONS: usize = 64;

/// A function of an allocator, and where it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFunction {
    /// Offset in the file of the instruction with the probe.
    pub offset: u64,
    /// What it does.
    pub function: AllocatorFunction,
    /// The kernel emulates that instruction. Others are single-stepped, which takes much longer.
    pub emulated: bool,
    /// Its name has no prefix, so that another file's function of this name may be called instead.
    pub plain: bool,
}

/// The functions of a file that allocate and free blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    /// The functions, by address.
    pub functions: Vec<FoundFunction>,
    /// The file is a C library, whose plain functions are called only where no other file has them.
    pub is_c_library: bool,
    /// It is a Go program, which may keep a profile of its memory.
    pub go: Option<GoProgram>,
    /// The allocator samples blocks itself, and says so here.
    pub usdts: Vec<FoundUsdt>,
}

impl Allocator {
    /// Reads the functions of a file.
    ///
    /// # Errors
    /// It is no ELF file of 64 bits, or is damaged.
    pub fn read<B: ElfBytes>(file: B) -> Result<Allocator, ElfError> {
        let elf = ElfFile::read(file, ElfLimits::PROGRAM)?.only_64_bit_little_endian()?;
        let headers = elf.sections()?;
        let names = elf.section_names(&headers)?;
        let sections = SectionTable { headers, names };
        let exported = Symbols::read(&elf, &sections, SHT_DYNSYM)?;
        let all = Symbols::read(&elf, &sections, SHT_SYMTAB)?;
        // A program that is linked statically exports nothing.
        let is_static = exported.functions.is_empty() && !exported.starts_programs;
        let own = if is_static { &all } else { &exported };
        let is_malloc = |named: &Named| named.plain && named.function == AllocatorFunction::Malloc;
        let has_malloc = own.functions.values().any(is_malloc);
        let mut by_address = own.functions.clone();
        by_address.retain(|_, named| !named.operator || has_malloc);
        for (address, named) in all.functions.iter().filter(|(_, named)| !named.plain) {
            by_address.entry(*address).or_insert(*named);
        }
        let segments = load_segments(&elf)?;
        let functions = by_address
            .into_iter()
            .filter_map(|(address, named)| find_place(&elf, &segments, address, named))
            .take(MAX_FUNCTIONS);
        Ok(Allocator {
            functions: functions.collect(),
            is_c_library: exported.starts_programs,
            go: GoProgram::find(&elf, &sections, &segments)?,
            usdts: usdt::find(&elf, &sections, &segments)?,
        })
    }

    /// Returns whether the allocator says which blocks it samples.
    #[must_use]
    pub fn samples(&self) -> bool {
        let mut usdts = self.usdts.iter();
        usdts.any(|usdt| usdt.function == AllocatorFunction::Sampled)
    }

    /// Returns whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.usdts.is_empty() && self.go.is_none()
    }

    /// Whether the file has functions that stand in for the C library's.
    #[must_use]
    pub fn stands_in(&self) -> bool {
        let is_malloc =
            |found: &FoundFunction| found.plain && found.function == AllocatorFunction::Malloc;
        !self.is_c_library && self.functions.iter().any(is_malloc)
    }
}

/// What a symbol table has of an allocator.
#[derive(Default)]
struct Symbols {
    /// Functions by address.
    functions: BTreeMap<u64, Named>,
    /// It has the function by which a C library starts programs.
    starts_programs: bool,
}

impl Symbols {
    fn read<B: ElfBytes>(
        elf: &ElfFile<B>,
        sections: &SectionTable<B::Piece>,
        kind: SectionType,
    ) -> Result<Symbols, ElfError> {
        let mut found = Symbols::default();
        let Some(table) = sections.symbol_table(kind) else {
            return Ok(found);
        };
        let names = elf.plain_content(table.names, "names of symbols")?;
        elf.each_symbol(table.symbols, |symbol| {
            // The limit is longer than any name that we look for.
            let name = is_defined_function(&symbol)
                .then(|| name_at(&names, symbol.name, functions::MAX_NAME_BYTES + 1));
            let Some(name) = name.flatten() else {
                return;
            };
            found.starts_programs |= name == functions::STARTS_PROGRAMS;
            if let Some(named) = function_of(name) {
                found.functions.entry(symbol.address).or_insert(named);
            }
        })?;
        Ok(found)
    }
}

fn is_defined_function(symbol: &ElfSymbol) -> bool {
    symbol.kind == STT_FUNC && symbol.section != SHN_UNDEF && symbol.binding != STB_LOCAL
}

/// Returns where a function is probed; nothing if its code is not in the file.
fn find_place<B: ElfBytes>(
    elf: &ElfFile<B>,
    segments: &[LoadSegment],
    address: u64,
    named: Named,
) -> Option<FoundFunction> {
    let segment = segments.iter().find(|segment| {
        segment.executable
            && address
                .checked_sub(segment.address)
                .is_some_and(|at| at < segment.size)
    })?;
    let within = address - segment.address;
    let start = segment.offset.checked_add(within)?;
    let bytes = (segment.size - within).min(MAX_PLACE_BYTES as u64);
    let code = elf.piece("code of an allocator", start, bytes).ok()?;
    let place = probe_place(elf.machine(), &code, named.function);
    Some(FoundFunction {
        offset: start + place.offset,
        function: named.function,
        emulated: place.emulated,
        plain: named.plain,
    })
}
