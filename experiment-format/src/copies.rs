//! Copies of load objects in `archives/`, and how compressed copies are read.
//!
//! A compressed copy, `NAME.zst`, is a skippable zstd frame, with the object's build id if its
//! instructions are in the copy, and a zstd frame with the copy.
//!
//! gprofng cannot read them: see [`crate::packed::unpack_all`]. Our readers decompress a copy when
//! it is needed, into an unnamed file in the directory for temporary files.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::archive::{archive_name, compressed_name};
use crate::directory::free_bytes;
use crate::elf::section_build_id;
use crate::error::Error;
use crate::file::open_regular;

/// The first magic number of skippable frames: RFC 8878, 3.1.2.
const SKIPPED_FRAME: u32 = 0x184d_2a50;
/// The longest build id, bytes: two SHA-256 hashes.
const MAX_ID_BYTES: usize = 64;
/// The fastest: copies are compressed while the machine is recorded.
const LEVEL: i32 = 1;
/// The largest copy, bytes: an object of 1 GiB, and as much for its symbols.
const MAX_COPY_BYTES: u64 = 2 << 30;
/// How much of a decompressed copy is written at once, bytes.
const WRITE_BYTES: usize = 256 << 10;
/// Max decompressed copies that this process keeps.
const MAX_KEPT: usize = 64;

/// Decompressed copies, the one that was opened last at the end. Experiments of a directory share
/// their copies, and one report opens each for several purposes.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// A decompressed copy.
struct Kept {
    /// The compressed one, by device and inode. While it is open no other file has these.
    of: (u64, u64),
    _compressed: File,
    content: File,
}

/// Begins a compressed copy. `build_id` is the object's, or empty if its instructions are not in
/// the copy.
pub(crate) fn encoder<W: Write>(
    mut to: W,
    build_id: &[u8],
) -> io::Result<zstd::Encoder<'static, W>> {
    let id = Some(build_id).filter(|id| id.len() <= MAX_ID_BYTES);
    let id = id.unwrap_or_default();
    to.write_all(&SKIPPED_FRAME.to_le_bytes())?;
    to.write_all(&(id.len() as u32).to_le_bytes())?;
    to.write_all(id)?;
    zstd::Encoder::new(to, LEVEL)
}

/// Reads the build id that a compressed copy begins with; empty if it has no build id.
fn read_id(mut from: impl Read) -> io::Result<Box<[u8]>> {
    let mut words = [[0; 4]; 2];
    for word in &mut words {
        from.read_exact(word)?;
    }
    let [magic, length] = words.map(u32::from_le_bytes);
    if magic != SKIPPED_FRAME || length as usize > MAX_ID_BYTES {
        return Ok(Box::default());
    }
    let mut id = vec![0; length as usize];
    from.read_exact(&mut id)?;
    Ok(id.into())
}

/// Returns whether the directory `archives` has a copy of a load object or source.
#[must_use]
pub fn has_copy(archives: &Path, name: &str) -> bool {
    let name = archive_name(name);
    let has = |name: &str| archives.join(name).exists();
    has(&name) || compressed_name(&name).is_some_and(|name| has(&name))
}

/// Opens the copy of a load object or source in the directory `archives`. None: no copy exists.
///
/// # Errors
/// The copy is not a regular file, or can't be opened; a compressed copy can't be decompressed, or
/// takes more than half of the space that is free for temporary files.
pub fn open_copy(archives: &Path, name: &str) -> Result<Option<File>> {
    let name = archive_name(name);
    if let Some(file) = open_regular(&archives.join(&name))? {
        return Ok(Some(file));
    }
    let Some(name) = compressed_name(&name) else {
        return Ok(None);
    };
    let path = archives.join(name);
    let file = open_regular(&path)?.map(decompressed).transpose();
    file.map_err(|error| Error::io("decompress", &path, error))
}

/// The build id of a load object's copy in the directory `archives`; empty if the object has no
/// build id. None if there is no copy.
#[must_use]
pub fn build_id_of_copy(archives: &Path, name: &str) -> Option<Box<[u8]>> {
    let name = archive_name(name);
    let open = |name: &str| open_regular(&archives.join(name)).ok().flatten();
    if let Some(file) = open(&name) {
        return Some(section_build_id(&file));
    }
    open(&compressed_name(&name)?).map(|file| read_id(&file).unwrap_or_default())
}

/// Returns the content of a compressed copy.
fn decompressed(compressed: File) -> io::Result<File> {
    let metadata = compressed.metadata()?;
    let of = (metadata.dev(), metadata.ino());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|kept| kept.of == of);
    let copy = match at {
        Some(at) => kept.remove(at),
        None => {
            let content = tempfile::tempfile()?;
            let most = free_bytes(&std::env::temp_dir()).map_err(io::Error::other)? / 2;
            decompress(&compressed, &content, most.min(MAX_COPY_BYTES))?;
            Kept {
                of,
                _compressed: compressed,
                content,
            }
        }
    };
    // A descriptor with a position of its own.
    let opened = File::open(format!("/proc/self/fd/{}", copy.content.as_raw_fd()));
    if kept.len() == MAX_KEPT {
        kept.remove(0);
    }
    kept.push(copy);
    opened
}

/// Writes the content of a compressed copy, of at most `max_bytes` bytes. Returns how many they
/// are.
pub(crate) fn decompress(compressed: &File, to: &File, max_bytes: u64) -> io::Result<u64> {
    let mut content = zstd::Decoder::new(compressed)?.take(max_bytes.saturating_add(1));
    let mut to = BufWriter::with_capacity(WRITE_BYTES, to);
    let bytes = io::copy(&mut content, &mut to)?;
    to.flush()?;
    if bytes > max_bytes {
        Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("it has more than {max_bytes} bytes"),
        ))
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    const ID: &[u8] = b"0123456789";

    fn place(archives: &Path, object: &str) -> PathBuf {
        archives.join(compressed_name(&archive_name(object)).unwrap())
    }

    fn compressed(archives: &Path, object: &str, content: &[u8]) {
        let file = File::create(place(archives, object)).unwrap();
        let mut encoder = encoder(file, ID).unwrap();
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap();
    }

    fn content(archives: &Path, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = open_copy(archives, name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        Ok(Some(bytes))
    }

    #[test]
    fn a_compressed_copy_is_read_again_and_again_from_its_beginning() {
        let archives = tempfile::tempdir().unwrap();
        let path = archives.path();
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        compressed(path, "/lib/x", &bytes);
        for _ in 0..3 {
            assert!(content(path, "/lib/x").unwrap().as_ref() == Some(&bytes));
        }
        assert_eq!(build_id_of_copy(path, "/lib/x").as_deref(), Some(ID));
        assert!(has_copy(path, "/lib/x"));
        assert!(!has_copy(path, "/lib/y"));
        assert_eq!(content(path, "/lib/y").unwrap(), None);
        assert_eq!(build_id_of_copy(path, "/lib/y"), None);
        // Another content under the same name is another file.
        fs::remove_file(place(path, "/lib/x")).unwrap();
        compressed(path, "/lib/z", b"z");
        assert_eq!(content(path, "/lib/z").unwrap().as_deref(), Some(&b"z"[..]));
    }

    #[test]
    fn a_file_of_zstd_has_the_content_and_the_command_reads_it() {
        let archives = tempfile::tempdir().unwrap();
        compressed(archives.path(), "/lib/x", b"some content");
        let file = place(archives.path(), "/lib/x");
        let decoded = zstd::decode_all(File::open(file).unwrap()).unwrap();
        assert_eq!(decoded, b"some content");
    }

    #[test]
    fn what_is_damaged_or_too_large_is_an_error() {
        let archives = tempfile::tempdir().unwrap();
        let path = archives.path();
        compressed(path, "/lib/x", &[7; 100_000]);
        let place = place(path, "/lib/x");
        let to = tempfile::tempfile().unwrap();
        let open = || File::open(&place).unwrap();
        assert!(decompress(&open(), &to, 99_999).is_err());
        assert_eq!(decompress(&open(), &to, 100_000).unwrap(), 100_000);
        let whole = fs::read(&place).unwrap();
        for end in 0..whole.len() {
            fs::write(&place, &whole[..end]).unwrap();
            // Nothing but the frame that is skipped is an empty copy.
            let read = decompress(&open(), &tempfile::tempfile().unwrap(), 100_000);
            assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0), "{end}");
            let _ = build_id_of_copy(path, "/lib/x");
        }
        fs::write(&place, b"no zstd").unwrap();
        assert!(open_copy(path, "/lib/x").is_err());
        assert_eq!(build_id_of_copy(path, "/lib/x").as_deref(), Some(&[][..]));
        symlink("/dev/null", path.join(archive_name("/lib/null"))).unwrap();
        assert!(open_copy(path, "/lib/null").is_err());
    }

    #[test]
    fn more_copies_than_are_kept_are_all_read() {
        let archives = tempfile::tempdir().unwrap();
        for round in 0..2 {
            for number in 0..MAX_KEPT + 10 {
                let name = format!("/lib/{number}");
                if round == 0 {
                    compressed(archives.path(), &name, name.as_bytes());
                }
                let read = content(archives.path(), &name).unwrap();
                assert_eq!(read.as_deref(), Some(name.as_bytes()));
            }
        }
        assert!(KEPT.lock().unwrap().len() <= MAX_KEPT);
    }
}
