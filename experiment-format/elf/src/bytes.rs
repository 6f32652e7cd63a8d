//! The sources that an ELF file is read from.

use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;

use object::read::{ReadCache, ReadCacheOps, ReadRef};

/// The bytes of a file, read by pieces.
pub trait ElfBytes {
    /// A piece: borrowed, or a copy.
    type Piece: Deref<Target = [u8]> + Default;

    /// Returns the number of bytes; 0 where it is not known.
    fn length(&self) -> u64;

    /// Reads the piece at an offset; None if the file does not have all of it.
    fn read(&self, offset: u64, size: usize) -> Option<Self::Piece>;
}

impl<'data> ElfBytes for &'data [u8] {
    type Piece = &'data [u8];

    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, size: usize) -> Option<&'data [u8]> {
        self.get(usize::try_from(offset).ok()?..)?.get(..size)
    }
}

impl<'data, R: ReadCacheOps> ElfBytes for &'data ReadCache<R> {
    type Piece = &'data [u8];

    fn length(&self) -> u64 {
        ReadRef::len(*self).unwrap_or(0)
    }

    fn read(&self, offset: u64, size: usize) -> Option<&'data [u8]> {
        (*self).read_bytes_at(offset, size as u64).ok()
    }
}

/// Each piece is a copy, since the owner of the file can shorten it at any time.
impl ElfBytes for File {
    type Piece = Vec<u8>;

    fn length(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read(&self, offset: u64, size: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

impl ElfBytes for &File {
    type Piece = Vec<u8>;

    fn length(&self) -> u64 {
        ElfBytes::length(*self)
    }

    fn read(&self, offset: u64, size: usize) -> Option<Vec<u8>> {
        ElfBytes::read(*self, offset, size)
    }
}

/// An ELF image that is kept for later.
#[derive(Debug)]
pub enum ElfSource {
    /// A file. It stays open until its turn comes, and only what is needed is read.
    File(File),
    /// The bytes of an image, the vDSO's.
    Bytes(Vec<u8>),
}

impl ElfSource {
    /// Returns its size, bytes; 0 if the file does not say.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            ElfSource::File(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            ElfSource::Bytes(bytes) => bytes.len() as u64,
        }
    }
}
