//! `getdents SECONDS CPU`: lists `/usr/bin` over and over. Most of its time is kernel time, spread
//! over many functions: the system call, the VFS, the file system's directory code, copying to user
//! memory.

use std::ffi::CString;
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{Whence, lseek};
use tests::workload::truth::Work;

fn main() -> Result<()> {
    let work = Work::start("getdents")?;
    let directory = Dir::open(
        CString::new("/usr/bin")?.as_c_str(),
        OFlag::O_RDONLY | OFlag::O_DIRECTORY,
        Mode::empty(),
    )?;
    let mut buffer = vec![0u8; 32 * 1024];
    let mut calls = 0;
    while !work.over()? {
        // SAFETY: the descriptor is open, and the kernel writes at most `buffer.len()` bytes into
        // the buffer.
        let filled = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                directory.as_raw_fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        ensure!(
            filled >= 0,
            "getdents64: {}",
            std::io::Error::last_os_error()
        );
        if filled == 0 {
            lseek(&directory, 0, Whence::SeekSet)?;
        }
        calls += 1;
    }
    work.end(calls)
}
