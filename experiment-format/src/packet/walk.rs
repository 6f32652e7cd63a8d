//! Walking over the packets of a file.
//!
//! The rules are gprofng's, so that both count the same packets in a file that is still being
//! written, was cut, or is damaged: from a packet of size 0, and from one that does not begin at a
//! multiple of 4, the walk skips to the next multiple of 16 KiB; a packet that reaches beyond the
//! end of the file ends it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use nix::unistd::{Whence, lseek};

use crate::Result;
use crate::error::Error;
use crate::packet::{CLOSED, EMPTY, HEADER_BYTES};

/// After a hole or damage, a walk continues at the next multiple of this.
const RESUME_BYTES: u64 = 16 * 1024;
/// A file is read in pieces of this size: more than the largest packet.
const PIECE_BYTES: usize = 256 * 1024;

/// The input of a walk.
pub(crate) trait Input: Read + Seek {
    /// Offset of the first byte at or after `from` that is not in a hole; `from` if the input can't
    /// tell. A file may be nearly all hole, and holes are read as fast as data.
    fn data_after(&mut self, from: u64) -> u64 {
        from
    }
}

impl Input for File {
    fn data_after(&mut self, from: u64) -> u64 {
        let Ok(offset) = i64::try_from(from) else {
            return from;
        };
        // Without data up to the end (ENXIO) the rest is a hole.
        let data = lseek(&*self, offset, Whence::SeekData);
        let data = data.or_else(|_| lseek(&*self, 0, Whence::SeekEnd));
        data.map_or(from, |data| from.max(data.cast_unsigned()))
    }
}

/// A packet as it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawPacket<'a> {
    /// Its type.
    pub(crate) kind: u16,
    /// Its offset in the file.
    pub(crate) offset: u64,
    /// All of it, header included.
    pub(crate) bytes: &'a [u8],
}

/// A walk over the packets of a file, from its beginning. It leaves out EMPTY and CLOSED packets.
///
/// Holds one piece of the file at a time, however large the file is.
#[derive(Debug)]
pub(crate) struct PacketWalk<R = File> {
    input: R,
    path: PathBuf,
    /// A piece of the file.
    piece: Vec<u8>,
    /// The offset of the piece in the file.
    piece_offset: u64,
    /// The offset of the next packet in the file.
    offset: u64,
    /// Packets that began at no multiple of 4, or were too small for a header.
    invalid: u64,
}

impl<R: Input> PacketWalk<R> {
    /// Begins a walk over `input`, named `path` in errors.
    pub(crate) fn new(input: R, path: &Path) -> Self {
        PacketWalk {
            input,
            path: path.to_owned(),
            piece: Vec::new(),
            piece_offset: 0,
            offset: 0,
            invalid: 0,
        }
    }

    /// Returns the number of damaged places passed so far.
    pub(crate) fn invalid(&self) -> u64 {
        self.invalid
    }

    /// Returns the next packet, none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RawPacket<'_>>> {
        let Some((kind, size)) = self.reach()? else {
            return Ok(None);
        };
        let (offset, begin) = (self.offset, (self.offset - self.piece_offset) as usize);
        self.offset += size as u64;
        let bytes = &self.piece[begin..begin + size];
        Ok(Some(RawPacket {
            kind,
            offset,
            bytes,
        }))
    }

    /// Returns the type of the next packet, none at the end.
    pub(crate) fn peek_kind(&mut self) -> Result<Option<u16>> {
        Ok(self.reach()?.map(|(kind, _)| kind))
    }

    /// Goes to the next packet that is not left out and reads all of it into the piece. Returns its
    /// type and size.
    fn reach(&mut self) -> Result<Option<(u16, usize)>> {
        loop {
            let Some([a, b, c, d]) = self.bytes(HEADER_BYTES)?.first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let (size, kind) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
            let damaged = !self.offset.is_multiple_of(4) || (1..4).contains(&size);
            if size == 0 || damaged {
                self.invalid += u64::from(damaged);
                // A file is at most 2^63 bytes long.
                let next = (self.offset + 1).next_multiple_of(RESUME_BYTES);
                let data = self.input.data_after(next);
                self.offset = next.max(data / RESUME_BYTES * RESUME_BYTES);
                continue;
            }
            let size = usize::from(size);
            if self.bytes(size)?.len() < size {
                return Ok(None);
            }
            if !matches!(kind, EMPTY | CLOSED) {
                return Ok(Some((kind, size)));
            }
            self.offset += size as u64;
        }
    }

    /// Returns the next `count` bytes, or as many as there are.
    fn bytes(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.offset + count as u64;
        let held = self.piece_offset..=self.piece_offset + self.piece.len() as u64;
        if !(held.contains(&self.offset) && held.contains(&end)) {
            self.fill()
                .map_err(|error| Error::io("read", &self.path, error))?;
        }
        let begin = (self.offset - self.piece_offset) as usize;
        let rest = self.piece.get(begin..).unwrap_or_default();
        Ok(&rest[..count.min(rest.len())])
    }

    /// Reads the piece that begins with the next packet.
    fn fill(&mut self) -> io::Result<()> {
        self.piece_offset = self.offset;
        self.piece.clear();
        self.input.seek(SeekFrom::Start(self.offset))?;
        self.input
            .by_ref()
            .take(PIECE_BYTES as u64)
            .read_to_end(&mut self.piece)?;
        Ok(())
    }
}

#[cfg(test)]
impl Input for io::Cursor<&[u8]> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::header;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn kinds(bytes: &[u8]) -> (Vec<(u16, u64)>, u64) {
        let mut walk = PacketWalk::new(Cursor::new(bytes), Path::new("profile"));
        let mut found = Vec::new();
        while let Some(packet) = walk.next().unwrap() {
            assert_eq!(
                &bytes[packet.offset as usize..][..packet.bytes.len()],
                packet.bytes
            );
            found.push((packet.kind, packet.offset));
        }
        (found, walk.invalid())
    }

    fn packet(size: u16, kind: u16) -> Vec<u8> {
        let mut packet = vec![0xaa; size.into()];
        packet[..4].copy_from_slice(&header(size, kind));
        packet
    }

    #[test]
    fn empty_and_closed_packets_are_skipped_and_others_kept() {
        let file = [
            packet(8, 8),
            packet(40, 0),
            packet(12, 200),
            packet(16, CLOSED),
            packet(4, 11),
        ];
        assert_eq!(kinds(&file.concat()).0, [(8, 0), (200, 48), (11, 76)]);
    }

    #[test]
    fn a_hole_ends_at_a_multiple_of_16_kib() {
        let mut file = packet(8, 8);
        file.resize(16384, 0);
        file.extend(packet(8, 9));
        file.extend(vec![0; 100]);
        file.extend(packet(8, 10));
        assert_eq!(kinds(&file), (vec![(8, 0), (9, 16384)], 0));
    }

    #[test]
    fn a_hole_of_a_terabyte_takes_no_time() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&packet(8, 8), 0).unwrap();
        file.write_all_at(&packet(8, 9), (1 << 39) + 16384).unwrap();
        let mut walk = PacketWalk::new(file, Path::new("profile"));
        let mut found = Vec::new();
        while let Some(packet) = walk.next().unwrap() {
            found.push((packet.kind, packet.offset));
        }
        assert_eq!(found, [(8, 0), (9, (1 << 39) + 16384)]);
    }

    #[test]
    fn a_packet_at_an_odd_place_is_passed() {
        let mut file = packet(9, 8);
        file.extend(packet(8, 9));
        file.resize(16384, 1);
        file.extend(packet(8, 10));
        assert_eq!(kinds(&file), (vec![(8, 0), (10, 16384)], 1));
    }

    #[test]
    fn a_cut_file_has_its_complete_packets() {
        let sizes = [8u16, 48, 40, 200, 12];
        let file: Vec<u8> = sizes.iter().flat_map(|size| packet(*size, 8)).collect();
        for cut in 0..=file.len() {
            let mut end = 0;
            let whole = sizes.iter().take_while(|size| {
                end += usize::from(**size);
                end <= cut
            });
            assert_eq!(kinds(&file[..cut]).0.len(), whole.count(), "cut at {cut}");
        }
    }

    #[test]
    fn packets_across_the_pieces_of_a_large_file_are_whole() {
        let file: Vec<u8> = (0..20_000)
            .flat_map(|n| packet(40 + 8 * (n % 5), 8))
            .collect();
        assert!(file.len() > 3 * PIECE_BYTES);
        assert_eq!(kinds(&file).0.len(), 20_000);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            kinds(&bytes);
        }
    }
}
