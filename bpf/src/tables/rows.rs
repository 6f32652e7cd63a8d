//! The rows of unwind tables, in chunks of memory that the programs read.

use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpf_abi::UnwindRow;
use bpf_abi::layout::ROWS_PER_CHUNK;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use memmap2::{MmapMut, MmapOptions};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::TableId;
use crate::Error;
use crate::error::step;
use crate::skeleton::KcollectMaps;

/// A table that was placed, to be read as long as it is not removed.
#[derive(Clone, Debug)]
pub struct PlacedTable {
    /// Its number, used to remove it and to publish it for files.
    pub id: TableId,
    /// By rising number.
    pub(super) pages: Vec<(u32, Arc<Chunk>, Range<u32>)>,
}

impl PlacedTable {
    /// The number of the rule for an address of the table's space, by the last row at or below it
    /// in its page; 0 if the page has no such row.
    #[must_use]
    pub fn number_at(&self, address: u64) -> u16 {
        let page = self
            .pages
            .binary_search_by_key(&(address >> 16), |(number, ..)| u64::from(*number));
        let Some((_, chunk, rows)) = page.ok().and_then(|index| self.pages.get(index)) else {
            return 0;
        };
        let low = (address & 0xffff) as u16;
        chunk.read(rows, |rows| {
            let after = rows.partition_point(|row| row.low <= low);
            after.checked_sub(1).map_or(0, |last| rows[last].rule)
        })
    }

    /// Returns all rows.
    #[must_use]
    pub fn rows(&self) -> Vec<UnwindRow> {
        let mut all = Vec::new();
        for (_, chunk, rows) in &self.pages {
            chunk.read(rows, |rows| all.extend_from_slice(rows));
        }
        all
    }
}

/// Gives the programs the chunks of these numbers, all at once: the kernel waits after each update
/// of a map of maps until no program runs any more, some 20 ms.
pub(super) fn publish_chunks(
    maps: &KcollectMaps<'_>,
    chunks: &[(u16, MapHandle)],
) -> Result<(), Error> {
    if chunks.is_empty() {
        return Ok(());
    }
    let numbers: Vec<u32> = chunks.iter().map(|(number, _)| (*number).into()).collect();
    let maps_of: Vec<i32> = chunks
        .iter()
        .map(|(_, map)| map.as_fd().as_raw_fd())
        .collect();
    maps.kc_row_chunks
        .update_batch(
            numbers.as_bytes(),
            maps_of.as_bytes(),
            chunks.len() as u32,
            MapFlags::ANY,
            MapFlags::ANY,
        )
        .map_err(step("publish unwind rows"))
}

/// The memory of a map of [`ROWS_PER_CHUNK`] rows.
#[derive(Debug)]
pub(super) struct Chunk(Mutex<MmapMut>);

impl Chunk {
    /// Makes a chunk, and the map that the programs do not have yet.
    pub(super) fn make() -> Result<(Chunk, MapHandle), Error> {
        let bytes = ROWS_PER_CHUNK * size_of::<UnwindRow>() as u32;
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("kc_rows"), 4, bytes, 1, &options)
            .map_err(step(format!("make space for {ROWS_PER_CHUNK} unwind rows")))?;
        // SAFETY: the map is ours alone, anonymous kernel memory of that many bytes which can't
        // shrink; programs only read it.
        let memory = unsafe {
            MmapOptions::new()
                .len(bytes as usize)
                .map_mut(map.as_fd().as_raw_fd())
        };
        let memory = memory.map_err(|error| step("map unwind rows")(error.into()))?;
        Ok((Chunk(Mutex::new(memory)), map))
    }

    /// Returns the memory. No holder of the lock panics.
    fn memory(&self) -> MutexGuard<'_, MmapMut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, rows: &Range<u32>, read: impl FnOnce(&[UnwindRow]) -> T) -> T {
        let memory = self.memory();
        let all = <[UnwindRow]>::ref_from_bytes(&memory).unwrap_or_default();
        read(
            all.get(rows.start as usize..rows.end as usize)
                .unwrap_or_default(),
        )
    }

    pub(super) fn write(&self, start: u32, rows: impl Iterator<Item = UnwindRow>) {
        let mut memory = self.memory();
        let all = <[UnwindRow]>::mut_from_bytes(&mut memory).unwrap_or_default();
        for (entry, row) in all.iter_mut().skip(start as usize).zip(rows) {
            *entry = row;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placed_rows_are_read_back() {
        let chunks = [0, 1].map(|_| {
            let bytes = ROWS_PER_CHUNK as usize * size_of::<UnwindRow>();
            let memory = MmapMut::map_anon(bytes).unwrap();
            Arc::new(Chunk(Mutex::new(memory)))
        });
        let rows = [
            [(0x10, 3), (0x20, 4), (0xffff, 5)],
            [(0, 5), (8, 0), (9, 6)],
        ]
        .map(|rows| rows.map(|(low, rule)| UnwindRow { low, rule }));
        let [first, second] = &rows;
        // The first is at the very end of its chunk.
        chunks[0].write(ROWS_PER_CHUNK - 3, first.iter().copied());
        chunks[1].write(7, second.iter().copied());
        let placed = PlacedTable {
            id: TableId(1),
            pages: vec![
                (
                    2,
                    Arc::clone(&chunks[0]),
                    ROWS_PER_CHUNK - 3..ROWS_PER_CHUNK,
                ),
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
}
