//! Synthetic ELF files: functions of the kernel, of modules and of BPF programs for gprofng.
//!
//! gprofng takes function names from ELF files. Its other ways to get names lose some of them: they
//! drop names with a dot, or do not record the module. So the kernel's list of symbols becomes an
//! ELF file in `archives/`. The file needs text sections and function symbols in them, and no
//! program headers. Sections without bits (NOBITS) suffice for names; with bits there is
//! disassembly too.
//!
//! gprofng finds a function by its position in the file, cut to 32 bits: section offset plus
//! distance from the section's address. It ignores position 0. So positions begin at 4096, stay
//! below 4 GiB, and differ for all sections. Sections without bits get invented positions.

use std::io::{self, BufWriter, Write};

use object::Endianness;
use object::elf;
use object::write::StreamingBuffer;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};

use crate::Result;
use crate::error::Error;

/// The position of the first section, and the alignment of those without bits.
const PAGE_BYTES: u64 = 4096;
/// The alignment of functions and of sections with bits.
const TEXT_ALIGN_BYTES: u64 = 16;
/// All positions are below this, since gprofng cuts them to 32 bits.
const MAX_POSITION: u64 = 1 << 32;
/// The size of one write.
const BUFFER_BYTES: usize = 256 * 1024;

/// A range of executable memory, which becomes a text section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSection<'a> {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The instructions, `size` bytes, if they could be read. Without them there is no disassembly.
    pub bits: Option<&'a [u8]>,
}

/// The symbol of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSymbol<'a> {
    /// Its first address.
    pub address: u64,
    /// Bytes; with 0 the function extends to the next symbol.
    pub size: u64,
    /// Its name, up to a NUL if there is one.
    pub name: &'a [u8],
    /// Whether it is visible outside of its file.
    pub global: bool,
}

/// The position of a text section, or of a function, in the file: the numbers of the segment event
/// that maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedText {
    /// Its first address.
    pub vaddr: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its offset in the file.
    pub file_offset: u64,
}

/// An ELF file of text sections and function symbols. Its architecture is the running machine's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ElfImage<'a> {
    /// The sections; they must not overlap.
    pub texts: Vec<TextSection<'a>>,
    /// The functions, in any order. Functions that begin in no section are left out: see
    /// [`ElfImage::symbols_left_out`].
    pub symbols: Vec<ImageSymbol<'a>>,
}

impl<'a> ElfImage<'a> {
    /// Returns an image of functions that are far from each other, such as BPF programs.
    ///
    /// Each function is a pair of size and name. It gets an address that is valid only in the
    /// image. Map each by a segment of its own: at its real address, with the size and file offset
    /// of the [`PlacedText`] at the same position.
    ///
    /// # Errors
    ///
    /// More than 4 GiB of functions.
    pub fn scattered(functions: &[(u64, &'a [u8])]) -> Result<(ElfImage<'a>, Vec<PlacedText>)> {
        let mut image = ElfImage::default();
        let mut next = PAGE_BYTES;
        for (size, name) in functions {
            image.symbols.push(ImageSymbol {
                address: next,
                size: *size,
                name,
                global: true,
            });
            next = next
                .checked_add(*size)
                .and_then(|end| end.checked_next_multiple_of(TEXT_ALIGN_BYTES))
                .ok_or_else(too_large)?;
        }
        image.texts.push(TextSection {
            address: PAGE_BYTES,
            size: next - PAGE_BYTES,
            bits: None,
        });
        let base = image
            .placed()?
            .first()
            .map_or(PAGE_BYTES, |text| text.file_offset);
        let placed = image.symbols.iter().map(|symbol| PlacedText {
            vaddr: symbol.address,
            size: symbol.size,
            file_offset: base + (symbol.address - PAGE_BYTES),
        });
        let placed = placed.collect();
        Ok((image, placed))
    }

    /// Returns the places of [`ElfImage::texts`] in the file, in their order.
    ///
    /// # Errors
    ///
    /// Bits of another length than the text, and more than 4 GiB of text.
    pub fn placed(&self) -> Result<Vec<PlacedText>> {
        let mut next = PAGE_BYTES;
        let mut placed = vec![None; self.texts.len()];
        // Sections with bits come first; the positions of the others follow.
        for with_bits in [true, false] {
            next = next.next_multiple_of(PAGE_BYTES);
            for (text, placed_text) in self.texts.iter().zip(&mut placed) {
                if text.bits.is_some() != with_bits {
                    continue;
                }
                if text.bits.is_some_and(|bits| bits.len() as u64 != text.size) {
                    let what = format!("{} bytes of text with another number of bits", text.size);
                    return Err(Error::unwritable("ELF image", what));
                }
                let end = next
                    .checked_add(text.size)
                    .filter(|end| *end <= MAX_POSITION);
                *placed_text = Some(PlacedText {
                    vaddr: text.address,
                    size: text.size,
                    file_offset: next,
                });
                next = end
                    .ok_or_else(too_large)?
                    .next_multiple_of(TEXT_ALIGN_BYTES);
            }
        }
        Ok(placed.into_iter().flatten().collect())
    }

    /// Returns the number of symbols that begin in no section.
    pub fn symbols_left_out(&self) -> usize {
        let finder = SectionFinder::new(&self.texts);
        self.symbols
            .iter()
            .filter(|symbol| finder.find(symbol.address).is_none())
            .count()
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// Errors of `out` and of [`ElfImage::placed`].
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        let placed = self.placed()?;
        let mut buffer = StreamingBuffer::new(BufWriter::with_capacity(BUFFER_BYTES, out));
        self.write_elf(&placed, &mut buffer)
            .map_err(|error| Error::unwritable("ELF image", error.to_string()))?;
        let written = buffer.result().and_then(|()| buffer.into_inner().flush());
        written.map_err(|error: io::Error| Error::io("write", "ELF image".as_ref(), error))
    }

    /// Returns the file as bytes.
    ///
    /// # Errors
    ///
    /// As [`ElfImage::placed`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file with its sections at these places.
    fn write_elf(
        &self,
        placed: &[PlacedText],
        buffer: &mut dyn object::write::WritableBuffer,
    ) -> object::write::Result<()> {
        let mut writer = Writer::new(Endianness::Little, true, buffer);

        // First everything is reserved.
        writer.reserve_file_header();
        for (text, placed_text) in self.texts.iter().zip(placed) {
            if text.bits.is_some() {
                writer.reserve_until(placed_text.file_offset);
                writer.reserve(text.size, 1);
            }
        }
        let text_name = writer.add_section_name(b".text");
        let sections: Vec<_> = placed
            .iter()
            .map(|_| writer.reserve_section_index())
            .collect();
        let finder = SectionFinder::new(&self.texts);
        let (locals, globals): (Vec<_>, Vec<_>) = self
            .symbols
            .iter()
            .filter_map(|symbol| Some((symbol, sections[finder.find(symbol.address)?])))
            .map(|(symbol, section)| {
                writer.reserve_symbol_index(Some(section));
                let end = symbol.name.iter().position(|byte| *byte == 0);
                let name = &symbol.name[..end.unwrap_or(symbol.name.len())];
                (symbol, section, writer.add_string(name))
            })
            .partition(|(symbol, ..)| !symbol.global);
        if locals.is_empty() && globals.is_empty() {
            writer.reserve_null_symbol_index();
        }
        writer.reserve_symtab_section_index();
        if writer.symtab_shndx_needed() {
            writer.reserve_symtab_shndx_section_index();
        }
        writer.reserve_strtab_section_index();
        writer.reserve_shstrtab_section_index();
        writer.reserve_symtab();
        writer.reserve_symtab_shndx();
        writer.reserve_strtab()?;
        writer.reserve_shstrtab()?;
        writer.reserve_section_headers();

        // Then everything is written, in the same order.
        writer.write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_EXEC,
            e_machine: MACHINE,
            e_entry: 0,
            e_flags: elf::FileFlags(0),
        })?;
        for (text, placed_text) in self.texts.iter().zip(placed) {
            if let Some(bits) = text.bits {
                writer.pad_until(placed_text.file_offset);
                writer.write(bits);
            }
        }
        writer.write_null_symbol();
        let num_local = 1 + locals.len() as u32;
        for (symbol, section, name) in locals.into_iter().chain(globals) {
            let binding = if symbol.global {
                elf::STB_GLOBAL
            } else {
                elf::STB_LOCAL
            };
            let st_name = writer.string_offset(Some(name));
            writer.write_symbol(&Sym {
                section: Some(section.0),
                st_name,
                st_info: binding | elf::STT_FUNC,
                st_other: elf::SymbolOther(0),
                st_shndx: elf::SHN_UNDEF,
                st_value: symbol.address,
                st_size: symbol.size,
            });
        }
        writer.write_symtab_shndx();
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        for (text, placed_text) in self.texts.iter().zip(placed) {
            let kind = if text.bits.is_some() {
                elf::SHT_PROGBITS
            } else {
                elf::SHT_NOBITS
            };
            let sh_name = writer.section_name_offset(Some(text_name));
            writer.write_section_header(&SectionHeader {
                sh_name,
                sh_type: kind,
                sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
                sh_addr: text.address,
                sh_offset: placed_text.file_offset,
                sh_size: text.size,
                sh_link: 0,
                sh_info: 0,
                sh_addralign: 1,
                sh_entsize: 0,
            });
        }
        writer.write_symtab_section_header(num_local);
        writer.write_symtab_shndx_section_header();
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;

/// Returns the error of an image of more than 4 GiB.
fn too_large() -> Error {
    Error::unwritable("ELF image", "more than 4 GiB of text")
}

/// An index that finds the section of an address.
struct SectionFinder {
    /// First address, end (none at the end of memory), position in the list; sorted by address.
    ranges: Vec<(u64, Option<u64>, usize)>,
}

impl SectionFinder {
    fn new(texts: &[TextSection<'_>]) -> Self {
        let range = |(position, text): (usize, &TextSection<'_>)| {
            (text.address, text.address.checked_add(text.size), position)
        };
        let mut ranges: Vec<_> = texts.iter().enumerate().map(range).collect();
        ranges.sort_unstable();
        SectionFinder { ranges }
    }

    fn find(&self, address: u64) -> Option<usize> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= address);
        let (_, end, position) = self.ranges[..after].last()?;
        end.is_none_or(|end| address < end).then_some(*position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSection, ObjectSymbol};

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    fn symbol(address: u64, size: u64, name: &[u8], global: bool) -> ImageSymbol<'_> {
        ImageSymbol {
            address,
            size,
            name,
            global,
        }
    }

    /// Returns name, address, size and position in the file of each function, as gprofng computes
    /// it.
    fn functions(bytes: &[u8]) -> Vec<(String, u64, u64, u64)> {
        let file = object::File::parse(bytes).unwrap();
        let mut found: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
            .map(|symbol| {
                let section = file
                    .section_by_index(symbol.section_index().unwrap())
                    .unwrap();
                let sh_offset = match section.file_range() {
                    Some((offset, _)) => offset,
                    None => nobits_offset(bytes, section.index().0),
                };
                (
                    symbol.name().unwrap().to_owned(),
                    symbol.address(),
                    symbol.size(),
                    sh_offset + symbol.address() - section.address(),
                )
            })
            .collect();
        found.sort();
        found
    }

    fn nobits_offset(bytes: &[u8], index: usize) -> u64 {
        let at = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
        at(at(0x28) as usize + 64 * index + 0x18)
    }

    #[test]
    fn functions_are_where_the_segment_says() {
        let bits = [0x90; 256];
        let image = ElfImage {
            texts: vec![
                TextSection {
                    address: 0xffff_ffff_c000_0000,
                    size: 0x3000,
                    bits: None,
                },
                TextSection {
                    address: KERNEL,
                    size: 256,
                    bits: Some(&bits),
                },
            ],
            symbols: vec![
                symbol(KERNEL + 16, 32, b"ksys_read", true),
                symbol(KERNEL, 16, b"foo.isra.0", false),
                symbol(0xffff_ffff_c000_2000, 8, b"ext4_read", true),
                symbol(0x10, 8, b"nowhere", true),
            ],
        };
        assert_eq!(image.symbols_left_out(), 1);
        let placed = image.placed().unwrap();
        let bytes = image.to_bytes().unwrap();
        assert_eq!(&bytes[placed[1].file_offset as usize..][..256], bits);
        let (module, kernel) = (placed[0].file_offset, placed[1].file_offset);
        assert!(module >= kernel + 256);
        assert_eq!(
            functions(&bytes),
            [
                (
                    "ext4_read".to_owned(),
                    0xffff_ffff_c000_2000,
                    8,
                    module + 0x2000
                ),
                ("foo.isra.0".to_owned(), KERNEL, 16, kernel),
                ("ksys_read".to_owned(), KERNEL + 16, 32, kernel + 16),
            ]
        );
    }

    #[test]
    fn scattered_functions_have_each_a_place() {
        let (image, placed) =
            ElfImage::scattered(&[(100, b"bpf_prog_a"), (7, b"bpf_prog_b")]).unwrap();
        let found = functions(&image.to_bytes().unwrap());
        assert_eq!(found.len(), 2);
        for (placed_text, (_, address, size, position)) in placed.iter().zip(found) {
            assert_eq!(
                (placed_text.vaddr, placed_text.size, placed_text.file_offset),
                (address, size, position)
            );
        }
    }

    #[test]
    fn an_empty_image_is_a_valid_file() {
        let bytes = ElfImage::default().to_bytes().unwrap();
        assert!(object::File::parse(bytes.as_slice()).is_ok());
    }

    #[test]
    fn names_end_at_a_nul_and_sizes_must_agree() {
        let mut image = ElfImage {
            texts: vec![TextSection {
                address: KERNEL,
                size: 64,
                bits: None,
            }],
            symbols: vec![symbol(KERNEL, 0, b"a\0b", true)],
        };
        assert_eq!(functions(&image.to_bytes().unwrap())[0].0, "a");
        image.texts[0].bits = Some(&[0; 63]);
        assert!(image.to_bytes().is_err());
        image.texts = vec![TextSection {
            address: 0,
            size: 1 << 32,
            bits: None,
        }];
        assert!(image.to_bytes().is_err());
    }

    #[test]
    fn text_at_the_end_of_memory_has_its_symbols() {
        let image = ElfImage {
            texts: vec![TextSection {
                address: u64::MAX - 15,
                size: 16,
                bits: None,
            }],
            symbols: vec![symbol(u64::MAX - 15, 16, b"last", true)],
        };
        assert_eq!(image.symbols_left_out(), 0);
    }
}
