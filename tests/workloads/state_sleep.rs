//! `state_sleep SECONDS CPU VARIANT`: blocked in a system call that is neither a lock nor a fault: `nanosleep`, `pipe`
//! (a read, with a thread that writes now and then), `poll`, `epoll`, or `fsync` (not interruptible: the disk).

use std::fs::File;
use std::io::{Read, Seek, Write, pipe};
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use experiment_format::microstate::Microstate;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tests::ledger::Ledger;
use tests::truth::{Work, monotonic_ns, variant};

/// One sleep.
const NAP: Duration = Duration::from_millis(2);
/// The same, for the calls that count milliseconds.
const NAP_MS: u8 = 2;

fn main() -> Result<()> {
    let work = Work::start("state_sleep")?;
    match variant()?.as_str() {
        "nanosleep" => repeat(work, || {
            sleep(NAP);
            Ok(())
        }),
        "pipe" => read_pipe(work),
        "poll" => {
            let (reader, _writer) = pipe()?;
            repeat(work, || {
                let mut watched = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
                poll(&mut watched, PollTimeout::from(NAP_MS))?;
                Ok(())
            })
        }
        "epoll" => {
            let (reader, _writer) = pipe()?;
            let epoll = Epoll::new(EpollCreateFlags::empty())?;
            epoll.add(&reader, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            repeat(work, || {
                epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::from(NAP_MS))?;
                Ok(())
            })
        }
        "fsync" => {
            let mut file: File = tempfile::tempfile_in("/var/tmp").context("/var/tmp")?;
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
    work.end(naps)
}

fn read_pipe(mut work: Work) -> Result<()> {
    let (mut reader, mut writer) = pipe()?;
    let until_ns = work.until_ns();
    let thread = std::thread::spawn(move || {
        let mut ledger = Ledger::start()?;
        while monotonic_ns()? < until_ns {
            ledger.blocked(Microstate::Sleep, || sleep(NAP))?;
            writer.write_all(&[1])?;
        }
        // The pipe's end is the end of the reader.
        drop(writer);
        ledger.end()
    });
    let mut reads = 0;
    while work.blocked(Microstate::Sleep, || reader.read(&mut [0]))?? > 0 {
        reads += 1;
    }
    let account = work.blocked(Microstate::UserLock, || thread.join())?;
    work.account(&account.map_err(|_| anyhow!("the writer panicked"))??);
    work.end(reads)
}
