//! Frame information that is not found by a section called `.eh_frame`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod entry;
mod mapped;

use std::io::Write;

use gimli::LittleEndian;
use gimli::write::{
    Address, CallFrameInstruction as Cfi, DebugFrame, EndianVec, FrameDescriptionEntry, FrameTable,
};
use kcollect_elf::ElfError;
use object::read::ReadCache;
use user_collector::unwind::{
    FrameInfo, MAX_SECTION_BYTES, UnwindError, UnwindRules, UnwindSections, UnwindTable,
};

use entry::cie;
use mapped::mapped;

/// Offsets in an ELF header.
const E_SHOFF: usize = 0x28;
const E_SHNUM: usize = 0x3c;
/// Types of program headers.
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// As `llvm-objcopy --strip-sections` leaves it.
fn strip_sections(file: &mut [u8]) {
    put(file, E_SHOFF, &[0; 8]);
    put(file, E_SHNUM, &[0; 4]);
}

/// Where the first program header of a type is.
fn program_header(file: &[u8], kind: u32) -> usize {
    (0..usize::from(file[0x38]))
        .map(|index| 0x40 + index * 56)
        .find(|&at| file[at..at + 4] == kind.to_le_bytes())
        .unwrap()
}

fn frames(file: &[u8]) -> Result<FrameInfo<'_>, UnwindError> {
    UnwindSections::of_elf(file).map(|sections| sections.frames)
}

#[test]
fn frames_are_found_without_section_headers() {
    for name in ["/libc.so", "/ld-linux", "/unwind_headers"] {
        let file = mapped(name);
        let mut stripped = file.clone();
        strip_sections(&mut stripped);
        let (
            FrameInfo::Eh { data, address },
            FrameInfo::Eh {
                data: whole,
                address: same,
            },
        ) = (frames(&stripped).unwrap(), frames(&file).unwrap())
        else {
            panic!("{name}: no .eh_frame")
        };
        assert_eq!(address, same, "{name}");
        // What may follow the terminator is padding.
        assert_eq!(data, &whole[..data.len()], "{name}");
        let mut rules = UnwindRules::new();
        let (table, summary) = UnwindTable::of_elf(&stripped, &mut rules).unwrap();
        let (expected, _) = UnwindTable::of_elf(&file, &mut rules).unwrap();
        assert_eq!(table, expected, "{name}");
        assert!(table.rows().len() > 100, "{name}");
        assert_eq!(summary.unread, 0, "{name}");
    }
}

#[test]
fn a_header_that_leads_nowhere() {
    let mut file = mapped("/libc.so");
    strip_sections(&mut file);
    let at = program_header(&file, PT_GNU_EH_FRAME);
    let offset = u64::from_le_bytes(file[at + 8..at + 16].try_into().unwrap()) as usize;
    let problem = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        put(&mut file, at, bytes);
        match frames(&file) {
            Err(UnwindError::Elf(ElfError::Headers {
                headers: "frame",
                problem,
            })) => problem,
            other => panic!("{other:?}"),
        }
    };
    problem(offset, &[2]);
    let in_no_segment = problem(offset + 4, &0x7000_0000_u32.to_le_bytes());
    let indirect = problem(offset + 1, &[0x9b]);
    assert_ne!(in_no_segment, indirect);
    let length = file.len() as u64;
    put(&mut file, at + 8, &length.to_le_bytes());
    let error = frames(&file).unwrap_err();
    assert!(
        matches!(
            error,
            UnwindError::Elf(ElfError::Outside {
                name: ".eh_frame_hdr",
                ..
            })
        ),
        "{error}"
    );
}

/// Only the pieces that are needed are read.
#[test]
fn sections_of_a_file_and_of_memory_are_equal() {
    let file = mapped("/libc.so");
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), &file).unwrap();
    let cache = ReadCache::new(path.reopen().unwrap());
    assert_eq!(
        UnwindSections::of_elf(&cache),
        UnwindSections::of_elf(file.as_slice())
    );
}

/// A file whose only frame information is this section.
struct Debug {
    file: Vec<u8>,
    /// Where its header is.
    header: usize,
}

fn debug_frame() -> Vec<u8> {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie());
    for index in 0..100 {
        let mut fde = FrameDescriptionEntry::new(Address::Constant(0x1000 + index * 64), 64);
        fde.add_instruction(1, Cfi::CfaOffset(16));
        table.add_fde(cie, fde);
    }
    let mut section = DebugFrame(EndianVec::new(LittleEndian));
    table.write_debug_frame(&mut section).unwrap();
    section.0.into_vec()
}

impl Debug {
    fn new(data: &[u8], flags: u64) -> Debug {
        let mut file = vec![0; 0x3000];
        put(&mut file, 0, b"\x7fELF\x02\x01\x01");
        put(&mut file, 0x10, &[3, 0, 62, 0, 1]);
        put(&mut file, 0x20, &[64]);
        put(&mut file, 0x34, &[64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 1, 0]);
        // One segment, all of it, executable.
        put(&mut file, 64, &PT_LOAD.to_le_bytes());
        put(&mut file, 68, &5_u32.to_le_bytes());
        put(&mut file, 64 + 32, &0x3000_u64.to_le_bytes());
        put(&mut file, 64 + 40, &0x3000_u64.to_le_bytes());
        let names = b"\0.shstrtab\0.debug_frame\0";
        let mut headers = vec![0; 64];
        for (name, flags, bytes) in [(1_u32, 0_u64, names.as_slice()), (11, flags, data)] {
            let mut header = [0; 64];
            put(&mut header, 0, &name.to_le_bytes());
            put(&mut header, 4, &1_u32.to_le_bytes());
            put(&mut header, 8, &flags.to_le_bytes());
            put(&mut header, 24, &(file.len() as u64).to_le_bytes());
            put(&mut header, 32, &(bytes.len() as u64).to_le_bytes());
            file.extend_from_slice(bytes);
            headers.extend_from_slice(&header);
        }
        let at = file.len();
        put(&mut file, E_SHOFF, &(at as u64).to_le_bytes());
        file.extend_from_slice(&headers);
        Debug {
            file,
            header: at + 128,
        }
    }

    fn compressed(data: &[u8], kind: u32, size: u64) -> Debug {
        let mut section = Vec::new();
        section.extend_from_slice(&kind.to_le_bytes());
        section.extend_from_slice(&[0; 4]);
        section.extend_from_slice(&size.to_le_bytes());
        section.extend_from_slice(&1_u64.to_le_bytes());
        let mut encoder = flate2::write::ZlibEncoder::new(section, flate2::Compression::default());
        encoder.write_all(data).unwrap();
        Debug::new(&encoder.finish().unwrap(), 0x800)
    }
}

#[test]
fn a_compressed_debug_frame() {
    let data = debug_frame();
    let plain = Debug::new(&data, 0);
    let compressed = Debug::compressed(&data, 1, data.len() as u64);
    assert!(compressed.file.len() < plain.file.len() - 1000);
    let mut rules = UnwindRules::new();
    let (table, summary) = UnwindTable::of_elf(&plain.file, &mut rules).unwrap();
    assert_eq!(summary.fdes, 100);
    let (same, _) = UnwindTable::of_elf(&compressed.file, &mut rules).unwrap();
    assert_eq!(same, table);
}

#[test]
fn compression_that_lies() {
    let data = debug_frame();
    let length = data.len() as u64;
    // zstd: not read.
    assert_eq!(
        frames(&Debug::compressed(&data, 2, length).file),
        Ok(FrameInfo::None)
    );
    for size in [0, 1, length - 1, length + 1, MAX_SECTION_BYTES as u64] {
        let error = frames(&Debug::compressed(&data, 1, size).file).unwrap_err();
        assert!(
            matches!(
                error,
                UnwindError::Elf(ElfError::Headers {
                    headers: "compression",
                    ..
                })
            ),
            "{error}"
        );
    }
    for size in [MAX_SECTION_BYTES as u64 + 1, u64::MAX] {
        let error = frames(&Debug::compressed(&data, 1, size).file).unwrap_err();
        assert_eq!(
            error,
            UnwindError::Elf(ElfError::TooLarge {
                name: ".debug_frame",
                size,
                limit: MAX_SECTION_BYTES as u64,
            })
        );
    }
    // A section that ends in its compression header.
    let mut short = Debug::compressed(&data, 1, length);
    put(&mut short.file, short.header + 32, &20_u64.to_le_bytes());
    assert!(matches!(
        frames(&short.file),
        Err(UnwindError::Elf(ElfError::Headers { .. }))
    ));
    // Damaged data.
    let mut damaged = Debug::compressed(&data, 1, length);
    put(&mut damaged.file, 0x3000 + 24 + 40, &[0xff; 16]);
    assert!(matches!(
        frames(&damaged.file),
        Err(UnwindError::Elf(ElfError::Headers { .. }))
    ));
}

/// The number of headers, and the limit.
fn too_many(file: &[u8]) -> Vec<String> {
    let Err(UnwindError::Elf(ElfError::Headers { problem, .. })) = frames(file) else {
        panic!("it is not refused for its headers");
    };
    let words = problem.split(|byte: char| !byte.is_ascii_digit());
    let numbers = words.filter(|word| !word.is_empty());
    numbers.map(str::to_owned).collect()
}

#[test]
fn headers_beyond_number() {
    let mut file = Debug::new(&debug_frame(), 0).file;
    put(&mut file, 0x38, &0xfffe_u16.to_le_bytes());
    assert_eq!(too_many(&file), ["65534", "1170"]);
    // The number of sections is in the first of them when there are many.
    let mut file = Debug::new(&debug_frame(), 0).file;
    let at = u64::from_le_bytes(file[E_SHOFF..E_SHOFF + 8].try_into().unwrap()) as usize;
    put(&mut file, E_SHNUM, &[0, 0]);
    put(&mut file, at + 32, &0x10_0000_u64.to_le_bytes());
    assert_eq!(too_many(&file), ["1048576", "65536"]);
}
