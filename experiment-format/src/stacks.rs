//! `data.frameinfo`: each stack once, and the callers that stacks share once.
//!
//! Profiles see the same callers again and again under changing leaves: a loop is sampled at each
//! of its instructions. So a stack is stored in two parts. The callers, leaf side first, are one
//! UID packet; the stack itself is a FRAME packet of the leaf and a link to them (the format calls
//! it compressed). A new leaf under known callers costs 48 bytes whatever the depth.
//!
//! A stack must be in the file before a packet refers to it, so interning writes at once, and a
//! stack whose writing failed is not remembered.

use std::collections::HashMap;
use std::num::NonZeroU64;

use crate::Result;
use crate::packet::{FRAME, UID, header};

pub mod table;

/// The most frames that one stack keeps; what is deeper is cut off and marked as truncated. A
/// packet of 64 KiB has room for some more.
pub const MAX_FRAMES: usize = 8000;

/// Last word of a stack that had more: −2.
const TRUNCATED: u64 = u64::MAX - 1;
/// Last word of a stack whose next caller could not be found: −3.
const UNWIND_FAILED: u64 = u64::MAX - 2;
/// Info kind of a native stack.
const NATIVE: u32 = 1;
/// Flag of an info or UID packet: its last word is the uid where the stack goes on.
const COMPRESSED: u32 = 1 << 31;
/// Bytes of a FRAME or UID packet before what follows, and of an info before its words.
const HEAD_BYTES: u32 = 16;

/// A stack of `data.frameinfo`, as packets refer to it (FRINFO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackUid(NonZeroU64);

impl StackUid {
    /// The number in the file.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The stack of a number found in a file; 0 is none.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(StackUid)
    }
}

/// How a stack ends at its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// With the thread's first function.
    Complete,
    /// There was more than could be recorded: root frame `<Truncated-stack>`.
    Truncated,
    /// A caller could not be found: root frame `<Stack-unwind-failed>`.
    UnwindFailed,
}

impl StackEnd {
    /// The mark that stands behind the last frame.
    const fn mark(self) -> Option<u64> {
        match self {
            StackEnd::Complete => None,
            StackEnd::Truncated => Some(TRUNCATED),
            StackEnd::UnwindFailed => Some(UNWIND_FAILED),
        }
    }
}

/// Numbers stacks and says what to write for a new one.
///
/// Holds the words of each distinct chain of callers once, and 24 bytes for each stack.
#[derive(Debug, Default)]
pub struct StackInterner {
    /// Callers, with the mark of their end, to the number of their UID packet.
    callers: HashMap<Box<[u64]>, u64>,
    /// Leaf and number of the callers to the number of the FRAME packet.
    leaves: HashMap<(u64, u64), StackUid>,
    /// Stacks of so few words that a link would not pay.
    short: HashMap<Box<[u64]>, StackUid>,
    /// Numbers in use; packets and stacks share one space.
    last: u64,
    words: Vec<u64>,
    packet: Vec<u8>,
}

impl StackInterner {
    /// Gives the number of a stack, leaf first.
    ///
    /// For what is new, `write` gets whole packets, in an order in which they may be written.
    /// A word that the format uses as a mark (−1, −2, −3) is no address: the stack is cut there as
    /// one that could not be unwound.
    ///
    /// # Errors
    ///
    /// What `write` returns; the stack is then not interned.
    pub fn intern(
        &mut self,
        frames: &[u64],
        end: StackEnd,
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<StackUid> {
        let (frames, end) = bounded(frames, end);
        self.words.clear();
        self.words.extend_from_slice(frames);
        self.words.extend(end.mark());

        // Up to here a link would be as long as the word that it stands for.
        if self.words.len() <= 2 {
            if let Some(uid) = self.short.get(self.words.as_slice()) {
                return Ok(*uid);
            }
            let uid = self.write_frame(None, &mut write)?;
            self.short.insert(self.words.as_slice().into(), uid);
            return Ok(uid);
        }

        let (leaf, callers) = (self.words[0], &self.words[1..]);
        let link = match self.callers.get(callers) {
            Some(link) => *link,
            None => {
                let link = self.last + 1;
                self.packet.clear();
                let size = HEAD_BYTES as usize + 8 * callers.len();
                begin_packet(&mut self.packet, size, UID, 0, link);
                push_words(&mut self.packet, callers);
                write(&self.packet)?;
                self.last = link;
                self.callers.insert(callers.into(), link);
                link
            }
        };
        if let Some(uid) = self.leaves.get(&(leaf, link)) {
            return Ok(*uid);
        }
        let uid = self.write_frame(Some((leaf, link)), &mut write)?;
        self.leaves.insert((leaf, link), uid);
        Ok(uid)
    }

    /// Writes a FRAME packet: of a leaf with its link, or of all `self.words`.
    fn write_frame(
        &mut self,
        linked: Option<(u64, u64)>,
        write: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<StackUid> {
        let uid = StackUid(NonZeroU64::MIN.saturating_add(self.last));
        let pair = linked.map(|(leaf, link)| [leaf, link]);
        let words = pair.as_ref().map_or(self.words.as_slice(), |pair| pair);
        let info = HEAD_BYTES + 8 * words.len() as u32;
        self.packet.clear();
        // A stack without words has no info: an info without words would mean another stack.
        let infos = if words.is_empty() { 0 } else { info };
        let size = (HEAD_BYTES + infos) as usize;
        begin_packet(&mut self.packet, size, FRAME, HEAD_BYTES, uid.get());
        if !words.is_empty() {
            let kind = if linked.is_some() {
                NATIVE | COMPRESSED
            } else {
                NATIVE
            };
            self.packet.extend_from_slice(&info.to_le_bytes());
            self.packet.extend_from_slice(&kind.to_le_bytes());
            self.packet.extend_from_slice(&uid.get().to_le_bytes());
            push_words(&mut self.packet, words);
        }
        write(&self.packet)?;
        self.last = uid.get();
        Ok(uid)
    }
}

/// What of a stack can be stored.
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

fn begin_packet(packet: &mut Vec<u8>, size: usize, kind: u16, second: u32, uid: u64) {
    // MAX_FRAMES keeps every packet below 64 KiB.
    packet.extend_from_slice(&header(size as u16, kind));
    packet.extend_from_slice(&second.to_le_bytes());
    packet.extend_from_slice(&uid.to_le_bytes());
}

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
    fn a_stack_is_written_once_and_a_new_leaf_costs_48_bytes() {
        let mut interner = StackInterner::default();
        let callers: Vec<u64> = (100..130).collect();
        let stack = |leaf| [&[leaf], callers.as_slice()].concat();
        let (first, file) = intern(&mut interner, &stack(1), StackEnd::Complete);
        assert_eq!(file.len(), 16 + 8 * 30 + 48);
        let (again, file) = intern(&mut interner, &stack(1), StackEnd::Complete);
        assert_eq!((again, file.len()), (first, 0));
        let (other, file) = intern(&mut interner, &stack(2), StackEnd::Complete);
        assert_ne!(other, first);
        assert_eq!(file.len(), 48);
    }

    #[test]
    fn the_end_belongs_to_the_stack() {
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
        assert_eq!(file.len(), 16 + 8 * 8000 + 48);
        assert_eq!(file[16 + 8 * 7999..][..8], TRUNCATED.to_le_bytes());
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
        // The callers were written; the frame is still to come.
        let (_, file) = intern(&mut interner, &[1, 2, 3], StackEnd::Complete);
        assert_eq!(file.len(), 48);
    }
}
