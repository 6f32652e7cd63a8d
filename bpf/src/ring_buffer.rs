//! The reader of a BPF ring buffer, as the kernel's documentation of `BPF_MAP_TYPE_RINGBUF` has it:
//! the kernel writes the producer's position and the records, this the consumer's position.
//!
//! libbpf maps the data twice, one after the other, so that each record is in one piece. Its
//! memory then counts twice for this process. Here every record is copied anyway, so it may be in
//! two pieces.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// A record has a header of a word with its length and these bits, and another word.
const HEADER_BYTES: u64 = 8;
/// `BPF_RINGBUF_BUSY_BIT`: the record is being written.
const BUSY: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`: the record is to be skipped.
const DISCARDED: u32 = 1 << 30;

/// A ring buffer that only this reads.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    fd: OwnedFd,
    /// A page with the consumer's position.
    consumer: MmapRaw,
    /// A page with the producer's position, and the data.
    producer: MmapRaw,
    page: usize,
    /// The bytes of the data, a power of two.
    size: u64,
}

impl RingBuffer {
    /// Maps a ring buffer of `size` bytes.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub(crate) fn map(fd: OwnedFd, size: u32) -> io::Result<RingBuffer> {
        let page = rustix::param::page_size();
        let consumer = MmapOptions::new().len(page).map_raw(fd.as_raw_fd())?;
        let producer = MmapOptions::new()
            .offset(page as u64)
            .len(page + size as usize)
            .map_raw_read_only(fd.as_raw_fd())?;
        Ok(RingBuffer {
            fd,
            consumer,
            producer,
            page,
            size: size.into(),
        })
    }

    /// Appends the records that are complete to `bytes`, in their order, and frees their space.
    /// `each` is called with each of them.
    pub(crate) fn take(&self, bytes: &mut Vec<u8>, mut each: impl FnMut(&[u8])) {
        // SAFETY: the position is the first word of its page, and only this ring writes it.
        let consumer = unsafe { AtomicU64::from_ptr(self.consumer.as_mut_ptr().cast()) };
        // SAFETY: likewise; the kernel writes it atomically, and the load below writes nothing.
        let producer = unsafe { AtomicU64::from_ptr(self.producer.as_mut_ptr().cast()) };
        let mut at = consumer.load(Ordering::Relaxed);
        let end = producer.load(Ordering::Acquire);
        while at < end {
            let header = self.header(at);
            if header & BUSY != 0 {
                break;
            }
            let length = u64::from(header & !DISCARDED);
            if header & DISCARDED == 0 {
                let begin = bytes.len();
                self.copy(at + HEADER_BYTES, length, bytes);
                each(&bytes[begin..]);
            }
            at += (HEADER_BYTES + length).next_multiple_of(8);
            consumer.store(at, Ordering::Release);
        }
    }

    /// Returns the first word of the record at a position of the stream.
    fn header(&self, at: u64) -> u32 {
        let word = self.data((at % self.size) as usize / 8 * 8);
        // SAFETY: the word is aligned and within the data; the kernel writes it atomically, and
        // this only loads it.
        let header = unsafe { AtomicU32::from_ptr(word.cast_mut().cast()) };
        header.load(Ordering::Acquire)
    }

    /// Appends the bytes at a position of the stream: from there to the end of the data, and the
    /// rest from their beginning.
    fn copy(&self, at: u64, length: u64, bytes: &mut Vec<u8>) {
        // The kernel writes no longer ones; a wrong length must not lead to a read beyond the map.
        let length = length.min(self.size);
        let at = at % self.size;
        let first = length.min(self.size - at);
        for (at, length) in [(at, first), (0, length - first)] {
            let from = self.data(at as usize);
            // SAFETY: the bytes are within the data, and the kernel does not write to a complete
            // record before the consumer's position is after it.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, length as usize) });
        }
    }

    fn data(&self, offset: usize) -> *const u8 {
        self.producer.as_ptr().wrapping_add(self.page + offset)
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 4096;

    /// Writes as the kernel does, into a file that is mapped like a ring.
    struct Kernel {
        ring: RingBuffer,
        pages: MmapRaw,
    }

    impl Kernel {
        fn new() -> Kernel {
            let page = rustix::param::page_size();
            let file = tempfile::tempfile().unwrap();
            file.set_len((2 * page + SIZE) as u64).unwrap();
            let pages = MmapOptions::new().map_raw(file.as_raw_fd()).unwrap();
            let ring = RingBuffer::map(file.into(), SIZE as u32).unwrap();
            Kernel { ring, pages }
        }

        fn word(&self, offset: usize) -> &AtomicU64 {
            // SAFETY: a word of the pages, aligned, which live as long as this.
            unsafe { AtomicU64::from_ptr(self.pages.as_mut_ptr().wrapping_add(offset).cast()) }
        }

        fn free(&self) -> u64 {
            let used = self.word(self.ring.page).load(Ordering::Relaxed)
                - self.word(0).load(Ordering::Relaxed);
            SIZE as u64 - used
        }

        /// Writes a record whose header has these bits. Returns the offset of its header.
        fn write(&self, bytes: &[u8], bits: u32) -> usize {
            let page = self.ring.page;
            let at = self.word(page).load(Ordering::Relaxed) as usize;
            let whole = 8 + bytes.len().next_multiple_of(8);
            let mut words = vec![0; whole];
            words[..4].copy_from_slice(&(bytes.len() as u32 | bits).to_ne_bytes());
            words[8..8 + bytes.len()].copy_from_slice(bytes);
            for (number, word) in words.as_chunks::<8>().0.iter().enumerate() {
                let offset = 2 * page + (at + 8 * number) % SIZE;
                (self.word(offset)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            self.word(page)
                .store((at + whole) as u64, Ordering::Release);
            2 * page + at % SIZE
        }

        fn take(&self) -> Vec<Vec<u8>> {
            let (mut bytes, mut records) = (vec![1, 2, 3], Vec::new());
            self.ring
                .take(&mut bytes, |record| records.push(record.to_vec()));
            assert_eq!(bytes, [vec![1, 2, 3], records.concat()].concat());
            records
        }
    }

    #[test]
    fn a_record_that_is_being_written_holds_up_those_behind_it() {
        let kernel = Kernel::new();
        kernel.write(b"first", 0);
        let busy = kernel.write(b"second", BUSY);
        kernel.write(b"none", DISCARDED);
        kernel.write(b"", 0);
        kernel.write(b"last", 0);
        assert_eq!(kernel.take(), [b"first"]);
        assert!(kernel.take().is_empty());
        kernel.word(busy).store(6, Ordering::Release);
        assert_eq!(kernel.take(), [&b"second"[..], b"", b"last"]);
        assert_eq!(kernel.free(), SIZE as u64);
    }

    proptest! {
        /// Records lie over the end of the data at every offset.
        #[test]
        fn all_records_come_in_their_order(
            lengths in prop::collection::vec((0..1500usize, any::<u8>(), any::<bool>()), 1..200),
        ) {
            let kernel = Kernel::new();
            let (mut written, mut taken) = (Vec::new(), Vec::new());
            for (length, byte, take) in lengths {
                let record: Vec<u8> = (0..length).map(|at| byte.wrapping_add(at as u8)).collect();
                if take || kernel.free() < 8 + 1504 {
                    taken.extend(kernel.take());
                    prop_assert_eq!(kernel.free(), SIZE as u64);
                }
                kernel.write(&record, 0);
                written.push(record);
            }
            taken.extend(kernel.take());
            prop_assert!(written == taken);
        }
    }
}
