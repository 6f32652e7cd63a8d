//! `map_storm SECONDS CPU`: maps its own program for execution and unmaps it again, as fast as it
//! can: each is an event for a profiler, and none has a stack in it.

use std::fs::File;
use std::num::NonZeroUsize;

use anyhow::Result;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use tests::workload::truth::Work;

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("a page has bytes");

fn main() -> Result<()> {
    let work = Work::start("map_storm")?;
    let program = File::open("/proc/self/exe")?;
    let mut maps = 0;
    while !work.over()? {
        for _ in 0..64 {
            let flags = (
                ProtFlags::PROT_READ | ProtFlags::PROT_EXEC,
                MapFlags::MAP_PRIVATE,
            );
            // SAFETY: the kernel chooses a place where nothing is.
            let page = unsafe { mmap(None, PAGE, flags.0, flags.1, &program, 0) }?;
            // SAFETY: nothing refers to the page.
            unsafe { munmap(page, PAGE.get()) }?;
            maps += 1;
        }
    }
    work.end(maps)
}
