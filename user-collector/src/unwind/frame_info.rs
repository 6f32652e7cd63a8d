//! From call frame information to rows.
//!
//! The entries are found by their lengths here and only then passed to gimli one by one, because
//! its own iterator ends at the first entry that it can't read.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, ReaderOffset, Register, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindSection, UnwindTableRow,
};

use super::MAX_CIE_BYTES;
use super::rule::{Unsupported, UnwindRule, UnwindRules};
use super::sections::{FrameInfo, UnwindError, UnwindSections};
use super::summary::TableSummary;
use super::table_functions::TableFunctions;
use super::x86_64::{self, RowDescription};

pub(super) type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// Room for the rules of one row. gimli's own is for 192 registers, which a hostile program would
/// have copied again and again; the ABI has 49 general and vector registers.
pub(super) struct Storage;

impl<T: ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(Register, RegisterRule<T>); 64];
    type Stack = Box<[UnwindTableRow<T, Self>; 8]>;
}

/// Reads all functions of a file that are not known otherwise.
pub(super) fn read(
    sections: &UnwindSections<'_>,
    known: TableFunctions,
    rules: &mut UnwindRules,
    summary: &mut TableSummary,
) -> Result<TableFunctions, UnwindError> {
    let bases = BaseAddresses::default()
        .set_text(sections.text)
        .set_got(sections.got);
    match &sections.frames {
        &FrameInfo::Eh { data, address } => {
            let mut section = EhFrame::new(data, LittleEndian);
            section.set_address_size(x86_64::ADDRESS_SIZE);
            let entries = CfiEntries {
                data,
                at: 0,
                cie: CieMark::Zero,
            };
            Reader::new(
                section,
                bases.set_eh_frame(address),
                entries,
                (sections, known),
                rules,
                summary,
            )
            .read()
        }
        FrameInfo::Debug { data } => {
            let mut section = DebugFrame::new(data, LittleEndian);
            section.set_address_size(x86_64::ADDRESS_SIZE);
            let entries = CfiEntries {
                data,
                at: 0,
                cie: CieMark::Ones,
            };
            Reader::new(section, bases, entries, (sections, known), rules, summary).read()
        }
        FrameInfo::None => Ok(known),
    }
}

/// Returns the section without what follows its terminator: where only its start is known.
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

/// What a CIE has where an FDE has the place of its CIE.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CieMark {
    /// `.eh_frame`: 4 bytes of zeros.
    Zero,
    /// `.debug_frame`: all ones, as wide as the entry's format says.
    Ones,
}

/// Walks the entries of a section by their lengths.
#[derive(Clone)]
struct CfiEntries<'data> {
    data: &'data [u8],
    at: usize,
    cie: CieMark,
}

#[derive(Clone, Copy, Debug)]
struct CfiEntry {
    offset: usize,
    length: usize,
    is_cie: bool,
}

impl Iterator for CfiEntries<'_> {
    type Item = CfiEntry;

    fn next(&mut self) -> Option<CfiEntry> {
        loop {
            let entry = self.entry(self.at)?;
            self.at += entry.length;
            // A length of zero is a terminator; where sections were joined, entries follow it.
            if entry.length > 4 {
                return Some(entry);
            }
        }
    }
}

impl CfiEntries<'_> {
    /// Returns what has its length field at this offset; nothing where it would reach beyond the
    /// section.
    fn entry(&self, offset: usize) -> Option<CfiEntry> {
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

struct Reader<'data, 'a, S: UnwindSection<Slice<'data>>> {
    section: S,
    bases: BaseAddresses,
    entries: CfiEntries<'data>,
    /// By rising start.
    executable: Vec<Range<u64>>,
    rules: &'a mut UnwindRules,
    summary: &'a mut TableSummary,
    cies: HashMap<usize, Option<CommonInformationEntry<Slice<'data>>>>,
    functions: TableFunctions,
}

impl<'data, 'a, S: UnwindSection<Slice<'data>>> Reader<'data, 'a, S> {
    fn new(
        section: S,
        bases: BaseAddresses,
        entries: CfiEntries<'data>,
        (sections, functions): (&UnwindSections<'_>, TableFunctions),
        rules: &'a mut UnwindRules,
        summary: &'a mut TableSummary,
    ) -> Self {
        let cies = HashMap::new();
        let mut executable = sections.executable.clone();
        executable.sort_by_key(|range| range.start);
        Reader {
            section,
            bases,
            entries,
            executable,
            rules,
            summary,
            cies,
            functions,
        }
    }

    fn read(mut self) -> Result<TableFunctions, UnwindError> {
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let mut entries = self.entries.clone();
        for entry in entries.by_ref() {
            if entry.is_cie {
                continue;
            }
            match self.fde(entry.offset) {
                Some(fde) => self.function(&fde, &mut context)?,
                None => self.summary.bad_fdes += 1,
            }
        }
        self.summary.unread = (entries.data.len() - entries.at) as u64;
        Ok(self.functions)
    }

    fn fde(&mut self, offset: usize) -> Option<FrameDescriptionEntry<Slice<'data>>> {
        let Reader {
            section,
            bases,
            entries,
            cies,
            ..
        } = self;
        section
            .fde_from_offset(bases, offset.into(), |section, bases, cie: S::Offset| {
                let offset: usize = gimli::UnwindOffset::into(cie);
                let parse = || {
                    let entry = entries.entry(offset)?;
                    let readable = entry.is_cie && entry.length <= MAX_CIE_BYTES;
                    readable
                        .then(|| section.cie_from_offset(bases, cie).ok())
                        .flatten()
                };
                cies.entry(offset)
                    .or_insert_with(parse)
                    .clone()
                    .ok_or(gimli::Error::NotCieId(offset as u64))
            })
            .ok()
    }

    fn function(
        &mut self,
        fde: &FrameDescriptionEntry<Slice<'data>>,
        context: &mut UnwindContext<usize, Storage>,
    ) -> Result<(), UnwindError> {
        self.summary.fdes += 1;
        let pcs = fde.initial_address()..fde.end_address();
        // Address 0 is the ELF header, or the mark of what was thrown away.
        let before = self
            .executable
            .partition_point(|range| range.start <= pcs.start);
        let inside = self.executable[..before]
            .last()
            .is_some_and(|range| pcs.end <= range.end);
        if pcs.is_empty() || pcs.start == 0 || !inside {
            self.summary.elsewhere += 1;
            return Ok(());
        }
        // What Go's linker says here of a function of Go's, it says better in its own table.
        if self.functions.cover(pcs.start) {
            return Ok(());
        }
        self.functions.begin(pcs.clone());
        let mut known_to = pcs.start;
        let mut last = None;
        let column = fde.cie().return_address_register();
        if let Ok(mut table) = fde.rows(&self.section, &self.bases, context) {
            loop {
                match table.next_row() {
                    // What a program says of no pc, or of those behind its end, is not worth a
                    // rule.
                    Ok(Some(row)) if row.start_address() >= pcs.end => return Ok(()),
                    Ok(Some(row)) if row.start_address() == row.end_address() => {}
                    Ok(Some(row)) => {
                        known_to = row.end_address();
                        let description = RowDescription::of(row, column);
                        // Expressions are not read again for each row that they hold for.
                        if last.as_ref() != Some(&description) {
                            last = Some(description.clone());
                            let number = self.rules.number(description.rule(&self.section, fde));
                            self.functions.row(row.start_address(), number)?;
                        }
                    }
                    Ok(None) => return Ok(()),
                    Err(_) => break,
                }
            }
        }
        self.summary.malformed_fdes += 1;
        let rule = self
            .rules
            .number(UnwindRule::Unsupported(Unsupported::Malformed));
        self.functions.row(known_to, rule)
    }
}
