//! Synthetic ELF files: functions of the kernel, of modules and of BPF programs for gprofng.

use std::io::Write;

use crate::Result;

/// A piece of executable memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The instructions, `size` bytes, if they could be read. Without them there are names and no
    /// disassembly.
    pub bits: Option<&'a [u8]>,
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// First address.
    pub address: u64,
    /// Bytes; 0 reaches to the next symbol.
    pub size: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Whether it is visible outside of its file.
    pub global: bool,
}

/// A text section in the file: what the segment event that maps it must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// First address.
    pub vaddr: u64,
    /// Bytes.
    pub size: u64,
    /// Where in the file it begins.
    pub file_offset: u64,
}

/// An ELF file of text sections and function symbols, for the machine that this code runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image<'a> {
    /// The sections; they must not overlap.
    pub texts: Vec<Text<'a>>,
    /// The functions, in any order.
    pub symbols: Vec<Symbol<'a>>,
}

impl<'a> Image<'a> {
    /// An image of functions that lie far from each other, such as BPF programs: each is given as
    /// (size, name), gets an address of the image's own, and is mapped by a segment of its own,
    /// at the [`Placed`] of the same position.
    pub fn scattered(functions: &[(u64, &'a [u8])]) -> Result<(Image<'a>, Vec<Placed>)> {
        let _ = functions;
        todo!()
    }

    /// Where each of [`Image::texts`] lies in the file, in their order.
    pub fn placed(&self) -> Result<Vec<Placed>> {
        todo!()
    }

    /// Writes the file.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        let _ = out;
        todo!()
    }

    /// The file as bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        todo!()
    }
}
