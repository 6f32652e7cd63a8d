//! Decompresses the symbol table that a program may have in the section `.gnu_debugdata`, an ELF
//! file.
//!
//! Fedora's programs have it ("mini debug information"): a table of the functions that are not
//! exported, and nothing else of debug information. What is decompressed is bounded, and kept in a
//! file without a name, so that it is read like any other.

use std::fs::File;
use std::io::{self, Read, Write};

use lzma_rust2::XzReader;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::elf::{Damaged, Elf, SectionBudget};

/// Max decompressed bytes. Fedora's largest files have some megabytes.
const MAX_BYTES: u64 = 128 << 20;
/// Max memory for the decoder. Files of `xz -9` need 65 MiB.
const MAX_DECODER_KIB: u32 = 80 << 10;

/// Returns the file that is compressed in `elf`. None: `elf` contains no such file.
pub(super) fn of(elf: &Elf) -> Result<Option<Elf>, Damaged> {
    let packed = elf.section(".gnu_debugdata", &mut SectionBudget::new())?;
    if packed.is_empty() {
        return Ok(None);
    }
    let file = unpack(&packed).map_err(|_| Damaged("has damaged mini debug information"))?;
    Elf::read(file).map(Some)
}

fn unpack(packed: &[u8]) -> io::Result<File> {
    let mut reader = XzReader::new_mem_limit(packed, false, MAX_DECODER_KIB).take(MAX_BYTES + 1);
    let mut file = File::from(memfd_create(c"debugdata", MFdFlags::MFD_CLOEXEC)?);
    // Read by pieces of this, since the size is not known before.
    let mut piece = vec![0; 64 << 10];
    let mut bytes = 0;
    loop {
        let read = reader.read(&mut piece)?;
        bytes += read as u64;
        if bytes > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match piece.get(..read) {
            Some([]) | None => return Ok(file),
            Some(read) => file.write_all(read)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    /// A sentence, as xz 5.4 packs it.
    const SMALL: &str = "\
        fd377a585a000004e6d6b4460200210116000000742fe5a3e0003d00315d00369a4a1f61dbcb20c8\
        3a0d193687dd49785c162ca8a6087fca01c8388a89ab6ba0cb3c202220e8943b124c5915294e0000\
        00000000034b9713a266332e00014d3ec89930a41fb6f37d010000000004595a";

    /// What xz makes of this.
    fn packed(bytes: &[u8], level: &str) -> Vec<u8> {
        let mut xz = Command::new("xz")
            .args(["--compress", "--stdout", level])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = xz.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // A decoder that stops early is not of interest here.
            scope.spawn(move || input.write_all(bytes).unwrap());
            xz.wait_with_output().unwrap().stdout
        })
    }

    #[test]
    fn output_of_xz_is_unpacked() {
        let text = b"some text ".repeat(20_000);
        for level in ["-0", "-6", "-9"] {
            let file = unpack(&packed(&text, level)).unwrap();
            let mut found = Vec::new();
            io::Seek::rewind(&mut &file).unwrap();
            (&file).read_to_end(&mut found).unwrap();
            assert_eq!(found, text);
        }
    }

    #[test]
    fn too_large_output_is_refused() {
        let bomb = packed(&vec![0; MAX_BYTES as usize + 1], "-1");
        assert!(bomb.len() < 1 << 20);
        let error = unpack(&bomb).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_dictionary_that_is_too_large_is_refused() {
        let large = packed(b"x", "--lzma2=dict=256MiB");
        assert!(unpack(&large).is_err());
    }

    proptest! {
        #[test]
        fn damaged_streams_are_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            cut: prop::sample::Index,
        ) {
            let whole = hex::decode(SMALL).unwrap();
            prop_assert!(unpack(&whole).is_ok());
            let mut bytes = whole.clone();
            for (place, value) in damage {
                let at = place.index(bytes.len());
                bytes[at] = value;
            }
            let _ = unpack(&bytes);
            prop_assert!(unpack(&whole[..cut.index(whole.len())]).is_err());
        }
    }
}
