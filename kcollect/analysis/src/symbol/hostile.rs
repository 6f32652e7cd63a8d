//! Tests with hostile ELF files: reading each ends, with a result.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;

use experiment_format::archive::archive_name;
use object::elf::{SHF_COMPRESSED, SHT_PROGBITS};
use object::write::{Object, StandardSection};
use object::{Architecture, BinaryFormat, Endianness, SectionFlags, SectionKind};
use proptest::prelude::*;

use super::elf::Elf;
use super::*;

/// Bytes of the code in [`elf`], which begins at address 0.
const CODE: u64 = 4096;

const COMPRESSED: SectionFlags = SectionFlags::Elf {
    sh_type: SHT_PROGBITS,
    sh_flags: SHF_COMPRESSED,
};

const LOW_PC: [u8; 2] = [0x11, 0x01];
/// As a length, of eight bytes.
const HIGH_PC: [u8; 2] = [0x12, 0x07];
const STMT_LIST: [u8; 2] = [0x10, 0x17];
/// With an offset from the beginning of the unit, of four bytes.
const ORIGIN: [u8; 2] = [0x31, 0x13];
const COMPILE_UNIT: u8 = 0x11;
const SUBPROGRAM: u8 = 0x2e;
const INLINED: u8 = 0x1d;

fn elf(sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
    elf_with(sections, SectionFlags::None)
}

fn elf_with(sections: &[(&str, Vec<u8>)], flags: SectionFlags) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let text = object.section_id(StandardSection::Text);
    object.append_section_data(text, &[0x90; CODE as usize], 1);
    for (name, bytes) in sections {
        let name = name.as_bytes().to_vec();
        let id = object.add_section(Vec::new(), name, SectionKind::Debug);
        object.set_section_data(id, bytes.clone(), 1);
        object.section_mut(id).flags = flags;
    }
    object.write().unwrap()
}

/// An abbreviation with children.
fn abbreviation(code: u8, tag: u8, attributes: &[[u8; 2]]) -> Vec<u8> {
    let mut bytes = vec![code, tag, 1];
    bytes.extend(attributes.iter().flatten());
    bytes.extend([0, 0]);
    bytes
}

/// A unit of DWARF 4 with these entries.
fn unit(entries: &[u8]) -> Vec<u8> {
    let mut bytes = (entries.len() as u32 + 7).to_le_bytes().to_vec();
    bytes.extend([4, 0, 0, 0, 0, 0, 8]);
    bytes.extend(entries);
    bytes
}

/// An entry for all the code.
fn covering(code: u8) -> Vec<u8> {
    [&[code][..], &[0; 8], &CODE.to_le_bytes()].concat()
}

/// A line program of version 4 with one file, `x.c`, and these instructions.
fn line_program(instructions: &[u8]) -> Vec<u8> {
    let header: &[u8] = b"\x01\x01\x01\xfb\x0e\x0d\x00\x01\x01\x01\x01\x00\x00\x00\x01\x00\x00\x01\x00x.c\0\0\0\0\0";
    let size = 2 + 4 + header.len() + instructions.len();
    let mut bytes = (size as u32).to_le_bytes().to_vec();
    bytes.extend([4, 0]);
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(header);
    bytes.extend(instructions);
    bytes
}

/// Resolves positions in the code of a file in an experiment.
fn resolve(file: &[u8], offsets: &[u64]) -> Resolved {
    let archives = tempfile::tempdir().unwrap();
    fs::write(archives.path().join(archive_name("[x]")), file).unwrap();
    let search = SearchPaths::new(Some(archives.path().to_owned()));
    let object = ObjectRef {
        name: "[x]".to_owned(),
        build_id: Box::default(),
    };
    Symboliser::new(search).resolve(&object, offsets)
}

/// The same for positions in the code that [`elf`] makes, which follows its header.
fn resolve_code(file: &[u8]) -> Resolved {
    let resolved = resolve(file, &[64, 64 + CODE / 2]);
    assert_eq!(resolved.frames.len(), 2);
    resolved
}

/// A section as zstd writes what it can't compress: magic, one segment, its size in four bytes, one
/// last raw block.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let size = bytes.len() as u32;
    let words = [2, size.into(), 1_u64];
    let mut section: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    section.extend([0x28, 0xb5, 0x2f, 0xfd, 0xa0]);
    section.extend(size.to_le_bytes());
    section.extend(&(size << 3 | 1).to_le_bytes()[..3]);
    section.extend(bytes);
    section
}

#[test]
fn whole_files_are_understood() {
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC, STMT_LIST]),
        vec![0],
    ];
    let entries = [covering(1), vec![0; 4], vec![0]].concat();
    // At address 0, line 7; and the end after all the code.
    let lines = line_program(b"\x00\x09\x02\0\0\0\0\0\0\0\0\x03\x06\x01\x02\x80\x20\x00\x01\x01");
    let sections = [
        (".debug_abbrev", abbreviations.concat()),
        (".debug_info", unit(&entries)),
        (".debug_line", lines),
    ];
    let compressed = sections.clone().map(|(name, bytes)| (name, zstd(&bytes)));
    for file in [elf(&sections), elf_with(&compressed, COMPRESSED)] {
        let resolved = resolve_code(&file);
        assert_eq!(resolved.error, None);
        assert_eq!(resolved.frames[1][0].line, Some(7));
        assert_eq!(resolved.frames[1][0].file.as_deref(), Some("x.c"));
    }
}

#[test]
fn inlined_functions_a_million_deep() {
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC]),
        abbreviation(2, SUBPROGRAM, &[LOW_PC, HIGH_PC]),
        abbreviation(3, INLINED, &[]),
        vec![0],
    ];
    let entries = [covering(1), covering(2), vec![3; 1_000_000]].concat();
    let file = elf(&[
        (".debug_abbrev", abbreviations.concat()),
        (".debug_info", unit(&entries)),
        (".debug_line", line_program(&[])),
    ]);
    assert_eq!(resolve_code(&file).error, Some(SymbolError::TooMuchWork));
}

#[test]
fn an_origin_that_is_its_own() {
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC]),
        abbreviation(2, SUBPROGRAM, &[LOW_PC, HIGH_PC, ORIGIN]),
        vec![0],
    ];
    // After the unit's header and its first entry.
    let own = 11 + 17_u32;
    let entries = [
        covering(1),
        covering(2),
        own.to_le_bytes().to_vec(),
        vec![0; 2],
    ]
    .concat();
    let file = elf(&[
        (".debug_abbrev", abbreviations.concat()),
        (".debug_info", unit(&entries)),
        (".debug_line", line_program(&[])),
    ]);
    let resolved = resolve_code(&file);
    assert_eq!(resolved.frames[0], [SourceFrame::default()]);
}

#[test]
fn one_line_program_of_many_units() {
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC, STMT_LIST]),
        vec![0],
    ];
    let one = unit(&[covering(1), vec![0; 4], vec![0]].concat());
    // A row for each byte, none of the code.
    let lines = line_program(&[&b"\x00\x09\x02\0\0\0\0\0\0\0\x01"[..], &[0x20; 500_000]].concat());
    let file = elf(&[
        (".debug_abbrev", abbreviations.concat()),
        (".debug_info", one.repeat(20_000)),
        (".debug_line", lines),
    ]);
    assert_eq!(resolve_code(&file).error, Some(SymbolError::TooMuchWork));
}

#[test]
fn a_line_program_without_end() {
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC, STMT_LIST]),
        vec![0],
    ];
    let entries = [covering(1), vec![0; 4], vec![0]].concat();
    let file = elf(&[
        (".debug_abbrev", abbreviations.concat()),
        (".debug_info", unit(&entries)),
        (".debug_line", line_program(&[0x20; 100_000])),
    ]);
    assert_eq!(resolve_code(&file).frames, [[], []]);
}

#[test]
fn a_path_that_is_repeated() {
    // 100,000 files in a directory of 100,000 letters would be 10 GB of paths.
    let mut header =
        b"\x01\x01\x01\xfb\x0e\x0d\x00\x01\x01\x01\x01\x00\x00\x00\x01\x00\x00\x01".to_vec();
    header.extend([b'd'; 100_000]);
    header.extend([0, 0]);
    header.extend(b"x\0\x01\0\0".repeat(100_000));
    header.push(0);
    let instructions = b"\x00\x09\x02\0\0\0\0\0\0\0\0\x01\x02\x80\x20\x00\x01\x01";
    let size = 2 + 4 + header.len() + instructions.len();
    let mut lines = (size as u32).to_le_bytes().to_vec();
    lines.extend([4, 0]);
    lines.extend((header.len() as u32).to_le_bytes());
    lines.extend(header);
    lines.extend(instructions);
    let abbreviations = [
        abbreviation(1, COMPILE_UNIT, &[LOW_PC, HIGH_PC, STMT_LIST]),
        vec![0],
    ];
    let file = elf(&[
        (".debug_abbrev", abbreviations.concat()),
        (
            ".debug_info",
            unit(&[covering(1), vec![0; 4], vec![0]].concat()),
        ),
        (".debug_line", lines),
    ]);
    assert_eq!(resolve_code(&file).error, Some(SymbolError::TooMuchWork));
}

#[test]
fn sizes_that_are_only_claimed() {
    for kind in [1_u32, 2, 3] {
        // Type, padding, a size of 2^44 bytes, alignment.
        let words = [u64::from(kind), 1 << 44, 1];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = elf_with(
            &[(".debug_line", [bytes, vec![7; 100]].concat())],
            COMPRESSED,
        );
        assert!(matches!(
            resolve_code(&file).error,
            Some(SymbolError::Damaged(_))
        ));
    }
    let old = [&b"ZLIB"[..], &[0xff; 8], &[7; 100]].concat();
    let file = elf(&[(".zdebug_line", old)]);
    assert!(matches!(
        resolve_code(&file).error,
        Some(SymbolError::Damaged(_))
    ));
}

/// A file of a few kilobytes on its disk with a section of a gigabyte.
#[test]
fn a_section_that_is_a_hole() {
    let mut file = elf(&[(".debug_line", line_program(&[1]))]);
    let (begin, size) = (1_u64 << 20, (1 << 30) - 1_u64);
    let header = |file: &[u8]| {
        let at = |at: usize, width: usize| {
            let bytes = file[at..at + width].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | usize::from(*byte))
        };
        // The only section of data that is not mapped.
        let (table, count) = (at(0x28, 8), at(0x3c, 2));
        (1..count)
            .map(|number| table + 64 * number)
            .find(|header| at(header + 4, 4) == SHT_PROGBITS.0 as usize && at(header + 8, 8) == 0)
    };
    let header = header(&file).unwrap();
    file[header + 0x18..header + 0x20].copy_from_slice(&begin.to_le_bytes());
    file[header + 0x20..header + 0x28].copy_from_slice(&size.to_le_bytes());
    let mut sparse = tempfile::tempfile().unwrap();
    sparse.write_all(&file).unwrap();
    sparse.set_len(begin + size).unwrap();
    let elf = Elf::read(sparse).unwrap();
    let read = elf.section(".debug_line", &mut super::elf::SectionBudget::new());
    assert_eq!(read, Err(super::elf::HOLE));
    // The size is no reason to refuse a file without holes.
    let mut whole = tempfile::tempfile().unwrap();
    whole.write_all(&file).unwrap();
    whole.write_all(&vec![7; (32 << 20) - file.len()]).unwrap();
    let size = (20_u64 << 20).to_le_bytes();
    std::os::unix::fs::FileExt::write_all_at(&whole, &size, header as u64 + 0x20).unwrap();
    let elf = Elf::read(whole).unwrap();
    let read = elf.section(".debug_line", &mut super::elf::SectionBudget::new());
    assert_eq!(read.unwrap().len(), 20 << 20);
}

#[test]
fn a_file_that_is_shortened_while_it_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), elf(&[(".debug_line", line_program(&[]))])).unwrap();
    let elf = Elf::read(file.reopen().unwrap()).unwrap();
    assert!(elf.has_lines());
    file.as_file().set_len(CODE).unwrap();
    let read = elf.section(".debug_line", &mut SectionBudget::new());
    assert_eq!(read, Err(Damaged("was shortened, or cannot be read")));
}

#[test]
fn both_classes_and_byte_orders() {
    for (architecture, endian, bits) in [
        (Architecture::X86_64, Endianness::Little, 64),
        (Architecture::I386, Endianness::Little, 32),
        (Architecture::S390x, Endianness::Big, 64),
        (Architecture::PowerPc, Endianness::Big, 32),
    ] {
        let mut object = Object::new(BinaryFormat::Elf, architecture, endian);
        let name = b".debug_line".to_vec();
        let id = object.add_section(Vec::new(), name, SectionKind::Debug);
        object.set_section_data(id, b"lines", 1);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&object.write().unwrap()).unwrap();
        let elf = Elf::read(file).unwrap();
        assert_eq!((elf.bits(), elf.is_synthetic()), (bits, true));
        let little = elf.gimli_endian() == gimli::RunTimeEndian::Little;
        assert_eq!(little, endian == Endianness::Little);
        let mut budget = SectionBudget::new();
        assert_eq!(elf.section(".debug_line", &mut budget).unwrap(), b"lines");
        assert_eq!(elf.section(".debug_info", &mut budget).unwrap(), b"");
    }
}

#[test]
fn all_sections_of_an_object_have_one_limit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = elf(&[(".debug_line", vec![0; 8]), (".debug_info", vec![0; 8])]);
    let table = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap()) as usize;
    for header in bytes[table..].chunks_exact_mut(64) {
        // Two that have all of the file: each is within the limit.
        if header[0x20..0x28] == 8_u64.to_le_bytes() {
            header[0x18..0x28].copy_from_slice(&[[0; 8], (600_u64 << 20).to_le_bytes()].concat());
        }
    }
    // Enough of it is there to be more than a hole.
    bytes.resize(12 << 20, 7);
    fs::write(file.path(), bytes).unwrap();
    file.as_file().set_len(600 << 20).unwrap();
    let elf = Elf::read(file.reopen().unwrap()).unwrap();
    let mut budget = SectionBudget::new();
    assert_eq!(
        elf.section(".debug_line", &mut budget).unwrap().len(),
        600 << 20
    );
    let second = elf.section(".debug_info", &mut budget);
    assert_eq!(
        second,
        Err(Damaged("has more than 1 GiB of debug information"))
    );
    file.as_file().set_len(500 << 20).unwrap();
    let elf = Elf::read(file.reopen().unwrap()).unwrap();
    let outside = elf.section(".debug_line", &mut SectionBudget::new());
    assert_eq!(outside, Err(Damaged("has sections beyond its end")));
}

/// A small program with lines, inlined functions and all that a compiler adds.
fn program(flags: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("x.c");
    let text = "static inline int twice(int x) { return x + x; }\n\
                int main(int argc, char **argv) {\n\
                for (int i = 0; i < argc; i++)\nif (argv[i][0] == twice(argc)) return twice(i);\n\
                return 0; }\n";
    fs::write(&source, text).unwrap();
    let out = directory.path().join("x");
    let made = Command::new("cc")
        .args([
            "-O2",
            "-g",
            flags,
            "-nostdlib",
            "-static",
            "-Wl,-e,main",
            "-o",
        ])
        .args([&out, &source])
        .status();
    assert!(made.unwrap().success());
    fs::read(out).unwrap()
}

/// Programs, each with the part of the file that has its debug information.
fn programs() -> &'static BTreeMap<&'static str, Vec<u8>> {
    static PROGRAMS: OnceLock<BTreeMap<&'static str, Vec<u8>>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let flags = ["-gdwarf-4", "-gdwarf-5", "-gz=zlib"];
        flags
            .into_iter()
            .map(|flags| (flags, program(flags)))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_programs_are_read_or_refused(
        flags in prop::sample::select(vec!["-gdwarf-4", "-gdwarf-5", "-gz=zlib"]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = programs()[flags].clone();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let offsets: Vec<u64> = (0..0x3000).step_by(5).collect();
        let resolved = resolve(&bytes, &offsets);
        prop_assert_eq!(resolved.frames.len(), offsets.len());
        prop_assert_ne!(resolved.error, Some(SymbolError::Failed));
    }
}
