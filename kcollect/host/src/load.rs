//! The load: the command given on the command line.
//!
//! It inherits everything as it is: standard streams, environment, working directory. What it is
//! not is ours to end: when the run ends before it, it goes on.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{AccessFlags, access};

/// Looks for a load's program before anything is opened: a misspelt name should not cost a
/// recording. Gives the name and why it can't be executed.
#[must_use]
pub fn refused(words: &[OsString]) -> Option<(&OsStr, io::Error)> {
    let program = words.first()?;
    let check = |path: &Path| match path.is_dir() {
        true => Err(io::Error::from_raw_os_error(libc::EACCES)),
        false => access(path, AccessFlags::X_OK).map_err(io::Error::from),
    };
    let path = Path::new(program);
    let result = if path.components().count() > 1 || path.is_absolute() {
        check(path)
    } else {
        let mut result = Err(io::Error::from_raw_os_error(libc::ENOENT));
        for directory in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
            match check(&directory.join(program)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => result = found,
            }
            if result.is_ok() {
                break;
            }
        }
        result
    };
    Some((program, result.err()?))
}

/// A thread that keeps what kcollect was started with, and waits to start the load with it.
///
/// Dropped before, it starts nothing.
#[derive(Debug)]
pub struct Starter {
    go: Sender<()>,
    started: Receiver<io::Result<Load>>,
}

impl Starter {
    /// Begins to wait. The rest is as for [`Load::start`].
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn wait(
        words: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
    ) -> io::Result<Starter> {
        let (words, ignore) = (words.to_vec(), ignore.to_vec());
        let (go, gone) = channel();
        let (done, started) = channel();
        let work = move || {
            if gone.recv().is_ok() {
                // Nobody is waiting any more only if the session has ended.
                let _ = done.send(Load::start(&words, descriptors, &ignore));
            }
        };
        thread::Builder::new().name("load".to_owned()).spawn(work)?;
        Ok(Starter { go, started })
    }

    /// Starts it.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub fn start(self) -> io::Result<Load> {
        let ended = |_| io::Error::other("the thread that starts it has ended");
        self.go.send(()).map_err(|_| ended(()))?;
        self.started.recv().map_err(|_| ended(()))?
    }
}

/// A load that was started.
#[derive(Debug)]
pub struct Load {
    child: Child,
    /// How it ended, once it has.
    pub status: Option<ExitStatus>,
}

impl Load {
    /// Starts it. `descriptors` is how many files it may have open, soft and hard, where that is
    /// not what kcollect has; the signals that kcollect was started to `ignore` it ignores too.
    ///
    /// # Errors
    /// What `execve(2)` says: there is no such program, or it is none.
    pub fn start(
        words: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
    ) -> io::Result<Load> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut command = Command::new(program);
        command.args(arguments);
        let ignore = ignore.to_vec();
        let nice = nice();
        let restore = move || {
            for signal in &ignore {
                // SAFETY: no handler is set.
                if unsafe { libc::signal(*signal, libc::SIG_IGN) } == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            set_nice(nice)?;
            match descriptors {
                Some((soft, hard)) => {
                    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(io::Error::from)
                }
                None => Ok(()),
            }
        };
        // SAFETY: between fork and exec it does a few system calls, and takes no memory.
        unsafe { command.pre_exec(restore) };
        let child = command.spawn()?;
        Ok(Load {
            child,
            status: None,
        })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended?
    ///
    /// # Errors
    /// When the system can't tell.
    pub fn ended(&mut self) -> io::Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_some())
    }
}

/// The nice value of the calling thread.
fn nice() -> i32 {
    // SAFETY: takes and gives numbers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets it.
///
/// # Errors
/// What `setpriority(2)` says.
fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: takes and gives numbers.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(program: &str) -> Option<i32> {
        refused(&[program.into()])?.1.raw_os_error()
    }

    #[test]
    fn a_starter_starts_when_it_is_told() {
        let words = ["sh".into(), "-c".into(), "exit 3".into()];
        let mut load = Starter::wait(&words, None, &[]).unwrap().start().unwrap();
        while !load.ended().unwrap() {
            thread::yield_now();
        }
        assert_eq!(load.status.unwrap().code(), Some(3));
        let none = Starter::wait(&["no-such-program-anywhere".into()], None, &[]).unwrap();
        assert_eq!(none.start().unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(Starter::wait(&words, None, &[]).unwrap());
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert_eq!(kind("sh"), None);
        assert_eq!(kind("/bin/sh"), None);
        assert_eq!(kind("no-such-program-anywhere"), Some(libc::ENOENT));
        assert_eq!(kind("/no/such"), Some(libc::ENOENT));
        assert_eq!(kind("/etc/passwd"), Some(libc::EACCES));
        assert_eq!(kind("/etc"), Some(libc::EACCES));
        assert!(refused(&[]).is_none());
    }
}
