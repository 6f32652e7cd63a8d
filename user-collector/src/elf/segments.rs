//! What else is wanted of an ELF file: where its segments are, and its build id.

use object::elf::{
    FileHeader32, FileHeader64, NT_GNU_BUILD_ID, NoteType, PF_X, PT_LOAD, PT_NOTE, ProgramHeader64,
};
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

use crate::unwind::Error;
use crate::unwind::sections::{LITTLE, program_headers};

/// Longest build id that the kernel tells of, bytes.
pub const MAX_BUILD_ID: usize = 20;

/// Most bytes of notes that are read of a file. Linkers write some hundred.
const MAX_NOTES: u64 = 1 << 20;

/// A part of a file that is mapped when it is loaded (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it is in the file, bytes.
    pub offset: u64,
    /// How much of it is in the file, bytes.
    pub size: u64,
    /// The address that the file is linked for.
    pub address: u64,
    /// May it be executed?
    pub executable: bool,
}

/// What a mapping is made of.
const PAGE: u64 = 4096;

impl Segment {
    /// The address that a place in the file is linked for, if the place is mapped with this
    /// segment: from the page on in which it begins, for no mapping begins elsewhere.
    pub(crate) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let pages = self.offset & !(PAGE - 1)..self.offset.saturating_add(self.size);
        pages.contains(&file_offset).then(|| {
            self.address
                .wrapping_add(file_offset.wrapping_sub(self.offset))
        })
    }
}

/// The segments of a file of this machine, as the file orders them.
///
/// # Errors
/// The file is no ELF file of this machine, or its program headers are outside of it.
pub(crate) fn segments<'data, R: ReadRef<'data>>(file: R) -> Result<Vec<Segment>, Error> {
    let loaded = |header: &&ProgramHeader64<Endianness>| header.p_type(LITTLE) == PT_LOAD;
    let segment = |header: &ProgramHeader64<Endianness>| Segment {
        offset: header.p_offset(LITTLE),
        size: header.p_filesz(LITTLE),
        address: header.p_vaddr(LITTLE),
        executable: header.p_flags(LITTLE).contains(PF_X),
    };
    Ok(program_headers(file)?
        .iter()
        .filter(loaded)
        .map(segment)
        .collect())
}

/// A file's own build id: the first note of that kind in a `PT_NOTE` segment, as the kernel finds
/// it (`build_id_parse`). Empty where there is none, or none of at most [`MAX_BUILD_ID`] bytes, or
/// what leads there is damaged.
pub fn build_id<'data, R: ReadRef<'data>>(file: R) -> Box<[u8]> {
    let class = file.read_bytes_at(0, 5).map(|ident| ident[4]);
    let found = match class {
        Ok(class) if class == elf::ELFCLASS32.0 => note::<FileHeader32<Endianness>, R>(file),
        Ok(class) if class == elf::ELFCLASS64.0 => note::<FileHeader64<Endianness>, R>(file),
        _ => None,
    };
    found.unwrap_or_default().into()
}

fn note<'data, Elf, R>(file: R) -> Option<&'data [u8]>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Elf::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let mut left = MAX_NOTES;
    for segment in header.program_headers(endian, file).ok()? {
        if segment.p_type(endian) != PT_NOTE {
            continue;
        }
        let (_, size) = segment.file_range(endian);
        // To read is to keep, so the sum is what counts.
        let Some(rest) = left.checked_sub(size) else {
            continue;
        };
        left = rest;
        let Ok(Some(notes)) = segment.notes(endian, file) else {
            continue;
        };
        for note in notes.map_while(Result::ok) {
            let kind: NoteType = note.n_type(endian);
            let fits = (1..=MAX_BUILD_ID).contains(&note.desc().len());
            if kind == NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU && fits {
                return Some(note.desc());
            }
        }
    }
    None
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
    fn among_other_notes() {
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
    fn places_in_the_file_and_addresses() {
        let segment = Segment {
            offset: 0x1234,
            size: 0x10,
            address: 0x40_1234,
            executable: true,
        };
        assert_eq!(segment.address_of(0xfff), None);
        assert_eq!(segment.address_of(0x1000), Some(0x40_1000));
        assert_eq!(segment.address_of(0x1234), Some(0x40_1234));
        assert_eq!(segment.address_of(0x1243), Some(0x40_1243));
        assert_eq!(segment.address_of(0x1244), None);
        let this = std::fs::read("/proc/self/exe").unwrap();
        let segments = segments(this.as_slice()).unwrap();
        assert!(segments.iter().filter(|segment| segment.executable).count() >= 1);
        assert!(segments.len() >= 2);
    }

    proptest! {
        #[test]
        fn anything_has_a_build_id_or_none(
            wide in any::<bool>(),
            notes in proptest::collection::vec(any::<u8>(), 0..256),
            changes in proptest::collection::vec((0..0x80_usize, any::<u8>()), 0..8),
        ) {
            let mut file = file(wide, &notes);
            for (place, byte) in changes {
                file[place] = byte;
            }
            prop_assert!(build_id(file.as_slice()).len() <= MAX_BUILD_ID);
            let _ = segments(file.as_slice());
        }
    }
}
