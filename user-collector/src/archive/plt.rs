//! The procedure linkage table: which function each of its entries calls.
//!
//! An entry jumps through a slot of the global offset table, and a relocation names the function
//! whose address is put there. Without symbols gprofng leaves `.plt` and its time out of its list
//! of functions.
//!
//! Only x86-64 entries are read. Those without a relocation share one name, with their offset. At
//! the very beginning of `.plt`, where lazy binding happens, gprofng uses its own, hidden function.

use std::collections::HashMap;

use object::LittleEndian;
use object::elf::{
    EM_X86_64, R_X86_64_GLOB_DAT, R_X86_64_IRELATIVE, R_X86_64_JUMP_SLOT, Rela64, SHF_ALLOC,
    SHT_DYNSYM, SHT_RELA,
};

use kcollect_elf::name_at;

use super::object_file::{CodeSection, MAX_FUNCTIONS, ObjectFile};

/// Largest table that is read, bytes.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Max tables that are read of each kind. Programs have one or two, but any number of section
/// headers can point to the same bytes.
const MAX_TABLES: usize = 8;
/// Longest name, bytes; longer ones are cut.
const MAX_NAME_BYTES: usize = 4096;
/// Max bytes of all names: a million entries of eight bytes may share the longest name. The names
/// of libclang-cpp have 0.1 MB.
const MAX_NAMES_BYTES: usize = 16 << 20;

/// An entry, or consecutive entries without a relocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PltEntry {
    pub(super) address: u64,
    pub(super) size: u64,
    /// The function that it calls, with `@plt`.
    pub(super) name: Vec<u8>,
}

/// The function whose address is put into a slot of the global offset table.
enum SlotTarget {
    /// The function of this symbol.
    Symbol(u32),
    /// The function that the resolver at this address chooses.
    Resolver(u64),
}

/// Returns all entries. `name_at` returns the name of the function that begins at an address;
/// `base` is the last part of the load object's name.
pub(super) fn entries<'a>(
    elf: &ObjectFile<'_>,
    code: &[CodeSection],
    base: &str,
    name_at: impl Fn(u64) -> Option<&'a [u8]>,
) -> Vec<PltEntry> {
    let (mut found, mut names) = (Vec::new(), 0);
    if elf.elf.machine() != EM_X86_64 {
        return found;
    }
    let targets = targets(elf);
    let symbols = DynamicSymbols::of(elf);
    let tables = code
        .iter()
        .map(|code| (code, &elf.sections.headers[usize::from(code.index)]))
        .filter(|(_, section)| {
            elf.sections.name_begins(section, b".plt") && section.size <= MAX_TABLE_BYTES
        });
    for (code, section) in tables.take(MAX_TABLES) {
        let Ok(bytes) = elf.data(section) else {
            continue;
        };
        let step = match section.entry_size {
            8 => 8,
            _ => 16,
        };
        let mut unknown: Option<PltEntry> = None;
        for (index, entry) in bytes.chunks(step).enumerate() {
            if found.len() >= MAX_FUNCTIONS || names >= MAX_NAMES_BYTES {
                return found;
            }
            let address = code.address + (index * step) as u64;
            let slot = slot(entry, address);
            let name = slot.and_then(|slot| match targets.get(&slot)? {
                SlotTarget::Symbol(number) => symbols.name(*number),
                SlotTarget::Resolver(address) => name_at(*address),
            });
            let size = entry.len() as u64;
            match (name, &mut unknown) {
                (Some(name), _) => {
                    found.extend(unknown.take());
                    let name = [name, b"@plt"].concat();
                    names += name.len();
                    found.push(PltEntry {
                        address,
                        size,
                        name,
                    });
                }
                (None, Some(run)) => run.size += size,
                (None, none) => {
                    let position = code.offset + (address - code.address);
                    *none = Some(PltEntry {
                        address,
                        size,
                        name: format!("<plt>@{position:#x} (<{base}>)").into_bytes(),
                    });
                }
            }
        }
        found.extend(unknown);
    }
    found
}

/// Returns the slot through which an entry jumps: `jmp *distance(%rip)`, maybe after `endbr64` and
/// `bnd`.
fn slot(entry: &[u8], address: u64) -> Option<u64> {
    let mut rest = entry;
    for prefix in [&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xf2]] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let rest = rest.strip_prefix(&[0xff, 0x25])?;
    let (distance, rest) = rest.split_first_chunk()?;
    let next = address.wrapping_add((entry.len() - rest.len()) as u64);
    Some(next.wrapping_add_signed(i64::from(i32::from_le_bytes(*distance))))
}

fn targets(elf: &ObjectFile<'_>) -> HashMap<u64, SlotTarget> {
    let mut targets = HashMap::new();
    let tables = elf
        .sections
        .headers
        .iter()
        .filter(|section| {
            section.kind == SHT_RELA
                && section.flags.contains(SHF_ALLOC)
                && section.size <= MAX_TABLE_BYTES
        })
        .take(MAX_TABLES);
    for table in tables {
        // A table that can't be read to its end is used as far as it can be.
        let _ = elf
            .elf
            .each_entry(table, "relocations", |relocation: &Rela64<LittleEndian>| {
                let kind = relocation.r_type(LittleEndian, false);
                let target = if kind == R_X86_64_JUMP_SLOT || kind == R_X86_64_GLOB_DAT {
                    SlotTarget::Symbol(relocation.r_sym(LittleEndian, false))
                } else if kind == R_X86_64_IRELATIVE {
                    SlotTarget::Resolver(relocation.r_addend.get(LittleEndian) as u64)
                } else {
                    return;
                };
                targets.insert(relocation.r_offset.get(LittleEndian), target);
            });
    }
    targets
}

/// The names of the dynamic symbols.
struct DynamicSymbols {
    /// For each symbol, the offset of its name.
    offsets: Vec<u32>,
    names: Vec<u8>,
}

impl DynamicSymbols {
    fn of(elf: &ObjectFile<'_>) -> DynamicSymbols {
        let (mut offsets, mut names) = (Vec::new(), Vec::new());
        if let Some(table) = elf.sections.symbol_table(SHT_DYNSYM) {
            // A table that can't be read to its end is used as far as it can be.
            let _ = elf
                .elf
                .each_symbol(table.symbols, |symbol| offsets.push(symbol.name));
            names = elf.data(table.names).unwrap_or_default();
        }
        DynamicSymbols { offsets, names }
    }

    fn name(&self, number: u32) -> Option<&[u8]> {
        name_in(&self.names, *self.offsets.get(number as usize)?)
    }
}

/// Returns the name at an offset of a string table, cut at [`MAX_NAME_BYTES`].
pub(super) fn name_in(strings: &[u8], position: u32) -> Option<&[u8]> {
    name_at(strings, position, MAX_NAME_BYTES).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::archive::object_file::RawHeader;

    /// A file whose linkage table has this many entries of eight bytes, which all call one function
    /// with a long name.
    fn one_long_name(entries: u32) -> File {
        const START: u64 = 0x1000;
        const SLOT: u64 = 0x100_0000;
        let dynstr = [vec![0], vec![b'n'; MAX_NAME_BYTES], vec![0]].concat();
        let plt: Vec<u8> = (0..entries)
            .flat_map(|entry| {
                let distance = (SLOT - START) as u32 - 8 * entry - 6;
                let [a, b, c, d] = distance.to_le_bytes();
                [0xff, 0x25, a, b, c, d, 0x66, 0x90]
            })
            .collect();
        let undefined = [1_u64 | 0x12 << 32, 0, 0].map(u64::to_le_bytes);
        let dynsym = [[0; 24].as_slice(), undefined.as_flattened()].concat();
        let jump_slot = [SLOT, 1 << 32 | u64::from(R_X86_64_JUMP_SLOT.0), 0];
        let rela = jump_slot.map(u64::to_le_bytes).concat();
        let names = b"\0.plt\0".to_vec();
        // Name, type, flags, address, link, size of an entry; and the content.
        let sections = [
            ((0, 0, 0), 0, 0, 0, Vec::new()),
            ((1, 1, 6), START, 0, 8, plt),
            ((0, 11, 2), 0, 3, 24, dynsym),
            ((0, 3, 2), 0, 0, 0, dynstr),
            ((0, 4, 2), 0, 2, 24, rela),
            ((0, 3, 0), 0, 0, 0, names),
        ];
        let (mut content, mut headers) = (Vec::new(), Vec::new());
        for ((name, kind, flags), address, link, entry, bytes) in &sections {
            let offset = (size_of::<RawHeader>() + content.len()) as u64;
            headers.extend_from_slice(&u32::to_le_bytes(*name));
            headers.extend_from_slice(&u32::to_le_bytes(*kind));
            for number in [*flags, *address, offset, bytes.len() as u64] {
                headers.extend_from_slice(&u64::to_le_bytes(number));
            }
            headers.extend_from_slice(&u32::to_le_bytes(*link));
            headers.extend_from_slice(&u32::to_le_bytes(0));
            for number in [1, *entry] {
                headers.extend_from_slice(&u64::to_le_bytes(number));
            }
            content.extend_from_slice(bytes);
        }
        let mut header = vec![0; size_of::<RawHeader>()];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[18] = 62;
        let at = (header.len() + content.len()) as u64;
        header[40..48].copy_from_slice(&at.to_le_bytes());
        header[58] = 64;
        header[60] = sections.len() as u8;
        header[62] = sections.len() as u8 - 1;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[header, content, headers].concat())
            .unwrap();
        file
    }

    #[test]
    fn many_entries_of_a_long_name_take_no_more_than_they_may() {
        let named = |count| {
            let file = one_long_name(count);
            let elf = ObjectFile::read(&file, file.metadata().unwrap().len()).unwrap();
            entries(&elf, &elf.code(), "x", |_| None)
        };
        let few = named(3);
        assert_eq!(few.len(), 3);
        assert!(few.iter().all(|entry| entry.name.ends_with(b"nn@plt")));
        let many = named(3 * (MAX_NAMES_BYTES / MAX_NAME_BYTES) as u32);
        let bytes: usize = many.iter().map(|entry| entry.name.len()).sum();
        assert!((MAX_NAMES_BYTES..MAX_NAMES_BYTES + 2 * MAX_NAME_BYTES).contains(&bytes));
    }

    #[test]
    fn an_entry_jumps_through_a_slot() {
        let plain = [0xff, 0x25, 0xea, 0xcf, 0x1a, 0x00, 0x68, 0x34];
        assert_eq!(slot(&plain, 0x26010), Some(0x1d_3000));
        let bound = [0xf2, 0xff, 0x25, 0xea, 0xcf, 0x1a, 0x00];
        assert_eq!(slot(&bound, 0x2600f), Some(0x1d_3000));
        let tracked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0xea, 0xcf, 0x1a, 0x00, 0x66,
        ];
        assert_eq!(slot(&tracked, 0x2600c), Some(0x1d_3000));
        assert_eq!(slot(&[0xff, 0x35, 0, 0, 0, 0], 0), None);
        assert_eq!(slot(&[0xff, 0x25, 0, 0, 0], 0), None);
        assert_eq!(slot(&[], 0), None);
        assert_eq!(
            slot(&[0xff, 0x25, 0xff, 0xff, 0xff, 0xff], u64::MAX),
            Some(4)
        );
    }
}
