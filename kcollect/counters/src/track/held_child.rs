//! A command that is held before its first instruction, until its counters are there.
//!
//! The standard library's `spawn` returns when the program runs, so it has a thread of its own
//! here: the child says its number, and waits, between fork and exec. What it inherits is what
//! kcollect was started with. Where kcollect ends before it lets the child go, the child ends too,
//! having done nothing.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread::{JoinHandle, spawn};

use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{close, pipe2, read, write};

/// A child that waits for its exec.
#[derive(Debug)]
pub struct Gate {
    pid: u32,
    hold: OwnedFd,
    spawned: JoinHandle<io::Result<Child>>,
}

impl Gate {
    /// Forks. `descriptors` is how many files it may have open, soft and hard, where that is not
    /// what kcollect has.
    ///
    /// # Errors
    /// What `fork(2)` says, or `NotFound` of no words.
    pub fn start(words: &[OsString], descriptors: Option<(u64, u64)>) -> io::Result<Gate> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut command = Command::new(program);
        command.args(arguments);
        let (told, tell) = pipe2(OFlag::O_CLOEXEC)?;
        let (held, hold) = pipe2(OFlag::O_CLOEXEC)?;
        let ours = hold.as_raw_fd();
        let wait = move || {
            // The child's copy would keep the pipe open when kcollect is gone, and the child
            // waiting for ever.
            close(ours)?;
            if let Some((soft, hard)) = descriptors {
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            }
            write(&tell, &std::process::id().to_ne_bytes())?;
            match read(&held, &mut [0])? {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                _ => Ok(()),
            }
        };
        // SAFETY: between fork and exec it makes system calls, and takes no memory.
        unsafe { command.pre_exec(wait) };
        // The thread owns our copies of the child's ends, so that they are closed when `spawn` has
        // returned.
        let spawned = spawn(move || command.spawn());
        let mut pid = [0; 4];
        let count = loop {
            match read(&told, &mut pid) {
                Err(nix::errno::Errno::EINTR) => {}
                count => break count?,
            }
        };
        if count != pid.len() {
            // It failed before it could say its number, and says so there.
            let failed = spawned.join().map_err(|_| io::Error::other("no child"))?;
            let failed = failed.err();
            return Err(failed.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()));
        }
        Ok(Gate {
            pid: u32::from_ne_bytes(pid),
            hold,
            spawned,
        })
    }

    /// Its process, which is kcollect's own program still.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it go.
    ///
    /// # Errors
    /// What `execve(2)` says: there is no such program, or it is none.
    pub fn open(self) -> io::Result<Child> {
        write(&self.hold, &[1])?;
        let spawned = self.spawned.join();
        spawned.map_err(|_| io::Error::other("the thread that starts the command ended"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn it_is_held_and_let_go() {
        let gate = Gate::start(&words(&["sh", "-c", "exit 3"]), None).unwrap();
        let pid = gate.pid();
        assert_ne!(pid, std::process::id());
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_ne!(name.trim(), "sh");
        let mut child = gate.open().unwrap();
        assert_eq!(child.id(), pid);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_program_that_is_none_says_so_when_it_is_let_go() {
        let gate = Gate::start(&words(&["/no/such/program"]), None).unwrap();
        assert_eq!(gate.open().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn who_is_not_let_go_ends() {
        let Gate { hold, spawned, .. } = Gate::start(&words(&["true"]), None).unwrap();
        drop(hold);
        assert!(spawned.join().unwrap().is_err());
    }
}
