//! Threads that count their own events, for checks of counters: page faults made one by one, and
//! the kernel's own counts of a thread, which are independent of perf's.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Tid;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};

const PAGE: usize = 4096;

/// The kernel's own counts of a thread, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The thread.
    pub tid: Tid,
    /// Page faults, minor and major.
    pub faults: u64,
    /// Context switches, voluntary and not.
    pub switches: u64,
}

impl Counted {
    /// Returns the counts of the calling thread so far.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn here() -> Result<Counted> {
        let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
        let sum = |one: i64, other: i64| u64::try_from(one + other);
        Ok(Counted {
            tid: Tid::from_raw(gettid().as_raw()),
            faults: sum(usage.minor_page_faults(), usage.major_page_faults())?,
            switches: sum(
                usage.voluntary_context_switches(),
                usage.involuntary_context_switches(),
            )?,
        })
    }

    /// Returns all counts that a workload printed.
    #[must_use]
    pub fn find_all(output: &str) -> Vec<Counted> {
        let lines = output.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}

/// Fresh memory, whose pages are mapped when they are touched.
#[derive(Debug)]
pub struct Fresh {
    pages: std::ptr::NonNull<std::ffi::c_void>,
    many: usize,
    touched: usize,
}

impl Fresh {
    /// Maps `many` pages.
    ///
    /// # Errors
    /// When they cannot be mapped.
    pub fn map(many: usize) -> Result<Fresh> {
        let length = NonZeroUsize::new(many * PAGE).context("no pages")?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping of its own, at an address that the kernel chooses.
        let pages = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }?;
        // One fault for each page, not for two megabytes.
        // SAFETY: the mapping from above.
        unsafe { madvise(pages, many * PAGE, MmapAdvise::MADV_NOHUGEPAGE) }?;
        Ok(Fresh {
            pages,
            many,
            touched: 0,
        })
    }

    /// Touches `many` of them for the first time: one fault each.
    ///
    /// # Errors
    /// Too few fresh pages are left.
    pub fn touch(&mut self, many: usize) -> Result<()> {
        ensure!(self.touched + many <= self.many, "no fresh page is left");
        for page in self.touched..self.touched + many {
            // SAFETY: within the mapping.
            let byte = unsafe { self.pages.cast::<u8>().add(page * PAGE) };
            // SAFETY: mapped for writing, and nothing else refers to it.
            unsafe { byte.write_volatile(1) };
        }
        self.touched += many;
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: the mapping from above, which nothing refers to any more.
        let _ = unsafe { munmap(self.pages, self.many * PAGE) };
    }
}
