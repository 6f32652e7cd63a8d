//! A mapped file that is not in memory, so that touching it blocks in a page fault.
//!
//! It is made on a disk: a page of a tmpfs is memory and cannot be dropped. Every
//! page is full of `ret` instructions, so that it can be called as well as read. How long a fault
//! blocks depends on the disk; the workload measures it.

use std::ffi::c_void;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::workload::truth::Work;

/// The directory of the file: unlike `/tmp` it is kept over a boot, and so on a disk.
const DIRECTORY: &str = "/var/tmp";
/// The size of the file, bytes: small, so that making it takes little of the time that is measured.
const LENGTH: usize = 16 << 20;
/// The distance of two touches, bytes: as far as the kernel maps around a fault, so that each touch
/// is a fault.
const STRIDE: usize = 64 << 10;
/// `ret` on x86-64.
const RET: u8 = 0xc3;

/// The file and its mapping.
#[derive(Debug)]
pub struct ColdFile {
    file: std::fs::File,
    base: NonNull<c_void>,
}

impl ColdFile {
    /// Makes the file and maps it, privately. The time this blocks is noted as sleep.
    ///
    /// # Errors
    /// When there is no disk under `/var/tmp`, or it refuses such a mapping: programs are run from
    /// there.
    pub fn make(work: &mut Work, protection: ProtFlags) -> Result<Self> {
        let file = work.blocked(Microstate::Sleep, write)??;
        let length = NonZeroUsize::new(LENGTH).context("the file has a length")?;
        // SAFETY: the kernel chooses an address where nothing is.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0) }
            .with_context(|| format!("cannot map a file of {DIRECTORY}: is it mounted noexec?"))?;
        // SAFETY: this advice changes when pages are read, not what they hold.
        unsafe { madvise(base, LENGTH, MmapAdvise::MADV_RANDOM) }?;
        Ok(Self { file, base })
    }

    /// Takes the file out of memory again. The time this blocks is noted as sleep.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drop_cache(&self, work: &mut Work) -> Result<()> {
        // SAFETY: the mapping is private and holds what the file holds, whether its pages are read
        // again or not.
        unsafe { madvise(self.base, LENGTH, MmapAdvise::MADV_DONTNEED) }?;
        work.blocked(Microstate::Sleep, || {
            posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
        })??;
        Ok(())
    }

    /// Removes the file, which takes the disk. The time this blocks is noted as sleep, before the
    /// work ends.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(self, work: &mut Work) -> Result<()> {
        work.blocked(Microstate::Sleep, || {
            // SAFETY: this value owns the mapping, and nothing refers to it any more.
            unsafe { munmap(self.base, LENGTH) }?;
            drop(self.file);
            Ok(())
        })?
    }

    /// Returns the places to touch.
    pub fn places(&self) -> impl Iterator<Item = NonNull<u8>> {
        let base = self.base.cast::<u8>();
        (0..LENGTH).step_by(STRIDE).map(move |offset| {
            // SAFETY: the offset is less than the length of the mapping.
            unsafe { base.add(offset) }
        })
    }
}

fn write() -> Result<std::fs::File> {
    let mut file = tempfile::tempfile_in(Path::new(DIRECTORY)).context(DIRECTORY)?;
    ensure!(
        fstatfs(&file)?.filesystem_type() != TMPFS_MAGIC,
        "{DIRECTORY} is in memory: its pages cannot be dropped"
    );
    let piece = [RET; STRIDE];
    for _ in 0..LENGTH / STRIDE {
        file.write_all(&piece)?;
    }
    // Pages that are not on the disk yet cannot be dropped either.
    file.sync_all()?;
    Ok(file)
}
