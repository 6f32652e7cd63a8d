//! An ELF file read by pieces: headers, and sections by name, decompressed.
//!
//! Nothing is mapped. A file's owner can shorten it while it is read, and a mapping would turn that
//! into SIGBUS, which Rust code cannot handle as an error. The cost is a copy in memory, of the
//! requested sections only: about 30 ms for 100 MB that are in the page cache.
//!
//! What it refuses: sizes that the file or its headers only claim. A section is compared with the
//! file before it is read, a decompressed one with what any compressor makes of debug information,
//! and all sections of an object with one [`Room`]. More than 65,279 sections (they need a special
//! encoding, which only relocatable files have) are refused too.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{
    CompressionHeader32, CompressionHeader64, ELFCLASS64, FileHeader32, FileHeader64, Machine,
    SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHN_LORESERVE, SHT_NOBITS, SHT_SYMTAB, Sym64,
};
use object::pod::{from_bytes, slice_from_bytes};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader, Sym};
use object::{CompressedData, CompressionFormat, Endian, Endianness};

/// All sections of one object that are in memory at a time, bytes. Debian's vmlinux needs 0.5 GiB
/// of them.
const MAX_SECTION_BYTES: u64 = 1 << 30;
/// A section that grows by more than this is no debug information: zlib and zstd make it 3 to 8
/// times smaller.
const MAX_COMPRESSION_RATIO: u64 = 64;
/// Largest table of section names, bytes.
const MAX_SECTION_NAMES_BYTES: u64 = 4 << 20;

/// Why a file, or a section of it, can't be used. The end of a sentence that begins with the
/// object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Damaged(pub(super) &'static str);

/// How many bytes of sections may still be read.
#[derive(Debug)]
pub(super) struct Room(u64);

impl Room {
    /// For the sections of one object.
    pub(super) fn new() -> Room {
        Room(MAX_SECTION_BYTES)
    }

    fn take(&mut self, bytes: u64) -> Result<(), Damaged> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.ok_or(Damaged("has more than 1 GiB of debug information"))?;
        Ok(())
    }
}

#[derive(Debug)]
struct Section {
    name: Box<[u8]>,
    address: u64,
    offset: u64,
    size: u64,
    link: usize,
    code: bool,
    compressed: bool,
    nobits: bool,
    symbols: bool,
}

/// The headers of an ELF file of either class and byte order.
#[derive(Debug)]
pub(super) struct Elf {
    file: File,
    length: u64,
    sections: Vec<Section>,
    wide: bool,
    segments: usize,
    pub(super) endian: Endianness,
    pub(super) machine: Machine,
}

impl Elf {
    pub(super) fn read(file: File) -> Result<Elf, Damaged> {
        let metadata = file.metadata().map_err(|_| Damaged("cannot be read"))?;
        if !metadata.is_file() {
            return Err(Damaged("is no regular file"));
        }
        let length = metadata.len();
        let bytes = piece(&file, length, 0, length.min(64))?;
        match bytes.get(4) {
            Some(class) if *class == ELFCLASS64.0 => {
                Elf::of_class::<FileHeader64<Endianness>>(file, length, &bytes)
            }
            _ => Elf::of_class::<FileHeader32<Endianness>>(file, length, &bytes),
        }
    }

    fn of_class<H>(file: File, length: u64, bytes: &[u8]) -> Result<Elf, Damaged>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let none = Damaged("is no ELF file");
        let header = H::parse(bytes).map_err(|_| none)?;
        let endian = header.endian().map_err(|_| none)?;
        let (count, size) = (header.e_shnum(endian), header.e_shentsize(endian));
        if count >= SHN_LORESERVE
            || (count > 0 && usize::from(size) != size_of::<H::SectionHeader>())
        {
            return Err(Damaged("has section headers that are not understood"));
        }
        let offset: u64 = header.e_shoff(endian).into();
        let table = piece(&file, length, offset, u64::from(count) * u64::from(size))?;
        let (headers, _) = slice_from_bytes::<H::SectionHeader>(&table, usize::from(count))
            .map_err(|()| Damaged("has damaged section headers"))?;
        let names = headers
            .get(usize::from(header.e_shstrndx(endian).0))
            .map(|names| (names.sh_offset(endian).into(), names.sh_size(endian).into()))
            .filter(|(_, size)| *size <= MAX_SECTION_NAMES_BYTES)
            .and_then(|(offset, size)| piece(&file, length, offset, size).ok())
            .unwrap_or_default();
        let section = |header: &H::SectionHeader| {
            let name = names.get(header.sh_name(endian) as usize..);
            let name = name.unwrap_or_default().split(|byte| *byte == 0).next();
            let flags = header.sh_flags(endian);
            let flags = |wanted| flags.contains(wanted);
            Section {
                name: name.unwrap_or_default().into(),
                address: header.sh_addr(endian).into(),
                offset: header.sh_offset(endian).into(),
                size: header.sh_size(endian).into(),
                link: header.sh_link(endian) as usize,
                code: flags(SHF_ALLOC) && flags(SHF_EXECINSTR),
                compressed: flags(SHF_COMPRESSED),
                nobits: header.sh_type(endian) == SHT_NOBITS,
                symbols: header.sh_type(endian) == SHT_SYMTAB,
            }
        };
        Ok(Elf {
            sections: headers.iter().map(section).collect(),
            wide: header.is_type_64(),
            segments: usize::from(header.e_phnum(endian)),
            machine: header.e_machine(endian),
            endian,
            length,
            file,
        })
    }

    /// The file, to be looked into by others.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// 64 or 32.
    pub(super) fn bits(&self) -> u32 {
        if self.wide { 64 } else { 32 }
    }

    /// Returns whether it was made from a list of symbols, as the kernel's are. Such a file is not
    /// loaded, and has no segments.
    pub(super) fn is_synthetic(&self) -> bool {
        self.segments == 0
    }

    /// Returns whether it has line tables, of any format.
    pub(super) fn has_lines(&self) -> bool {
        let has = |name: &[u8]| {
            self.find(name)
                .is_some_and(|found| found.size > 0 && !found.nobits)
        };
        has(b".debug_line") || has(b".zdebug_line")
    }

    /// The address that the file says of a position in its code, as gprofng computes it: by
    /// sections.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let section = self.code_at(offset)?;
        section.address.checked_add(offset - section.offset)
    }

    /// The position in the file of an address of code.
    pub(super) fn offset(&self, address: u64) -> Option<u64> {
        let inside = |section: &&Section| {
            section.code
                && (address.checked_sub(section.address)).is_some_and(|by| by < section.size)
        };
        let section = self.sections.iter().find(inside)?;
        section.offset.checked_add(address - section.address)
    }

    /// Up to `size` bytes of code at a position; fewer where its section ends. None where the file
    /// has no instructions.
    pub(super) fn code(&self, offset: u64, size: u64) -> Result<Option<Vec<u8>>, Damaged> {
        let Some(section) = self.code_at(offset).filter(|section| !section.nobits) else {
            return Ok(None);
        };
        let size = size.min(section.size - (offset - section.offset));
        piece(&self.file, self.length, offset, size).map(Some)
    }

    fn code_at(&self, offset: u64) -> Option<&Section> {
        self.sections.iter().find(|section| {
            let into = offset.checked_sub(section.offset);
            section.code && into.is_some_and(|into| into < section.size)
        })
    }

    fn find(&self, name: &[u8]) -> Option<&Section> {
        self.sections.iter().find(|section| *section.name == *name)
    }

    /// Content of a section, decompressed; empty where there is none. `.debug_x` is also found as
    /// `.zdebug_x`, which is how compressed ones were called before they had a flag.
    pub(super) fn section(&self, name: &str, room: &mut Room) -> Result<Vec<u8>, Damaged> {
        if let Some(found) = self.find(name.as_bytes()) {
            let bytes = self.raw(found, room)?;
            return if found.compressed {
                let (format, size, head) = self.compression(&bytes)?;
                decompress(format, size, bytes.get(head..).unwrap_or_default(), room)
            } else {
                Ok(bytes)
            };
        }
        let old = name.replacen(".debug", ".zdebug", 1);
        let Some(found) = self.find(old.as_bytes()) else {
            return Ok(Vec::new());
        };
        // "ZLIB", and the size in eight bytes, the most significant first.
        let bytes = self.raw(found, room)?;
        let (head, content) = bytes
            .split_at_checked(12)
            .ok_or(Damaged("has a damaged compressed section"))?;
        match head.split_first_chunk::<4>() {
            Some((b"ZLIB", size)) => {
                let size = size
                    .iter()
                    .fold(0, |size, byte| size << 8 | u64::from(*byte));
                decompress(CompressionFormat::Zlib, size, content, room)
            }
            _ => Ok(bytes),
        }
    }

    fn raw(&self, section: &Section, room: &mut Room) -> Result<Vec<u8>, Damaged> {
        if section.nobits {
            return Ok(Vec::new());
        }
        // Compared with the file first, so that what is only claimed takes no room.
        inside(self.length, section.offset, section.size)?;
        room.take(section.size)?;
        piece(&self.file, self.length, section.offset, section.size)
    }

    fn compression(&self, bytes: &[u8]) -> Result<(CompressionFormat, u64, usize), Damaged> {
        fn read<H: CompressionHeader<Endian = Endianness>>(
            bytes: &[u8],
            endian: Endianness,
        ) -> Option<(object::elf::CompressionType, u64, usize)> {
            let (header, _) = from_bytes::<H>(bytes).ok()?;
            let size = header.ch_size(endian).into();
            Some((header.ch_type(endian), size, size_of::<H>()))
        }
        let header = if self.wide {
            read::<CompressionHeader64<Endianness>>(bytes, self.endian)
        } else {
            read::<CompressionHeader32<Endianness>>(bytes, self.endian)
        };
        let (kind, size, head) = header.ok_or(Damaged("has a damaged compressed section"))?;
        let format = match kind {
            object::elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
            object::elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
            _ => return Err(Damaged("has sections compressed in an unknown way")),
        };
        Ok((format, size, head))
    }

    /// Address of the symbol of this name, in a 64-bit file.
    pub(super) fn symbol(&self, name: &[u8], room: &mut Room) -> Option<u64> {
        let table = self.sections.iter().find(|section| section.symbols)?;
        let strings = self.sections.get(table.link)?;
        if !self.wide {
            return None;
        }
        let (table, strings) = (self.raw(table, room).ok()?, self.raw(strings, room).ok()?);
        let count = table.len() / size_of::<Sym64<Endianness>>();
        let (symbols, _) = slice_from_bytes::<Sym64<Endianness>>(&table, count).ok()?;
        let found = symbols.iter().find(|symbol| {
            let own = strings.get(symbol.st_name(self.endian) as usize..);
            own.and_then(|own| own.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })?;
        Some(found.st_value(self.endian))
    }

    /// Content of `.gnu_debugaltlink`: a path, a NUL, a build id.
    pub(super) fn alternative(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut room = Room(4096 + 64);
        let bytes = self.section(".gnu_debugaltlink", &mut room).ok()?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let (path, id) = (bytes.get(..end)?, bytes.get(end + 1..)?);
        (!path.is_empty() && !id.is_empty()).then(|| (path.to_vec(), id.to_vec()))
    }

    /// As gimli names it.
    pub(super) fn gimli_endian(&self) -> gimli::RunTimeEndian {
        if self.endian.is_little_endian() {
            gimli::RunTimeEndian::Little
        } else {
            gimli::RunTimeEndian::Big
        }
    }
}

fn decompress(
    format: CompressionFormat,
    size: u64,
    data: &[u8],
    room: &mut Room,
) -> Result<Vec<u8>, Damaged> {
    let damaged = Damaged("has a damaged compressed section");
    if size / MAX_COMPRESSION_RATIO > data.len() as u64 {
        return Err(damaged);
    }
    room.take(size)?;
    let data = CompressedData {
        format,
        data,
        uncompressed_size: size,
    };
    data.decompress()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| damaged)
}

fn inside(length: u64, offset: u64, size: u64) -> Result<(), Damaged> {
    match offset.checked_add(size) {
        Some(end) if end <= length => Ok(()),
        _ => Err(Damaged("has sections beyond its end")),
    }
}

/// Bytes of a file, if it has them.
fn piece(file: &File, length: u64, offset: u64, size: u64) -> Result<Vec<u8>, Damaged> {
    inside(length, offset, size)?;
    let size = usize::try_from(size).map_err(|_| Damaged("has sections beyond its end"))?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|_| Damaged("was shortened, or cannot be read"))?;
    Ok(bytes)
}
