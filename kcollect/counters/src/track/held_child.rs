//! A command that is held before its first instruction, until its counters are open.
//!
//! The standard library's `spawn` returns when the program runs, so a thread of its own calls it
//! here: between fork and exec the child sends its number through a pipe, and waits. It inherits
//! what kcollect was started with. If kcollect ends before it releases the child, the child exits
//! without having done anything.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread::{JoinHandle, spawn};

use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{close, pipe2, read, write};
use types::ids::Pid;

/// A child process that waits before its exec.
#[derive(Debug)]
pub struct HeldChild {
    pid: Pid,
    release: OwnedFd,
    spawned: JoinHandle<io::Result<Child>>,
}

impl HeldChild {
    /// Forks a command. `file_limits` are its limits of open files, soft and hard, where they
    /// differ from kcollect's.
    ///
    /// # Errors
    /// The error of `fork(2)`, or `NotFound` of an empty command.
    pub fn start(command: &[OsString], file_limits: Option<(u64, u64)>) -> io::Result<HeldChild> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut command = Command::new(program);
        command.args(arguments);
        let (pid_reader, pid_writer) = pipe2(OFlag::O_CLOEXEC)?;
        let (held, release) = pipe2(OFlag::O_CLOEXEC)?;
        let release_fd = release.as_raw_fd();
        let wait = move || {
            // With its own copy of this end the child would wait forever after kcollect has exited.
            close(release_fd)?;
            if let Some((soft, hard)) = file_limits {
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            }
            write(&pid_writer, &std::process::id().to_ne_bytes())?;
            match read(&held, &mut [0])? {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec it makes system calls only, and allocates no memory.
        unsafe { command.pre_exec(wait) };
        // The thread owns this process's copies of the child's ends of the pipes, so that they are
        // closed when `spawn` has returned.
        let spawned = spawn(move || command.spawn());
        let mut pid = [0; 4];
        let count = loop {
            match read(&pid_reader, &mut pid) {
                Err(nix::errno::Errno::EINTR) => {}
                count => break count?,
            }
        };
        if count != pid.len() {
            // It failed before it could send its number; the thread has the error.
            let failed = spawned.join().map_err(|_| io::Error::other("no child"))?;
            let failed = failed.err();
            return Err(failed.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()));
        }
        Ok(HeldChild {
            pid: Pid(u32::from_ne_bytes(pid)),
            release,
            spawned,
        })
    }

    /// Returns the child's process, which still executes kcollect's program.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the child execute the command.
    ///
    /// # Errors
    /// The error of `execve(2)`, such as that there is no such program.
    pub fn release(self) -> io::Result<Child> {
        write(&self.release, &[1])?;
        let spawned = self.spawned.join();
        spawned.map_err(|_| io::Error::other("the thread that starts the command ended"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn child_is_held_until_it_is_released() {
        let held = HeldChild::start(&command(&["sh", "-c", "exit 3"]), None).unwrap();
        let pid = held.pid();
        assert_ne!(pid, Pid(std::process::id()));
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_ne!(name.trim(), "sh");
        let mut child = held.release().unwrap();
        assert_eq!(Pid(child.id()), pid);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_missing_program_is_an_error_at_the_release() {
        let held = HeldChild::start(&command(&["/no/such/program"]), None).unwrap();
        assert_eq!(held.release().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_child_that_is_not_released_exits() {
        let HeldChild {
            release, spawned, ..
        } = HeldChild::start(&command(&["true"]), None).unwrap();
        drop(release);
        assert!(spawned.join().unwrap().is_err());
    }
}
