//! A mapped file of packets that a reader can walk at every instant.
//!
//! Packets are stored by memory writes, without a system call for each. A reader that looks at any
//! moment, or after the writer was killed, must see whole packets only:
//!
//! * The file grows by blocks of 64 KiB. Each is reserved on disk before it is mapped, so that a
//!   full disk is an error of the reservation and not a SIGBUS of a later store.
//! * The unused rest of a block is always covered by an EMPTY packet. A new packet is stored in
//!   this order: the EMPTY header after it, its body, its own header. The last is one atomic store
//!   with release ordering. Before that store, the old EMPTY header still covers all of it.
//! * Between the reservation of a block and its first header it is all zeros. A reader that meets
//!   a packet of size 0 continues at the next multiple of 16 KiB, so it skips the block.
//!
//! A packet's size is a 16-bit number, so a fresh block needs two EMPTY packets: a first of 65532
//! bytes and a second of 4. Packets are multiples of 4 bytes. So the largest packet is no larger
//! than the first of the two, and the second stays valid after it.
//!
//! Two failures cannot be excluded: the disk may fail while a block is mapped, and the owner of the
//! file may truncate it. Then the next packet is an error, and so are all that follow
//! ([`bus_error`](crate::file::bus_error)).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::Result;
use crate::error::Error;
use crate::file::append::retry;
use crate::file::bus_error::{DiskFailed, store_guarded};
use crate::packet::{EMPTY, HEADER_BYTES, header};

/// The size of a block: a multiple of the page size of every machine.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
/// The size of every packet is a multiple of this.
const PACKET_ALIGN_BYTES: usize = 4;
/// The size of the largest packet: the largest multiple of 4 that 16 bits can hold.
const MAX_PACKET_BYTES: usize = BLOCK_BYTES - PACKET_ALIGN_BYTES;

/// A file of packets, filled through a mapping.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: File,
    path: PathBuf,
    /// The block being filled, and where in the file it begins.
    block: Option<(MmapMut, u64)>,
    /// Bytes of the block that are used.
    used: usize,
    /// Whether the disk failed under a block.
    failed: bool,
}

impl BlockFile {
    /// Takes a new, empty file.
    pub(crate) fn new(file: File, path: &Path) -> Self {
        BlockFile {
            file,
            path: path.to_owned(),
            block: None,
            used: 0,
            failed: false,
        }
    }

    /// Returns the bytes from the beginning of the file to the end of its last packet.
    pub(crate) fn len(&self) -> u64 {
        self.block
            .as_ref()
            .map_or(0, |(_, offset)| *offset + self.used as u64)
    }

    /// Appends a packet, header included.
    ///
    /// # Errors
    ///
    /// A full disk, which leaves the packets before as they are; a failed disk; a packet that is
    /// too large, or whose size is no multiple of 4.
    pub(crate) fn append(&mut self, packet: &[u8]) -> Result<()> {
        let size = packet.len();
        let first: [u8; HEADER_BYTES] = match packet.first_chunk() {
            Some(first) if size <= MAX_PACKET_BYTES && size.is_multiple_of(PACKET_ALIGN_BYTES) => {
                *first
            }
            _ => {
                let what = format!("a packet of {size} bytes");
                return Err(Error::unwritable(&self.path, what));
            }
        };
        if self.failed {
            return Err(self.disk_failed(DiskFailed));
        }
        if self.block.is_none() || self.used + size > BLOCK_BYTES {
            self.next_block()?;
        }
        let Some((map, _)) = &mut self.block else {
            return Ok(());
        };
        let (used, end) = (self.used, self.used + size);
        let stored = store_guarded(map, |map| {
            // The rest after the first packet of a block fits in one EMPTY packet: a packet has 4
            // bytes at least.
            if end < BLOCK_BYTES {
                let rest = header((BLOCK_BYTES - end) as u16, EMPTY);
                map[end..end + HEADER_BYTES].copy_from_slice(&rest);
            }
            map[used + HEADER_BYTES..end].copy_from_slice(&packet[HEADER_BYTES..]);
            store_header(map, used, first);
        });
        stored.map_err(|failed| self.disk_failed(failed))?;
        self.used = end;
        Ok(())
    }

    /// Ends all storing. The signal does not say why the disk failed; reserving the block again
    /// returns the reason.
    fn disk_failed(&mut self, _: DiskFailed) -> Error {
        self.failed = true;
        let offset = self.block.as_ref().map_or(0, |(_, offset)| *offset);
        let keep = FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let again = retry(|| fallocate(&self.file, keep, offset as i64, BLOCK_BYTES as i64));
        Error::io("write", &self.path, again.err().unwrap_or(Errno::EIO))
    }

    /// Reserves and maps the block after the last one.
    fn next_block(&mut self) -> Result<()> {
        let offset = self
            .block
            .as_ref()
            .map_or(0, |(_, offset)| offset + BLOCK_BYTES as u64);
        self.reserve(offset)?;
        let mut options = MmapOptions::new();
        options.offset(offset).len(BLOCK_BYTES);
        // SAFETY: the file was made for this writer alone; the range exists on disk, see `reserve`.
        let mut map = unsafe { options.map_mut(&self.file) }
            .map_err(|error| Error::io("map", &self.path, error))?;
        let stored = store_guarded(&mut map, |map| {
            map[MAX_PACKET_BYTES..MAX_PACKET_BYTES + HEADER_BYTES]
                .copy_from_slice(&header(PACKET_ALIGN_BYTES as u16, EMPTY));
            store_header(map, 0, header(MAX_PACKET_BYTES as u16, EMPTY));
        });
        self.block = Some((map, offset));
        self.used = 0;
        stored.map_err(|failed| self.disk_failed(failed))
    }

    /// Makes the file one block longer, with space on disk under it.
    fn reserve(&mut self, offset: u64) -> Result<()> {
        let all = FallocateFlags::empty();
        let reserved = match retry(|| fallocate(&self.file, all, offset as i64, BLOCK_BYTES as i64))
        {
            Ok(()) => return Ok(()),
            // A file system that cannot reserve: written zeros occupy the space.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                self.file.write_all_at(&[0; BLOCK_BYTES], offset)
            }
            Err(other) => Err(other.into()),
        };
        reserved.map_err(|error| {
            // The attempt may have made the file longer. If cutting fails, zeros remain, which mean
            // nothing. The first error is the one to return.
            let _ = self.file.set_len(offset);
            Error::io("reserve space for", &self.path, error)
        })
    }

    /// Cuts the file after its last packet.
    pub(crate) fn close(self) -> Result<()> {
        let len = self.len();
        drop(self.block);
        self.file
            .set_len(len)
            .map_err(|error| Error::io("truncate", &self.path, error))
    }
}

/// Stores a packet's header, after everything that was stored before.
fn store_header(map: &mut MmapMut, offset: usize, header: [u8; HEADER_BYTES]) {
    let header_bytes = &mut map[offset..offset + HEADER_BYTES];
    let stored = header_bytes.as_mut_ptr().cast::<u32>();
    // SAFETY: 4 bytes of a live mapping, borrowed exclusively in this process, and aligned:
    // mappings begin at a page and packets are multiples of 4 bytes.
    let stored = unsafe { AtomicU32::from_ptr(stored) };
    stored.store(u32::from_ne_bytes(header), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> (tempfile::TempDir, PathBuf, BlockFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile");
        let file = BlockFile::new(File::create_new(&path).unwrap(), &path);
        (dir, path, file)
    }

    fn packet(size: usize, fill: u8) -> Vec<u8> {
        let mut packet = vec![fill; size];
        packet[..4].copy_from_slice(&header(size as u16, 8));
        packet
    }

    /// Returns the packets of a file, found by the format's rules, without EMPTY ones.
    fn walk(bytes: &[u8]) -> Vec<Vec<u8>> {
        let (mut at, mut packets) = (0, Vec::new());
        while let Some(header) = bytes.get(at..at + 4) {
            let size = usize::from(u16::from_le_bytes([header[0], header[1]]));
            if size == 0 {
                at = (at + 1).next_multiple_of(16384);
                continue;
            }
            assert_eq!(size % 4, 0, "size at {at}");
            let Some(packet) = bytes.get(at..at + size) else {
                break;
            };
            if header[2..4] != [0, 0] {
                packets.push(packet.to_vec());
            }
            at += size;
        }
        packets
    }

    #[test]
    fn a_block_is_covered_at_every_step() {
        let (_dir, path, mut file) = file();
        let mut written = Vec::new();
        for n in 0..3000 {
            let packet = packet(40 + 4 * (n % 7), n as u8);
            file.append(&packet).unwrap();
            written.push(packet);
            if n % 100 == 0 {
                let bytes = std::fs::read(&path).unwrap();
                assert_eq!(bytes.len() % BLOCK_BYTES, 0);
                assert_eq!(walk(&bytes), written);
            }
        }
        let len = file.len();
        file.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, len);
        assert_eq!(walk(&bytes), written);
    }

    #[test]
    fn a_file_that_is_truncated_under_it_is_an_error_and_stays_one() {
        let (_dir, path, mut file) = file();
        file.append(&packet(40, 1)).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        for _ in 0..2 {
            let error = file.append(&packet(48, 2)).unwrap_err();
            assert!(error.to_string().contains("profile"), "{error}");
        }
        file.close().unwrap();
        // Others are not touched.
        let (_dir, _, mut other) = self::file();
        other.append(&packet(40, 3)).unwrap();
    }

    #[test]
    fn the_largest_packet_fits_and_a_larger_one_is_refused() {
        let (_dir, path, mut file) = file();
        for n in 0..3 {
            file.append(&packet(MAX_PACKET_BYTES, n)).unwrap();
            assert_eq!(walk(&std::fs::read(&path).unwrap()).len(), n as usize + 1);
        }
        assert!(file.append(&vec![0; BLOCK_BYTES]).is_err());
        assert!(file.append(&[0; 10]).is_err());
        assert!(file.append(&[]).is_err());
    }

    #[test]
    fn a_block_without_its_first_header_is_skipped() {
        let (_dir, path, mut file) = file();
        file.append(&packet(40, 1)).unwrap();
        file.reserve(BLOCK_BYTES as u64).unwrap();
        assert_eq!(walk(&std::fs::read(&path).unwrap()).len(), 1);
    }

    #[test]
    fn a_block_whose_first_packet_is_not_finished_is_empty() {
        let (_dir, path, mut file) = file();
        file.next_block().unwrap();
        // All that `append` does with the largest packet before its last store.
        let (map, _) = file.block.as_mut().unwrap();
        map[4..MAX_PACKET_BYTES].fill(0xff);
        assert_eq!(walk(&std::fs::read(&path).unwrap()).len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn packets_of_all_sizes_come_back(sizes in prop::collection::vec(1usize..=16383, 1..60)) {
            let (_dir, path, mut file) = file();
            let packets: Vec<_> =
                sizes.iter().enumerate().map(|(n, size)| packet(size * 4, n as u8)).collect();
            for packet in &packets {
                file.append(packet).unwrap();
            }
            prop_assert_eq!(&walk(&std::fs::read(&path).unwrap()), &packets);
            file.close().unwrap();
            prop_assert_eq!(&walk(&std::fs::read(&path).unwrap()), &packets);
        }
    }
}
