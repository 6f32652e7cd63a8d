//! Go's table of functions, `.gopclntab`: where each function begins, its name, and how far it has
//! moved the stack pointer at each pc.
//!
//! Go's runtime unwinds its own stacks by it, so that each program has it, also without symbols and
//! `.debug_frame`. There are four layouts, with different magic numbers (`runtime/symtab.go`,
//! `pcHeader`; `cmd/link/internal/ld/pcln.go`):
//!
//! * `0xfffffffb`, Go 1.2 to 1.15: one block, all offsets count from its start; addresses of 8
//!   bytes.
//! * `0xfffffffa`, Go 1.16 and 1.17: names, tables of pcs and functions have offsets of their own.
//! * `0xfffffff0`, Go 1.18 and 1.19: functions have addresses of 4 bytes, from the start of the
//!   text.
//! * `0xfffffff1`, since Go 1.20: the same in what is read here. Since 1.26 the header does not
//!   have the start of the text.
//!
//! The bytes may be hostile. Functions that do not come by rising address are left out. The
//! description of one ends where the next begins, so that a table that a thousand functions share
//! is not read a thousand times to its end.

use std::ops::Range;

/// The header's bytes after the magic number: no padding, instructions of any length, addresses of
/// 8 bytes.
const HEADER_START: [u8; 4] = [0, 0, 1, 8];

/// Longest name that is returned. The names that matter are shorter.
const MAX_NAME_BYTES: usize = 64;

/// Offset in the header of the fields that differ, bytes.
const FIELDS_OFFSET: usize = 24;

/// The table, found in its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pclntab<'data> {
    names: &'data [u8],
    tables: &'data [u8],
    /// The descriptions of functions, at the offsets of the list.
    descriptions: &'data [u8],
    /// Start and description's offset of each function, then the end of the last one.
    list: &'data [u8],
    /// Functions in the list.
    count: usize,
    /// Bytes of a number in the list: 4, for addresses from `text` on, or 8.
    width: usize,
    text: u64,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GoFunction<'data> {
    /// Its addresses, up to where the next one begins.
    pub(super) pcs: Range<u64>,
    /// Its name, or the start of a long one.
    pub(super) name: &'data [u8],
    /// Its table of stack heights; empty if it has no table.
    heights: &'data [u8],
}

/// Returns whether these bytes begin a table.
pub(super) fn is_head(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(&HEADER_START) && PclntabLayout::of(bytes).is_some()
}

/// Returns the offset in the header of the start of the text, from which functions are counted;
/// `None` if the header has no such field.
pub(super) fn text_field(bytes: &[u8]) -> Option<usize> {
    (PclntabLayout::of(bytes)? == PclntabLayout::FromText).then_some(FIELDS_OFFSET)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PclntabLayout {
    OneBlock,
    Addresses,
    FromText,
}

impl PclntabLayout {
    fn of(bytes: &[u8]) -> Option<PclntabLayout> {
        Some(match u32::from_le_bytes(*bytes.first_chunk()?) {
            0xffff_fffb => PclntabLayout::OneBlock,
            0xffff_fffa => PclntabLayout::Addresses,
            0xffff_fff0 | 0xffff_fff1 => PclntabLayout::FromText,
            _ => return None,
        })
    }
}

impl<'data> Pclntab<'data> {
    /// Reads the header. `text` is where the text begins, where functions are counted from there.
    pub(super) fn new(data: &'data [u8], text: u64) -> Option<Pclntab<'data>> {
        if !is_head(data) {
            return None;
        }
        let layout = PclntabLayout::of(data)?;
        let number = |at: usize| usize::try_from(u64_at(data, at)?).ok();
        let part = |field: usize| data.get(number(field)?..);
        let (names, tables, descriptions, list) = match layout {
            PclntabLayout::OneBlock => (data, data, data, data.get(16..)?),
            PclntabLayout::Addresses => {
                let descriptions = part(FIELDS_OFFSET + 32)?;
                (
                    part(FIELDS_OFFSET)?,
                    part(FIELDS_OFFSET + 24)?,
                    descriptions,
                    descriptions,
                )
            }
            PclntabLayout::FromText => {
                let descriptions = part(FIELDS_OFFSET + 40)?;
                (
                    part(FIELDS_OFFSET + 8)?,
                    part(FIELDS_OFFSET + 32)?,
                    descriptions,
                    descriptions,
                )
            }
        };
        let (width, text) = match layout {
            PclntabLayout::FromText => (4, text),
            PclntabLayout::OneBlock | PclntabLayout::Addresses => (8, 0),
        };
        let max_count = (list.len() / width).saturating_sub(1) / 2;
        Some(Pclntab {
            names,
            tables,
            descriptions,
            list,
            count: number(8)?.min(max_count),
            width,
            text,
        })
    }

    /// Returns the functions by rising address, without those that can't be read or don't rise.
    pub(super) fn functions(&self) -> impl Iterator<Item = GoFunction<'data>> {
        let mut last = 0;
        (0..self.count).filter_map(move |index| {
            let function = self.function(index)?;
            let rises = last <= function.pcs.start;
            last = last.max(function.pcs.end);
            rises.then_some(function)
        })
    }

    fn function(&self, index: usize) -> Option<GoFunction<'data>> {
        let start = self.text.checked_add(self.number(2 * index)?)?;
        let end = self.text.checked_add(self.number(2 * index + 2)?)?;
        let descriptions = self
            .descriptions
            .get(usize::try_from(self.number(2 * index + 1)?).ok()?..)?;
        // After the start: the name, the arguments, the return of deferred calls, the table of
        // heights.
        let field = |index: usize| u32_at(descriptions, self.width + 4 * index);
        let name = self.names.get(field(0)? as usize..).unwrap_or_default();
        let name = &name[..name.len().min(MAX_NAME_BYTES)];
        let length = name.iter().position(|&byte| byte == 0);
        let heights = match field(3)? {
            0 => &[],
            offset => self.tables.get(offset as usize..)?,
        };
        (start < end).then(|| GoFunction {
            pcs: start..end,
            name: &name[..length.unwrap_or(name.len())],
            heights,
        })
    }

    /// Returns a number of the list.
    fn number(&self, index: usize) -> Option<u64> {
        let at = index.checked_mul(self.width)?;
        match self.width {
            4 => u32_at(self.list, at).map(u64::from),
            _ => u64_at(self.list, at),
        }
    }
}

/// How far a function has lowered the stack pointer since it was called, at some of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StackHeight {
    /// The addresses.
    pub(super) pcs: Range<u64>,
    /// Bytes below the return address.
    pub(super) bytes: i32,
}

impl<'data> GoFunction<'data> {
    /// Returns the heights, one after the other from the function's start. They end with the
    /// function, with their own end, or where they can't be read.
    pub(super) fn heights(&self) -> impl Iterator<Item = StackHeight> + use<'data> {
        let (mut bytes, mut pcs, mut height) = (self.heights, self.pcs.clone(), -1_i32);
        let mut first = true;
        std::iter::from_fn(move || {
            let change = varint(&mut bytes)?;
            if change == 0 && !std::mem::take(&mut first) {
                return None;
            }
            first = false;
            // The sign is the lowest bit.
            height = height.wrapping_add((change >> 1) as i32 ^ -((change & 1) as i32));
            let length = u64::from(varint(&mut bytes)?);
            let start = pcs.start;
            pcs.start = start.saturating_add(length).min(pcs.end);
            (start < pcs.start).then_some(StackHeight {
                pcs: start..pcs.start,
                bytes: height,
            })
        })
    }
}

/// Returns a number that has seven bits in each byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for index in 0..5 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: u64 = 0x40_1000;

    /// Two functions of 0x20 and 0x30 bytes; of the second nothing is known.
    fn made(magic: u32) -> Vec<u8> {
        let names = b"\0main.main\0C\0";
        // Zero for 4 bytes, 8 for 0x10, zero again for 0x0c; the first counts from -1.
        let heights = [2, 4, 16, 0x10, 15, 0x0c, 0];
        let layout = PclntabLayout::of(&magic.to_le_bytes()).unwrap();
        let width = if layout == PclntabLayout::FromText {
            4
        } else {
            8
        };
        let base = if layout == PclntabLayout::FromText {
            0
        } else {
            TEXT
        };
        let head = match layout {
            PclntabLayout::OneBlock => 16,
            PclntabLayout::Addresses => FIELDS_OFFSET + 40,
            PclntabLayout::FromText => FIELDS_OFFSET + 48,
        };
        let list = 5 * width;
        let (descriptions, all) = (head + list, head + list + 2 * (width + 20));
        // Where offsets count from, of each of the three. An offset of 0 is no table of heights.
        let (from_names, from_heights, from_list) = match layout {
            PclntabLayout::OneBlock => (0, 0, 0),
            _ => (all, all + names.len() - 1, head),
        };
        let mut data = magic.to_le_bytes().to_vec();
        data.extend(HEADER_START);
        data.extend(2_u64.to_le_bytes());
        match layout {
            PclntabLayout::OneBlock => {}
            PclntabLayout::Addresses => {
                let fields = [0, from_names, 0, 0, from_heights, from_list];
                data.extend(
                    fields
                        .iter()
                        .flat_map(|field| (*field as u64).to_le_bytes()),
                );
            }
            PclntabLayout::FromText => {
                let fields = [0, TEXT as usize, from_names, 0, 0, from_heights, from_list];
                data.extend(
                    fields
                        .iter()
                        .flat_map(|field| (*field as u64).to_le_bytes()),
                );
            }
        }
        let mut number = |number: u64| data.extend(&number.to_le_bytes()[..width]);
        number(base);
        number((descriptions - from_list) as u64);
        number(base + 0x20);
        number((descriptions + width + 20 - from_list) as u64);
        number(base + 0x50);
        for (start, name, heights) in [
            (base, 1, all + names.len() - from_heights),
            (base + 0x20, 11, 0),
        ] {
            data.extend(&start.to_le_bytes()[..width]);
            for field in [all - from_names + name, 0, 0, heights, 0] {
                data.extend((field as u32).to_le_bytes());
            }
        }
        data.extend(names);
        data.extend(heights);
        data
    }

    #[test]
    fn layouts_give_equal_tables() {
        for magic in [0xffff_fffb, 0xffff_fffa, 0xffff_fff0, 0xffff_fff1] {
            let data = made(magic);
            let table = Pclntab::new(&data, TEXT).unwrap();
            let functions: Vec<GoFunction<'_>> = table.functions().collect();
            let names: Vec<&[u8]> = functions.iter().map(|function| function.name).collect();
            assert_eq!(names, [&b"main.main"[..], b"C"], "{magic:#x}");
            let pcs: Vec<_> = functions
                .iter()
                .map(|function| function.pcs.clone())
                .collect();
            assert_eq!(pcs, [TEXT..TEXT + 0x20, TEXT + 0x20..TEXT + 0x50]);
            let heights = |function: &GoFunction<'_>| -> Vec<(u64, u64, i32)> {
                let heights = function.heights();
                heights
                    .map(|height| (height.pcs.start - TEXT, height.pcs.end - TEXT, height.bytes))
                    .collect()
            };
            assert_eq!(
                heights(&functions[0]),
                [(0, 4, 0), (4, 0x14, 8), (0x14, 0x20, 0)]
            );
            assert_eq!(heights(&functions[1]), []);
        }
    }

    #[test]
    fn damaged_tables_are_refused() {
        let data = made(0xffff_fff1);
        assert_eq!(Pclntab::new(&data[..40], TEXT), None);
        assert_eq!(Pclntab::new(&[], TEXT), None);
        assert!(!is_head(&made(0xffff_fff1)[..7]));
        let mut other = data;
        other[0] = 0xf2;
        assert_eq!(Pclntab::new(&other, TEXT), None);
    }

    /// Each function may have the same table, and none reads beyond its own end.
    #[test]
    fn a_table_ends_with_its_function() {
        let heights: Vec<u8> = std::iter::repeat_n([2, 1], 1000).flatten().collect();
        let function = GoFunction {
            pcs: TEXT..TEXT + 7,
            name: b"",
            heights: &heights,
        };
        assert_eq!(function.heights().count(), 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            magic in prop_oneof![Just(0xffff_fffb_u32), Just(0xffff_fffa), Just(0xffff_fff0)],
            changes in proptest::collection::vec((8..160_usize, any::<u8>()), 0..16),
            cut in 0..200_usize,
        ) {
            let mut data = made(magic);
            for (place, byte) in changes {
                if let Some(place) = data.get_mut(place) {
                    *place = byte;
                }
            }
            data.truncate(cut.max(8));
            if let Some(table) = Pclntab::new(&data, TEXT) {
                let mut last = 0;
                for function in table.functions() {
                    prop_assert!(last <= function.pcs.start && function.pcs.start < function.pcs.end);
                    last = function.pcs.end;
                    let mut at = function.pcs.start;
                    for height in function.heights() {
                        prop_assert!(at == height.pcs.start && at < height.pcs.end);
                        at = height.pcs.end;
                    }
                    prop_assert!(at <= function.pcs.end);
                }
            }
        }
    }
}
