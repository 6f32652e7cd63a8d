//! `state_kfault SECONDS CPU`: hands the kernel pages of a mapped file that is not in memory, by
//! turns to write to a pipe and to read `/dev/zero` into: blocked in page faults that the kernel
//! takes when it copies.

use std::fs::File;
use std::io::{Read, pipe};
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use experiment_format::microstate::Microstate;
use nix::sys::mman::ProtFlags;
use tests::machine::cold_file::ColdFile;
use tests::workload::truth::Work;

fn main() -> Result<()> {
    let mut work = Work::start("state_kfault")?;
    let data = ColdFile::make(&mut work, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
    let (mut reader, writer) = pipe()?;
    let zero = File::open("/dev/zero")?;
    let mut touches = 0;
    // Once in any case: a slow disk may take all the time to make the file.
    while touches == 0 || !work.over()? {
        data.drop_cache(&mut work)?;
        for place in data.places() {
            let copied = work.blocked(Microstate::KernelFault, || {
                if touches % 2 == 0 {
                    // SAFETY: the kernel reads one byte of a page that is mapped for reading.
                    unsafe { libc::write(writer.as_raw_fd(), place.as_ptr().cast(), 1) }
                } else {
                    // SAFETY: the kernel writes one byte of a page that is mapped for writing and
                    // has no other user.
                    unsafe { libc::read(zero.as_raw_fd(), place.as_ptr().cast(), 1) }
                }
            })?;
            ensure!(copied == 1, "{}", std::io::Error::last_os_error());
            if touches % 2 == 0 {
                reader.read_exact(&mut [0])?;
            }
            touches += 1;
        }
    }
    data.remove(&mut work)?;
    work.end(touches)
}
