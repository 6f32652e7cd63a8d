//! What is needed of an ELF file of Go's linker: its table of functions, and their text.

use object::Endianness;
use object::elf::{PF_X, PT_LOAD, R_X86_64_RELATIVE, Rela64};
use object::read::ReadRef;
use object::read::elf::{ProgramHeader, SectionHeader};

use super::sections::{Error, LITTLE, Named, Segment, data, piece};
use super::{MAX_SECTION, pclntab};

/// Where the linker puts the table: the second in a program that is loaded anywhere.
const NAMES: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

/// Where `runtime.moduledata` has the start of the text: behind the address of the table, six
/// slices and three addresses.
const MODULE_TEXT: u64 = 8 + 6 * 24 + 3 * 8;

/// What the table of functions is aligned to, bytes.
const ALIGNMENT: usize = 8;

/// Go's functions, as a file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoFunctions<'data> {
    /// The table of functions (`.gopclntab`).
    pub table: &'data [u8],
    /// The address from which the table tells of functions, if it does so.
    pub text: u64,
    /// The text: by rising address, as far as it is no larger than a section that is read. Where it
    /// is not there, no function is known to save its caller's frame pointer, and those that change
    /// stacks end one.
    pub code: Vec<(u64, &'data [u8])>,
}

impl<'data> GoFunctions<'data> {
    /// The text from an address on.
    pub(super) fn text_at(&self, address: u64) -> &'data [u8] {
        let before = self.code.partition_point(|(start, _)| *start <= address);
        self.code[..before]
            .last()
            .and_then(|(start, code)| code.get(usize::try_from(address - start).ok()?..))
            .unwrap_or_default()
    }
}

/// Finds them; nothing where there are none, or in a layout that is not known.
pub(super) fn functions<'data, R: ReadRef<'data>>(
    sections: &Named<'data>,
    segments: &[Segment],
    file: R,
) -> Result<Option<GoFunctions<'data>>, Error> {
    let named = NAMES.iter().find_map(|name| sections.get(name));
    let found = match named {
        Some(section) => Some((data(section, NAMES[0], file)?, section.sh_addr(LITTLE))),
        None if sections.headers.is_empty() => find(segments, file, pclntab::is_head),
        None => None,
    };
    let Some((table, address)) = found.filter(|(table, _)| pclntab::is_head(table)) else {
        return Ok(None);
    };
    let text = match pclntab::text_field(table) {
        Some(field) => text(sections, (table, address), field, segments, file),
        None => Some(0),
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let mut code = Vec::new();
    for segment in segments.iter().filter(|segment| is_code(segment)) {
        let (offset, size) = segment.file_range(LITTLE);
        if size <= MAX_SECTION as u64 {
            code.push((
                segment.p_vaddr(LITTLE),
                piece(file, "an executable segment", offset, size)?,
            ));
        }
    }
    code.sort_by_key(|(start, _)| *start);
    Ok(Some(GoFunctions { table, text, code }))
}

fn is_code(segment: &Segment) -> bool {
    segment.p_type(LITTLE) == PT_LOAD && segment.p_flags(LITTLE).contains(PF_X)
}

/// What begins so, in the data of a file without section headers, and its address.
fn find<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    file: R,
    begins: impl Fn(&[u8]) -> bool,
) -> Option<(&'data [u8], u64)> {
    let data = |segment: &&Segment| segment.p_type(LITTLE) == PT_LOAD && !is_code(segment);
    segments.iter().filter(data).find_map(|segment| {
        let (offset, size) = segment.file_range(LITTLE);
        let data = piece(file, "a segment", offset, size).ok()?;
        let start = segment.p_vaddr(LITTLE);
        let skew = (start % ALIGNMENT as u64) as usize;
        let at = ((ALIGNMENT - skew) % ALIGNMENT..data.len())
            .step_by(ALIGNMENT)
            .find(|at| begins(&data[*at..]))?;
        Some((&data[at..], start.checked_add(at as u64)?))
    })
}

/// Where the text begins: by the table, until Go 1.25, or else by the runtime's own description of
/// the program. A program that is loaded anywhere may have it in a relocation only. Nothing where
/// it is not told: a guess would be a wrong table.
fn text<'data, R: ReadRef<'data>>(
    sections: &Named<'data>,
    (table, address): (&[u8], u64),
    field: usize,
    segments: &[Segment],
    file: R,
) -> Option<u64> {
    let relocations = sections
        .get(".rela.dyn")
        .and_then(|section| data(section, ".rela.dyn", file).ok())
        .unwrap_or_default();
    let word = |stored: Option<u64>, address: u64| {
        stored
            .filter(|stored| *stored != 0)
            .or_else(|| relocated(relocations, address))
    };
    let module = || {
        let (data, start) = match sections.get(".go.module") {
            Some(section) => {
                let data = data(section, ".go.module", file).ok()?;
                (data, section.sh_addr(LITTLE))
            }
            None => described(segments, address, u64_at(table, field + 8)?, file)?,
        };
        let stored = u64_at(data, MODULE_TEXT as usize);
        word(stored, start.checked_add(MODULE_TEXT)?)
    };
    let field_address = address.checked_add(field as u64)?;
    word(u64_at(table, field), field_address).or_else(module)
}

/// The runtime's description in a file without section headers: it begins with the addresses of the
/// table and of its names.
fn described<'data, R: ReadRef<'data>>(
    segments: &[Segment],
    table: u64,
    names: u64,
    file: R,
) -> Option<(&'data [u8], u64)> {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&table.to_le_bytes());
    head[8..].copy_from_slice(&table.checked_add(names)?.to_le_bytes());
    find(segments, file, |data| data.starts_with(&head))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// What the dynamic linker stores at an address, relative to where the program is loaded.
fn relocated(relocations: &[u8], address: u64) -> Option<u64> {
    relocations
        .chunks_exact(size_of::<Rela64<Endianness>>())
        .find(|entry| u64_at(entry, 0) == Some(address))
        .filter(|entry| u64_at(entry, 8) == Some(u64::from(R_X86_64_RELATIVE.0)))
        .and_then(|entry| u64_at(entry, 16))
}
