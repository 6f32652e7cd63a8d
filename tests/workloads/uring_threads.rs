//! `uring_threads MILLIS`: keeps the kernel's threads of `io_uring` in this process busy for so
//! long: one that polls a ring, and workers that read.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use io_uring::{IoUring, opcode, squeue, types};

/// Reads that are handed over at once.
const BATCH: usize = 8;
/// The bytes of one.
const BYTES: u32 = 1 << 20;

fn push(ring: &mut IoUring, entry: &squeue::Entry) -> Result<()> {
    // SAFETY: the buffers are as long as the entries say, and live until the process exits.
    unsafe { ring.submission().push(entry) }.context("the ring is full")
}

fn main() -> Result<()> {
    let millis = std::env::args().nth(1).context("no time")?.parse()?;
    let end = Instant::now() + Duration::from_millis(millis);
    let buffer = Box::leak(vec![0_u8; BYTES as usize].into_boxed_slice()).as_mut_ptr();

    // The thread that polls this ring never sleeps in that time.
    let mut polled = IoUring::builder().setup_sqpoll(600_000).build(8)?;
    push(&mut polled, &opcode::Nop::new().build())?;
    polled.submit_and_wait(1)?;

    let mut ring = IoUring::new(64)?;
    let zero = File::open("/dev/zero")?;
    let file = types::Fd(zero.as_raw_fd());
    while Instant::now() < end {
        for _ in 0..BATCH {
            let read = opcode::Read::new(file, buffer, BYTES).build();
            push(&mut ring, &read.flags(squeue::Flags::ASYNC))?;
        }
        ring.submit_and_wait(BATCH)?;
        for completed in ring.completion() {
            ensure!(completed.result() > 0, "{}", completed.result());
        }
    }
    Ok(())
}
