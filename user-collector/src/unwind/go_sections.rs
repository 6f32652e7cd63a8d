//! The parts of an ELF file of Go's linker that unwinding needs: the table of functions, and their
//! text.

use object::Endianness;
use object::elf::{PF_X, PT_LOAD, R_X86_64_RELATIVE, Rela64};

use super::{MAX_SECTION_BYTES, pclntab};
use kcollect_elf::{ElfBytes, ElfError, ElfFile, ElfSegment, SectionTable};

/// Sections in which the linker puts the table; the second in position-independent programs.
const NAMES: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

/// Offset of the start of the text in `runtime.moduledata`: after the address of the table, six
/// slices and three addresses.
const MODULE_TEXT: u64 = 8 + 6 * 24 + 3 * 8;

/// Alignment of the table of functions, bytes.
const ALIGNMENT: usize = 8;

/// Go's functions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoFunctions<'data> {
    /// The table of functions (`.gopclntab`).
    pub table: &'data [u8],
    /// The address from which the table counts its functions, if it counts from the text.
    pub text: u64,
    /// The segments of text by rising address, without those larger than [`MAX_SECTION_BYTES`].
    /// Without the text it is not known which functions save their caller's frame pointer, and a
    /// stack ends at those that change stacks.
    pub code: Vec<(u64, &'data [u8])>,
}

impl<'data> GoFunctions<'data> {
    /// Returns the text from an address on.
    pub(super) fn text_at(&self, address: u64) -> &'data [u8] {
        let before = self.code.partition_point(|(start, _)| *start <= address);
        self.code[..before]
            .last()
            .and_then(|(start, code)| code.get(usize::try_from(address - start).ok()?..))
            .unwrap_or_default()
    }
}

/// Go's functions; `None` if the file has no such functions, or for an unknown layout.
pub(super) fn functions<'data, B>(
    elf: &ElfFile<B>,
    sections: &SectionTable<&'data [u8]>,
    segments: &[ElfSegment],
) -> Result<Option<GoFunctions<'data>>, ElfError>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let named = NAMES
        .iter()
        .find_map(|name| sections.named(name.as_bytes()));
    let found = match named {
        Some(section) => Some((elf.content(section, NAMES[0])?, section.address)),
        None if sections.headers.is_empty() => find(elf, segments, pclntab::is_head),
        None => None,
    };
    let Some((table, address)) = found.filter(|(table, _)| pclntab::is_head(table)) else {
        return Ok(None);
    };
    let text = match pclntab::text_field(table) {
        Some(field) => text(elf, sections, (table, address), field, segments),
        None => Some(0),
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let mut code = Vec::new();
    for segment in segments.iter().filter(|segment| is_code(segment)) {
        if segment.file_size <= MAX_SECTION_BYTES as u64 {
            let name = "an executable segment";
            let bytes = elf.piece(name, segment.offset, segment.file_size)?;
            code.push((segment.address, bytes));
        }
    }
    code.sort_by_key(|(start, _)| *start);
    Ok(Some(GoFunctions { table, text, code }))
}

fn is_code(segment: &ElfSegment) -> bool {
    segment.kind == PT_LOAD && segment.flags.contains(PF_X)
}

/// Returns the data for which `begins` returns true, in a file without section headers, and its
/// address.
fn find<'data, B>(
    elf: &ElfFile<B>,
    segments: &[ElfSegment],
    begins: impl Fn(&[u8]) -> bool,
) -> Option<(&'data [u8], u64)>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let data = |segment: &&ElfSegment| segment.kind == PT_LOAD && !is_code(segment);
    segments.iter().filter(data).find_map(|segment| {
        let data = elf
            .piece("a segment", segment.offset, segment.file_size)
            .ok()?;
        let start = segment.address;
        let skew = (start % ALIGNMENT as u64) as usize;
        let at = ((ALIGNMENT - skew) % ALIGNMENT..data.len())
            .step_by(ALIGNMENT)
            .find(|at| begins(&data[*at..]))?;
        Some((&data[at..], start.checked_add(at as u64)?))
    })
}

/// Returns where the text begins: by the table, until Go 1.25, or else by the runtime's description
/// of the program. A position-independent program may have it only in a relocation. `None` if
/// neither has it: a guess would give a wrong table.
fn text<'data, B>(
    elf: &ElfFile<B>,
    sections: &SectionTable<&'data [u8]>,
    (table, address): (&[u8], u64),
    field: usize,
    segments: &[ElfSegment],
) -> Option<u64>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let relocations = sections
        .named(b".rela.dyn")
        .and_then(|section| elf.content(section, ".rela.dyn").ok())
        .unwrap_or_default();
    let word = |stored: Option<u64>, address: u64| {
        stored
            .filter(|stored| *stored != 0)
            .or_else(|| relocated(relocations, address))
    };
    let module = || {
        let (data, start) = match sections.named(b".go.module") {
            Some(section) => (elf.content(section, ".go.module").ok()?, section.address),
            None => described(elf, segments, address, u64_at(table, field + 8)?)?,
        };
        let stored = u64_at(data, MODULE_TEXT as usize);
        word(stored, start.checked_add(MODULE_TEXT)?)
    };
    let field_address = address.checked_add(field as u64)?;
    word(u64_at(table, field), field_address).or_else(module)
}

/// Returns the runtime's description of the program, in a file without section headers: it begins
/// with the addresses of the table and of its names.
fn described<'data, B>(
    elf: &ElfFile<B>,
    segments: &[ElfSegment],
    table: u64,
    names: u64,
) -> Option<(&'data [u8], u64)>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let mut head = [0; 16];
    head[..8].copy_from_slice(&table.to_le_bytes());
    head[8..].copy_from_slice(&table.checked_add(names)?.to_le_bytes());
    find(elf, segments, |data| data.starts_with(&head))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Returns the address that the dynamic linker stores at an address, relative to the load address.
fn relocated(relocations: &[u8], address: u64) -> Option<u64> {
    relocations
        .chunks_exact(size_of::<Rela64<Endianness>>())
        .find(|entry| u64_at(entry, 0) == Some(address))
        .filter(|entry| u64_at(entry, 8) == Some(u64::from(R_X86_64_RELATIVE.0)))
        .and_then(|entry| u64_at(entry, 16))
}
