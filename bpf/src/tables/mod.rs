//! The unwind tables of files, with which user stacks are unwound in the kernel: the only writer of
//! the maps of `abi/c/unwind_tables.h`.
//!
//! Rows are in chunks of 65,536, which are made as they are needed, with a directory of pages. Rows
//! are tens of megabytes where compilers run, so they are not kept twice: user space reads a table
//! here too ([`PlacedTable`]). A program may read while we write. So new entries are written where
//! nothing is, then published by one update; where something was removed, something else is written
//! only after [`UnwindTables::maintain`] was called twice, rounds later.

mod ranges;
mod rows;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bpf_abi::layout::{
    COPIED_CODE_DEVICE, FileSegment, MAX_CHUNKS, MAX_PAGES, MAX_RULES, ROWS_PER_CHUNK, UnwindPage,
};
use bpf_abi::{CodeFile, EncodedRule, FileTable, UnwindRow};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::IntoBytes as _;

use crate::Error;
use crate::error::step;
use crate::skeleton::KcollectMaps;
use ranges::Ranges;
use rows::{Chunk, publish_chunks};

pub use rows::PlacedTable;

/// Max chunks that are made: 64 MiB of rows, for some 1.3 GB of machine code.
const MAX_ALLOCATED_CHUNKS: u16 = 256;

const _: () = assert!(MAX_ALLOCATED_CHUNKS <= MAX_CHUNKS);

/// Max pages from the first to the last one of a table: 1 GiB of addresses.
const MAX_TABLE_PAGES: u32 = 16_384;

/// The number of a table that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(u32);

/// The rows of 64 KiB of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRows {
    /// Number of the page: the addresses shifted right by 16.
    pub number: u32,
    /// Its rows, as a range of the table's rows.
    pub rows: Range<usize>,
}

/// How much is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableUse {
    /// Tables.
    pub tables: usize,
    /// Bytes of the kernel's memory for rows.
    pub row_bytes: u64,
    /// Files, with a table or known to have none.
    pub files: usize,
    /// Processes that are known not to be followed.
    pub ignored_processes: usize,
    /// Rules.
    pub rules: usize,
}

/// Where a table is in the maps.
#[derive(Debug)]
struct TableLocation {
    first_page: u32,
    directory: Range<u32>,
    rows: Vec<(u16, Range<u32>)>,
}

/// A part of the maps that programs may still read.
#[derive(Debug)]
enum Retired {
    Directory(Range<u32>),
    Rows(u16, Range<u32>),
}

/// Everything that was published.
#[derive(Debug)]
pub(crate) struct Tables {
    chunks: Vec<(Arc<Chunk>, Ranges)>,
    /// Chunks that the programs do not have yet.
    unpublished: Vec<(u16, MapHandle)>,
    directory: Ranges,
    rules: usize,
    placed: BTreeMap<TableId, TableLocation>,
    files: HashSet<CodeFile>,
    ignored: HashSet<u32>,
    tables_made: u32,
    retired: [Vec<Retired>; 2],
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            chunks: Vec::new(),
            unpublished: Vec::new(),
            directory: Ranges::new(MAX_PAGES),
            rules: 0,
            placed: BTreeMap::new(),
            files: HashSet::new(),
            ignored: HashSet::new(),
            tables_made: 0,
            retired: [Vec::new(), Vec::new()],
        }
    }
}

/// The unwind tables that the programs have, the files that they belong to, and the processes that
/// are not followed.
pub struct UnwindTables<'a> {
    pub(crate) tables: &'a mut Tables,
    pub(crate) maps: &'a mut KcollectMaps<'static>,
}

impl std::fmt::Debug for UnwindTables<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tables.fmt(f)
    }
}

impl UnwindTables<'_> {
    /// Adds rules. They are numbered after the existing ones.
    pub fn add_rules(&mut self, rules: impl Iterator<Item = EncodedRule>) {
        let Some(bss) = self.maps.bss_kc_rules_data.as_deref_mut() else {
            return;
        };
        for rule in rules {
            if let Some(entry) = bss.rules.get_mut(self.tables.rules) {
                entry.cfa_offset = rule.cfa_offset;
                entry.fp_offset = rule.fp_offset;
                entry.cfa_plus = rule.cfa_plus;
                entry.ra_words = rule.ra_words;
                entry.bx_words = rule.bx_words;
                entry.bx_base = rule.bx_base;
                entry.cfa_kind = rule.cfa_kind;
                entry.cfa_register = rule.cfa_register;
                entry.fp_kind = rule.fp_kind;
                entry.fp_base = rule.fp_base;
                entry.ra_kind = rule.ra_kind;
                entry.ra_base = rule.ra_base;
                self.tables.rules += 1;
            }
        }
    }

    /// Places an unwind table; `row` returns the row of an index in `pages`. Returns nothing if
    /// there is no space for it, or if it is empty, or if its addresses are more than 1 GiB apart.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel has no memory for it.
    pub fn place(
        &mut self,
        pages: &[PageRows],
        row: impl Fn(usize) -> UnwindRow,
    ) -> Result<Option<PlacedTable>, Error> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else {
            return Ok(None);
        };
        let width = (last.number - first.number).saturating_add(1);
        if width > MAX_TABLE_PAGES {
            return Ok(None);
        }
        let Some(directory) = self.tables.directory.allocate(width) else {
            return Ok(None);
        };
        let mut location = TableLocation {
            first_page: first.number,
            directory: directory.clone(),
            rows: Vec::new(),
        };
        let mut entries = vec![UnwindPage::default(); width as usize];
        let mut readable = Vec::with_capacity(pages.len());
        for page in pages {
            let rows = page.rows.len() as u32;
            let Some((chunk, range)) = self.allocate_rows(rows)? else {
                self.tables.free_location(location);
                return Ok(None);
            };
            let memory = &self.tables.chunks[usize::from(chunk)].0;
            memory.write(range.start, page.rows.clone().map(&row));
            readable.push((page.number, Arc::clone(memory), range.clone()));
            if let Some(entry) = entries.get_mut((page.number - first.number) as usize) {
                *entry = UnwindPage {
                    chunk,
                    start: range.start as u16,
                    rows,
                };
            }
            location.rows.push((chunk, range));
        }
        publish_chunks(self.maps, &self.tables.unpublished)?;
        self.tables.unpublished.clear();
        if let Some(bss) = self.maps.bss_kc_pages_data.as_deref_mut() {
            for (index, entry) in directory.zip(entries) {
                if let Some(page) = bss.pages.get_mut(index as usize) {
                    (page.chunk, page.start, page.rows) = (entry.chunk, entry.start, entry.rows);
                }
            }
        }
        self.tables.tables_made += 1;
        let id = TableId(self.tables.tables_made);
        self.tables.placed.insert(id, location);
        Ok(Some(PlacedTable {
            id,
            pages: readable,
        }))
    }

    /// Removes a table. Its files were withdrawn, and its [`PlacedTable`] is not read any more:
    /// other tables get its location.
    pub fn remove(&mut self, table: TableId) {
        if let Some(location) = self.tables.placed.remove(&table) {
            let retired = &mut self.tables.retired[0];
            retired.push(Retired::Directory(location.directory));
            for (chunk, rows) in location.rows {
                retired.push(Retired::Rows(chunk, rows));
            }
        }
    }

    /// Allocates space for rows of one page, in a new chunk if needed.
    fn allocate_rows(&mut self, count: u32) -> Result<Option<(u16, Range<u32>)>, Error> {
        let found = self
            .tables
            .chunks
            .iter_mut()
            .zip(0_u16..)
            .find_map(|((_, ranges), number)| Some((number, ranges.allocate(count)?)));
        if found.is_some() {
            return Ok(found);
        }
        let number = self.tables.chunks.len() as u16;
        let mut ranges = Ranges::new(ROWS_PER_CHUNK);
        let Some(range) = ranges
            .allocate(count)
            .filter(|_| number < MAX_ALLOCATED_CHUNKS)
        else {
            return Ok(None);
        };
        let (chunk, map) = Chunk::make()?;
        self.tables.chunks.push((Arc::new(chunk), ranges));
        self.tables.unpublished.push((number, map));
        Ok(Some((number, range)))
    }

    /// Publishes how code of a file is unwound: by a table, which has the same addresses as the
    /// segments, or by frame pointer. There is space for
    /// [`MAX_SEGMENTS`](bpf_abi::layout::MAX_SEGMENTS) segments; the rest is left out. Returns
    /// whether there was space.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel has no memory for it.
    pub fn publish_file(
        &mut self,
        file: CodeFile,
        table: Option<TableId>,
        segments: &[FileSegment],
    ) -> Result<bool, Error> {
        let mut entry = FileTable::default();
        if let Some(location) = table.and_then(|table| self.tables.placed.get(&table)) {
            entry.first_page = location.first_page;
            entry.pages = location.directory.end - location.directory.start;
            entry.directory = location.directory.start;
        }
        for (entry_segment, segment) in entry.segments.iter_mut().zip(segments) {
            *entry_segment = *segment;
        }
        match self
            .maps
            .kc_file_tables
            .update(file.as_bytes(), entry.as_bytes(), MapFlags::ANY)
        {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(false),
            Err(error) => return Err(step("publish an unwind table")(error)),
        }
        self.tables.files.insert(file);
        if file.device == COPIED_CODE_DEVICE
            && let Some(bss) = self.maps.bss_data.as_deref_mut()
        {
            bss.has_copied_code = true;
        }
        Ok(true)
    }

    /// Withdraws a file: stacks in its code are copied until it is published again.
    pub fn withdraw_file(&mut self, file: CodeFile) {
        if self.tables.files.remove(&file) {
            // It fails only if the entry is not there.
            let _ = self.maps.kc_file_tables.delete(file.as_bytes());
        }
    }

    /// Ends the capture of user stacks of a process that is not followed, until its next exec. If
    /// the map is full, they are captured and dropped.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel has no memory for it.
    pub fn ignore_process(&mut self, pid: u32, execution: u32) -> Result<(), Error> {
        let (pid_bytes, execution) = (pid.to_ne_bytes(), execution.to_ne_bytes());
        match self
            .maps
            .kc_ignored
            .update(&pid_bytes, &execution, MapFlags::ANY)
        {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(()),
            Err(error) => return Err(step(format!("ignore process {pid}"))(error)),
        }
        self.tables.ignored.insert(pid);
        Ok(())
    }

    /// Captures user stacks of a process, if it was ignored.
    pub fn restore_process(&mut self, pid: u32) {
        if self.tables.ignored.remove(&pid) {
            // It fails only if the entry is not there.
            let _ = self.maps.kc_ignored.delete(&pid.to_ne_bytes());
        }
    }

    /// Frees what was retired before the last call. To be called once a round.
    pub fn maintain(&mut self) {
        self.tables.retired.rotate_right(1);
        for old in std::mem::take(&mut self.tables.retired[0]) {
            match old {
                Retired::Directory(range) => self.tables.directory.free(range),
                Retired::Rows(chunk, range) => self.tables.free_rows(chunk, range),
            }
        }
    }
}

impl Tables {
    /// Frees the location of a table that was never published.
    fn free_location(&mut self, location: TableLocation) {
        self.directory.free(location.directory);
        for (chunk, rows) in location.rows {
            self.free_rows(chunk, rows);
        }
    }

    fn free_rows(&mut self, chunk: u16, rows: Range<u32>) {
        if let Some((_, ranges)) = self.chunks.get_mut(usize::from(chunk)) {
            ranges.free(rows);
        }
    }

    pub(crate) fn in_use(&self) -> TableUse {
        let chunk_bytes = u64::from(ROWS_PER_CHUNK) * size_of::<UnwindRow>() as u64;
        TableUse {
            tables: self.placed.len(),
            row_bytes: self.chunks.len() as u64 * chunk_bytes,
            files: self.files.len(),
            ignored_processes: self.ignored.len(),
            rules: self.rules.min(MAX_RULES),
        }
    }
}

/// Returns whether a map has no space for another entry.
fn is_full(error: &libbpf_rs::Error) -> bool {
    error.kind() == libbpf_rs::ErrorKind::TooBig
}
