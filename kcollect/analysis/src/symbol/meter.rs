//! A reader of debug information that counts, so that a hostile file ends what it begins.
//!
//! Each table of DWARF is as long as its section at most. But a file may point at one table from
//! everywhere (a million units that share one line program; a chain of origins; ranges of ranges),
//! and may nest inlined functions a million deep, through which the library descends by recursion.
//! Time, memory and stack are then out of proportion to the file. All of it goes through
//! [`gimli::Reader`], and so there it is stopped: each read costs one unit of a budget that is in
//! proportion to the file, and one beyond the allowed depth of the stack fails. To the library both
//! look like the end of the section.

use std::borrow::Cow;
use std::cell::Cell;

use gimli::{EndianSlice, Error, Reader, ReaderOffsetId, Result, RunTimeEndian};

/// Reads allowed for each byte of debug information. The lines and inlined functions of nearly all
/// of a program of 80 MB took 0.2, those of a small one 0.3.
const PER_BYTE: u64 = 2;
/// Reads allowed however small the file is.
const ALWAYS: u64 = 4 << 20;
/// Bytes of a string that cost as much as a read.
const STRING: u64 = 16;

/// Stack of a thread that reads, bytes.
pub(super) const STACK: usize = 16 << 20;
/// How deep it may be used, bytes, counted from where the meter was made. What is above is for the
/// frame that finds out.
const DEEPEST: usize = STACK / 2;

/// The budget of one object.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<u64>,
    /// An address in the frame that made it.
    stack: usize,
    stopped: Cell<bool>,
}

impl Meter {
    /// A budget for so many bytes of sections, for the calling thread, which must have [`STACK`].
    pub(super) fn new(bytes: u64) -> Meter {
        Meter {
            left: Cell::new(ALWAYS.saturating_add(bytes.saturating_mul(PER_BYTE))),
            stack: here(),
            stopped: Cell::new(false),
        }
    }

    /// Was something refused?
    pub(super) fn stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Is nothing left?
    pub(super) fn is_empty(&self) -> bool {
        self.left.get() == 0
    }

    fn charge(&self, cost: u64) -> bool {
        let left = self.left.get();
        if left < cost || self.stack.abs_diff(here()) > DEEPEST {
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

/// An address in the frame of the caller, or below it.
#[inline(always)]
fn here() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&mark)).addr()
}

/// A piece of a section, and the meter that is charged for what is read of it.
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
        self.charge(1 + length as u64 / STRING)
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
