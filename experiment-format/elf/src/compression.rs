//! Compressed sections.

use flate2::{Decompress, FlushDecompress, Status};
use object::Endianness;
use object::elf::{
    CompressionHeader32, CompressionHeader64, CompressionType, ELFCOMPRESS_ZLIB, SHF_COMPRESSED,
};
use object::pod::from_bytes;
use object::read::elf::CompressionHeader;

use super::{ElfBytes, ElfError, ElfFile, ElfSection};

/// A compressed section: its header, and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedSection<'a> {
    /// zlib, zstd, ….
    pub format: CompressionType,
    /// Bytes of the content, as the header claims.
    pub uncompressed_bytes: u64,
    /// The compressed content.
    pub data: &'a [u8],
}

impl<B: ElfBytes> ElfFile<B> {
    /// Splits the content of a section into the compression header and the compressed bytes; None
    /// if the section is not compressed.
    ///
    /// # Errors
    /// It ends in its header.
    pub fn compressed<'a>(
        &self,
        section: &ElfSection,
        content: &'a [u8],
    ) -> Result<Option<CompressedSection<'a>>, ElfError> {
        fn split<H: CompressionHeader<Endian = Endianness>>(
            content: &[u8],
            endian: Endianness,
        ) -> Option<CompressedSection<'_>> {
            let (header, data) = from_bytes::<H>(content).ok()?;
            Some(CompressedSection {
                format: header.ch_type(endian),
                uncompressed_bytes: header.ch_size(endian).into(),
                data,
            })
        }
        if !section.flags.contains(SHF_COMPRESSED) {
            return Ok(None);
        }
        let split = if self.is_64_bit() {
            split::<CompressionHeader64<Endianness>>(content, self.endian())
        } else {
            split::<CompressionHeader32<Endianness>>(content, self.endian())
        };
        let compressed = split.ok_or(ElfError::headers("compression", "it is cut off"))?;
        Ok(Some(compressed))
    }

    /// Decompresses a section; None if it is not compressed with zlib.
    ///
    /// # Errors
    /// The content is damaged, too large, or not as long as its header claims.
    pub fn inflated(
        &self,
        compressed: CompressedSection<'_>,
        name: &'static str,
    ) -> Result<Option<Vec<u8>>, ElfError> {
        if compressed.format != ELFCOMPRESS_ZLIB {
            return Ok(None);
        }
        let length = self.within_limit(name, compressed.uncompressed_bytes)?;
        let mut bytes = Vec::with_capacity(length);
        // Never makes the vector larger than it is.
        let end = Decompress::new(true)
            .decompress_vec(compressed.data, &mut bytes, FlushDecompress::Finish)
            .map_err(|error| ElfError::headers("compression", error))?;
        if end != Status::StreamEnd || bytes.len() != length {
            let problem = format!("it does not have {length} bytes");
            return Err(ElfError::headers("compression", problem));
        }
        Ok(Some(bytes))
    }
}
