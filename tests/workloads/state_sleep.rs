//! `state_sleep SECONDS CPU VARIANT`: blocked in a system call that is neither a lock nor a fault:
//! `nanosleep`, `pipe` (a read, with a thread that writes now and then), `poll`, `epoll`,
//! `io_uring` (the same read, handed to a ring, and a wait for its completion), or `fsync` (not
//! interruptible: the disk).
//!
//! The naps are of random lengths ([`tests::workload::naps`]).

use std::fs::File;
use std::io::{PipeReader, Read, Seek, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::sleep;

use anyhow::{Context, Result, anyhow, bail};
use experiment_format::microstate::Microstate;
use io_uring::{IoUring, opcode, types};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tests::workload::naps::Naps;
use tests::workload::thread_times::ThreadTimes;
use tests::workload::truth::{Work, monotonic_ns, variant};

fn main() -> Result<()> {
    let variant = variant()?;
    // The kernel takes any wait for a completion for one of block I/O.
    let name = match variant.as_str() {
        "io_uring" => "state_sleep_io_uring",
        _ => "state_sleep",
    };
    let mut work = Work::start(name)?;
    let mut naps = Naps::new()?;
    match variant.as_str() {
        "nanosleep" => repeat(work, || {
            sleep(naps.next_length());
            Ok(())
        }),
        "pipe" => read_pipe(work, |reader, byte| Ok(reader.read(byte)?)),
        "io_uring" => {
            let mut ring = IoUring::new(1).context("io_uring")?;
            read_pipe(work, move |reader, byte| {
                read_by_ring(&mut ring, reader, byte)
            })
        }
        "poll" => {
            let (reader, _writer) = pipe()?;
            repeat(work, || {
                let mut watched = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
                let limit = PollTimeout::try_from(naps.next_length())?;
                poll(&mut watched, limit)?;
                Ok(())
            })
        }
        "epoll" => {
            let (reader, _writer) = pipe()?;
            let epoll = Epoll::new(EpollCreateFlags::empty())?;
            epoll.add(&reader, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            repeat(work, || {
                let limit = EpollTimeout::try_from(naps.next_length())?;
                epoll.wait(&mut [EpollEvent::empty()], limit)?;
                Ok(())
            })
        }
        "fsync" => {
            // Where the journal is busy, this waits for it.
            let file = work.blocked(Microstate::Sleep, || tempfile::tempfile_in("/var/tmp"))?;
            let mut file: File = file.context("/var/tmp")?;
            repeat(work, move || {
                file.rewind()?;
                file.write_all(&[0x55; 4096])?;
                Ok(file.sync_all()?)
            })
        }
        other => bail!("no variant {other:?}"),
    }
}

fn repeat(mut work: Work, mut nap: impl FnMut() -> Result<()>) -> Result<()> {
    let mut naps = 0;
    while !work.over()? {
        work.blocked(Microstate::Sleep, &mut nap)??;
        naps += 1;
    }
    // A file that ends with it takes the disk.
    work.blocked(Microstate::Sleep, || drop(nap))?;
    work.end(naps)
}

/// Reads what another thread writes, one byte at a time, until there is no more.
fn read_pipe(
    mut work: Work,
    mut read: impl FnMut(&mut PipeReader, &mut [u8; 1]) -> Result<usize>,
) -> Result<()> {
    let (mut reader, mut writer) = pipe()?;
    let until_ns = work.until_ns();
    let thread = std::thread::spawn(move || {
        let mut thread_times = ThreadTimes::start()?;
        let mut naps = Naps::new()?;
        while monotonic_ns()? < until_ns {
            thread_times.blocked(Microstate::Sleep, || sleep(naps.next_length()))?;
            writer.write_all(&[1])?;
        }
        // The pipe's end is the end of the reader.
        drop(writer);
        thread_times.end()
    });
    let mut reads = 0;
    while work.blocked(Microstate::Sleep, || read(&mut reader, &mut [0]))?? > 0 {
        reads += 1;
    }
    let account = work.blocked(Microstate::UserLock, || thread.join())?;
    work.account(&account.map_err(|_| anyhow!("the writer panicked"))??);
    work.end(reads)
}

/// A read through a ring. The pipe is empty, so the kernel waits for it without a thread of its
/// own, and this thread waits in `io_uring_enter`.
fn read_by_ring(ring: &mut IoUring, reader: &mut PipeReader, byte: &mut [u8; 1]) -> Result<usize> {
    let pipe = types::Fd(reader.as_raw_fd());
    let entry = opcode::Read::new(pipe, byte.as_mut_ptr(), 1).build();
    // SAFETY: the byte is there until the read is complete: this function returns only then, or the
    // process ends.
    unsafe { ring.submission().push(&entry) }?;
    ring.submit_and_wait(1)?;
    let completed = ring.completion().next().context("nothing is complete")?;
    usize::try_from(completed.result())
        .map_err(|_| std::io::Error::from_raw_os_error(-completed.result()))
        .context("a read by io_uring")
}
