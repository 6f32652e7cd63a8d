//! The stacks of a `data.frameinfo`, of any collector.
//!
//! Frames, stacks and links are kept as the file has them, and put together when a stack is looked
//! up. The file is not trusted: links may lead nowhere or form a cycle. Both end the stack, which
//! then counts as truncated.

use std::collections::HashSet;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use zerocopy::FromBytes;

use crate::Result;
use crate::log::WordSize;
use crate::packet::walk::{Input, PacketWalk};
use crate::packet::{FRAME, UID};
use crate::stacks::{
    COMPRESSED, HEAD_BYTES, InfoHead, NATIVE, PacketHead, StackEnd, StackUid, TRUNCATED,
    UNWIND_FAILED,
};

/// A call stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Addresses, leaf first. A caller's address is within its call instruction.
    pub frames: Vec<u64>,
    /// Its end.
    pub end: StackEnd,
}

/// A part of stacks, as the file has it: a whole stack, a leaf, or callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackPart<'a> {
    /// Addresses, leaf first.
    pub frames: &'a [u64],
    /// The number of the part where the stack continues.
    pub callers: Option<u64>,
    /// Its end; [`StackEnd::Complete`] where the stack continues.
    pub end: StackEnd,
}

/// The words of one stack uid.
#[derive(Debug, Clone, Copy)]
struct Words {
    /// The range in [`StackTable::words`].
    begin: usize,
    count: usize,
    /// The stack uid where it continues.
    link: Option<u64>,
}

/// All stacks of a file, by uid.
#[derive(Debug, Default)]
pub struct StackTable {
    /// From the uid in a packet to the uid of its native stack; None for a stack without frames.
    frames: FxHashMap<u64, Option<u64>>,
    stacks: FxHashMap<u64, Words>,
    words: Vec<u64>,
}

impl StackTable {
    /// Returns the stacks of all packets of a walk.
    pub(crate) fn read<R: Input>(mut walk: PacketWalk<R>, width: WordSize) -> Result<Self> {
        let mut table = StackTable::default();
        while let Some(packet) = walk.next()? {
            match packet.kind {
                FRAME => table.frame(packet.bytes, width),
                UID => {
                    if let Ok((head, words)) = PacketHead::ref_from_prefix(packet.bytes) {
                        let compressed = head.head_size_or_flags.get() & COMPRESSED != 0;
                        table.add(head.uid.get(), words, compressed, width);
                    }
                }
                _ => {}
            }
        }
        Ok(table)
    }

    /// Returns the number of stacks that packets may refer to.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether the table has no stacks.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The number of a stack's first part, which has the leaf. An outer None means that the file
    /// has no such stack, an inner None that the stack has no frames.
    ///
    /// With [`StackTable::part`], a caller can read many stacks and each common part once. Parts
    /// may be missing, and may form a cycle.
    pub fn first_part(&self, uid: StackUid) -> Option<Option<u64>> {
        self.frames.get(&uid.get()).copied()
    }

    /// A part of stacks; None if the file has no part with this number.
    pub fn part(&self, number: u64) -> Option<StackPart<'_>> {
        let entry = self.stacks.get(&number)?;
        let words = &self.words[entry.begin..entry.begin + entry.count];
        let (frames, end) = match words.split_last() {
            Some((&TRUNCATED, frames)) if entry.link.is_none() => (frames, StackEnd::Truncated),
            Some((&UNWIND_FAILED, frames)) if entry.link.is_none() => {
                (frames, StackEnd::UnwindFailed)
            }
            _ => (words, StackEnd::Complete),
        };
        Some(StackPart {
            frames,
            callers: entry.link,
            end,
        })
    }

    /// The stack of a uid; None if the file has no such stack.
    pub fn get(&self, uid: StackUid) -> Option<Stack> {
        let mut next = *self.frames.get(&uid.get())?;
        let mut frames = Vec::new();
        let mut visited = HashSet::new();
        while let Some(uid) = next {
            // A part that is missing, or was visited already, ends the stack.
            let entry = self.stacks.get(&uid).filter(|_| visited.insert(uid));
            let Some(entry) = entry else {
                return Some(Stack {
                    frames,
                    end: StackEnd::Truncated,
                });
            };
            frames.extend_from_slice(&self.words[entry.begin..entry.begin + entry.count]);
            next = entry.link;
        }
        let end = match frames.last() {
            Some(&TRUNCATED) => StackEnd::Truncated,
            Some(&UNWIND_FAILED) => StackEnd::UnwindFailed,
            _ => StackEnd::Complete,
        };
        if end != StackEnd::Complete {
            frames.pop();
        }
        Some(Stack { frames, end })
    }

    /// Adds a FRAME packet: a list of infos, of which only the native stack is used.
    fn frame(&mut self, packet: &[u8], width: WordSize) {
        let Ok((head, _)) = PacketHead::ref_from_prefix(packet) else {
            return;
        };
        let mut native = None;
        let infos = head.head_size_or_flags.get() as usize;
        let mut rest = packet.get(infos..).unwrap_or_default();
        while let Ok((info, _)) = InfoHead::ref_from_prefix(rest) {
            let size = info.size.get() as usize;
            let Some(words) = rest.get(HEAD_BYTES..size) else {
                break;
            };
            let (kind, stack) = (info.kind.get(), info.uid.get());
            if kind & !COMPRESSED == NATIVE {
                // An info without words refers to a stack that is defined elsewhere.
                if !words.is_empty() {
                    self.add(stack, words, kind & COMPRESSED != 0, width);
                }
                native = Some(stack);
                break;
            }
            rest = &rest[size..];
        }
        self.frames.entry(head.uid.get()).or_insert(native);
    }

    /// Adds the words of a stack uid; the first definition counts.
    fn add(&mut self, uid: u64, bytes: &[u8], compressed: bool, width: WordSize) {
        let Entry::Vacant(entry) = self.stacks.entry(uid) else {
            return;
        };
        let (bytes, link) = match bytes.split_last_chunk::<8>() {
            Some((words, link)) if compressed => (words, Some(u64::from_le_bytes(*link))),
            _ => (bytes, None),
        };
        let begin = self.words.len();
        match width {
            WordSize::Bits64 => {
                let words = bytes.as_chunks::<8>().0;
                self.words
                    .extend(words.iter().map(|word| u64::from_le_bytes(*word)));
            }
            WordSize::Bits32 => {
                let words = bytes
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|word| u32::from_le_bytes(*word));
                // The three largest numbers are marks; they are sign-extended.
                let widen = |word: u32| match word {
                    0xffff_fffd.. => i64::from(word as i32) as u64,
                    address => address.into(),
                };
                self.words.extend(words.map(widen));
            }
        }
        let count = self.words.len() - begin;
        entry.insert(Words { begin, count, link });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::header;
    use crate::stacks::{MAX_FRAMES, StackInterner};
    use proptest::prelude::*;
    use std::io::Cursor;
    use std::path::Path;

    fn read(bytes: &[u8]) -> StackTable {
        read_wide(bytes, WordSize::Bits64)
    }

    fn read_wide(bytes: &[u8], width: WordSize) -> StackTable {
        let walk = PacketWalk::new(Cursor::new(bytes), Path::new("data.frameinfo"));
        StackTable::read(walk, width).unwrap()
    }

    fn uid(number: u64) -> StackUid {
        StackUid::new(number).unwrap()
    }

    fn packet(kind: u16, second: u32, uid: u64, rest: &[u8]) -> Vec<u8> {
        let mut packet = header(16 + rest.len() as u16, kind).to_vec();
        packet.extend(second.to_le_bytes());
        packet.extend(uid.to_le_bytes());
        packet.extend(rest);
        packet
    }

    fn info(kind: u32, uid: u64, words: &[u8]) -> Vec<u8> {
        let mut info = (16 + words.len() as u32).to_le_bytes().to_vec();
        info.extend(kind.to_le_bytes());
        info.extend(uid.to_le_bytes());
        info.extend(words);
        info
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn links_that_lead_nowhere_or_form_a_cycle_end_the_stack() {
        let link = NATIVE | COMPRESSED;
        let file = [
            packet(FRAME, 16, 1, &info(link, 1, &words(&[10, 99]))),
            packet(FRAME, 16, 2, &info(link, 2, &words(&[20, 3]))),
            packet(UID, COMPRESSED, 3, &words(&[30, 4])),
            packet(UID, COMPRESSED, 4, &words(&[40, 3])),
        ];
        let table = read(&file.concat());
        let truncated = |frames: &[u64]| {
            Some(Stack {
                frames: frames.to_vec(),
                end: StackEnd::Truncated,
            })
        };
        assert_eq!(table.get(uid(1)), truncated(&[10]));
        assert_eq!(table.get(uid(2)), truncated(&[20, 30, 40]));
        assert_eq!(table.get(uid(9)), None);
    }

    #[test]
    fn an_info_without_words_means_another_stack_and_java_is_skipped() {
        let java = info(2, 70, &words(&[1, 2]));
        let native = info(NATIVE, 50, &[]);
        let file = [
            packet(FRAME, 16, 1, &[java, native].concat()),
            packet(UID, 0, 50, &words(&[5, 6])),
            packet(UID, 0, 50, &words(&[7])),
        ];
        let stack = read(&file.concat()).get(uid(1)).unwrap();
        assert_eq!((stack.frames, stack.end), (vec![5, 6], StackEnd::Complete));
    }

    #[test]
    fn words_of_32_bits_are_widened_and_so_are_their_marks() {
        let words: Vec<u8> = [0x8000_0010u32, 0xffff_fffe].map(u32::to_le_bytes).concat();
        let file = packet(FRAME, 16, 1, &info(NATIVE, 1, &words));
        let stack = read_wide(&file, WordSize::Bits32).get(uid(1)).unwrap();
        assert_eq!(
            (stack.frames, stack.end),
            (vec![0x8000_0010], StackEnd::Truncated)
        );
    }

    fn stacks() -> impl Strategy<Value = Vec<(Vec<u64>, StackEnd)>> {
        let end = prop::sample::select(vec![
            StackEnd::Complete,
            StackEnd::Truncated,
            StackEnd::UnwindFailed,
        ]);
        // Few different words, so that stacks share callers.
        let branch = prop::collection::vec(1u64..4, 0..6);
        // Deep ones too, which are stored in several parts.
        let root =
            (0u64..40, 1u64..3).prop_map(|(depth, of)| (0..depth).map(move |it| 100 + it / of));
        let stack =
            (branch, root).prop_map(|(branch, root)| branch.into_iter().chain(root).collect());
        prop::collection::vec((stack, end), 1..20)
    }

    proptest! {
        #[test]
        fn what_is_interned_is_found(stacks in stacks()) {
            let (mut file, mut interner) = (Vec::new(), StackInterner::default());
            let mut uids = Vec::new();
            for (frames, end) in &stacks {
                let uid = interner.intern(frames, *end, |packet| {
                    file.extend_from_slice(packet);
                    Ok(())
                });
                uids.push(uid.unwrap());
            }
            let table = read(&file);
            for (uid, (frames, end)) in uids.iter().zip(&stacks) {
                let expected = Stack { frames: frames.clone(), end: *end };
                prop_assert_eq!(table.get(*uid), Some(expected.clone()));
                let mut of_parts = Stack { frames: Vec::new(), end: StackEnd::Complete };
                let mut next = table.first_part(*uid).unwrap();
                while let Some(part) = next.map(|number| table.part(number).unwrap()) {
                    of_parts.frames.extend(part.frames);
                    of_parts.end = part.end;
                    next = part.callers;
                }
                prop_assert_eq!(of_parts, expected);
            }
        }

        #[test]
        fn a_cut_file_has_the_stacks_whose_packets_are_whole(stacks in stacks(), cut: prop::sample::Index) {
            let (mut file, mut interner) = (Vec::new(), StackInterner::default());
            let mut known = Vec::new();
            for (frames, end) in &stacks {
                let uid = interner.intern(frames, *end, |packet| {
                    file.extend_from_slice(packet);
                    Ok(())
                });
                known.push((uid.unwrap(), file.len()));
            }
            let cut = cut.index(file.len() + 1);
            let table = read(&file[..cut]);
            for ((uid, written), (frames, end)) in known.into_iter().zip(&stacks) {
                let found = table.get(uid);
                if written <= cut {
                    prop_assert_eq!(found, Some(Stack { frames: frames.clone(), end: *end }));
                }
            }
        }

        #[test]
        fn any_bytes_are_read_and_every_stack_ends(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(16), Just(11), any::<u8>()], 0..600),
        ) {
            let table = read(&bytes);
            for uid in table.frames.keys().filter_map(|number| StackUid::new(*number)) {
                let _ = table.get(uid);
            }
        }
    }

    #[test]
    fn the_deepest_stack_comes_back() {
        let frames: Vec<u64> = (1..=MAX_FRAMES as u64).collect();
        let mut file = Vec::new();
        let interned = StackInterner::default().intern(&frames, StackEnd::UnwindFailed, |packet| {
            file.extend_from_slice(packet);
            Ok(())
        });
        let stack = read(&file).get(interned.unwrap()).unwrap();
        assert_eq!((stack.frames, stack.end), (frames, StackEnd::UnwindFailed));
    }
}
