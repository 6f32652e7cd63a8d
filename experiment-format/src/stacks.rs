//! `data.frameinfo`: each stack is stored once, and callers that stacks share are stored once.
//!
//! Profiles contain the same callers again and again under changing leaves: a loop is sampled at
//! each of its instructions. So a stack is stored in parts. The callers, leaf side first, are UID
//! packets of at most 16 words, counted from the root, each with a link to the next one; the stack
//! itself is a FRAME packet of the leaf and a link to them (the format calls it compressed). A new
//! leaf under known callers costs 48 bytes, however deep the stack is, and stacks that branch off
//! share what is below. Shorter parts have more heads and links, longer ones share less: with 8
//! words, and with 24, a recording of a compiler took more space.
//!
//! A FRAME packet is a `PacketHead`, and then infos: an `InfoHead` and the words of the stack.
//! A UID packet is a `PacketHead` and words.
//!
//! A stack must be in the file before a packet refers to it. So interning writes at once, and a
//! stack that could not be written is not interned.
//!
//! The memory of all interners of a program is bounded: otherwise a process with a new stack at
//! each tick would take memory without end. An interner beyond the bound evicts its stacks. When
//! they come again, it writes them again, with other numbers.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Result;
pub use crate::ids::StackUid;
use crate::packet::{FRAME, UID};

pub mod table;

/// Max words of a UID packet, without its link.
const PART_WORDS: usize = 16;

/// The number of frames that a stack can hold. A deeper one is cut off and marked as truncated. A
/// packet of 64 KiB has space for some more.
pub const MAX_FRAMES: usize = 8000;

/// Max bytes that all interners of a program hold together.
const MAX_TOTAL_BYTES: usize = 256 << 20;
/// The bytes that each interner may hold whatever others do.
const MIN_BYTES: usize = 1 << 20;
/// The bytes that an entry of a table takes in addition to the words of a stack.
const ENTRY_BYTES: usize = 48;
/// The bytes that all interners hold.
static TOTAL_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The last word of a stack that was cut off: −2.
const TRUNCATED: u64 = u64::MAX - 1;
/// The last word of a stack whose next caller could not be found: −3.
const UNWIND_FAILED: u64 = u64::MAX - 2;
/// The kind of the info of a native stack.
const NATIVE: u32 = 1;
/// The flag of an info or UID packet whose last word is the uid where the stack continues.
const COMPRESSED: u32 = 1 << 31;

/// The beginning of a FRAME or UID packet.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct PacketHead {
    size: U16,
    kind: U16,
    /// Of a FRAME packet, the size of this head, after which the infos begin; of a UID packet,
    /// flags.
    head_size_or_flags: U32,
    uid: U64,
}

/// The beginning of an info. Its words follow, up to its size.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct InfoHead {
    size: U32,
    kind: U32,
    uid: U64,
}

/// The size of either head: both have the same.
const HEAD_BYTES: usize = size_of::<PacketHead>();
const _: () = assert!(size_of::<InfoHead>() == HEAD_BYTES);

/// The end of a stack at its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// The stack ends with the thread's first function.
    Complete,
    /// The stack was deeper than what was recorded: root frame `<Truncated-stack>`.
    Truncated,
    /// A caller could not be found: root frame `<Stack-unwind-failed>`.
    UnwindFailed,
}

impl StackEnd {
    /// Returns the mark that stands after the last frame.
    const fn mark(self) -> Option<u64> {
        match self {
            StackEnd::Complete => None,
            StackEnd::Truncated => Some(TRUNCATED),
            StackEnd::UnwindFailed => Some(UNWIND_FAILED),
        }
    }
}

/// An interner of stacks: it numbers them, and encodes the new ones.
///
/// Holds the words of each distinct part of callers once, and 48 bytes for each stack.
#[derive(Debug, Default)]
pub struct StackInterner {
    /// From a part of the callers, and the number of the next one if there is one, to the number of
    /// its UID packet. The last word may be the mark of a stack's end.
    callers: HashMap<Box<[u64]>, u64>,
    /// From the leaf and the number of the callers to the number of the FRAME packet.
    leaves: HashMap<(u64, u64), StackUid>,
    /// Stacks of so few words that a link would save nothing, by their words.
    short: HashMap<Box<[u64]>, StackUid>,
    /// The last number in use; FRAME and UID packets share one range.
    last: u64,
    /// The bytes that the three tables hold.
    bytes: usize,
    words: Vec<u64>,
    part: Vec<u64>,
    packet: Vec<u8>,
}

impl Drop for StackInterner {
    fn drop(&mut self) {
        self.evict();
    }
}

impl StackInterner {
    /// Returns the number of a stack, leaf first.
    ///
    /// If the stack is new, calls `write` with whole packets, in the order in which they have to be
    /// written. A word that the format uses as a mark (−1, −2, −3) is no address: the stack is cut
    /// there, as if it could not be unwound further.
    ///
    /// # Errors
    ///
    /// An error of `write`; the stack is then not interned.
    pub fn intern(
        &mut self,
        frames: &[u64],
        end: StackEnd,
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<StackUid> {
        self.evict_beyond(MAX_TOTAL_BYTES);
        let (frames, end) = bounded(frames, end);
        self.words.clear();
        self.words.extend_from_slice(frames);
        self.words.extend(end.mark());

        // A link would be as long as the word that it replaces.
        if self.words.len() <= 2 {
            if let Some(uid) = self.short.get(self.words.as_slice()) {
                return Ok(*uid);
            }
            let uid = self.write_frame(None, &mut write)?;
            self.short.insert(self.words.as_slice().into(), uid);
            account(&mut self.bytes, self.words.len());
            return Ok(uid);
        }

        let (leaf, link) = (self.words[0], self.intern_callers(&mut write)?);
        if let Some(uid) = self.leaves.get(&(leaf, link)) {
            return Ok(*uid);
        }
        let uid = self.write_frame(Some((leaf, link)), &mut write)?;
        self.leaves.insert((leaf, link), uid);
        account(&mut self.bytes, 0);
        Ok(uid)
    }

    /// Returns the number of the first part of the callers: of all of `self.words` but the leaf.
    fn intern_callers(&mut self, write: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        let mut link = 0;
        for part in self.words[1..].rchunks(PART_WORDS) {
            self.part.clear();
            self.part.extend_from_slice(part);
            // Numbers begin at 1, so a part without a link is no part with one.
            self.part.push(link);
            if let Some(known) = self.callers.get(self.part.as_slice()) {
                link = *known;
                continue;
            }
            let (words, flags) = match link {
                0 => (part, 0),
                _ => (self.part.as_slice(), COMPRESSED),
            };
            let uid = self.last + 1;
            self.packet.clear();
            begin_packet(&mut self.packet, 8 * words.len(), UID, flags, uid);
            push_words(&mut self.packet, words);
            write(&self.packet)?;
            self.last = uid;
            self.callers.insert(self.part.as_slice().into(), uid);
            account(&mut self.bytes, self.part.len());
            link = uid;
        }
        Ok(link)
    }

    /// Evicts all stacks if there are too many, here and together with other interners.
    fn evict_beyond(&mut self, total_bytes: usize) {
        if self.bytes > MIN_BYTES && TOTAL_BYTES.load(Ordering::Relaxed) > total_bytes {
            self.evict();
        }
    }

    /// Evicts all stacks.
    fn evict(&mut self) {
        self.callers = HashMap::new();
        self.leaves = HashMap::new();
        self.short = HashMap::new();
        TOTAL_BYTES.fetch_sub(mem::take(&mut self.bytes), Ordering::Relaxed);
    }

    /// Writes a FRAME packet: of a leaf and its link, or of all `self.words`.
    fn write_frame(
        &mut self,
        linked: Option<(u64, u64)>,
        write: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<StackUid> {
        let uid = StackUid::after(self.last);
        let pair = linked.map(|(leaf, link)| [leaf, link]);
        let words = pair.as_ref().map_or(self.words.as_slice(), |pair| pair);
        let info_bytes = HEAD_BYTES + 8 * words.len();
        self.packet.clear();
        // A stack without words has no info: an info without words would mean another stack.
        let infos_bytes = if words.is_empty() { 0 } else { info_bytes };
        let head_size = HEAD_BYTES as u32;
        begin_packet(&mut self.packet, infos_bytes, FRAME, head_size, uid.get());
        if !words.is_empty() {
            let kind = if linked.is_some() {
                NATIVE | COMPRESSED
            } else {
                NATIVE
            };
            let head = InfoHead {
                size: (info_bytes as u32).into(),
                kind: kind.into(),
                uid: uid.get().into(),
            };
            self.packet.extend_from_slice(head.as_bytes());
            push_words(&mut self.packet, words);
        }
        write(&self.packet)?;
        self.last = uid.get();
        Ok(uid)
    }
}

/// Adds an entry of `words` words to the bytes that an interner holds.
fn account(held: &mut usize, words: usize) {
    let bytes = ENTRY_BYTES + 8 * words;
    *held += bytes;
    TOTAL_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Returns the part of a stack that can be stored, and its end.
fn bounded(frames: &[u64], end: StackEnd) -> (&[u64], StackEnd) {
    let addresses = frames.iter().position(|word| *word >= UNWIND_FAILED);
    let (frames, end) = match addresses {
        Some(mark) => (&frames[..mark], StackEnd::UnwindFailed),
        None => (frames, end),
    };
    match frames.get(..MAX_FRAMES) {
        Some(kept) if frames.len() > MAX_FRAMES => (kept, StackEnd::Truncated),
        _ => (frames, end),
    }
}

/// Begins a packet with this many bytes after its head.
fn begin_packet(packet: &mut Vec<u8>, bytes: usize, kind: u16, head_size_or_flags: u32, uid: u64) {
    let head = PacketHead {
        // MAX_FRAMES keeps every packet below 64 KiB.
        size: ((HEAD_BYTES + bytes) as u16).into(),
        kind: kind.into(),
        head_size_or_flags: head_size_or_flags.into(),
        uid: uid.into(),
    };
    packet.extend_from_slice(head.as_bytes());
}

/// Appends the words of a stack.
fn push_words(packet: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        packet.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn intern(interner: &mut StackInterner, frames: &[u64], end: StackEnd) -> (StackUid, Vec<u8>) {
        let mut file = Vec::new();
        let uid = interner
            .intern(frames, end, |packet| {
                assert_eq!(packet.len() % 8, 0);
                assert_eq!(
                    usize::from(u16::from_le_bytes([packet[0], packet[1]])),
                    packet.len()
                );
                file.extend_from_slice(packet);
                Ok(())
            })
            .unwrap();
        (uid, file)
    }

    #[test]
    fn memory_is_bounded_and_evicted_stacks_are_written_again() {
        let mut interner = StackInterner::default();
        let deep = |leaf: u64| Vec::from_iter((0..1000).map(|frame| leaf + frame * 0x1000));
        let (first, written) = intern(&mut interner, &deep(0), StackEnd::Complete);
        let mut most = 0;
        for leaf in 1..400 {
            interner.evict_beyond(0);
            intern(&mut interner, &deep(leaf), StackEnd::Complete);
            most = most.max(interner.bytes);
        }
        // Three times as many have come.
        assert!((MIN_BYTES..MIN_BYTES + 10_000).contains(&most), "{most}");
        let (again, rewritten) = intern(&mut interner, &deep(0), StackEnd::Complete);
        assert!(again > first);
        assert_eq!(rewritten.len(), written.len());
        let (same, nothing) = intern(&mut interner, &deep(0), StackEnd::Complete);
        assert_eq!((same, nothing.len()), (again, 0));
        // Not at the expense of an interner that holds little.
        let mut modest = StackInterner::default();
        intern(&mut modest, &deep(0), StackEnd::Complete);
        modest.evict_beyond(0);
        assert!(modest.bytes > 0);
    }

    #[test]
    fn a_stack_is_written_once_and_a_new_leaf_costs_48_bytes() {
        let mut interner = StackInterner::default();
        let callers: Vec<u64> = (100..130).collect();
        let stack = |leaf| [&[leaf], callers.as_slice()].concat();
        let (first, file) = intern(&mut interner, &stack(1), StackEnd::Complete);
        assert_eq!(file.len(), 16 + 8 * 14 + 8 + 16 + 8 * 16 + 48);
        let (again, file) = intern(&mut interner, &stack(1), StackEnd::Complete);
        assert_eq!((again, file.len()), (first, 0));
        let (other, file) = intern(&mut interner, &stack(2), StackEnd::Complete);
        assert_ne!(other, first);
        assert_eq!(file.len(), 48);
    }

    #[test]
    fn stacks_share_the_callers_below_a_branch() {
        let mut interner = StackInterner::default();
        let root: Vec<u64> = (200..232).collect();
        let stack = |branch: u64| [&[1, branch, branch + 1], root.as_slice()].concat();
        let (_, file) = intern(&mut interner, &stack(100), StackEnd::Complete);
        assert_eq!(
            file.len(),
            (16 + 8 * 16) + (16 + 8 * 16 + 8) + (16 + 8 * 2 + 8) + 48
        );
        let (_, file) = intern(&mut interner, &stack(110), StackEnd::Complete);
        assert_eq!(file.len(), (16 + 8 * 2 + 8) + 48);
        // The root alone, which is a part of them already.
        let (_, file) = intern(
            &mut interner,
            &[&[2], root.as_slice()].concat(),
            StackEnd::Complete,
        );
        assert_eq!(file.len(), 48);
    }

    #[test]
    fn stacks_with_different_ends_are_different_stacks() {
        let mut interner = StackInterner::default();
        let ends = [
            StackEnd::Complete,
            StackEnd::Truncated,
            StackEnd::UnwindFailed,
        ];
        for frames in [&[][..], &[7], &[7, 8], &[7, 8, 9]] {
            let mut uids: Vec<_> = ends
                .iter()
                .map(|end| intern(&mut interner, frames, *end).0)
                .collect();
            uids.dedup();
            assert_eq!(uids.len(), 3, "{frames:?}");
        }
    }

    #[test]
    fn too_deep_a_stack_is_marked_and_fits_in_a_packet() {
        let deep: Vec<u64> = (1..=10_000).collect();
        let (_, file) = intern(&mut StackInterner::default(), &deep, StackEnd::Complete);
        // 500 parts, the first one without a link.
        assert_eq!(file.len(), 500 * (16 + 8) - 8 + 8 * 8000 + 48);
        assert_eq!(file[16 + 8 * 15..][..8], TRUNCATED.to_le_bytes());
    }

    #[test]
    fn a_mark_among_the_frames_ends_the_stack() {
        for mark in [u64::MAX, TRUNCATED, UNWIND_FAILED] {
            let frames = [1, 2, mark, 3];
            let (kept, end) = bounded(&frames, StackEnd::Complete);
            assert_eq!((kept, end), (&[1, 2][..], StackEnd::UnwindFailed));
        }
    }

    #[test]
    fn a_stack_that_could_not_be_written_is_written_again() {
        let mut interner = StackInterner::default();
        let mut calls = 0;
        let failed = interner.intern(&[1, 2, 3], StackEnd::Complete, |_| {
            calls += 1;
            if calls == 2 {
                Err(Error::unwritable("x", "y"))
            } else {
                Ok(())
            }
        });
        assert!(failed.is_err());
        // The callers were written; only the frame is missing.
        let (_, file) = intern(&mut interner, &[1, 2, 3], StackEnd::Complete);
        assert_eq!(file.len(), 48);
    }
}
