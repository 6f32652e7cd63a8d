//! The mapped ring of one perf event: the kernel writes the head, kcollect the tail.
//!
//! `perf_event_open(2)`, section "MMAP layout": one control page, then 2^n pages of data. The bytes
//! between tail and head can be copied; advancing the tail frees them.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;

/// A perf event with its ring.
#[derive(Debug)]
pub struct PerfRing {
    event: OwnedFd,
    map: MmapRaw,
    page: usize,
}

impl PerfRing {
    /// Maps `2^order` pages of data of `page` bytes for an event.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub fn new(event: OwnedFd, page: usize, order: u32) -> io::Result<PerfRing> {
        let map = MmapOptions::new()
            .len(page + (page << order))
            .map_raw(event.as_raw_fd())?;
        Ok(PerfRing { event, map, page })
    }

    /// Appends all unread bytes to `bytes` and frees their space.
    ///
    /// Records are whole: the kernel advances the head past finished records only.
    pub fn take(&self, bytes: &mut Vec<u8>) {
        let size = (self.map.len() - self.page) as u64;
        // SAFETY: the offset lies in the control page, 8-aligned, and the kernel writes it
        // atomically.
        let head = unsafe { self.control(std::mem::offset_of!(perf_event_mmap_page, data_head)) };
        // SAFETY: as above; only this ring writes the tail.
        let tail = unsafe { self.control(std::mem::offset_of!(perf_event_mmap_page, data_tail)) };
        let end = head.load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        // The kernel never lets head run more than the ring's size ahead of tail; a wrong
        // control page must not lead to a read beyond the map.
        let unread = end.wrapping_sub(begin).min(size);
        let at = begin % size;
        let first = unread.min(size - at);
        self.copy(at as usize, first as usize, bytes);
        self.copy(0, (unread - first) as usize, bytes);
        tail.store(end, Ordering::Release);
    }

    /// Copies bytes at an offset of the ring's stream, before or after the head: they may be old,
    /// or be written at this moment. The offset and the number of bytes are multiples of eight.
    pub fn peek(&self, offset: u64, bytes: &mut [u8]) {
        let size = (self.map.len() - self.page) as u64;
        for (number, word) in bytes.chunks_exact_mut(8).enumerate() {
            let within = (offset + 8 * number as u64) % size / 8 * 8;
            // SAFETY: the offset is within the data pages and 8-aligned; the kernel
            // writes there in whole words.
            let value = unsafe { self.control(self.page + within as usize) };
            word.copy_from_slice(&value.load(Ordering::Acquire).to_ne_bytes());
        }
    }

    /// Returns the offset in the stream up to which the kernel has finished records.
    pub fn head(&self) -> u64 {
        // SAFETY: the offset lies in the control page, 8-aligned, and the kernel writes it
        // atomically.
        let head = unsafe { self.control(std::mem::offset_of!(perf_event_mmap_page, data_head)) };
        head.load(Ordering::Acquire)
    }

    /// Frees all space before an offset of the stream.
    pub fn free(&self, offset: u64) {
        // SAFETY: the offset lies in the control page, 8-aligned; only this
        // ring writes the tail.
        let tail = unsafe { self.control(std::mem::offset_of!(perf_event_mmap_page, data_tail)) };
        tail.store(offset, Ordering::Release);
    }

    /// Returns a word of the map.
    ///
    /// # Safety
    /// At `offset` must be an 8-byte field of the control page, or an aligned word of the data.
    unsafe fn control(&self, offset: usize) -> &AtomicU64 {
        let field = self.map.as_mut_ptr().wrapping_add(offset).cast();
        // SAFETY: at the offset is a word of the map, which exists as long as `self`.
        unsafe { AtomicU64::from_ptr(field) }
    }

    fn copy(&self, at: usize, count: usize, bytes: &mut Vec<u8>) {
        let from = self.map.as_ptr().wrapping_add(self.page + at);
        bytes.reserve(count);
        let to = bytes.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `take` keeps `at + count` within the data pages; the kernel does not write
        // between tail and head; `to` has space for `count` bytes just reserved.
        unsafe { ptr::copy_nonoverlapping(from, to, count) };
        // SAFETY: the copy above initialised those bytes.
        unsafe { bytes.set_len(bytes.len() + count) };
    }
}

impl AsFd for PerfRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
