//! The memory profile of a Go program: the runtime samples allocations itself, and adds them up by
//! stack and size. It is read from the memory of the process, without a probe.
//!
//! A bucket (`runtime.bucket` and `runtime.memRecord` of Go's mprof.go) counts the samples
//! allocated since the start, and how many of them were freed. Both counts date from the last but
//! one garbage collection. The layout is the same from Go 1.9 to 1.27. A program that never asks
//! for its profile (`runtime/pprof`, `net/http/pprof`) has no samples: its linker sets the rate to
//! 0.
//!
//! Which block of a bucket was freed is not known. The oldest counts, so that sums are exact and
//! ages are not. The memory is under the control of the process: how much is read is bounded.

use std::collections::{HashMap, VecDeque};

use experiment_format::packet::WEIGHT_OF_ONE;
use experiment_format::units::Nanos;
use kcollect_elf::{ElfBytes, ElfError, ElfFile, LoadSegment, SectionTable, is_name_at};
use object::elf::{SHT_SYMTAB, STT_OBJECT};

use super::blocks::{BlockChange, weight_of};
use crate::space::Mapping;

/// The list of the buckets, and the mean of the bytes between two samples.
const BUCKETS: &[u8] = b"runtime.mbuckets";
const RATE: &[u8] = b"runtime.MemProfileRate";

/// Max buckets of a process. Each stack and size has one.
const MAX_BUCKETS: usize = 100_000;
/// The deepest stack of Go's profile is 32 frames, or 128 from Go 1.23 on.
const MAX_FRAMES: u64 = 1024;
/// Max new samples of a bucket at a time: 64 GiB of allocations at the default rate.
const MAX_NEW_SAMPLES: u64 = 1 << 17;
/// `memProfile`, the kind of bucket.
const MEMORY_BUCKET: u64 = 1;
const WORD_BYTES: u64 = 8;
/// The words of a bucket before its stack.
const HEADER_WORDS: u64 = 6;
/// The words of a bucket with 32 frames.
const USUAL_WORDS: u64 = HEADER_WORDS + 32 + 2;

/// Where synthetic addresses begin: no memory can be there.
const FIRST_ADDRESS: u64 = 1 << 62;

/// Where a Go program has its memory profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoProfileSymbols {
    /// The address of the pointer to the first bucket.
    pub buckets: u64,
    /// The address of the sampling rate.
    pub rate: u64,
}

/// The memory profile of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoProgram {
    /// Where it is, if the file is mapped where it was linked for.
    symbols: GoProfileSymbols,
    /// The segment with the code.
    code: LoadSegment,
}

impl GoProgram {
    /// Returns where the profile is in a process that maps the code so. None: it does not.
    #[must_use]
    pub fn mapped(&self, mapping: &Mapping) -> Option<GoProfileSymbols> {
        let code = self.code;
        // A mapping begins with the page in which the segment does.
        let linked = code
            .address
            .wrapping_add(mapping.offset.wrapping_sub(code.offset));
        let bias = mapping.start.wrapping_sub(linked);
        let maps = code.file_offsets().contains(&mapping.offset);
        maps.then(|| GoProfileSymbols {
            buckets: self.symbols.buckets.wrapping_add(bias),
            rate: self.symbols.rate.wrapping_add(bias),
        })
    }

    /// Finds the symbols of a file. None: it is no Go program, or has no symbols.
    pub(super) fn find<B: ElfBytes>(
        elf: &ElfFile<B>,
        sections: &SectionTable<B::Piece>,
        segments: &[LoadSegment],
    ) -> Result<Option<GoProgram>, ElfError> {
        if sections.named(b".go.buildinfo").is_none() {
            return Ok(None);
        }
        let Some(table) = sections.symbol_table(SHT_SYMTAB) else {
            return Ok(None);
        };
        let names = elf.plain_content(table.names, "names of symbols")?;
        let (mut buckets, mut rate) = (None, None);
        elf.each_symbol(table.symbols, |symbol| {
            let is = |name| symbol.kind == STT_OBJECT && is_name_at(&names, symbol.name, name);
            if is(BUCKETS) {
                buckets = Some(symbol.address);
            } else if is(RATE) {
                rate = Some(symbol.address);
            }
        })?;
        let code = segments.iter().find(|segment| segment.executable).copied();
        let found = buckets.zip(rate).zip(code);
        Ok(found.map(|((buckets, rate), code)| GoProgram {
            symbols: GoProfileSymbols { buckets, rate },
            code,
        }))
    }
}

/// The samples of one stack and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoBucket {
    /// Return addresses, the innermost first.
    pub stack: Box<[u64]>,
    /// The bytes of a block.
    pub size: u64,
    /// How many were allocated.
    pub allocated: u64,
    /// How many of these were freed.
    pub freed: u64,
}

/// A Go program's memory profile at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoProfile {
    /// Mean number of bytes per sampled byte. 0: the program keeps no profile.
    pub rate: u64,
    /// The buckets, the latest first.
    pub buckets: Vec<GoBucket>,
}

/// Why a profile can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoProfileError {
    /// Memory of the process can't be read.
    #[error("its memory can't be read")]
    Unreadable,
    /// Its layout is unknown.
    #[error("its memory profile has an unknown form")]
    UnknownForm,
}

impl GoProfile {
    /// Reads the profile of a process. `read` fills a slice with its memory from an address on, and
    /// returns whether that memory is mapped.
    ///
    /// # Errors
    /// See [`GoProfileError`].
    pub fn read(
        read: impl Fn(u64, &mut [u8]) -> bool,
        symbols: GoProfileSymbols,
    ) -> Result<GoProfile, GoProfileError> {
        let words = |address, count: u64| {
            let mut bytes = vec![0; (count * WORD_BYTES) as usize];
            let there = read(address, &mut bytes);
            let words = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
            there.then(|| words.collect::<Vec<u64>>())
        };
        let word = |address| Some(words(address, 1)?[0]);
        let unreadable = GoProfileError::Unreadable;
        let rate = word(symbols.rate).ok_or(unreadable)?;
        let mut profile = GoProfile {
            // Negative is unknown.
            rate: i64::try_from(rate).map_err(|_| GoProfileError::UnknownForm)? as u64,
            buckets: Vec::new(),
        };
        if rate == 0 {
            return Ok(profile);
        }
        let mut next = word(symbols.buckets).ok_or(unreadable)?;
        while next != 0 && profile.buckets.len() < MAX_BUCKETS {
            // Most buckets are read at once.
            let mut bucket = words(next, USUAL_WORDS)
                .or_else(|| words(next, HEADER_WORDS))
                .ok_or(unreadable)?;
            let [_, all_next, kind, _, size, frames, ..] = bucket[..] else {
                return Err(GoProfileError::UnknownForm);
            };
            if kind != MEMORY_BUCKET || frames > MAX_FRAMES {
                return Err(GoProfileError::UnknownForm);
            }
            let count = HEADER_WORDS + frames + 2;
            if (bucket.len() as u64) < count {
                bucket = words(next, count).ok_or(unreadable)?;
            }
            let after = &bucket[HEADER_WORDS as usize..];
            let (stack, active) = after.split_at(frames as usize);
            let (allocated, freed) = (active[0], active[1]);
            if freed > allocated {
                return Err(GoProfileError::UnknownForm);
            }
            profile.buckets.push(GoBucket {
                stack: stack.into(),
                size,
                allocated,
                freed,
            });
            next = all_next;
        }
        Ok(profile)
    }
}

/// The blocks of a Go program that its profile is known to have sampled.
#[derive(Debug, Default)]
pub struct GoBlocks {
    buckets: HashMap<(Box<[u64]>, u64), KnownBucket>,
    /// How many addresses were used.
    addresses: u64,
    /// A profile was applied.
    begun: bool,
}

#[derive(Debug, Default)]
struct KnownBucket {
    /// What was seen of the profile.
    allocated: u64,
    freed: u64,
    /// The addresses of the blocks that are not freed, the oldest first.
    live: VecDeque<u64>,
}

impl GoBlocks {
    /// Returns the blocks of a program that has just begun: all that it allocates is recorded.
    #[must_use]
    pub fn of_new_program() -> GoBlocks {
        GoBlocks {
            begun: true,
            ..GoBlocks::default()
        }
    }

    /// Returns the changes where all blocks end.
    #[must_use]
    pub fn ends(&self, at_ns: Nanos) -> Vec<BlockChange> {
        let live = self.buckets.values().flat_map(|bucket| &bucket.live);
        live.map(|address| BlockChange::end(at_ns, *address))
            .collect()
    }

    /// The changes since the last profile, each with its stack. For the first profile of a program
    /// that ran before the recording, these are the blocks that are not freed.
    pub fn apply(&mut self, profile: GoProfile, at_ns: Nanos) -> Vec<(Box<[u64]>, BlockChange)> {
        let mut changes = Vec::new();
        for bucket in profile.buckets {
            let GoBucket { stack, size, .. } = bucket;
            let key = (stack.clone(), size);
            let before = if self.begun { 0 } else { bucket.freed };
            let known = self.buckets.entry(key).or_insert_with(|| KnownBucket {
                allocated: before,
                freed: before,
                live: VecDeque::new(),
            });
            let weight = weight_of(size, profile.rate);
            let new = bucket.allocated.saturating_sub(known.allocated);
            for _ in 0..new.min(MAX_NEW_SAMPLES) {
                self.addresses += 1;
                let address = FIRST_ADDRESS + self.addresses;
                known.live.push_back(address);
                let change = BlockChange {
                    at_ns,
                    freed: false,
                    address,
                    bytes: size,
                    weighted_bytes: (size as f64 * weight).round() as u64,
                    weight: (weight * WEIGHT_OF_ONE as f64).round() as u64,
                };
                changes.push((stack.clone(), change));
            }
            let freed = bucket.freed.saturating_sub(known.freed);
            let freed = usize::try_from(freed).unwrap_or(usize::MAX);
            for address in known.live.drain(..freed.min(known.live.len())) {
                changes.push((Box::default(), BlockChange::end(at_ns, address)));
            }
            known.allocated = bucket.allocated;
            known.freed = bucket.freed;
        }
        self.begun = true;
        changes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SYMBOLS: GoProfileSymbols = GoProfileSymbols {
        buckets: 0x100,
        rate: 0x108,
    };

    /// Memory of words from 0 on, with buckets of (size, stack, allocated, freed) from 0x1000 on.
    fn memory(rate: u64, buckets: &[(u64, &[u64], u64, u64)]) -> Vec<u64> {
        let mut words = vec![0; 0x1000 / 8];
        words[0x108 / 8] = rate;
        let mut before = 0x100 / 8;
        for (size, stack, allocated, freed) in buckets {
            let at = words.len();
            words[before] = at as u64 * 8;
            words.extend([7, 0, 1, 0xabcd, *size, stack.len() as u64]);
            words.extend(*stack);
            words.extend([*allocated, *freed, allocated * size, freed * size]);
            // Of the next garbage collections.
            words.extend([9; 12]);
            before = at + 1;
        }
        words
    }

    fn read(words: &[u64]) -> Result<GoProfile, GoProfileError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        GoProfile::read(
            |address, into| {
                let from = usize::try_from(address).unwrap_or(usize::MAX);
                let found = bytes.get(from..).and_then(|rest| rest.get(..into.len()));
                found.map(|found| into.copy_from_slice(found)).is_some()
            },
            SYMBOLS,
        )
    }

    #[test]
    fn buckets_are_read_to_the_end_of_their_list() {
        let words = memory(512, &[(48, &[0x40, 0x41], 5, 2), (1024, &[0x42], 1, 0)]);
        let profile = read(&words).unwrap();
        assert_eq!(profile.rate, 512);
        let bucket = |stack: &[u64], size, allocated, freed| GoBucket {
            stack: stack.into(),
            size,
            allocated,
            freed,
        };
        let expected = [bucket(&[0x40, 0x41], 48, 5, 2), bucket(&[0x42], 1024, 1, 0)];
        assert_eq!(profile.buckets, expected);
        assert_eq!(read(&memory(0, &[])), Ok(GoProfile::default()));
    }

    #[test]
    fn other_forms_are_refused() {
        let good = memory(512, &[(48, &[0x40], 5, 2)]);
        let with = |at: usize, word| {
            let mut words = good.clone();
            words[at] = word;
            read(&words)
        };
        let unknown = Err(GoProfileError::UnknownForm);
        assert_eq!(with(0x1010 / 8, 2), unknown, "a bucket of another kind");
        assert_eq!(with(0x1028 / 8, 5000), unknown, "its depth");
        assert_eq!(with(0x1040 / 8, 6), unknown, "more were freed");
        assert_eq!(with(0x108 / 8, u64::MAX), unknown, "the rate");
        let unreadable = Err(GoProfileError::Unreadable);
        assert_eq!(with(0x1008 / 8, 1 << 40), unreadable);
        // A list without an end.
        let endless = with(0x1008 / 8, 0x1000).unwrap();
        assert_eq!(endless.buckets.len(), MAX_BUCKETS);
    }

    fn profile(buckets: &[(u64, u64, u64)]) -> GoProfile {
        let bucket = |(size, allocated, freed): &(u64, u64, u64)| GoBucket {
            stack: [*size].into(),
            size: *size,
            allocated: *allocated,
            freed: *freed,
        };
        GoProfile {
            rate: 512,
            buckets: buckets.iter().map(bucket).collect(),
        }
    }

    /// `+48` is a block of 48 bytes that is allocated, `-1` the end of the first one.
    fn shown(changes: &[(Box<[u64]>, BlockChange)]) -> String {
        let each = changes.iter().map(|(stack, change)| {
            if change.freed {
                format!("-{}", change.address - FIRST_ADDRESS)
            } else {
                assert_eq!(stack[..], [change.bytes]);
                format!("+{}", change.bytes)
            }
        });
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn changes_are_what_was_sampled_since() {
        let mut blocks = GoBlocks::default();
        let mut apply =
            |buckets: &[(u64, u64, u64)]| shown(&blocks.apply(profile(buckets), Nanos(5)));
        // What was freed before the first profile is left out.
        assert_eq!(apply(&[(48, 5, 3), (64, 1, 0)]), "+48 +48 +64");
        assert_eq!(apply(&[(48, 5, 3), (64, 1, 0)]), "");
        assert_eq!(apply(&[(48, 6, 4), (64, 1, 1)]), "+48 -1 -3");
        // A new bucket's blocks may be freed at once.
        assert_eq!(
            apply(&[(96, 2, 2), (48, 6, 6)]),
            "+96 +96 -5 -6 -2 -4",
            "a new bucket"
        );
        assert_eq!(apply(&[(96, 4, 3), (48, 6, 6)]), "+96 +96 -7");
    }

    #[test]
    fn all_blocks_of_a_new_program_count() {
        let mut blocks = GoBlocks::of_new_program();
        let changes = blocks.apply(profile(&[(48, 3, 2)]), Nanos(5));
        assert_eq!(shown(&changes), "+48 +48 +48 -1 -2");
        let ends = blocks.ends(Nanos(6)).into_iter();
        let ends: Vec<_> = ends.map(|end| (Box::default(), end)).collect();
        assert_eq!(shown(&ends), "-3");
    }

    proptest! {
        #[test]
        fn any_memory_is_read_or_refused(mut words in prop::collection::vec(any::<u64>(), 40..200)) {
            words[0x100 / 8] = 8;
            let _ = read(&words);
        }
    }
}
