//! The archived vDSO, with one name for each function.
//!
//! Its functions have two names, `__vdso_clock_gettime` and the weak `clock_gettime`. gprofng shows
//! the shorter one, which is also the name of the C library's function.

use std::collections::HashSet;

use kcollect_elf::{ElfError, ElfFile, ElfLimits, ElfSymbol};
use object::elf::{SHT_DYNSYM, STB_WEAK, STT_FUNC, STT_NOTYPE, SymbolInfo};

/// Offset of a symbol's kind in its record, bytes.
const SYMBOL_INFO_OFFSET: usize = 4;

/// Returns the image without the weak names of functions that have another name. An image that
/// can't be parsed stays as it is.
pub(super) fn with_one_name_each(mut image: Vec<u8>) -> Vec<u8> {
    for position in second_names(&image).unwrap_or_default() {
        if let Some(info) = image.get_mut(position) {
            *info = SymbolInfo::new(STB_WEAK, STT_NOTYPE).0;
        }
    }
    image
}

/// Returns the offsets of the kinds of weak functions that have another name too.
fn second_names(image: &[u8]) -> Result<Vec<usize>, ElfError> {
    let elf = ElfFile::read(image, ElfLimits::PROGRAM)?.only_64_bit_little_endian()?;
    let mut found = Vec::new();
    for section in elf.sections()? {
        if section.kind != SHT_DYNSYM {
            continue;
        }
        let mut symbols = Vec::new();
        elf.each_symbol(&section, |symbol| symbols.push(symbol))?;
        let functions = || {
            let all = (0..).zip(&symbols);
            all.filter(|(_, symbol): &(usize, &ElfSymbol)| symbol.kind == STT_FUNC)
        };
        let strong: HashSet<u64> = functions()
            .filter(|(_, symbol)| symbol.binding != STB_WEAK)
            .map(|(_, symbol)| symbol.address)
            .collect();
        let start = section.offset as usize;
        found.extend(
            functions()
                .filter(|(_, symbol)| symbol.binding == STB_WEAK)
                .filter(|(_, symbol)| strong.contains(&symbol.address))
                .map(|(index, _)| start + index * elf.symbol_bytes() + SYMBOL_INFO_OFFSET),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    /// The vDSO of this process.
    fn own() -> Vec<u8> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        let mut image = vec![0; (end - start) as usize];
        let memory = File::open("/proc/self/mem").unwrap();
        memory.read_exact_at(&mut image, start).unwrap();
        image
    }

    #[test]
    fn the_weak_names_are_taken_away() {
        let image = own();
        let second = second_names(&image).unwrap();
        assert!(cfg!(not(target_arch = "x86_64")) || !second.is_empty());
        let one_each = with_one_name_each(image.clone());
        assert_eq!(second_names(&one_each).unwrap(), []);
        let changed = image.iter().zip(&one_each).filter(|(a, b)| a != b);
        assert_eq!(changed.count(), second.len());
    }

    proptest! {
        #[test]
        fn any_image_is_taken(at in 0_usize..8192, byte in any::<u8>(), length in 0_usize..8192) {
            let mut image = own();
            let at = at % image.len();
            image[at] = byte;
            image.truncate(length);
            let length = image.len();
            prop_assert_eq!(with_one_name_each(image).len(), length);
        }
    }
}
