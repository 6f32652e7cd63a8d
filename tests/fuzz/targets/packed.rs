//! Packed experiments, which come from anywhere.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use experiment_format::packed::unpack;
use experiment_format::reader::Experiment;
use tar::Header;
use tests::experiment::files_below;

use super::experiment::in_memory;

/// How a file of zstd begins. Other input is compressed for the target.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The size of a tar header, and of the blocks that data is padded to, in bytes.
const BLOCK_BYTES: usize = 512;
/// The bytes that may be unpacked.
const MAX_BYTES: u64 = 1 << 20;

/// Unpacks an experiment, given as it is, or as the tar archive in it, whose headers then get the
/// checksums that the input is missing.
pub(super) fn packed(bytes: &[u8]) {
    let directory = in_memory();
    let (file, parent) = (
        directory.path().join("x.er.zst"),
        directory.path().join("parent"),
    );
    let written = if bytes.starts_with(&ZSTD) {
        fs::write(&file, bytes)
    } else {
        compress(&with_checksums(bytes), &file)
    };
    if written.and_then(|()| fs::create_dir(&parent)).is_err() {
        return;
    }
    let _ = Experiment::open_log(&file).and_then(|log| log.subexperiments());
    let mut reported = 0;
    let done = unpack(&file, &parent, MAX_BYTES, &mut |bytes| reported = bytes);
    assert!(reported <= MAX_BYTES);
    let below = files_below(&parent);
    assert!(below.is_ok());
    let (mut all, mut size) = (Vec::new(), 0);
    for path in below.into_iter().flatten() {
        let Ok(file) = fs::symlink_metadata(&path) else {
            continue;
        };
        assert!(file.is_dir() || file.is_file());
        size += if file.is_file() { file.len() } else { 0 };
        if path.parent() == Some(&parent) {
            all.push(path);
        }
    }
    assert!(size <= MAX_BYTES);
    assert!(all.len() <= 1);
    if let Ok(made) = done {
        assert_eq!(all, [made]);
    }
    // No other files were made.
    let siblings = fs::read_dir(directory.path()).map_or(0, Iterator::count);
    assert_eq!(siblings, 2);
}

fn compress(bytes: &[u8], file: &Path) -> io::Result<()> {
    zstd::stream::copy_encode(bytes, File::create(file)?, 1)
}

/// Returns the archive with the checksums that belong to its headers.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    let mut at = 0_usize;
    while let Some(block) = archive.get_mut(at..at.saturating_add(BLOCK_BYTES)) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        // Two blocks of zeros end an archive.
        if block.iter().any(|byte| *byte != 0) {
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
        let data = usize::try_from(header.entry_size().unwrap_or(0)).unwrap_or(usize::MAX);
        let blocks = data.div_ceil(BLOCK_BYTES).saturating_add(1);
        at = at.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
    }
    archive
}
