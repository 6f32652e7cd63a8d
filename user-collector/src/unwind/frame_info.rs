//! From call frame information to rows.
//!
//! The entries are found by their lengths and then passed to gimli one by one, because its own
//! iterator ends at the first entry that it can't parse.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CommonInformationEntry, DebugFrame, EhFrame, FrameDescriptionEntry,
    LittleEndian, UnwindContext, UnwindSection,
};

use super::MAX_CIE_BYTES;
use super::cfi_entries::{CfiEntries, CieMark, Slice};
use super::rule::{Unsupported, UnwindRule, UnwindRules};
use super::sections::{FrameInfo, UnwindError, UnwindSections};
use super::summary::TableSummary;
use super::table_functions::TableFunctions;
use super::x86_64::{RowDescription, Storage};
use super::x86_64_registers::ADDRESS_SIZE;

/// Adds all functions of a file to those that are known from elsewhere. If both sections
/// have a function, `.eh_frame` counts.
pub(super) fn read(
    sections: &UnwindSections<'_>,
    known: TableFunctions,
    rules: &mut UnwindRules,
    summary: &mut TableSummary,
) -> Result<TableFunctions, UnwindError> {
    let known = read_debug(&sections.debug_frames, sections, known, rules, summary)?;
    match &sections.frames {
        &FrameInfo::Eh { data, address } => {
            let bases = BaseAddresses::default()
                .set_text(sections.text)
                .set_got(sections.got)
                .set_eh_frame(address);
            let mut section = EhFrame::new(data, LittleEndian);
            section.set_address_size(ADDRESS_SIZE);
            let entries = CfiEntries {
                data,
                at: 0,
                cie: CieMark::Zero,
            };
            FrameInfoReader::new(section, bases, entries, (sections, known), rules, summary).read()
        }
        FrameInfo::Debug { data } => read_debug(data, sections, known, rules, summary),
        FrameInfo::None => Ok(known),
    }
}

/// Adds the functions of `.debug_frame`.
fn read_debug(
    data: &[u8],
    sections: &UnwindSections<'_>,
    known: TableFunctions,
    rules: &mut UnwindRules,
    summary: &mut TableSummary,
) -> Result<TableFunctions, UnwindError> {
    let bases = BaseAddresses::default()
        .set_text(sections.text)
        .set_got(sections.got);
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(ADDRESS_SIZE);
    let entries = CfiEntries {
        data,
        at: 0,
        cie: CieMark::Ones,
    };
    FrameInfoReader::new(section, bases, entries, (sections, known), rules, summary).read()
}

struct FrameInfoReader<'data, 'a, S: UnwindSection<Slice<'data>>> {
    section: S,
    bases: BaseAddresses,
    entries: CfiEntries<'data>,
    /// Addresses of code, by rising start.
    executable: Vec<Range<u64>>,
    rules: &'a mut UnwindRules,
    summary: &'a mut TableSummary,
    cies: HashMap<usize, Option<CommonInformationEntry<Slice<'data>>>>,
    functions: TableFunctions,
}

impl<'data, 'a, S: UnwindSection<Slice<'data>>> FrameInfoReader<'data, 'a, S> {
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
        FrameInfoReader {
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
        self.summary.unread += (entries.data.len() - entries.at) as u64;
        Ok(self.functions)
    }

    fn fde(&mut self, offset: usize) -> Option<FrameDescriptionEntry<Slice<'data>>> {
        let FrameInfoReader {
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
        // Address 0 is the ELF header, or marks a function that the linker has discarded.
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
        // Go's own table is better than what Go's linker writes here.
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
                    // Rows for no pc, or after the function's end, need no rule.
                    Ok(Some(row)) if row.start_address() >= pcs.end => return Ok(()),
                    Ok(Some(row)) if row.start_address() == row.end_address() => {}
                    Ok(Some(row)) => {
                        known_to = row.end_address();
                        let description = RowDescription::of(row, column);
                        // Expressions are not parsed again for each row that they are valid for.
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
