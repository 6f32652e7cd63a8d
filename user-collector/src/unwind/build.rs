//! Building an unwind table of an ELF file.

use super::rule::UnwindRules;
use super::sections::{UnwindError, UnwindSections};
use super::summary::{RowCounts, TableSummary};
use super::table::UnwindTable;
use super::table_functions::TableFunctions;
use super::{frame_info, go};

impl UnwindTable {
    /// Builds the table of an ELF file, from Go's functions, `.eh_frame`, `.debug_frame` and the
    /// code in which threads begin.
    ///
    /// # Errors
    /// The file is no ELF file of this machine, its headers point outside of it, or it is beyond
    /// the limits of this module.
    pub fn of_elf(
        file: &[u8],
        rules: &mut UnwindRules,
    ) -> Result<(UnwindTable, TableSummary), UnwindError> {
        UnwindTable::of_sections(&UnwindSections::of_elf(file)?, rules)
    }

    /// Builds the table of the sections of an ELF file.
    ///
    /// # Errors
    /// The table would be beyond the limits of this module.
    pub fn of_sections(
        sections: &UnwindSections<'_>,
        rules: &mut UnwindRules,
    ) -> Result<(UnwindTable, TableSummary), UnwindError> {
        let mut summary = TableSummary {
            text: sections.executable.iter().fold(0, |sum, range| {
                sum.saturating_add(range.end.saturating_sub(range.start))
            }),
            ..TableSummary::default()
        };
        let functions = match &sections.go {
            Some(go) => go::read(go, &sections.executable, rules, &mut summary)?,
            None => TableFunctions::default(),
        };
        let mut functions = frame_info::read(sections, functions, rules, &mut summary)?;
        for start in &sections.thread_starts {
            functions.outermost(start.clone())?;
        }
        let table = functions.table(&mut summary)?;
        summary.rows = RowCounts::of(&table, rules);
        Ok((table, summary))
    }
}
