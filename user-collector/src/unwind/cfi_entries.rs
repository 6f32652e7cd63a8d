//! The entries of call frame information, without their content.

use gimli::{EndianSlice, LittleEndian};

pub(super) type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// Returns a section up to its terminator, if only the beginning is known.
pub(super) fn up_to_terminator(data: &[u8]) -> &[u8] {
    let mut entries = CfiEntries {
        data,
        at: 0,
        cie: CieMark::Zero,
    };
    while let Some(entry) = entries.entry(entries.at) {
        entries.at += entry.length;
        if entry.length <= 4 {
            break;
        }
    }
    &data[..entries.at]
}

/// The mark of a CIE, in the field in which an FDE has the offset of its CIE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CieMark {
    /// `.eh_frame`: 4 bytes of zeros.
    Zero,
    /// `.debug_frame`: all ones, as wide as the entry's format says.
    Ones,
}

/// The entries of a section, found by their lengths.
#[derive(Clone)]
pub(super) struct CfiEntries<'data> {
    pub(super) data: &'data [u8],
    /// Offset of the next entry.
    pub(super) at: usize,
    pub(super) cie: CieMark,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CfiEntry {
    /// Offset in the section, bytes.
    pub(super) offset: usize,
    /// Bytes, the length field included.
    pub(super) length: usize,
    pub(super) is_cie: bool,
}

impl Iterator for CfiEntries<'_> {
    type Item = CfiEntry;

    fn next(&mut self) -> Option<CfiEntry> {
        loop {
            let entry = self.entry(self.at)?;
            self.at += entry.length;
            // A length of zero is a terminator. If sections were joined, entries follow it.
            if entry.length > 4 {
                return Some(entry);
            }
        }
    }
}

impl CfiEntries<'_> {
    /// Returns the entry at an offset; `None` if it would reach beyond the section.
    pub(super) fn entry(&self, offset: usize) -> Option<CfiEntry> {
        let (head, length) = match self.u32_at(offset)? {
            u32::MAX => (
                12,
                usize::try_from(self.u64_at(offset.checked_add(4)?)?).ok()?,
            ),
            length => (4, length as usize),
        };
        let length = length.checked_add(head)?;
        if offset.checked_add(length)? > self.data.len() {
            return None;
        }
        let is_cie = match (self.cie, head) {
            (CieMark::Zero, _) => self.u32_at(offset + head) == Some(0),
            (CieMark::Ones, 4) => self.u32_at(offset + head) == Some(u32::MAX),
            (CieMark::Ones, _) => self.u64_at(offset + head) == Some(u64::MAX),
        };
        Some(CfiEntry {
            offset,
            length,
            is_cie,
        })
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        self.data
            .get(at..)?
            .first_chunk()
            .map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64_at(&self, at: usize) -> Option<u64> {
        self.data
            .get(at..)?
            .first_chunk()
            .map(|bytes| u64::from_le_bytes(*bytes))
    }
}
