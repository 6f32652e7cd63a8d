//! A reader of debug information that counts what is read, so that hostile files cannot take
//! unbounded time.
//!
//! Each table of DWARF is at most as long as its section. But a file may refer to one table from
//! everywhere (a million units that share one line program; a chain of origins; ranges of ranges),
//! and may nest inlined functions a million deep, which the library follows by recursion. Time,
//! memory and stack are then out of proportion to the file. Everything goes through
//! [`gimli::Reader`] and is bounded there: each read costs one unit of a budget proportional to the
//! file, and reads below the allowed stack depth fail. To the library both look like the end of the
//! section.

use std::borrow::Cow;
use std::cell::Cell;

use gimli::{EndianSlice, Error, Reader, ReaderOffsetId, Result, RunTimeEndian};

/// The reads that are allowed for each byte of debug information. Nearly all lines and inlined
/// functions of a program of 80 MB took 0.2 reads per byte, of a small program 0.3.
const READS_PER_BYTE: u64 = 2;
/// The reads that are allowed for a file of any size.
const MIN_READS: u64 = 4 << 20;
/// The bytes of a string that cost as much as a read.
const STRING_BYTES_PER_READ: u64 = 16;

/// The stack size of a reading thread.
pub(super) const STACK_BYTES: usize = 16 << 20;
/// The stack depth at which reads are allowed, from where the meter was made. The rest is for the
/// frame that detects it.
const MAX_DEPTH_BYTES: usize = STACK_BYTES / 2;

/// The budget of one object.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<u64>,
    /// A stack address of the frame that made it.
    stack: usize,
    stopped: Cell<bool>,
}

impl Meter {
    /// Starts a budget for `bytes` bytes of sections. It is valid in the calling thread, which must
    /// have a stack of [`STACK_BYTES`] bytes.
    pub(super) fn new(bytes: u64) -> Meter {
        Meter {
            left: Cell::new(MIN_READS.saturating_add(bytes.saturating_mul(READS_PER_BYTE))),
            stack: here(),
            stopped: Cell::new(false),
        }
    }

    /// Adds the budget of as many bytes more.
    pub(super) fn extend(&self, bytes: u64) {
        let more = bytes.saturating_mul(READS_PER_BYTE);
        self.left.set(self.left.get().saturating_add(more));
    }

    /// Returns whether a read was refused.
    pub(super) fn stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Returns whether the budget is used up.
    pub(super) fn is_empty(&self) -> bool {
        self.left.get() == 0
    }

    fn charge(&self, cost: u64) -> bool {
        let left = self.left.get();
        if left < cost || self.stack.abs_diff(here()) > MAX_DEPTH_BYTES {
            self.stopped.set(true);
            if left < cost {
                self.left.set(0);
            }
            return false;
        }
        self.left.set(left - cost);
        true
    }
}

/// Returns a stack address in the caller's frame or below it.
#[inline(always)]
fn here() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&mark)).addr()
}

/// A part of a section, with the meter that is charged for reads.
#[derive(Clone, Debug)]
pub(super) struct Metered<'a> {
    slice: EndianSlice<'a, RunTimeEndian>,
    meter: &'a Meter,
}

impl<'a> Metered<'a> {
    pub(super) fn new(bytes: &'a [u8], endian: RunTimeEndian, meter: &'a Meter) -> Metered<'a> {
        Metered {
            slice: EndianSlice::new(bytes, endian),
            meter,
        }
    }

    #[inline]
    fn charge(&self, cost: u64) -> Result<()> {
        if self.meter.charge(cost) {
            Ok(())
        } else {
            Err(Error::UnexpectedEof(self.slice.offset_id()))
        }
    }

    fn charge_string(&self, length: usize) -> Result<()> {
        self.charge(1 + length as u64 / STRING_BYTES_PER_READ)
    }
}

impl<'a> Reader for Metered<'a> {
    type Endian = RunTimeEndian;
    type Offset = usize;

    #[inline]
    fn endian(&self) -> RunTimeEndian {
        self.slice.endian()
    }

    #[inline]
    fn len(&self) -> usize {
        self.slice.len()
    }

    #[inline]
    fn empty(&mut self) {
        self.slice.empty();
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.slice.truncate(len)
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        self.slice.offset_from(base.slice)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        self.slice.offset_id()
    }

    #[inline]
    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.slice.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = Reader::find(&self.slice, byte);
        self.charge_string(*found.as_ref().unwrap_or(&self.slice.len()))?;
        found
    }

    #[inline]
    fn skip(&mut self, len: usize) -> Result<()> {
        self.charge(1)?;
        self.slice.skip(len)
    }

    #[inline]
    fn split(&mut self, len: usize) -> Result<Self> {
        self.charge(1)?;
        let slice = self.slice.split(len)?;
        Ok(Metered { slice, ..*self })
    }

    #[inline]
    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.charge(1)?;
        Ok(Cow::Borrowed(self.slice.slice()))
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.charge_string(self.slice.len())?;
        self.slice.to_string().map(Cow::Borrowed)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.charge_string(self.slice.len())?;
        Ok(self.slice.to_string_lossy())
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        self.charge(1)?;
        Reader::read_slice(&mut self.slice, buf)
    }
}
