//! The build id of an ELF file.

use object::Endianness;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, NoteType, PT_NOTE, SHT_NOTE};
use object::read::elf::NoteIterator;

use super::{ElfBytes, ElfFile, ElfLimits};

/// Longest build id that the kernel reports, bytes.
pub const MAX_BUILD_ID_BYTES: usize = 20;
/// Max bytes of notes that are read of a file's segments. Linkers write some hundred.
const MAX_SEGMENT_NOTE_BYTES: u64 = 1 << 20;

/// Longest build id of a debug file that counts, bytes. SHA-1 has 20.
const MAX_DEBUG_BUILD_ID_BYTES: usize = 64;
/// Largest section of notes that is read, bytes.
const MAX_SECTION_NOTE_BYTES: u64 = 64 * 1024;
/// Max sections of notes that are read.
const MAX_NOTE_SECTIONS: usize = 16;

/// A file's own build id: the first note of that kind in a `PT_NOTE` segment, as the kernel finds
/// it (`build_id_parse`). Empty if the file has no build id of at most [`MAX_BUILD_ID_BYTES`]
/// bytes, or what leads there is damaged.
pub fn build_id<B: ElfBytes>(bytes: B) -> Box<[u8]> {
    of_segments(bytes).unwrap_or_default()
}

fn of_segments<B: ElfBytes>(bytes: B) -> Option<Box<[u8]>> {
    let limits = ElfLimits {
        // As many as the header can count.
        max_segments: u32::from(u16::MAX),
        ..ElfLimits::PROGRAM
    };
    let elf = ElfFile::read(bytes, limits).ok()?;
    let mut left = MAX_SEGMENT_NOTE_BYTES;
    for segment in elf.segments().ok()? {
        if segment.kind != PT_NOTE {
            continue;
        }
        // What a cache has read it keeps, so the sum is what counts.
        let Some(rest) = left.checked_sub(segment.file_size) else {
            continue;
        };
        left = rest;
        let Ok(notes) = elf.piece("a note segment", segment.offset, segment.file_size) else {
            continue;
        };
        let found = in_notes(&notes, elf.endian(), segment.alignment, MAX_BUILD_ID_BYTES);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The build id of a program, library or debug file, found by its note sections; empty if it has no
/// build id. In a debug file, segments point to what is only in the program.
pub fn section_build_id<B: ElfBytes>(bytes: B) -> Box<[u8]> {
    of_sections(bytes).unwrap_or_default()
}

fn of_sections<B: ElfBytes>(bytes: B) -> Option<Box<[u8]>> {
    let elf = ElfFile::read(bytes, ElfLimits::PROGRAM)
        .and_then(ElfFile::only_64_bit_little_endian)
        .ok()?;
    let sections = elf.sections().ok()?;
    sections
        .iter()
        .filter(|section| section.kind == SHT_NOTE && section.size <= MAX_SECTION_NOTE_BYTES)
        .take(MAX_NOTE_SECTIONS)
        .filter_map(|section| elf.content(section, "a note section").ok())
        .find_map(|notes| in_notes(&notes, elf.endian(), 4, MAX_DEBUG_BUILD_ID_BYTES))
}

/// Returns the first build id among notes that is not empty and not longer than that.
fn in_notes(
    notes: &[u8],
    endian: Endianness,
    alignment: u64,
    max_bytes: usize,
) -> Option<Box<[u8]>> {
    // Notes of both classes are alike.
    let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, alignment, notes).ok()?;
    notes.map_while(Result::ok).find_map(|note| {
        let kind: NoteType = note.n_type(endian);
        let fits = (1..=max_bytes).contains(&note.desc().len());
        (kind == NT_GNU_BUILD_ID && note.name() == ELF_NOTE_GNU && fits).then(|| note.desc().into())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of one note segment, of either class.
    fn file(wide: bool, notes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 0x100];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF");
        put(4, &[1 + u8::from(wide), 1, 1]);
        if wide {
            put(0x20, &[0x40]);
            put(0x34, &[0x40, 0, 56, 0, 1]);
            put(0x40, &[4]);
            put(0x48, &[0, 1]);
            put(0x60, &(notes.len() as u64).to_le_bytes());
        } else {
            put(0x1c, &[0x40]);
            put(0x28, &[0x34, 0, 32, 0, 1]);
            put(0x40, &[4]);
            put(0x44, &[0, 1]);
            put(0x50, &(notes.len() as u32).to_le_bytes());
        }
        file.extend_from_slice(notes);
        file
    }

    fn note(kind: u32, name: &[u8; 4], desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [4, desc.len() as u32, kind] {
            note.extend_from_slice(&word.to_le_bytes());
        }
        note.extend_from_slice(name);
        note.extend_from_slice(desc);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    #[test]
    fn build_id_is_found_among_other_notes() {
        let notes = [
            note(1, b"GNU\0", &[1; 16]),
            note(3, b"XYZ\0", &[2; 20]),
            note(3, b"GNU\0", &[]),
            note(3, b"GNU\0", &[3; 21]),
            note(3, b"GNU\0", &[4; 19]),
            note(3, b"GNU\0", &[5; 20]),
        ]
        .concat();
        for wide in [false, true] {
            assert_eq!(*build_id(file(wide, &notes).as_slice()), [4; 19]);
            assert!(build_id(file(wide, &[]).as_slice()).is_empty());
            let whole = file(wide, &notes);
            for length in 0..whole.len() {
                let cut = build_id(&whole[..length]);
                assert!(cut.is_empty());
            }
        }
    }

    #[test]
    fn the_build_id_of_a_debug_file_is_found_among_other_notes() {
        let id_in = |notes: &[u8]| in_notes(notes, Endianness::Little, 4, MAX_DEBUG_BUILD_ID_BYTES);
        let note = |kind, content| note(kind, b"GNU\0", content);
        let notes = [note(5, &[1; 9][..]), note(3, &[7; 20]), note(3, &[8; 20])].concat();
        assert_eq!(id_in(&notes).unwrap().as_ref(), [7; 20]);
        assert_eq!(id_in(&note(3, &[])), None);
        assert_eq!(id_in(&note(3, &[1; 65])), None);
        assert_eq!(id_in(&notes[..40]), None);
    }

    proptest! {
        #[test]
        fn anything_has_a_build_id_or_none(
            wide in any::<bool>(),
            notes in proptest::collection::vec(any::<u8>(), 0..256),
            changes in proptest::collection::vec((0..0x80_usize, any::<u8>()), 0..8),
        ) {
            let mut file = file(wide, &notes);
            for (offset, byte) in changes {
                file[offset] = byte;
            }
            prop_assert!(build_id(file.as_slice()).len() <= MAX_BUILD_ID_BYTES);
            prop_assert!(section_build_id(file.as_slice()).len() <= MAX_DEBUG_BUILD_ID_BYTES);
            if let Ok(elf) = ElfFile::read(file.as_slice(), ElfLimits::PROGRAM) {
                let _ = (elf.segments(), elf.sections());
            }
        }

        #[test]
        fn any_notes_end(notes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = in_notes(&notes, Endianness::Little, 4, MAX_DEBUG_BUILD_ID_BYTES);
        }
    }
}
