//! The load: the command that runs while kcollect records.
//!
//! It inherits the standard streams, the environment and the working directory unchanged. kcollect
//! never ends it: when the recording ends first, the load goes on.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use experiment_format::ids::Pid;
use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{AccessFlags, access};

/// Returns the load's program and the error if it cannot be executed. It is called before anything
/// is opened, so that a misspelt name fails at once.
#[must_use]
pub fn refused(argv: &[OsString]) -> Option<(&OsStr, io::Error)> {
    let program = argv.first()?;
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

/// A thread that keeps the privileges with which kcollect was started, and starts the load with
/// them.
///
/// If it is dropped first, no load is started.
#[derive(Debug)]
pub struct Starter {
    start: Sender<()>,
    started: Receiver<io::Result<Load>>,
}

impl Starter {
    /// Creates the thread, which waits for [`Starter::start`]. The arguments are those of
    /// [`Load::start`].
    ///
    /// # Errors
    /// No thread can be created.
    pub fn wait(
        argv: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
    ) -> io::Result<Starter> {
        let (argv, ignore) = (argv.to_vec(), ignore.to_vec());
        let (start, requests) = channel();
        let (results, started) = channel();
        let work = move || {
            if requests.recv().is_ok() {
                // It fails only if the session has ended.
                let _ = results.send(Load::start(&argv, descriptors, &ignore));
            }
        };
        thread::Builder::new().name("load".to_owned()).spawn(work)?;
        Ok(Starter { start, started })
    }

    /// Starts the load.
    ///
    /// # Errors
    /// As [`Load::start`].
    pub fn start(self) -> io::Result<Load> {
        let ended = |_| io::Error::other("the thread that starts it has ended");
        self.start.send(()).map_err(|_| ended(()))?;
        self.started.recv().map_err(|_| ended(()))?
    }
}

/// A running or finished load.
#[derive(Debug)]
pub struct Load {
    child: Child,
    /// The exit status, once the load has exited.
    pub status: Option<ExitStatus>,
}

impl Load {
    /// Starts the load. `descriptors` is its limit of open files, soft and hard, if that differs
    /// from kcollect's own; `ignore` are the signals that it ignores, as kcollect was started to.
    ///
    /// # Errors
    /// Errors of `execve(2)`: there is no such program, or it cannot be executed.
    pub fn start(
        argv: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
    ) -> io::Result<Load> {
        let (program, arguments) = argv
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
        // SAFETY: between fork and exec it makes a few system calls and allocates no memory.
        unsafe { command.pre_exec(restore) };
        let child = command.spawn()?;
        Ok(Load {
            child,
            status: None,
        })
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Returns whether it has exited.
    ///
    /// # Errors
    /// Errors of `waitpid(2)`.
    pub fn ended(&mut self) -> io::Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_some())
    }
}

/// Returns the nice value of the calling thread.
fn nice() -> i32 {
    // SAFETY: passes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice value of the calling thread.
///
/// # Errors
/// Errors of `setpriority(2)`.
fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: passes numbers only.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(program: &str) -> Option<i32> {
        refused(&[program.into()])?.1.raw_os_error()
    }

    #[test]
    fn a_starter_starts_the_load_on_request() {
        let argv = ["sh".into(), "-c".into(), "exit 3".into()];
        let mut load = Starter::wait(&argv, None, &[]).unwrap().start().unwrap();
        while !load.ended().unwrap() {
            thread::yield_now();
        }
        assert_eq!(load.status.unwrap().code(), Some(3));
        let none = Starter::wait(&["no-such-program-anywhere".into()], None, &[]).unwrap();
        assert_eq!(none.start().unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(Starter::wait(&argv, None, &[]).unwrap());
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert_eq!(errno("sh"), None);
        assert_eq!(errno("/bin/sh"), None);
        assert_eq!(errno("no-such-program-anywhere"), Some(libc::ENOENT));
        assert_eq!(errno("/no/such"), Some(libc::ENOENT));
        assert_eq!(errno("/etc/passwd"), Some(libc::EACCES));
        assert_eq!(errno("/etc"), Some(libc::EACCES));
        assert!(refused(&[]).is_none());
    }
}
