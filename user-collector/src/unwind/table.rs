//! The table that is searched: rows of 4 bytes, by page.
//!
//! A row is valid from its pc to the next row's. It is repeated at the start of each page, so that
//! a search never leaves its page. Equal neighbours are one row.

use bpf_abi::UnwindRow;

use super::rule::{UnwindRule, UnwindRules};
use super::sections::UnwindError;
use super::x86_64_registers::MACHINE;
use super::{MAX_PAGES, MAX_ROWS};

/// A page: the rows for 64 KiB of pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePage {
    /// The pc, shifted right by 16.
    pub number: u32,
    /// Index of its first row in [`UnwindTable::rows`].
    pub start: u32,
    /// Index after its last row.
    pub end: u32,
}

/// The unwind table of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindTable {
    pages: Vec<TablePage>,
    rows: Vec<UnwindRow>,
}

impl UnwindTable {
    /// `e_machine` of the files that have tables.
    pub(crate) const MACHINE: u16 = MACHINE.0;

    /// The table with these [`UnwindTable::pages`] and [`UnwindTable::rows`]; `None` if they do not
    /// form a table, or are beyond the limits of this module.
    pub(crate) fn of_parts(pages: Vec<TablePage>, rows: Vec<UnwindRow>) -> Option<UnwindTable> {
        if pages.len() > MAX_PAGES || rows.len() > MAX_ROWS {
            return None;
        }
        let mut end = 0;
        for page in &pages {
            let own = rows.get(page.start as usize..page.end as usize)?;
            let rising = own.windows(2).all(|pair| pair[0].low < pair[1].low);
            if page.start != end || own.is_empty() || !rising {
                return None;
            }
            end = page.end;
        }
        let rising = pages.windows(2).all(|pair| pair[0].number < pair[1].number);
        (rising && end as usize == rows.len()).then_some(UnwindTable { pages, rows })
    }

    /// Returns the pages that have rows, by rising number.
    #[must_use]
    pub fn pages(&self) -> &[TablePage] {
        &self.pages
    }

    /// Returns the rows of all pages.
    #[must_use]
    pub fn rows(&self) -> &[UnwindRow] {
        &self.rows
    }

    /// Drops the rows, which are kept elsewhere by now. Without them the table has no rules.
    pub(crate) fn release_rows(&mut self) {
        self.rows = Vec::new();
    }

    /// Restores the rows that were dropped.
    pub(crate) fn restore_rows(&mut self, rows: Vec<UnwindRow>) {
        self.rows = rows;
    }

    /// Returns the size of the rows and pages, bytes: the same as in the BPF maps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.rows.as_slice()) + size_of_val(self.pages.as_slice())
    }

    /// The number of the rule for a pc of the file's own address space; [`UnwindRules::ABSENT`] if
    /// no row covers the pc.
    ///
    /// Finds the page, then the last row whose `low` is not above the pc's.
    #[must_use]
    pub fn number_at(&self, pc: u64) -> u16 {
        let low = (pc & 0xffff) as u16;
        let Ok(index) = self
            .pages
            .binary_search_by_key(&(pc >> 16), |page| u64::from(page.number))
        else {
            return UnwindRules::ABSENT;
        };
        let page = &self.pages[index];
        let rows = self
            .rows
            .get(page.start as usize..page.end as usize)
            .unwrap_or_default();
        match rows.partition_point(|row| row.low <= low) {
            0 => UnwindRules::ABSENT,
            after => rows[after - 1].rule,
        }
    }

    /// Returns the rule for a pc of the file's own address space; nothing in a hole.
    #[must_use]
    pub fn lookup<'r>(&self, rules: &'r UnwindRules, pc: u64) -> Option<&'r UnwindRule> {
        match self.number_at(pc) {
            UnwindRules::ABSENT => None,
            number => rules.get(number),
        }
    }

    /// Sets the rule from `pc` on. Calls come by rising pc.
    pub(super) fn push(
        &mut self,
        pc: u64,
        rule: u16,
        last: &mut (u64, u16),
    ) -> Result<(), UnwindError> {
        if rule == last.1 {
            return Ok(());
        }
        if last.1 != UnwindRules::ABSENT {
            for page in (last.0 >> 16) + 1..pc >> 16 {
                self.row(page << 16, last.1)?;
            }
            if last.0 >> 16 < pc >> 16 && pc & 0xffff != 0 {
                self.row(pc & !0xffff, last.1)?;
            }
        }
        // A page that begins in a hole begins with its first row.
        if rule != UnwindRules::ABSENT || pc & 0xffff != 0 {
            self.row(pc, rule)?;
        }
        *last = (pc, rule);
        Ok(())
    }

    fn row(&mut self, pc: u64, rule: u16) -> Result<(), UnwindError> {
        let number = u32::try_from(pc >> 16).map_err(|_| UnwindError::Address { address: pc })?;
        let start = self.rows.len() as u32;
        if self.rows.len() >= MAX_ROWS {
            return Err(UnwindError::TooManyRows);
        }
        self.rows.push(UnwindRow {
            low: (pc & 0xffff) as u16,
            rule,
        });
        if let Some(page) = self.pages.last_mut().filter(|page| page.number == number) {
            page.end = start + 1;
        } else if self.pages.len() >= MAX_PAGES {
            return Err(UnwindError::TooManyPages);
        } else {
            self.pages.push(TablePage {
                number,
                start,
                end: start + 1,
            });
        }
        Ok(())
    }

    /// Frees the memory that is not needed once the table is whole.
    pub(super) fn shrink_to_fit(&mut self) {
        self.rows.shrink_to_fit();
        self.pages.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::unwind::table_functions::TableFunctions;
    use crate::unwind::{MAX_PADDING_BYTES, TableSummary};

    /// A function: its pcs, and rules by offset.
    type TestFunction = (Range<u64>, Vec<(u64, u16)>);

    fn table(functions: &[TestFunction]) -> (UnwindTable, TableSummary) {
        let mut built = TableFunctions::default();
        for (pcs, rows) in functions {
            built.begin(pcs.clone());
            for &(offset, rule) in rows {
                built.row(pcs.start + offset, rule).unwrap();
            }
        }
        let mut summary = TableSummary::default();
        (built.table(&mut summary).unwrap(), summary)
    }

    /// Returns the rule that the table must have for a pc, by a linear search.
    fn naive(functions: &[TestFunction], pc: u64) -> u16 {
        let rule = |(pcs, rows): &TestFunction, pc: u64| {
            rows.iter()
                .rev()
                .find(|(offset, _)| pcs.start + offset <= pc)
                .map_or(UnwindRules::ABSENT, |&(_, rule)| rule)
        };
        let begun = |pc: u64| functions.iter().filter(move |(pcs, _)| pcs.start <= pc);
        // The last of those that begin last.
        let Some(function) = begun(pc).max_by_key(|(pcs, _)| pcs.start) else {
            return UnwindRules::ABSENT;
        };
        if pc < function.0.end {
            return rule(function, pc);
        }
        let next = functions
            .iter()
            .map(|(pcs, _)| pcs.start)
            .filter(|&start| start > pc)
            .min();
        match next {
            Some(next) if next - function.0.end <= MAX_PADDING_BYTES => {
                rule(function, function.0.end - 1)
            }
            _ => UnwindRules::ABSENT,
        }
    }

    #[test]
    fn equal_neighbours_are_one_row() {
        let (table, _) = table(&[
            (0x1000..0x1010, vec![(0, 5), (4, 5), (8, 6)]),
            (0x1010..0x1020, vec![(0, 6)]),
        ]);
        let rows = [(0x1000, 5), (0x1008, 6), (0x1020, UnwindRules::ABSENT)]
            .map(|(low, rule)| UnwindRow { low, rule });
        assert_eq!(table.rows(), rows);
        assert_eq!(
            table.pages(),
            [TablePage {
                number: 0,
                start: 0,
                end: 3
            }]
        );
    }

    #[test]
    fn a_row_is_repeated_at_each_border() {
        let (table, _) = table(&[
            (0x1_fff0..0x4_0000, vec![(0, 5)]),
            (0x9_0000..0x9_0004, vec![(0, 6)]),
        ]);
        let rows = [(0xfff0, 5), (0, 5), (0, 5), (0, 6), (4, 0)]
            .map(|(low, rule)| UnwindRow { low, rule });
        assert_eq!(table.rows(), rows);
        let numbers: Vec<u32> = table.pages().iter().map(|page| page.number).collect();
        assert_eq!(numbers, [1, 2, 3, 9]);
        assert_eq!(table.number_at(0x3_ffff), 5);
        assert_eq!(table.number_at(0x4_0000), UnwindRules::ABSENT);
        assert_eq!(table.number_at(u64::MAX), UnwindRules::ABSENT);
    }

    #[test]
    fn padding_belongs_to_the_function_before_it() {
        let hole = |gap: u64| {
            let (table, _) = table(&[
                (0x1000..0x1010, vec![(0, 5)]),
                (0x1010 + gap..0x1040, vec![(0, 6)]),
            ]);
            table.number_at(0x1010)
        };
        assert_eq!(hole(MAX_PADDING_BYTES), 5);
        assert_eq!(hole(MAX_PADDING_BYTES + 1), UnwindRules::ABSENT);
    }

    #[test]
    fn later_row_of_an_address_holds() {
        let (table, summary) = table(&[
            (0x1020..0x1030, vec![(0, 6)]),
            (0x1000..0x1080, vec![(0, 5)]),
        ]);
        assert_eq!(
            [0x101f, 0x1020, 0x102f, 0x1030].map(|pc| table.number_at(pc)),
            [5, 6, 6, UnwindRules::ABSENT]
        );
        assert_eq!(summary.overlapped, 1);
    }

    #[test]
    fn only_a_tables_parts_are_a_table() {
        let (built, _) = table(&[
            (0x1_fff0..0x4_0000, vec![(0, 5), (8, 6)]),
            (0x9_0000..0x9_0004, vec![(0, 6)]),
        ]);
        let (pages, rows) = (built.pages().to_vec(), built.rows().to_vec());
        assert_eq!(
            UnwindTable::of_parts(pages.clone(), rows.clone()),
            Some(built)
        );
        let none = UnwindTable::of_parts(Vec::new(), Vec::new());
        assert_eq!(none, Some(UnwindTable::default()));
        let with = |change: &dyn Fn(&mut Vec<TablePage>, &mut Vec<UnwindRow>)| {
            let (mut pages, mut rows) = (pages.clone(), rows.clone());
            change(&mut pages, &mut rows);
            UnwindTable::of_parts(pages, rows)
        };
        assert_eq!(with(&|_, rows| rows.truncate(4)), None);
        assert_eq!(with(&|_, rows| rows[1].low = rows[0].low), None);
        assert_eq!(with(&|pages, _| pages.truncate(2)), None);
        assert_eq!(with(&|pages, _| pages.swap(0, 1)), None);
        assert_eq!(with(&|pages, _| pages[1].number = 1), None);
        assert_eq!(with(&|pages, _| pages[1].start = 0), None);
        assert_eq!(with(&|pages, _| pages[3].end = u32::MAX), None);
        assert_eq!(with(&|pages, _| pages[0].end = 0), None);
    }

    #[test]
    fn too_much_is_an_error() {
        let mut functions = TableFunctions::default();
        functions.begin(0x1000..(MAX_PAGES as u64 + 1) << 16);
        functions.row(0x1000, 5).unwrap();
        assert_eq!(
            functions.table(&mut TableSummary::default()),
            Err(UnwindError::TooManyPages)
        );
    }

    fn function() -> impl Strategy<Value = TestFunction> {
        // Dense enough to touch and overlap, long enough to cross several borders.
        let length = prop_oneof![1..64_u64, 1..0x3_0000_u64];
        let start = prop_oneof![0x1_fff0..0x2_0010_u64, 1..0x8_0000_u64];
        (
            start,
            length,
            proptest::collection::btree_map(0..0x3_0000_u64, 3..6_u16, 0..8),
            3..6_u16,
        )
            .prop_map(|(start, length, mut rows, first)| {
                rows.insert(0, first);
                (start..start + length, rows.into_iter().collect())
            })
    }

    proptest! {
        #[test]
        fn lookup_is_a_linear_search(
            functions in proptest::collection::vec(function(), 0..12),
            pcs in proptest::collection::vec(0..0xc_0000_u64, 32),
        ) {
            let (table, _) = table(&functions);
            let rows = functions.iter().flat_map(|(pcs, rows)| rows.iter().map(|(offset, _)| pcs.start + offset));
            let edges = functions.iter().flat_map(|(pcs, _)| [pcs.start, pcs.end, pcs.end + MAX_PADDING_BYTES]);
            let borders = (1..12_u64).map(|page| page << 16);
            let near = rows.chain(edges).chain(borders).flat_map(|pc| [pc - 1, pc, pc + 1]);
            for pc in near.chain(pcs) {
                prop_assert_eq!(table.number_at(pc), naive(&functions, pc), "pc {:#x}", pc);
            }
            for page in table.pages() {
                let rows = &table.rows()[page.start as usize..page.end as usize];
                prop_assert!(rows.windows(2).all(|pair| pair[0].low < pair[1].low && pair[0].rule != pair[1].rule));
            }
        }
    }
}
