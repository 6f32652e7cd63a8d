//! What the walk of user stacks goes by, in the kernel's memory: the one writer of the maps of
//! `c/user.h`.
//!
//! Unwind tables lie in chunks of 65,536 rows, which are made as they are needed, and in a
//! directory of their pages; the mappings of each process in one long array. Rows are tens of
//! megabytes where compilers run, so nobody has to keep them twice: who handed a table over reads
//! it here ([`PlacedTable`]). A program may be reading while we write. So what is new is written to
//! a place that nobody knows of, then made known by one update, and the place of what it replaces
//! is used again only after [`Tables::tidy`] was called twice, rounds later.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use memmap2::{MmapMut, MmapOptions};

use crate::Error;
use crate::load::step;
use crate::skeleton::CollectorSkel;

/// Bytes of a rule (`struct unwind_rule`).
pub const RULE_SIZE: usize = 16;

/// As in `c/user.h`.
const ROWS: u32 = 65_536;
const MAPPINGS: u32 = 65_536;
const PAGES: u32 = 65_536;
const RULES: usize = 65_536;
const ROW_SIZE: usize = 4;

const ANY_EXECUTION: u32 = u32::MAX;

/// Most chunks that are made: 64 MiB of rows, for some 1.3 GB of text.
const MOST_CHUNKS: u16 = 256;

/// Most pages from the first to the last one of a table: 1 GiB of addresses.
const WIDEST: u32 = 16_384;

/// A table that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(u32);

/// How code is walked that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// By a table.
    Table {
        /// Which.
        table: TableId,
        /// A mapped address minus this is one of the table's address space; wraps.
        bias: u64,
    },
    /// By frame pointer: it has no table.
    Guess,
    /// Its table is not there yet: the stack is copied.
    Pending,
}

/// Code that is mapped in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
    /// What code.
    pub code: Code,
}

/// Rows of 64 KiB of addresses: the address shifted right by 16, and which of the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRows {
    /// Number of the page.
    pub number: u32,
    /// Its rows, of those of the table.
    pub rows: Range<usize>,
}

/// A table that was placed, to be read as long as it is not removed.
#[derive(Clone, Debug)]
pub struct PlacedTable {
    /// By which it is removed, and mapped in processes.
    pub id: TableId,
    /// By rising number.
    pages: Vec<(u32, Arc<Chunk>, Range<u32>)>,
}

impl PlacedTable {
    /// The number of the rule for an address of the table's space, by the last row that is not
    /// above it in its page; 0 where there is none.
    #[must_use]
    pub fn number_at(&self, address: u64) -> u16 {
        let page = self
            .pages
            .binary_search_by_key(&(address >> 16), |(number, ..)| u64::from(*number));
        let Some((_, chunk, rows)) = page.ok().and_then(|place| self.pages.get(place)) else {
            return 0;
        };
        let low = (address & 0xffff) as u16;
        chunk.read(rows, |rows| {
            let after = rows.partition_point(|row| decode(row)[0] <= low);
            after
                .checked_sub(1)
                .map_or(0, |last| decode(&rows[last])[1])
        })
    }

    /// All rows, as they were handed over.
    #[must_use]
    pub fn rows(&self) -> Vec<[u16; 2]> {
        let mut all = Vec::new();
        for (_, chunk, rows) in &self.pages {
            chunk.read(rows, |rows| all.extend(rows.iter().map(decode)));
        }
        all
    }
}

/// The memory of a map of rows.
#[derive(Debug)]
struct Chunk(Mutex<MmapMut>);

impl Chunk {
    /// Nobody panics who has it.
    fn memory(&self) -> std::sync::MutexGuard<'_, MmapMut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, rows: &Range<u32>, read: impl FnOnce(&[[u8; ROW_SIZE]]) -> T) -> T {
        let memory = self.memory();
        let (all, _) = memory.as_chunks();
        read(
            all.get(rows.start as usize..rows.end as usize)
                .unwrap_or_default(),
        )
    }

    fn write(&self, start: u32, rows: impl Iterator<Item = [u16; 2]>) {
        let mut memory = self.memory();
        let (all, _) = memory.as_chunks_mut::<ROW_SIZE>();
        for (place, [low, rule]) in all.iter_mut().skip(start as usize).zip(rows) {
            place[..2].copy_from_slice(&low.to_ne_bytes());
            place[2..].copy_from_slice(&rule.to_ne_bytes());
        }
    }
}

fn decode(row: &[u8; ROW_SIZE]) -> [u16; 2] {
    let &[l, ow, ru, le] = row;
    [u16::from_ne_bytes([l, ow]), u16::from_ne_bytes([ru, le])]
}

#[derive(Debug)]
struct Placed {
    first_page: u32,
    directory: Range<u32>,
    rows: Vec<(u16, Range<u32>)>,
}

/// How much is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableUse {
    /// Tables.
    pub tables: usize,
    /// Bytes of the kernel's memory that are taken for rows.
    pub row_bytes: u64,
    /// Mappings of all processes.
    pub mappings: u64,
    /// Processes.
    pub processes: usize,
    /// Rules.
    pub rules: usize,
}

#[derive(Debug)]
enum Retired {
    Mappings(Range<u32>),
    Directory(Range<u32>),
    Rows(u16, Range<u32>),
}

/// Everything that was placed.
#[derive(Debug)]
pub(crate) struct Tables {
    chunks: Vec<(Arc<Chunk>, Space)>,
    directory: Space,
    mappings: Space,
    rules: usize,
    placed: BTreeMap<TableId, Placed>,
    processes: HashMap<u32, Range<u32>>,
    tables_made: u32,
    versions: u32,
    retired: [Vec<Retired>; 2],
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            chunks: Vec::new(),
            directory: Space::of(PAGES),
            mappings: Space::of(MAPPINGS),
            rules: 0,
            placed: BTreeMap::new(),
            processes: HashMap::new(),
            tables_made: 0,
            versions: 0,
            retired: [Vec::new(), Vec::new()],
        }
    }
}

impl Tables {
    pub(crate) fn add_rules(
        &mut self,
        skel: &mut CollectorSkel<'_>,
        encoded: impl Iterator<Item = [u8; RULE_SIZE]>,
    ) {
        let Some(bss) = skel.maps.bss_rules_data.as_deref_mut() else {
            return;
        };
        for rule in encoded {
            if let Some(place) = bss.rules.get_mut(self.rules) {
                let word = |at: usize| i16::from_le_bytes([rule[at], rule[at + 1]]);
                place.cfa_offset = i32::from_le_bytes([rule[0], rule[1], rule[2], rule[3]]);
                place.cfa_plus = word(4);
                place.fp_offset = word(6);
                place.ra_offset = word(8);
                place.cfa_kind = rule[10];
                place.cfa_register = rule[11];
                place.fp_kind = rule[12];
                place.fp_base = rule[13];
                place.ra_kind = rule[14];
                place.ra_base = rule[15];
                self.rules += 1;
            }
        }
    }

    /// Places a table; nothing where there is no room for it, or where its addresses lie too far
    /// apart.
    pub(crate) fn place(
        &mut self,
        skel: &mut CollectorSkel<'_>,
        pages: &[PageRows],
        row: impl Fn(usize) -> [u16; 2],
    ) -> Result<Option<PlacedTable>, Error> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else {
            return Ok(None);
        };
        let width = (last.number - first.number).saturating_add(1);
        if width > WIDEST {
            return Ok(None);
        }
        let Some(directory) = self.directory.take(width) else {
            return Ok(None);
        };
        let mut placed = Placed {
            first_page: first.number,
            directory: directory.clone(),
            rows: Vec::new(),
        };
        let mut entries = vec![(0_u16, 0_u16, 0_u32); width as usize];
        let mut readable = Vec::with_capacity(pages.len());
        for page in pages {
            let count = page.rows.len() as u32;
            let Some((number, range)) = self.take_rows(skel, count)? else {
                self.give_back(placed);
                return Ok(None);
            };
            let chunk = &self.chunks[usize::from(number)].0;
            chunk.write(range.start, page.rows.clone().map(&row));
            readable.push((page.number, Arc::clone(chunk), range.clone()));
            if let Some(entry) = entries.get_mut((page.number - first.number) as usize) {
                *entry = (number, range.start as u16, count);
            }
            placed.rows.push((number, range));
        }
        if let Some(bss) = skel.maps.bss_pages_data.as_deref_mut() {
            for (index, (chunk, start, rows)) in directory.zip(entries) {
                if let Some(page) = bss.pages.get_mut(index as usize) {
                    (page.chunk, page.start, page.rows) = (chunk, start, rows);
                }
            }
        }
        self.tables_made += 1;
        let id = TableId(self.tables_made);
        self.placed.insert(id, placed);
        Ok(Some(PlacedTable {
            id,
            pages: readable,
        }))
    }

    /// No process is walked by it any more.
    pub(crate) fn remove(&mut self, id: TableId) {
        if let Some(placed) = self.placed.remove(&id) {
            self.retired[0].push(Retired::Directory(placed.directory));
            for (chunk, rows) in placed.rows {
                self.retired[0].push(Retired::Rows(chunk, rows));
            }
        }
    }

    fn give_back(&mut self, placed: Placed) {
        self.directory.give(placed.directory);
        for (chunk, rows) in placed.rows {
            self.give_rows(chunk, rows);
        }
    }

    fn give_rows(&mut self, chunk: u16, rows: Range<u32>) {
        if let Some((_, space)) = self.chunks.get_mut(usize::from(chunk)) {
            space.give(rows);
        }
    }

    /// Room for so many rows of one page.
    fn take_rows(
        &mut self,
        skel: &CollectorSkel<'_>,
        count: u32,
    ) -> Result<Option<(u16, Range<u32>)>, Error> {
        let found = self
            .chunks
            .iter_mut()
            .zip(0_u16..)
            .find_map(|((_, space), number)| Some((number, space.take(count)?)));
        if found.is_some() {
            return Ok(found);
        }
        let number = self.chunks.len() as u16;
        let mut space = Space::of(ROWS);
        let Some(range) = space.take(count).filter(|_| number < MOST_CHUNKS) else {
            return Ok(None);
        };
        let chunk = Chunk(Mutex::new(make_chunk(skel, number)?));
        self.chunks.push((Arc::new(chunk), space));
        Ok(Some((number, range)))
    }

    /// Makes the mappings of a process known, by rising start, of its execution of that number.
    /// Gives their version, or nothing where there is no room for them.
    pub(crate) fn set_process(
        &mut self,
        skel: &mut CollectorSkel<'_>,
        pid: u32,
        execution: Option<u32>,
        mapped: &[Mapped],
    ) -> Result<Option<u32>, Error> {
        let Some(range) = self.mappings.take(mapped.len() as u32) else {
            return Ok(None);
        };
        if let Some(bss) = skel.maps.bss_mappings_data.as_deref_mut() {
            for (index, mapped) in range.clone().zip(mapped) {
                let Some(place) = bss.mappings.get_mut(index as usize) else {
                    continue;
                };
                (place.start, place.end, place.pages) = (mapped.start, mapped.end, 0);
                match mapped.code {
                    Code::Table { table, bias } => {
                        place.kind = 0;
                        place.bias = bias;
                        if let Some(placed) = self.placed.get(&table) {
                            place.first_page = placed.first_page;
                            place.pages = placed.directory.end - placed.directory.start;
                            place.directory = placed.directory.start;
                        }
                    }
                    Code::Guess => place.kind = 1,
                    Code::Pending => place.kind = 2,
                }
            }
        }
        // 0 is said of stacks that were not walked.
        self.versions = self.versions.wrapping_add(1).max(1);
        let value = [
            execution.unwrap_or(ANY_EXECUTION),
            range.start,
            mapped.len() as u32,
            self.versions,
            0,
        ];
        if let Err(error) = put_process(skel, pid, value) {
            self.mappings.give(range);
            return Err(error);
        }
        if let Some(old) = self.processes.insert(pid, range) {
            self.retired[0].push(Retired::Mappings(old));
        }
        Ok(Some(self.versions))
    }

    /// Nobody follows the process while it executes this program.
    pub(crate) fn ignore_process(
        &mut self,
        skel: &CollectorSkel<'_>,
        pid: u32,
        execution: u32,
    ) -> Result<(), Error> {
        put_process(skel, pid, [execution, 0, 0, 0, 1])?;
        if let Some(old) = self.processes.insert(pid, 0..0) {
            self.retired[0].push(Retired::Mappings(old));
        }
        Ok(())
    }

    /// The process is gone.
    pub(crate) fn forget_process(&mut self, skel: &CollectorSkel<'_>, pid: u32) {
        if let Some(old) = self.processes.remove(&pid) {
            // It can only be gone already.
            let _ = skel.maps.processes.delete(&pid.to_ne_bytes());
            self.retired[0].push(Retired::Mappings(old));
        }
    }

    /// Once a round: what was replaced before the last call is used again.
    pub(crate) fn tidy(&mut self) {
        self.retired.rotate_right(1);
        for old in std::mem::take(&mut self.retired[0]) {
            match old {
                Retired::Mappings(range) => self.mappings.give(range),
                Retired::Directory(range) => self.directory.give(range),
                Retired::Rows(chunk, range) => self.give_rows(chunk, range),
            }
        }
    }

    pub(crate) fn in_use(&self) -> TableUse {
        TableUse {
            tables: self.placed.len(),
            row_bytes: self.chunks.len() as u64 * u64::from(ROWS) * ROW_SIZE as u64,
            mappings: self.mappings.taken(),
            processes: self.processes.len(),
            rules: self.rules.min(RULES),
        }
    }
}

/// `struct process` of `c/user.h`.
fn put_process(skel: &CollectorSkel<'_>, pid: u32, value: [u32; 5]) -> Result<(), Error> {
    let value: Vec<u8> = value.into_iter().flat_map(u32::to_ne_bytes).collect();
    skel.maps
        .processes
        .update(&pid.to_ne_bytes(), &value, MapFlags::ANY)
        .map_err(step(format!("tell the programs of process {pid}")))
}

fn make_chunk(skel: &CollectorSkel<'_>, number: u16) -> Result<MmapMut, Error> {
    let size = ROWS * ROW_SIZE as u32;
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some("kcollect_rows"), 4, size, 1, &options)
        .map_err(step(format!("make room for {ROWS} unwind rows")))?;
    // SAFETY: the map is ours alone, anonymous kernel memory of `size` bytes which can't shrink;
    // programs only read it.
    let memory = unsafe {
        MmapOptions::new()
            .len(size as usize)
            .map_mut(map.as_fd().as_raw_fd())
    };
    let memory = memory.map_err(|error| step("map unwind rows")(error.into()))?;
    skel.maps
        .chunks
        .update(
            &u32::from(number).to_ne_bytes(),
            &map.as_fd().as_raw_fd().to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(step("hand unwind rows to the programs"))?;
    Ok(memory)
}

/// Numbers from 0 on, of which ranges are taken and given back: the first that fits.
#[derive(Debug)]
struct Space {
    size: u32,
    free: BTreeMap<u32, u32>,
}

impl Space {
    fn of(size: u32) -> Space {
        Space {
            size,
            free: BTreeMap::from([(0, size)]),
        }
    }

    fn take(&mut self, count: u32) -> Option<Range<u32>> {
        if count == 0 {
            return Some(0..0);
        }
        let (&start, &length) = self.free.iter().find(|(_, length)| **length >= count)?;
        self.free.remove(&start);
        if length > count {
            self.free.insert(start + count, length - count);
        }
        Some(start..start + count)
    }

    fn give(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    fn taken(&self) -> u64 {
        let free: u64 = self.free.values().map(|length| u64::from(*length)).sum();
        u64::from(self.size) - free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_given_back_becomes_one_again() {
        let mut space = Space::of(10);
        let [a, b, c] = [3, 4, 3].map(|count| space.take(count).unwrap());
        assert_eq!((&a, &b, &c), (&(0..3), &(3..7), &(7..10)));
        assert_eq!(space.take(1), None);
        space.give(a);
        space.give(c);
        assert_eq!(space.take(4), None);
        space.give(b);
        assert_eq!(space.take(10), Some(0..10));
    }

    #[test]
    fn what_was_placed_is_read_back() {
        let chunks = [0, 1].map(|_| {
            let memory = MmapMut::map_anon(ROWS as usize * ROW_SIZE).unwrap();
            Arc::new(Chunk(Mutex::new(memory)))
        });
        let rows = [
            vec![[0x10, 3], [0x20, 4], [0xffff, 5]],
            vec![[0, 5], [8, 0], [9, 6]],
        ];
        let [first, second] = &rows;
        // One of them at the very end of its chunk.
        chunks[0].write(ROWS - 3, first.iter().copied());
        chunks[1].write(7, second.iter().copied());
        let placed = PlacedTable {
            id: TableId(1),
            pages: vec![
                (2, Arc::clone(&chunks[0]), ROWS - 3..ROWS),
                (4, Arc::clone(&chunks[1]), 7..10),
            ],
        };
        assert_eq!(placed.rows(), rows.concat());
        let rules = [
            (0x1_ffff, 0),
            (0x2_000f, 0),
            (0x2_0010, 3),
            (0x2_001f, 3),
            (0x2_fffe, 4),
            (0x2_ffff, 5),
            (0x3_0000, 0),
            (0x4_0007, 5),
            (0x4_0008, 0),
            (0x4_ffff, 6),
            (0x5_0000, 0),
            (u64::MAX, 0),
        ];
        for (address, rule) in rules {
            assert_eq!(placed.number_at(address), rule, "{address:#x}");
        }
    }

    proptest! {
        #[test]
        fn no_number_is_taken_twice_and_none_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 0_u32..20), 0..200)
        ) {
            let mut space = Space::of(100);
            let mut held: Vec<Range<u32>> = Vec::new();
            for (take, count) in steps {
                if take {
                    held.extend(space.take(count));
                } else if !held.is_empty() {
                    space.give(held.swap_remove(count as usize % held.len()));
                }
                let mut numbers: Vec<u32> = held.iter().cloned().flatten().collect();
                prop_assert_eq!(space.taken(), numbers.len() as u64);
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(space.taken(), numbers.len() as u64);
            }
        }
    }
}
