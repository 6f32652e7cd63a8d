//! `counts SECONDS CPU`: reads, writes, faults and sleeps, and prints what the kernel counted of
//! it: of the process by `getrusage(2)` and `/proc/self/io`, at the end of its work.

use std::fs::{File, read_to_string};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::resource::{UsageWho, getrusage};
use tests::workload::counts::Counts;
use tests::workload::truth::Work;

/// Bytes of one read.
const BLOCK: usize = 3000;
/// Pages that are touched for the first time in one round.
const PAGES: usize = 16;
const PAGE: usize = 4096;

fn main() -> Result<()> {
    let work = Work::start("counts")?;
    let (mut zero, mut null) = (File::open("/dev/zero")?, File::create("/dev/null")?);
    let mut block = [0; BLOCK];
    let mut rounds = 0;
    while !work.over()? {
        zero.read_exact(&mut block)?;
        null.write_all(&block)?;
        touch_fresh_pages()?;
        sleep(Duration::from_millis(1));
        rounds += 1;
    }
    println!("{}", serde_json::to_string(&counted()?)?);
    work.end(rounds)
}

/// Not by the allocator, which keeps what it is given back.
fn touch_fresh_pages() -> Result<()> {
    let length = NonZeroUsize::new(PAGES * PAGE).context("no pages")?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a mapping of its own, at an address that the kernel chooses.
    let pages = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }?;
    for page in 0..PAGES {
        // SAFETY: within the mapping.
        let byte = unsafe { pages.cast::<u8>().add(page * PAGE) };
        // SAFETY: mapped for writing, and nothing else refers to it.
        unsafe { byte.write_volatile(1) };
    }
    // SAFETY: the mapping from above, which nothing refers to any more.
    Ok(unsafe { munmap(pages, PAGES * PAGE) }?)
}

fn counted() -> Result<Counts> {
    let io = read_to_string("/proc/self/io").context("/proc/self/io")?;
    let of = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim_start_matches(':').trim().parse().ok())
            .with_context(|| format!("no {name} in /proc/self/io"))
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(Counts {
        minor_faults: count(usage.minor_page_faults()),
        major_faults: count(usage.major_page_faults()),
        voluntary_switches: count(usage.voluntary_context_switches()),
        involuntary_switches: count(usage.involuntary_context_switches()),
        read_chars: of("rchar")?,
        written_chars: of("wchar")?,
        read_calls: of("syscr")?,
        write_calls: of("syscw")?,
    })
}
